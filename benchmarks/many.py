"""Measure the speed-up of `decompose_many`: python benchmarks/many.py [COUNT]

Decomposes crops of a photograph (VGG-16 up to layer 31 at 128 px, 256 regions) serially and with `decompose_many`,
alternating; wall-clock time, with as many threads as torch uses.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import numpy as np
from PIL import Image
from skimage import data

import bilrp

ROUNDS, CROP_PIXELS = 3, 200


def make_crops(count: int) -> list[Image.Image]:
    """Cut random squares from a photograph of a cat."""
    photo, side = Image.fromarray(data.chelsea()), CROP_PIXELS
    limits = photo.width - side, photo.height - side
    corners = np.random.default_rng(0).integers(0, limits, (count, 2)).tolist()
    return [photo.crop((x, y, x + side, y + side)) for x, y in corners]


def measure_seconds(decompositions: Iterable[bilrp.Decomposition]) -> float:
    """Consume the decompositions and return the wall-clock time."""
    start = time.perf_counter()
    for _ in decompositions:
        pass
    return time.perf_counter() - start


def main(count: int = 32) -> None:
    encoder, crops = bilrp.encoders.vgg16(31), make_crops(count)
    bilrp.decompose(encoder, crops[0])
    print("| serial | decompose_many | speed-up |\n|---|---|---|")
    for _ in range(ROUNDS):
        serial = measure_seconds(bilrp.decompose(encoder, crop) for crop in crops)
        parallel = measure_seconds(bilrp.decompose_many(encoder, crops))
        print(f"| {serial:.1f} s | {parallel:.1f} s | {serial / parallel:.2f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
