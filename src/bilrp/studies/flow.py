"""Where did each pixel go? Dense optical flow between frames, exact displacement for known transformations.

A displacement is float (2, H, W): (down, right) in pixels, from each pixel of a to its place in b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from bilrp.cache import Cache, content_of, key_of
from bilrp.encoders import images
from bilrp.errors import InputError

STILL = 1.0  # pixels; what moved less than this between the two frames stands still
RETURN = 2.0  # pixels; there and back again must end no farther than this from the start


@dataclass(frozen=True, eq=False)
class Motion:
    """What went where between a and b: displacements there and back, and the pixels for which both agree.

    `seen_a` and `seen_b` are False where a pixel has no partner: hidden in the other frame, or out of the picture.
    """

    there: np.ndarray
    back: np.ndarray
    seen_a: np.ndarray
    seen_b: np.ndarray


def between(frames: np.ndarray, *, cache: Cache | None = None) -> Motion:
    """Motion from the first of some consecutive frames (n, H, W, 3) to the last, step by step.

    Small steps chained find large motions that a single comparison of the two ends misses.
    """
    cache = cache or Cache(None)
    key = key_of(content_of(frames), {"what": "flow", "method": "tvl1", "version": 1})
    kept = cache.get("flow", key)
    if kept is not None:
        return checked(kept[0]["there"].numpy(), kept[0]["back"].numpy())
    greys = [frame @ np.array([0.299, 0.587, 0.114]) / 255 for frame in frames.astype(np.float64)]
    there, back = chain(greys), chain(greys[::-1])
    cache.put("flow", key, {"there": torch.from_numpy(there), "back": torch.from_numpy(back)})
    return checked(there, back)


def chain(greys: list[np.ndarray]) -> np.ndarray:
    """Displacement from the first to the last picture through all between."""
    from skimage.registration import optical_flow_tvl1

    total = np.zeros((2, *greys[0].shape))
    for before, after in pairwise(greys):
        step = np.stack(optical_flow_tvl1(before, after, num_warp=4))
        total = follow(total, step)
    return total


def follow(first: np.ndarray, then: np.ndarray) -> np.ndarray:
    """Two displacements after each other: d(p) = d₁(p) + d₂(p + d₁(p))."""
    return first + at(then, first)


def at(field: np.ndarray, displacement: np.ndarray) -> np.ndarray:
    """A field (channels, H, W) read where each pixel went, between pixels linearly."""
    from scipy.ndimage import map_coordinates

    places = np.indices(displacement.shape[1:]) + displacement
    return np.stack([map_coordinates(values, places, order=1, mode="nearest") for values in field])


def checked(there: np.ndarray, back: np.ndarray) -> Motion:
    """A pixel has a partner if following it there and back returns to where it started."""
    return Motion(there, back, _returns(there, back), _returns(back, there))


def _returns(there: np.ndarray, back: np.ndarray) -> np.ndarray:
    astray = np.hypot(*(there + at(back, there)))
    return inside(there) & (astray <= RETURN + 0.05 * np.hypot(*there))


def inside(displacement: np.ndarray) -> np.ndarray:
    """Where a pixel's new place is still in the picture."""
    height, width = displacement.shape[1:]
    rows, columns = np.indices((height, width)) + displacement
    return (rows > -0.5) & (rows < height - 0.5) & (columns > -0.5) & (columns < width - 0.5)


@dataclass(frozen=True, eq=False)
class Transform:
    """A known change of a picture: `apply` on pixels (H, W, 3), and where it takes each of them."""

    name: str
    apply: Callable[[np.ndarray], np.ndarray]
    motion: Callable[[tuple[int, int]], Motion]


def parse(text: str) -> Transform:
    """rotate:DEGREES (counter-clockwise), shift:RIGHT,DOWN (pixels) or flip.

    >>> parse("rotate:90").name
    'rotate:90'
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "rotate":
            return _rotate(float(rest))
        if kind == "shift":
            right, down = (float(piece) for piece in rest.split(","))
            return _shift(right, down)
        if kind == "flip" and not rest:
            return _affine("flip", np.array([[1.0, 0.0], [0.0, -1.0]]), np.zeros(2))
    except ValueError:
        pass
    raise InputError(f"a transform is rotate:90, shift:8,0 (right, down) or flip, got {text!r}")


def _rotate(degrees: float) -> Transform:
    angle = np.deg2rad(degrees)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return _affine(f"rotate:{degrees:g}", turn, np.zeros(2))


def _shift(right: float, down: float) -> Transform:
    return _affine(f"shift:{right:g},{down:g}", np.eye(2), np.array([down, right]))


def _affine(name: str, matrix: np.ndarray, offset: np.ndarray) -> Transform:
    """p' = M (p − middle) + middle + offset, on (row, column)."""
    inverse = np.linalg.inv(matrix)

    def apply(pixels: np.ndarray) -> np.ndarray:
        from scipy.ndimage import map_coordinates

        middle = (np.array(pixels.shape[:2]) - 1)[:, None, None] / 2
        places = np.indices(pixels.shape[:2]) - middle - offset[:, None, None]
        source = np.einsum("ij,jhw->ihw", inverse, places) + middle
        # whole pixels stay whole: cos 90° is not quite zero in floating point
        source = np.where(np.abs(source - np.rint(source)) < 1e-6, np.rint(source), source)
        channels = [
            map_coordinates(
                pixels[..., c].astype(float), source, order=1, mode="constant", cval=255 * images.MEAN[c]
            )
            for c in range(pixels.shape[2])
        ]
        return np.rint(np.stack(channels, axis=-1)).clip(0, 255).astype(np.uint8)

    def motion(shape: tuple[int, int]) -> Motion:
        middle = (np.array(shape) - 1)[:, None, None] / 2
        grid = np.indices(shape)
        there = np.einsum("ij,jhw->ihw", matrix, grid - middle) + middle + offset[:, None, None] - grid
        back = np.einsum("ij,jhw->ihw", inverse, grid - middle - offset[:, None, None]) + middle - grid
        return Motion(there, back, inside(there), inside(back))

    return Transform(name, apply, motion)
