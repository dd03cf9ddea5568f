"""Convert a scan to ink: print is positive, paper is exactly zero, and digits have a fixed height."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from bilrp.encoders import images
from bilrp.errors import InputError, import_optional

DIGIT_HEIGHT_PIXELS = 11.6
"""Digit height that scans are scaled to: old-style print then has a pitch of 8 px."""

BLOCK_PIXELS = 16
"""Side of the squares on which paper and print darkness are estimated."""

ImageLike = str | Path | Image.Image | np.ndarray


def load_gray(raw_input: ImageLike) -> np.ndarray:
    """Read a file, Pillow image or array as float32 [height, width], 0 black to 1 white."""
    if isinstance(raw_input, np.ndarray):
        gray = _gray_array(raw_input)
    else:
        gray = np.asarray(images.open_image(raw_input).convert("L"), dtype=np.float32) / 255.0
    if min(gray.shape) < BLOCK_PIXELS:
        raise InputError(f"image of {gray.shape[1]}×{gray.shape[0]} px is too small for a table")
    return gray


def _gray_array(array: np.ndarray) -> np.ndarray:
    if array.ndim == 3 and array.shape[2] in (3, 4):
        array = array[..., :3].mean(axis=2)
    if array.ndim != 2:
        raise InputError(
            f"expected an image of shape (height, width) or (height, width, 3), got {array.shape}"
        )
    gray = array.astype(np.float32) / (255.0 if array.dtype == np.uint8 else 1.0)
    if not np.isfinite(gray).all():
        raise InputError("image contains NaN or infinite values")
    return gray


def resize_array(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Resample a float image to (height, width); downsampling averages, so that thin strokes remain visible."""
    image = Image.fromarray(np.ascontiguousarray(array, dtype=np.float32))
    return np.asarray(image.resize((shape[1], shape[0]), Image.Resampling.BICUBIC))


def _block_percentiles(array: np.ndarray, q: float) -> np.ndarray:
    """Return the q-th percentile of every BLOCK×BLOCK square; the edges are padded by reflection."""
    rows, cols = (-array.shape[0] % BLOCK_PIXELS, -array.shape[1] % BLOCK_PIXELS)
    padded = np.pad(array, ((0, rows), (0, cols)), mode="reflect")
    h, w = padded.shape[0] // BLOCK_PIXELS, padded.shape[1] // BLOCK_PIXELS
    squares = padded.reshape(h, BLOCK_PIXELS, w, BLOCK_PIXELS).transpose(0, 2, 1, 3).reshape(h, w, -1)
    return np.percentile(squares, q, axis=2).astype(np.float32)


def _upsample_blocks(blocks: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    full = resize_array(blocks, (blocks.shape[0] * BLOCK_PIXELS, blocks.shape[1] * BLOCK_PIXELS))
    return full[: shape[0], : shape[1]]


def estimate_ink(gray: np.ndarray) -> np.ndarray:
    """Return the ink of each pixel in [0, 1]: 0 on paper, about 1 in the middle of a stroke.

    ink = clip((paper − gray) / contrast − floor), with paper and contrast estimated locally, so that yellowed paper and
    uneven light do not change the result.
    """
    ndimage = import_optional("scipy.ndimage", "tables", "scanned tables")
    paper = ndimage.median_filter(_block_percentiles(gray, 80), size=5, mode="nearest")
    paper = _upsample_blocks(ndimage.gaussian_filter(paper, 1.0, mode="nearest"), gray.shape)
    dark = np.clip(paper - gray, 0, None)
    strongest = _block_percentiles(dark, 98)
    printed = strongest[strongest > 0.1]
    typical = float(np.median(printed)) if printed.size else 0.5
    near = ndimage.percentile_filter(strongest, 70, size=9, mode="nearest")
    contrast = np.clip(near, 0.6 * typical, 1.4 * typical)
    contrast = np.maximum(
        _upsample_blocks(ndimage.gaussian_filter(contrast, 2.0, mode="nearest"), gray.shape), 0.05
    )
    return np.clip((dark / contrast - 0.2) / 0.6, 0, 1).astype(np.float32)


def find_components(mask: np.ndarray) -> list[tuple[tuple[slice, slice], int]]:
    """Return the (rows, columns) slices and the number of pixels of each connected component of a mask."""
    measure = import_optional("skimage.measure", "tables", "scanned tables")
    numbered = measure.label(mask, connectivity=2)
    return [(component.slice, int(component.num_pixels)) for component in measure.regionprops(numbered)]


def estimate_digit_height(ink: np.ndarray) -> float | None:
    """Return the most frequent glyph height in pixels, or None if there are too few glyph-like shapes."""
    components = find_components(ink > 0.5)
    boxes = [(s[0].stop - s[0].start, s[1].stop - s[1].start) for s, _ in components]
    sizes = np.array([h for h, w in boxes if h >= 6 and 0.15 * h <= w <= 1.3 * h], dtype=float)
    if sizes.size < 12:
        return None
    # Large shapes are rare, so compare logarithmic bins: ±8 % around each candidate height.
    candidates = np.unique(sizes)
    votes = [np.sum(np.abs(sizes / c - 1) <= 0.08) for c in candidates]
    best = candidates[int(np.argmax(votes))]
    return float(sizes[np.abs(sizes / best - 1) <= 0.12].mean())


def normalize_scan(raw_input: ImageLike) -> tuple[np.ndarray, float]:
    """Return the ink of a scan at the network's scale, and the scale factor.

    Images with too few glyphs (a photograph, blank paper) keep their scale.
    """
    ink = estimate_ink(load_gray(raw_input))
    height = estimate_digit_height(ink)
    factor = 1.0 if height is None else float(np.clip(DIGIT_HEIGHT_PIXELS / height, 0.2, 3.0))
    if abs(factor - 1) < 0.03:
        return ink, 1.0
    shape = (max(round(ink.shape[0] * factor), BLOCK_PIXELS), max(round(ink.shape[1] * factor), BLOCK_PIXELS))
    return np.clip(resize_array(ink, shape), 0, 1), factor
