"""Where did each pixel go? Dense optical flow between frames, exact displacement for known transformations.

A displacement is float (2, H, W): (down, right) in pixels, from each pixel of a to its place in b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from bilrp.io.cache import Cache, content_of, key_of
from bilrp.encoders import images
from bilrp.errors import InputError

STILL = 1.0  # pixels; what moved less than this between the two frames stands still
NOISE = 0.01  # of full brightness; differences below it show nothing
WINDOW = 1.0  # pixels; how far around a pixel the two pictures are compared
RETURN = 2.0  # pixels; there and back again must end no farther than this from the start


@dataclass(frozen=True, eq=False)
class Motion:
    """What went where between a and b: displacements there and back, and which pixels moved or stood still.

    A pixel that is neither has no partner: hidden in the other frame, or out of the picture. `moved` and `stood` have two
    entries, for a and for b. `background_moves` says whether most of the picture does.
    """

    there: np.ndarray
    back: np.ndarray
    moved: tuple[np.ndarray, np.ndarray]
    stood: tuple[np.ndarray, np.ndarray]
    background_moves: bool


def between(frames: np.ndarray, *, cache: Cache | None = None) -> Motion:
    """Motion from the first of some consecutive frames (n, H, W, 3) to the last, step by step.

    Small steps chained find large motions that a single comparison of the two ends misses.
    """
    cache = cache or Cache(None)
    key = key_of(content_of(frames), {"what": "flow", "method": "tvl1", "version": 1})
    greys = [frame @ np.array([0.299, 0.587, 0.114]) / 255 for frame in frames.astype(np.float64)]
    kept = cache.get("flow", key)
    if kept is not None:
        return judged(kept[0]["there"].numpy(), kept[0]["back"].numpy(), greys[0], greys[-1])
    there, back = chain(greys), chain(greys[::-1])
    cache.put("flow", key, {"there": torch.from_numpy(there), "back": torch.from_numpy(back)})
    return judged(there, back, greys[0], greys[-1])


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


def judged(there: np.ndarray, back: np.ndarray, first: np.ndarray, last: np.ndarray) -> Motion:
    """Which pixels moved, which stood still, and which have no partner.

    A pixel has a partner if following it there and back returns to where it started. It moved if it went at least `STILL`
    pixels and the pictures agree with that better than with standing still. Where they agree with both (plain surfaces,
    into which flow spreads from their surroundings) it goes with the majority of the picture: the camera moves, or not.
    """
    a, b = _kinds(there, back, first, last), _kinds(back, there, last, first)
    return Motion(there, back, (a[0], b[0]), (a[1], b[1]), int(a[0].sum()) > int(a[1].sum()))


def _kinds(
    there: np.ndarray, back: np.ndarray, here: np.ndarray, other: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(moved, stood) for the pixels of one frame."""
    from scipy.ndimage import gaussian_filter

    def apart(picture: np.ndarray) -> np.ndarray:
        return gaussian_filter(np.abs(here - picture), WINDOW)

    far, partner = np.hypot(*there) >= STILL, _returns(there, back)
    staying, going = apart(other), apart(at(other[None], there)[0])
    shows = staying > going + NOISE
    plain = ~shows & (staying < 2 * NOISE)
    moved, stood = far & shows & partner, ~far & partner
    detail = gaussian_filter(np.hypot(*np.gradient(here)), WINDOW) > NOISE
    if (moved & detail).sum() > (stood & detail).sum():
        moved = moved | (far & plain & partner)
    return moved, (stood | plain) & ~moved


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
        moved = (inside(there) & (np.hypot(*there) >= STILL), inside(back) & (np.hypot(*back) >= STILL))
        stood = (inside(there) & ~moved[0], inside(back) & ~moved[1])
        return Motion(there, back, moved, stood, int(moved[0].sum()) > int(stood[0].sum()))

    return Transform(name, apply, motion)
