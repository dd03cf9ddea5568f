"""Motion of pixels: dense optical flow between frames, exact displacement for known transforms.

A displacement is float (2, H, W): (down, right) in pixels, from each pixel of a to its position in b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from bilrp.encoders import images
from bilrp.errors import InputError
from bilrp_studies.common.cache import Cache, compute_key, hash_array

MIN_MOTION_PIXELS = 1.0  # smaller displacements between the two frames count as static
BRIGHTNESS_NOISE = 0.01  # fraction of full brightness; smaller differences are ignored
COMPARISON_SIGMA_PIXELS = 1.0  # Gaussian window in which the two images are compared
MAX_RETURN_ERROR_PIXELS = 2.0  # forward-backward consistency: maximum distance after going there and back


@dataclass(frozen=True, eq=False)
class Motion:
    """Motion between a and b: displacements forward and backward, and masks of moved and static pixels.

    A pixel that is neither has no counterpart: it is occluded in the other frame, or outside the image. `moved` and `still`
    have two entries, for a and for b. `background_moves` is True if most pixels move.
    """

    forward: np.ndarray
    backward: np.ndarray
    moved: tuple[np.ndarray, np.ndarray]
    still: tuple[np.ndarray, np.ndarray]
    background_moves: bool


def estimate_motion(frames: np.ndarray, *, cache: Cache | None = None) -> Motion:
    """Estimate the motion from the first to the last of some consecutive frames (n, H, W, 3).

    Flow is chained over consecutive frames, which finds large motions that a comparison of the two ends misses.
    """
    cache = cache or Cache(None)
    key = compute_key(hash_array(frames), {"what": "flow", "method": "tvl1", "version": 1})
    greys = [frame @ np.array([0.299, 0.587, 0.114]) / 255 for frame in frames.astype(np.float64)]
    stored = cache.get("flow", key)
    if stored is not None:
        return classify_pixels(stored[0]["there"].numpy(), stored[0]["back"].numpy(), greys[0], greys[-1])
    there, back = chain_flow(greys), chain_flow(greys[::-1])
    cache.put("flow", key, {"there": torch.from_numpy(there), "back": torch.from_numpy(back)})
    return classify_pixels(there, back, greys[0], greys[-1])


def chain_flow(gray_frames: list[np.ndarray]) -> np.ndarray:
    """Return the displacement from the first to the last image, chained over all images in between."""
    from skimage.registration import optical_flow_tvl1

    total = np.zeros((2, *gray_frames[0].shape))
    for before, after in pairwise(gray_frames):
        step = np.stack(optical_flow_tvl1(before, after, num_warp=4))
        total = compose_flow(total, step)
    return total


def compose_flow(first: np.ndarray, then: np.ndarray) -> np.ndarray:
    """Compose two displacements: d(p) = d₁(p) + d₂(p + d₁(p))."""
    return first + sample_at(then, first)


def sample_at(field: np.ndarray, displacement: np.ndarray) -> np.ndarray:
    """Sample a field (channels, H, W) at the displaced position of each pixel, with linear interpolation."""
    from scipy.ndimage import map_coordinates

    places = np.indices(displacement.shape[1:]) + displacement
    return np.stack([map_coordinates(values, places, order=1, mode="nearest") for values in field])


def classify_pixels(forward: np.ndarray, backward: np.ndarray, first: np.ndarray, last: np.ndarray) -> Motion:
    """Classify pixels as moved, static, or without a counterpart.

    A pixel has a counterpart if forward and backward flow return it to its start. It moved if its displacement is at least
    `MIN_MOTION_PIXELS` and the images agree with that better than with no motion. Where they agree with both (uniform
    surfaces, into which flow spreads from their surroundings), the pixel is classified like the majority of the image.

    Args:
        forward: Displacement from the first to the last image.
        backward: Displacement from the last to the first image.
        first: The first image, grey values in [0, 1].
        last: The last image.
    """
    a, b = _moved_and_still(forward, backward, first, last), _moved_and_still(backward, forward, last, first)
    return Motion(forward, backward, (a[0], b[0]), (a[1], b[1]), int(a[0].sum()) > int(a[1].sum()))


def _moved_and_still(
    forward: np.ndarray, backward: np.ndarray, image: np.ndarray, other_image: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the masks (moved, static) of the pixels of one frame."""
    from scipy.ndimage import gaussian_filter

    def apart(picture: np.ndarray) -> np.ndarray:
        return gaussian_filter(np.abs(image - picture), COMPARISON_SIGMA_PIXELS)

    far, partner = np.hypot(*forward) >= MIN_MOTION_PIXELS, _is_consistent(forward, backward)
    staying, going = apart(other_image), apart(sample_at(other_image[None], forward)[0])
    shows = staying > going + BRIGHTNESS_NOISE
    plain = ~shows & (staying < 2 * BRIGHTNESS_NOISE)
    moved, stood = far & shows & partner, ~far & partner
    detail = gaussian_filter(np.hypot(*np.gradient(image)), COMPARISON_SIGMA_PIXELS) > BRIGHTNESS_NOISE
    if (moved & detail).sum() > (stood & detail).sum():
        moved = moved | (far & plain & partner)
    return moved, (stood | plain) & ~moved


def _is_consistent(forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
    astray = np.hypot(*(forward + sample_at(backward, forward)))
    return is_inside(forward) & (astray <= MAX_RETURN_ERROR_PIXELS + 0.05 * np.hypot(*forward))


def is_inside(displacement: np.ndarray) -> np.ndarray:
    """Return the mask of pixels whose displaced position is inside the image."""
    height, width = displacement.shape[1:]
    rows, columns = np.indices((height, width)) + displacement
    return (rows > -0.5) & (rows < height - 0.5) & (columns > -0.5) & (columns < width - 0.5)


@dataclass(frozen=True, eq=False)
class Transform:
    """A known transform of an image: `apply` on pixels (H, W, 3), and `motion`, the displacement of each pixel."""

    name: str
    apply: Callable[[np.ndarray], np.ndarray]
    motion: Callable[[tuple[int, int]], Motion]


def parse_transform(text: str) -> Transform:
    """Parse rotate:DEGREES (counter-clockwise), shift:RIGHT,DOWN (pixels) or flip.

    >>> parse_transform("rotate:90").name
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
    """p' = M (p − centre) + centre + offset, on (row, column)."""
    inverse = np.linalg.inv(matrix)

    def apply(pixels: np.ndarray) -> np.ndarray:
        from scipy.ndimage import map_coordinates

        middle = (np.array(pixels.shape[:2]) - 1)[:, None, None] / 2
        places = np.indices(pixels.shape[:2]) - middle - offset[:, None, None]
        source = np.einsum("ij,jhw->ihw", inverse, places) + middle
        # round near-integer coordinates: cos 90° is not exactly zero in floating point
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
        moved = (
            is_inside(there) & (np.hypot(*there) >= MIN_MOTION_PIXELS),
            is_inside(back) & (np.hypot(*back) >= MIN_MOTION_PIXELS),
        )
        stood = (is_inside(there) & ~moved[0], is_inside(back) & ~moved[1])
        return Motion(there, back, moved, stood, int(moved[0].sum()) > int(stood[0].sum()))

    return Transform(name, apply, motion)
