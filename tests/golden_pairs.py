"""Explain the golden pairs and compare with golden/numbers.json, or write it: python tests/golden_pairs.py [--write]

All pairs of ten texts (MiniLM), of five photographs (EfficientNet-Lite0, MobileNetV2, VGG-16 at three layers) and five
pairs of drawn table pages (bigram). Photographs are PNG files of scikit-image and pages are PNG files in golden/,
because decoders of JPEG and fonts differ between versions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import combinations, islice
from pathlib import Path

import numpy as np

import bilrp
from bilrp.encoders import load

FOLDER = Path(__file__).with_name("golden")
NUMBERS_FILE = FOLDER / "numbers.json"
TOLERANCE = 2e-4
"""Largest difference of any number of a pair, relative to its largest marginal; float32 sums differ by 1e-6 to 1e-5."""

TEXTS = (
    "A kitten sleeps on the sofa.", "The young cat is resting on a couch.", "The drug is safe for children.",
    "The drug is not safe for children.", "How do I reset my password?", "Open Settings, choose Security, then change it.",
    "Two dogs run along the beach at sunset.", "Interest rates were raised again by the central bank.",
    "Der Zug nach Berlin hat heute zwanzig Minuten Verspätung.", "def add(a, b): return a + b",
)  # fmt: skip
PHOTOGRAPHS = ("chelsea", "astronaut", "coffee", "motorcycle_left", "motorcycle_right")
VGG_LAYERS = (5, 17, 31)
PAGES = ("page_a", "page_b", "page_c", "page_d")
PAGE_PAIRS = 5


def explain_pairs() -> Iterator[tuple[str, bilrp.Explanation]]:
    """Yield the name and the explanation of each pair."""
    for name, inputs in (
        ("minilm", TEXTS),
        ("efficientnet", locate_photographs()),
        ("mobilenet", locate_photographs()),
        ("bigram", [FOLDER / f"{page}.png" for page in PAGES]),
    ):
        encoder = load(name)
        regions = None if name in ("minilm", "bigram") else 32
        sides = [bilrp.decompose(encoder, x, regions=regions) for x in inputs]
        pairs = combinations(range(len(sides)), 2)
        for i, j in islice(pairs, PAGE_PAIRS) if name == "bigram" else pairs:
            yield f"{name} {i} {j}", bilrp.pair(sides[i], sides[j])
    by_layer = [bilrp.decompose(load("vgg16"), x, layers=VGG_LAYERS) for x in locate_photographs()]
    for layer in VGG_LAYERS:
        for i, j in combinations(range(len(by_layer)), 2):
            yield f"vgg16:{layer} {i} {j}", bilrp.pair(by_layer[i][layer], by_layer[j][layer])


def locate_photographs() -> list[Path]:
    """Return the photographs in the installed scikit-image, without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("skimage")
    assert spec is not None and spec.origin is not None
    return [Path(spec.origin).parent / "data" / f"{name}.png" for name in PHOTOGRAPHS]


def summarize(explanation: bilrp.Explanation) -> list[float]:
    """Return score, unattributed and the norm of the relevance, then both marginals, in float64."""
    relevance = explanation.relevance.double()
    rows, columns = relevance.sum(1), relevance.sum(0)
    head = [explanation.score, explanation.unattributed, float(relevance.norm())]
    return [*head, *rows.tolist(), *columns.tolist()]


def measure_difference(numbers: list[float], golden: list[float]) -> float:
    """Return the largest difference, relative to the largest golden number; infinite if the regions differ."""
    if len(numbers) != len(golden):
        return float("inf")
    return float(np.abs(np.subtract(numbers, golden)).max() / np.abs(golden).max())


def compare() -> dict[str, float]:
    """Return the difference of each pair from the golden numbers."""
    golden = json.loads(NUMBERS_FILE.read_text())
    pairs = {name: summarize(explanation) for name, explanation in explain_pairs()}
    assert pairs.keys() == golden.keys()
    return {name: measure_difference(numbers, golden[name]) for name, numbers in pairs.items()}


def main() -> None:
    """Write the numbers, or print the largest difference of each encoder."""
    if "--write" in sys.argv:
        numbers = {
            name: [float(f"{x:.7g}") for x in summarize(explanation)] for name, explanation in explain_pairs()
        }
        NUMBERS_FILE.write_text(json.dumps(numbers, separators=(",", ":")).replace("],", "],\n") + "\n")
        print(f"{len(numbers)} pairs written")
        return
    differences = compare()
    for encoder in dict.fromkeys(name.split()[0] for name in differences):
        largest = max(value for name, value in differences.items() if name.split()[0] == encoder)
        print(f"{encoder:14s} {largest:.1e}")


if __name__ == "__main__":
    main()
