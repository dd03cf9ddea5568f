"""Print the tables of docs/true.md from a run of the arena: python benchmarks/arena_tables.py OUT

OUT is the folder of `bilrp study arena --out OUT`. The first two tables, for photographs and for texts, have a row for each
encoder, ground truth and measure, those where the default loses most first. The third says what the score loses without
the regions of the first findings, the last on how many pairs no other method's loss is larger.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bilrp_studies.arena.report import COMPARISONS

NAMES = {
    "efficientnet": "EfficientNet-Lite0",
    "gte-small": "gte-small",
    "minilm": "MiniLM",
    "minilm, nouns": "MiniLM trained on nouns",
    "mobilenet": "MobileNetV2",
    "resnet50": "ResNet-50",
    "vgg16:31": "VGG-16, layer 31",
}
TRUTHS = {"class": "boxes of one class", "nouns": "shared nouns", "warp": "warps"}
METHODS = {
    "default": "**default**",
    "AttnLRP": "AttnLRP",
    "Shapley pairs": "Shapley<br>pairs",
    "Hessian×Product": "Hessian×<br>Product",
    "integrated Jacobians": "integrated<br>Jacobians",
    "occlusion": "occlusion",
    "last layer": "last<br>layer",
    "Grad-CAM": "Grad-<br>CAM",
    "PAIR-X": "PAIR-X",
    "same place": "same<br>place",
    "random": "random",
}
MEASURES = ("× chance", "signed", "hit", "AUC")
TOP_OF_SCALE = 0.995  # rows in which the default and another method are always right say nothing
TRIVIAL = ("same place", "random")
TEXT_METHODS = ("AttnLRP", "Shapley pairs")


def format_row(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def format_value(value: float | None, best: float | None = None) -> str:
    """Return a number with two digits, without the zero before the point, bold if it is the best of its row.

    >>> format_value(0.123), format_value(-0.5), format_value(12.0, 12.0), format_value(None)
    ('.12', '−.50', '**12.00**', '–')
    """
    if value is None:
        return "–"
    text = f"{value:.2f}".replace("-", "−")
    text = text.replace("0.", ".", 1) if text.lstrip("−").startswith("0.") else text
    return f"**{text}**" if best is not None and f"{value:.2f}" == f"{best:.2f}" else text


def print_header(*titles: str) -> None:
    """Print the first two lines of a Markdown table."""
    print(format_row(titles))
    print("|" + "---|" * len(titles))


def print_truths(table: Mapping[str, Mapping[str, Any]], *, texts: bool) -> None:
    """Print a row for each encoder, ground truth and measure, the default's largest losses first.

    Args:
        table: {"encoder | truth": {method: {measure: interval}}}, of results.json.
        texts: whether to print the rows of texts, or those of photographs.
    """
    names = [name for name in METHODS if texts or name not in TEXT_METHODS]
    rows = []
    for key, by_method in table.items():
        encoder, truth = key.split(" | ")
        if truth.startswith("warp: ") or truth == "stereo" or texts != ("AttnLRP" in by_method):
            continue
        pairs = by_method["default"]["hit"]["pairs"]
        for measure in MEASURES:
            values = {name: each[measure]["mean"] for name, each in by_method.items() if measure in each}
            others = [value for name, value in values.items() if name not in ("default", *TRIVIAL)]
            if measure in ("hit", "AUC") and others and min(values["default"], max(others)) > TOP_OF_SCALE:
                continue
            best = max(values.values())
            cells = [format_value(values.get(name), best) for name in names]
            head = f"{NAMES.get(encoder, encoder)}, {TRUTHS.get(truth, truth)} ({pairs} pairs)"
            rows.append((values["default"] / best, format_row([head, measure, *cells])))
    print_header("encoder, truth", "measure", *(METHODS[name] for name in names))
    for _, line in sorted(rows):
        print(line)


def print_falls(table: Mapping[str, Mapping[str, Any]]) -> None:
    """Print what the score loses without the regions of the first findings of each method.

    Args:
        table: as for `print_truths`.
    """
    print_header("encoder, truth", *METHODS.values())
    for key, by_method in table.items():
        encoder, truth = key.split(" | ")
        if "fall" in by_method["default"]:
            falls = {name: each["fall"]["mean"] for name, each in by_method.items()}
            cells = [format_value(falls.get(name), max(falls.values())) for name in METHODS]
            pairs = by_method["default"]["fall"]["pairs"]
            print(format_row([f"{NAMES[encoder]}, {TRUTHS.get(truth, truth)} ({pairs} pairs)", *cells]))


def print_largest_falls(covering: Mapping[str, Mapping[str, Any]]) -> None:
    """Print on how many pairs no other method's fall is larger, with its interval, for everything that is covered.

    Args:
        covering: {"encoder, kind": {"every other": interval}}, of results.json.
    """
    print_header("encoder", *(kind.removeprefix(", ") or "first findings" for kind in COMPARISONS))
    for encoder, name in NAMES.items():
        if encoder in covering:
            cells = []
            for kind in COMPARISONS:
                interval = covering[f"{encoder}{kind}"]["every other"]
                mean, low, high = (format_value(interval[key]) for key in ("mean", "low", "high"))
                cells.append(f"{mean} ({low} to {high})")
            print(format_row([name, *cells]))


def main(folder: str) -> None:
    """Print the tables of a run in a folder."""
    results = json.loads((Path(folder) / "results.json").read_text())
    for texts in (False, True):
        print_truths(results["table"], texts=texts)
        print()
    print_falls(results["table"])
    print()
    print_largest_falls(results["covering"])


if __name__ == "__main__":
    main(*sys.argv[1:])
