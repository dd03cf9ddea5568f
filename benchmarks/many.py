"""What `decompose_many` gains: python benchmarks/many.py [COUNT]

Crops of a photograph (VGG-16 up to layer 31 at 128 px, 256 regions), one after another and by `decompose_many`, in turn;
by the clock, on as many threads as torch has.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import numpy as np
from PIL import Image
from skimage import data

import bilrp

ROUNDS, SIDE = 3, 200


def crops(count: int) -> list[Image.Image]:
    """Squares of a photograph of a cat, each somewhere else."""
    whole, draw = Image.fromarray(data.chelsea()), np.random.default_rng(0)
    corners = draw.integers(0, (whole.width - SIDE, whole.height - SIDE), (count, 2)).tolist()
    return [whole.crop((x, y, x + SIDE, y + SIDE)) for x, y in corners]


def seconds(made: Iterable[bilrp.Decomposition]) -> float:
    start = time.perf_counter()
    for _ in made:
        pass
    return time.perf_counter() - start


def main(count: int = 32) -> None:
    encoder, things = bilrp.encoders.vgg16(31), crops(count)
    bilrp.decompose(encoder, things[0])
    print("| one after another | decompose_many | gain |\n|---|---|---|")
    for _ in range(ROUNDS):
        one = seconds(bilrp.decompose(encoder, thing) for thing in things)
        many = seconds(bilrp.decompose_many(encoder, things))
        print(f"| {one:.1f} s | {many:.1f} s | {one / many:.2f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
