"""Labelled digit patches and negatives, cut from aligned pages."""

from __future__ import annotations

import numpy as np

from bilrp.errors import InputError
from bilrp_studies.common.digit_training import PATCH_PIXELS, Patches, join_patches
from bilrp_studies.tables.page_layout import LAYOUT_DIGIT_HEIGHT, LAYOUT_SCALE, Glyphs
from bilrp_studies.tables.pages import Page

NETWORK_PITCH_PIXELS = 8.0
"""Advance from digit to digit in network pixels."""


def _cut_squares(page: Page, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cut squares of PATCH_PIXELS layout pixels around points in network pixels; outside the page there is no ink."""
    half = PATCH_PIXELS // 2
    padded = np.pad(page.ink, half)
    left, top = np.round(x * LAYOUT_SCALE).astype(int), np.round(y * LAYOUT_SCALE).astype(int)
    left, top = np.clip(left, 0, page.ink.shape[1]), np.clip(top, 0, page.ink.shape[0])
    return np.stack(
        [padded[t : t + PATCH_PIXELS, s : s + PATCH_PIXELS] for s, t in zip(left, top, strict=True)]
    )


def _make_patches(page: Page, points: np.ndarray, label: np.ndarray, reach: tuple[float, float]) -> Patches:
    if len(points) == 0:
        return Patches(
            np.zeros((0, PATCH_PIXELS, PATCH_PIXELS), np.float32), np.zeros(0, int), np.zeros((0, 2))
        )
    return Patches(
        _cut_squares(page, points[:, 0], points[:, 1]), label, np.tile(np.array(reach), (len(points), 1))
    )


def digit_patches(page: Page, count: int, *, seed: int = 0) -> Patches:
    """Return certain digits of a page, as evenly over the ten classes as the page allows.

    Args:
        page: The page.
        count: Maximum number of digits.
        seed: Determines the choice.
    """
    rng = np.random.default_rng(seed)
    certain = np.flatnonzero(page.digits.certain)
    queues = [rng.permutation(certain[page.digits.value[certain] == d]).tolist() for d in range(10)]
    chosen: list[int] = []
    while len(chosen) < count and any(queues):
        for digit in rng.permutation(10):
            if queues[digit] and len(chosen) < count:
                chosen.append(queues[digit].pop())
    if not chosen:
        raise InputError(f"page {page.name} has no digit whose place is certain")
    some = page.digits.select(np.array(chosen))
    return _make_patches(page, np.stack([some.x, some.y], axis=1), some.value, (4.0, 6.0))


def negative_patches(page: Page, count: int, *, seed: int = 0) -> Patches:
    """Return positions without a digit: decimal points, gutters, gaps between lines, letters, ruled lines, blank paper.

    Args:
        page: The page.
        count: Approximate number of patches.
        seed: Determines the choice.
    """
    rng = np.random.default_rng(seed)
    kinds = [
        (decimal_point_centers(page), (2.0, 6.0)),
        (gutter_centers(page), (4.0, 6.0)),
        (line_gap_centers(page), (4.0, 2.0)),
        (letter_centers(page), (4.0, 6.0)),
        (_rule_points(page, rng), (1.5, 4.0)),
        (_paper_points(page, rng), (4.0, 4.0)),
    ]
    shares = np.array([0.15, 0.12, 0.13, 0.4, 0.15, 0.05])
    parts = []
    for (places, reach), share in zip(kinds, shares, strict=True):
        take = min(round(count * share), len(places))
        places = places[rng.permutation(len(places))[:take]].reshape(-1, 2)
        parts.append(_make_patches(page, places, np.full(take, -1), reach))
    return join_patches(parts)


def photo_negative_patches(count: int, *, seed: int = 0) -> Patches:
    """Return patches of photographs and textures without any digit, in place of the paper's non-table pages."""
    from skimage import data as samples

    from bilrp.encoders.binarization import estimate_ink, load_gray

    rng = np.random.default_rng(seed)
    sources = (samples.camera, samples.coffee, samples.coins, samples.brick, samples.grass, samples.moon)
    inks = [np.pad(estimate_ink(load_gray(source())), PATCH_PIXELS // 2) for source in sources]
    ink = []
    for i in range(count):
        source = inks[i % len(inks)]
        top, left = (int(rng.integers(0, n - PATCH_PIXELS)) for n in source.shape)
        ink.append(source[top : top + PATCH_PIXELS, left : left + PATCH_PIXELS])
    return Patches(np.array(ink), np.full(count, -1), np.full((count, 2), 12.0))


def decimal_point_centers(page: Page) -> np.ndarray:
    """Return the centres of the wide gaps within numbers, where the decimal point is."""
    d = page.digits
    a, b = d.bigrams().T
    wide = (d.x[b] - d.x[a] > 1.3 * NETWORK_PITCH_PIXELS) & d.certain[a]
    return np.stack([(d.x[a] + d.x[b])[wide] / 2, (d.y[a] + d.y[b])[wide] / 2], axis=1)


def gutter_centers(page: Page) -> np.ndarray:
    """Return points to the right of the last digit of each certain number, on the ruled line or gap that follows."""
    d = page.digits
    last = np.ones(len(d), bool)
    last[d.bigrams()[:, 0]] = False
    last &= d.certain
    return np.stack([d.x[last] + 0.97 * NETWORK_PITCH_PIXELS, d.y[last]], axis=1)


def line_gap_centers(page: Page) -> np.ndarray:
    """Return points halfway between a digit and the next line of numbers."""
    d = page.digits
    rows = np.array([np.median(d.y[d.row == r]) for r in range(d.row.max() + 1)])
    step = np.diff(rows, append=np.nan)[d.row]
    neighbours = d.certain & (step < 1.7 * LAYOUT_DIGIT_HEIGHT / LAYOUT_SCALE)
    return np.stack([d.x[neighbours], d.y[neighbours] + step[neighbours] / 2], axis=1)


def letter_centers(page: Page) -> np.ndarray:
    """Return centres of glyphs that must be letters: in long words, or in words with lower-case letters, outside the table.

    Page numbers and years have at most four glyphs, so a word of six is not a number; and no digit is as low as a lower-case
    letter.
    """
    d = page.digits
    glyphs, result = page.layout.glyphs, []
    top, bottom = (
        d.y.min() * LAYOUT_SCALE - 0.6 * LAYOUT_DIGIT_HEIGHT,
        d.y.max() * LAYOUT_SCALE + 0.6 * LAYOUT_DIGIT_HEIGHT,
    )
    margin = d.x.min() * LAYOUT_SCALE - 1.2 * LAYOUT_DIGIT_HEIGHT
    off = (glyphs.y < top) | (glyphs.y > bottom) | (glyphs.x < margin)
    sized = (
        (glyphs.height >= 0.4 * LAYOUT_DIGIT_HEIGHT)
        & (glyphs.height <= 2.2 * LAYOUT_DIGIT_HEIGHT)
        & (glyphs.width <= 2 * LAYOUT_DIGIT_HEIGHT)
    )
    for word in _group_words(glyphs.select(off & sized)):
        low = (word.height < 0.68 * LAYOUT_DIGIT_HEIGHT) & (word.width > 0.3 * LAYOUT_DIGIT_HEIGHT)
        if len(word.boxes) >= 6 or low.sum() >= 2:
            result.append(np.stack([word.x, word.y], axis=1) / LAYOUT_SCALE)
    return np.concatenate(result) if result else np.zeros((0, 2))


def _group_words(glyphs: Glyphs) -> list[Glyphs]:
    """Group glyphs that follow one another on a line."""
    order = np.argsort(glyphs.boxes[:, 0])
    words: list[list[int]] = []
    for i in order:
        box = glyphs.boxes[i]
        for word in reversed(words):
            last = glyphs.boxes[word[-1]]
            overlap = min(box[3], last[3]) - max(box[1], last[1])
            if (
                -0.2 * LAYOUT_DIGIT_HEIGHT < box[0] - last[2] < 0.7 * LAYOUT_DIGIT_HEIGHT
                and overlap > 0.3 * LAYOUT_DIGIT_HEIGHT
            ):
                word.append(int(i))
                break
        else:
            words.append([int(i)])
    return [glyphs.select(np.array(word)) for word in words]


def _rule_points(page: Page, rng: np.random.Generator) -> np.ndarray:
    """Return points on ruled lines, away from every digit."""
    y, x = np.nonzero(page.layout.rules)
    some = rng.permutation(len(x))[:4000]
    return _drop_near_digits(page, np.stack([x[some], y[some]], axis=1) / LAYOUT_SCALE, 6.5, 8.0)


def _paper_points(page: Page, rng: np.random.Generator) -> np.ndarray:
    """Return random points away from every digit and every glyph."""
    height, width = page.ink.shape
    points = rng.uniform(0.05, 0.95, size=(400, 2)) * np.array([width, height])
    points = points[page.ink[points[:, 1].astype(int), points[:, 0].astype(int)] == 0] / LAYOUT_SCALE
    points = _drop_near_digits(page, points, 9.0, 10.0)
    g = page.layout.glyphs
    neighbours = (np.abs(points[:, :1] - g.x / LAYOUT_SCALE) < 8) & (
        np.abs(points[:, 1:] - g.y / LAYOUT_SCALE) < 10
    )
    return points[~neighbours.any(axis=1)]


def _drop_near_digits(page: Page, points: np.ndarray, dx: float, dy: float) -> np.ndarray:
    d = page.digits
    neighbours = (np.abs(points[:, :1] - d.x) < dx) & (np.abs(points[:, 1:] - d.y) < dy)
    return points[~neighbours.any(axis=1)]
