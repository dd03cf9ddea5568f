"""Weights of region pairs that link moving or static content, computed from the motion of pixels."""

from __future__ import annotations

import numpy as np

from bilrp_studies.invariance.optical_flow import Motion

TOLERANCE_REGIONS = 1  # a match in a neighbouring region still counts
STILL_PART = -1


def moving_part_weights(motion: Motion, region_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (moving, static), [n, n] each, of region pairs that link the same moving part or static background.

    A part s is a connected set of pixels that moved; f_s(I) is the share of region I's pixels in it, f'_s(I') of those that
    came from it, and moving[I, I'] = Σ_s min(f_s(I), f'_s(I')). static[I, I'] = min(f_0(I), f'_0(I')) with the static
    pixels. Links are required to connect parts, not points, because high layers do not resolve points. A pixel without a
    counterpart (occluded, or outside the image) belongs to the background, whether that moves or not.
    """
    parts, came = label_moving_parts(motion)
    static = np.minimum.outer(
        region_shares(parts == STILL_PART, region_size), region_shares(came == STILL_PART, region_size)
    )
    moving = np.zeros_like(static)
    for part in range(int(parts.max()) + 1):
        moving += np.minimum.outer(
            region_shares(parts == part, region_size), region_shares(came == part, region_size)
        )
    return moving, static


def label_moving_parts(motion: Motion) -> tuple[np.ndarray, np.ndarray]:
    """Return the moving part of each pixel of a, and the part that each pixel of b came from; STILL_PART for static pixels.

    Parts with similar motion (a scene behind a pole) are merged. A moving background is the largest part, number 0.
    """
    from scipy.ndimage import label

    result, count = label(motion.moved[0], structure=np.ones((3, 3)))  # type: ignore[misc]
    parts: np.ndarray = np.asarray(result, dtype=int) - 1
    sizes = np.bincount(parts[parts >= 0], minlength=count)
    means = [motion.forward[:, parts == part].mean(1) for part in range(count)]
    number = np.arange(count)
    order = np.argsort(-sizes, kind="stable")
    for rank, part in enumerate(order.tolist()):
        alike = (p for p in order[:rank].tolist() if _moves_alike(means[p], means[part]))
        number[part] = number[next(alike, part)]
    names = {old: new for new, old in enumerate(dict.fromkeys(number[order].tolist()))}
    renamed = np.array([*(names[old] for old in number.tolist()), STILL_PART], dtype=int)
    parts = np.take(renamed, parts, mode="wrap")  # -1 selects the last entry
    rows, columns = np.rint(np.indices(parts.shape) + motion.backward).astype(int)
    source = parts[rows.clip(0, parts.shape[0] - 1), columns.clip(0, parts.shape[1] - 1)]
    came = np.where(motion.moved[1], source, STILL_PART)
    background = 0 if motion.background_moves and count else STILL_PART
    lost = [~(moved | stood) for moved, stood in zip(motion.moved, motion.still, strict=True)]
    return np.where(lost[0], background, parts), np.where(lost[1], background, came)


def _moves_alike(motion: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.hypot(*(motion - other)) <= 1 + 0.25 * np.hypot(*motion))


def region_shares(mask: np.ndarray, region_size: int) -> np.ndarray:
    """Return the share of each region's pixels that are in the mask, regions row by row."""
    index, count = _region_index(mask.shape, region_size)
    return np.bincount(index.ravel(), mask.ravel().astype(float), count) / np.bincount(index.ravel())


def point_weights(
    motion: Motion,
    region_size: int,
    *,
    tolerance: int = TOLERANCE_REGIONS,
    static_if_same_place: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (moving, static) by point: a link must end within `tolerance` regions of where its points went.

    moving[I, I'] = min(share of I's pixels that moved to I', share of I''s pixels that came from I).

    Args:
        motion: Motion of the pixels.
        region_size: Side of a region in pixels.
        tolerance: Accepted distance from the true region, in regions.
        static_if_same_place: Count every link between the same positions as static, whatever the content; for known
            transforms of still images, in which everything is meant to move.
    """
    ways = (motion.forward, motion.backward)
    moving = [
        _landing_shares(way, mask, region_size, tolerance)
        for way, mask in zip(ways, motion.moved, strict=True)
    ]
    followed = np.minimum(moving[0], moving[1].T)
    if static_if_same_place:
        shape = motion.forward.shape[1:]
        static = _landing_shares(np.zeros((2, *shape)), np.ones(shape, dtype=bool), region_size, tolerance)
        return np.minimum(followed, 1 - static), static
    still = [
        _landing_shares(way, mask, region_size, tolerance)
        for way, mask in zip(ways, motion.still, strict=True)
    ]
    return followed, np.minimum(still[0], still[1].T)


def _landing_shares(
    displacement: np.ndarray, mask: np.ndarray, region_size: int, tolerance: int
) -> np.ndarray:
    """[I, J]: share of region I's pixels that are in the mask and land within `tolerance` regions of J."""
    height, width = displacement.shape[1:]
    start, _ = _region_index((height, width), region_size)
    high, wide = -(-height // region_size), -(-width // region_size)
    rows, columns = np.rint(np.indices((height, width)) + displacement).astype(int)
    row, column = rows.clip(0, height - 1) // region_size, columns.clip(0, width - 1) // region_size
    counts = np.zeros((high * wide, high, wide))
    np.add.at(counts, (start[mask], row[mask], column[mask]), 1.0)
    reach = np.zeros_like(counts)
    steps = range(-tolerance, tolerance + 1)
    for down, right in ((d, r) for d in steps for r in steps):
        into = (slice(max(0, down), high + min(0, down)), slice(max(0, right), wide + min(0, right)))
        out = (slice(max(0, -down), high + min(0, -down)), slice(max(0, -right), wide + min(0, -right)))
        reach[:, *into] += counts[:, *out]
    return reach.reshape(high * wide, -1) / np.bincount(start.ravel())[:, None]


def _region_index(shape: tuple[int, ...], region_size: int) -> tuple[np.ndarray, int]:
    """Return each pixel's region in the grid, and the number of regions."""
    rows, columns = np.indices(shape)
    wide = -(-shape[1] // region_size)
    return rows // region_size * wide + columns // region_size, wide * -(-shape[0] // region_size)
