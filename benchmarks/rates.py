"""Measure what one item costs, for docs/scale.md: OMP_NUM_THREADS=1 python benchmarks/rates.py photographs | texts

Prints a table: CPU time of an item (process time, one thread, median), and bytes of what is stored of it. Photographs are
those of scikit-image, passages have 70 words of the descriptions of installed packages.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch

import bilrp

PACKAGES = ("numpy", "torch", "matplotlib", "rich", "pillow", "safetensors")
QUESTION = "How do I draw a chart of my data?"


def measure_seconds(work: Callable[[Any], Any], items: Iterable[Any]) -> float:
    """Return the median process time of the work on one item, after the first."""
    seconds = []
    for item in items:
        start = time.process_time()
        work(item)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


def count_bytes(parts: torch.Tensor) -> int:
    """Return the bytes of stored parts: bfloat16, on coordinates that are not zero everywhere."""
    return 2 * parts.shape[0] * int((parts != 0).any(0).sum())


def load_photographs() -> list[Path]:
    """Return the photographs in the installed scikit-image."""
    import skimage.data

    folder = Path(skimage.data.__file__).parent
    names = ("chelsea.png", "astronaut.png", "coffee.png", "rocket.jpg", "motorcycle_left.png")
    return [folder / name for name in names if (folder / name).exists()]


def load_passages() -> list[str]:
    """Return passages of 70 words."""
    words = [word for name in PACKAGES for word in str(distribution(name).metadata.get_payload()).split()]
    words = [word for word in words if word.strip(".,:;()").isalpha()]  # no addresses, code or tables
    return [" ".join(words[start : start + 70]) for start in range(0, 420, 70)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("photographs", "texts"))
    photographs = parser.parse_args().kind == "photographs"
    name, items = ("efficientnet", load_photographs()) if photographs else ("minilm", load_passages())
    encoder = bilrp.encoders.load(name)

    def embed(item: Any) -> torch.Tensor:
        with torch.no_grad():
            return encoder.module(encoder.read(item).x)

    rows = [("embedding, with reading", measure_seconds(embed, items), 4 * embed(items[0]).numel())]
    if photographs:
        query = embed(items[0]).flatten()
        highlight: Callable[[Any], Any] = lambda item: bilrp.attribute(encoder, item, query)  # noqa: E731
    else:
        highlight = lambda item: bilrp.highlight(encoder, QUESTION, [item])  # noqa: E731
    rows.append(("highlight of a hit", measure_seconds(highlight, items), 0))
    parts = bilrp.decompose(encoder, items[1])
    seconds = measure_seconds(lambda item: bilrp.decompose(encoder, item), items[:4])
    rows.append((f"parts, {parts.parts.shape[0]} regions", seconds, count_bytes(parts.parts)))
    for title, seconds, size in rows:
        print(f"| {name} | {title} | {seconds:.3f} s | {size / 1000:.1f} kB |", flush=True)


if __name__ == "__main__":
    main()
