"""Print the tables of docs/true.md from a run of the arena: python benchmarks/arena_tables.py OUT

OUT is the folder of `bilrp study arena --out OUT`. The first table has a row for each encoder, ground truth and measure,
those where the default loses most first; the others say what the score loses when regions are covered, by findings and by
region.
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
TOP_OF_SCALE = 0.995  # rows in which every method but the trivial ones is right say nothing
TRIVIAL = ("same place", "random")


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


def print_truths(table: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a row for each encoder, ground truth and measure, the default's largest losses first.

    Args:
        table: {"encoder | truth": {method: {measure: interval}}}, of results.json.
    """
    rows = []
    for key, by_method in table.items():
        encoder, truth = key.split(" | ")
        if truth.startswith("warp: ") or truth == "stereo":
            continue
        pairs = by_method["default"]["hit"]["pairs"]
        for measure in MEASURES:
            values = {name: each[measure]["mean"] for name, each in by_method.items() if measure in each}
            others = [value for name, value in values.items() if name not in ("default", *TRIVIAL)]
            if measure in ("hit", "AUC") and others and min(others) > TOP_OF_SCALE:
                continue
            best = max(values.values())
            cells = [format_value(values.get(name), best) for name in METHODS]
            head = f"{NAMES.get(encoder, encoder)}, {TRUTHS.get(truth, truth)} ({pairs} pairs)"
            rows.append((values["default"] / best, format_row([head, measure, *cells])))
    print(format_row(["encoder, truth", "measure", *METHODS.values()]))
    print("|" + "---|" * (2 + len(METHODS)))
    for _, line in sorted(rows):
        print(line)


def print_covering(results: Mapping[str, Any], kind: str, measure: str, others: str) -> None:
    """Print what the score loses without the first regions, and how often it loses more under the default.

    Args:
        results: the content of results.json.
        kind: the comparison, a key of `COMPARISONS`.
        measure: what the default covers.
        others: what the others cover.
    """
    print(format_row(["encoder (pairs)", "", *METHODS.values(), "all"]))
    print("|" + "---|" * (3 + len(METHODS)))
    for key, by_method in results["table"].items():
        encoder, truth = key.split(" | ")
        if measure not in by_method["default"]:
            continue
        falls = {
            name: each[measure if name == "default" else others]["mean"] for name, each in by_method.items()
        }
        cells = [format_value(falls.get(name), max(falls.values())) for name in METHODS]
        covering = results["covering"][f"{encoder}{kind}"]
        pairs = by_method["default"][measure]["pairs"]
        head = f"{NAMES.get(encoder, encoder)}, {'one class' if truth == 'class' else truth} ({pairs})"
        print(format_row([head, "fall", *cells, ""]))
        shares = [format_value(covering[name]["mean"]) if name in covering else "" for name in METHODS]
        ties, more = (covering[name] for name in ("every other", "more than every other"))
        interval = f"{format_value(ties['low'])} to {format_value(ties['high'])}"
        last = f"{format_value(ties['mean'])} ({format_value(more['mean'])}), {interval}"
        print(format_row(["", "default falls more", *shares, last]))


def main(folder: str) -> None:
    """Print the tables of a run in a folder."""
    results = json.loads((Path(folder) / "results.json").read_text())
    print_truths(results["table"])
    for kind, measures in COMPARISONS.items():
        print(f"\n{kind.removeprefix(', ') or 'by findings'}")
        print_covering(results, kind, *measures)


if __name__ == "__main__":
    main(*sys.argv[1:])
