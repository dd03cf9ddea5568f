"""Find a ruled table on a page: deskew it, remove the ruled lines, and detect rows, columns and cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bilrp.encoders.binarization import (
    DIGIT_HEIGHT_PIXELS,
    ImageLike,
    estimate_digit_height,
    estimate_ink,
    load_gray,
    resize_array,
)
from bilrp.encoders.binarization import find_components as connected
from bilrp.errors import InputError
from bilrp_studies.common.digit_training import LAYOUT_SCALE

LAYOUT_DIGIT_HEIGHT = DIGIT_HEIGHT_PIXELS * LAYOUT_SCALE


@dataclass(frozen=True)
class Glyphs:
    """Bounding boxes of connected components: x0, y0, x1, y1, one row each, in layout pixels."""

    boxes: np.ndarray

    @property
    def x(self) -> np.ndarray:
        return (self.boxes[:, 0] + self.boxes[:, 2]) / 2

    @property
    def y(self) -> np.ndarray:
        return (self.boxes[:, 1] + self.boxes[:, 3]) / 2

    @property
    def width(self) -> np.ndarray:
        return self.boxes[:, 2] - self.boxes[:, 0]

    @property
    def height(self) -> np.ndarray:
        return self.boxes[:, 3] - self.boxes[:, 1]

    def select(self, selection: np.ndarray) -> Glyphs:
        return Glyphs(self.boxes[selection])


@dataclass(frozen=True)
class TableLayout:
    """A deskewed page and its table: row centres, column intervals, cell borders and ruled lines.

    All coordinates are pixels of `ink`; `angle` (degrees) and `scale` map the scan to `ink`.
    """

    ink: np.ndarray
    angle: float
    scale: float
    rows: np.ndarray
    columns: np.ndarray
    borders: np.ndarray
    glyphs: Glyphs
    rules: np.ndarray

    def cell(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Return the box x0, y0, x1, y1 of one cell."""
        y = self.rows[row]
        return (
            self.borders[column],
            y - 0.62 * LAYOUT_DIGIT_HEIGHT,
            self.borders[column + 1],
            y + 0.62 * LAYOUT_DIGIT_HEIGHT,
        )


def find_layout(image: ImageLike) -> TableLayout:
    """Find the table of one page; raise InputError with the reason if there is none.

    >>> find_layout("page.jpg").rows.shape  # doctest: +SKIP
    (33,)
    """
    ink, angle, factor = straighten(estimate_ink(load_gray(image)))
    rules = find_rules(ink > 0.5)
    shapes = find_glyphs((ink > 0.5) & ~rules)
    tall = shapes.select(
        (shapes.height >= 0.7 * LAYOUT_DIGIT_HEIGHT) & (shapes.height <= 1.35 * LAYOUT_DIGIT_HEIGHT)
    )
    if np.median(tall.width / tall.height) > 1.1:
        raise InputError("the page seems to be rotated by 90°: its glyphs are wider than tall")
    rows = _find_rows(tall)
    columns = _find_columns(shapes, rows, ink.shape[1])
    rows = rows[[_is_in_columns(_find_words(shapes, y), columns) for y in rows]]
    _require_cells(tall, rows, columns)
    _require_upright(tall, rows, columns)
    borders = _find_borders(columns, rules, rows)
    return TableLayout(ink, angle, factor, rows, columns, borders, shapes, rules)


def straighten(ink: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Scale to a digit height of LAYOUT_DIGIT_HEIGHT and rotate text lines to horizontal: (ink, angle, factor).

    The angle θ maximises Σ_b n_b², n_b the glyph centres with y − x tan θ in bin b.
    """
    from scipy import ndimage

    result = estimate_digit_height(ink)
    if result is None:
        raise InputError("no table found: the page has almost no glyph-like shapes")
    factor = float(np.clip(LAYOUT_DIGIT_HEIGHT / result, 0.2, 6.0))
    if max(ink.shape) * factor > 8000:
        raise InputError("no table found: its glyphs are too small for a page of this size")
    ink = np.clip(resize_array(ink, (round(ink.shape[0] * factor), round(ink.shape[1] * factor))), 0, 1)
    shapes = find_glyphs(ink > 0.5)
    tall = shapes.select(
        (shapes.height >= 0.75 * LAYOUT_DIGIT_HEIGHT) & (shapes.height <= 1.3 * LAYOUT_DIGIT_HEIGHT)
    )
    if len(tall.boxes) < 40:
        raise InputError(f"no table found: only {len(tall.boxes)} glyphs of one size on the page")
    angles = np.arange(-4, 4.001, 0.05)
    angle = float(angles[int(np.argmax([_levelness(tall, a) for a in angles]))])
    turned = ndimage.rotate(ink, angle, reshape=False, order=1, mode="constant", cval=0.0)
    return np.clip(turned, 0, 1), angle, factor


def _levelness(glyphs: Glyphs, angle: float) -> float:
    level = glyphs.y - glyphs.x * np.tan(np.radians(angle))
    counts = np.bincount(np.round((level - level.min()) / 3).astype(int))
    return float(np.sum(counts.astype(float) ** 2))


def find_rules(ink_mask: np.ndarray) -> np.ndarray:
    """Return the mask of the ruled lines: runs of ink much longer than any stroke of a glyph."""
    from scipy import ndimage

    across = ndimage.binary_opening(ink_mask, np.ones((1, round(3 * LAYOUT_DIGIT_HEIGHT)), bool))
    down = ndimage.binary_opening(ink_mask, np.ones((round(1.6 * LAYOUT_DIGIT_HEIGHT), 1), bool))
    return ndimage.binary_dilation(np.logical_or(across, down), np.ones((3, 3), bool)) & ink_mask


def find_glyphs(ink_mask: np.ndarray) -> Glyphs:
    """Return the boxes of the connected components of a mask, without specks."""
    boxes = [(s[1].start, s[0].start, s[1].stop, s[0].stop) for s, size in connected(ink_mask) if size >= 6]
    return Glyphs(np.array(boxes, dtype=float).reshape(-1, 4))


def _find_rows(digit_glyphs: Glyphs) -> np.ndarray:
    """Return centres of the text lines: peaks of the density of glyphs over y."""
    from scipy import ndimage, signal

    top = int(digit_glyphs.y.max()) + 2
    density = np.bincount(np.round(digit_glyphs.y).astype(int), minlength=top).astype(float)
    smooth = (
        ndimage.gaussian_filter1d(density, 0.12 * LAYOUT_DIGIT_HEIGHT)
        * 0.12
        * LAYOUT_DIGIT_HEIGHT
        * np.sqrt(2 * np.pi)
    )
    padded = np.pad(smooth, 2)
    peaks, _ = signal.find_peaks(padded, distance=max(round(0.8 * LAYOUT_DIGIT_HEIGHT), 1))
    peaks = peaks - 2
    counts = np.array([np.sum(np.abs(digit_glyphs.y - p) < 0.3 * LAYOUT_DIGIT_HEIGHT) for p in peaks])
    lines = peaks[counts >= 0.35 * counts.max()] if peaks.size else peaks
    if lines.size < 3:
        raise InputError(f"no table found: only {lines.size} text lines of one kind on the page")
    neighbours = np.abs(digit_glyphs.y[None] - lines[:, None]) < 0.3 * LAYOUT_DIGIT_HEIGHT
    return np.array([np.median(digit_glyphs.y[n]) for n in neighbours])


def _find_words(glyphs: Glyphs, y: float) -> np.ndarray:
    """Return intervals [x0, x1] of the words of one line: shapes less than 0.6 digit heights apart."""
    on = glyphs.select(
        (np.abs(glyphs.y - y) < 0.45 * LAYOUT_DIGIT_HEIGHT) & (glyphs.height < 1.5 * LAYOUT_DIGIT_HEIGHT)
    )
    boxes = on.boxes[np.argsort(on.boxes[:, 0])]
    boxes = boxes[
        (boxes[:, 3] - boxes[:, 1] >= 0.12 * LAYOUT_DIGIT_HEIGHT)
        & (boxes[:, 2] - boxes[:, 0] >= 0.08 * LAYOUT_DIGIT_HEIGHT)
    ]
    words: list[list[float]] = []
    for x0, _, x1, _ in boxes:
        if words and x0 - words[-1][1] < 0.6 * LAYOUT_DIGIT_HEIGHT:
            words[-1][1] = max(words[-1][1], x1)
        else:
            words.append([x0, x1])
    return np.array(words).reshape(-1, 2)


def _find_columns(glyphs: Glyphs, rows: np.ndarray, width: int) -> np.ndarray:
    """Return intervals [x0, x1] that words cover in at least 40 % of the text lines."""
    cover = np.zeros(width)
    for y in rows:
        line = np.zeros(width)
        for x0, x1 in _find_words(glyphs, y):
            line[int(x0) : int(x1)] = 1
        cover += line
    inside = np.concatenate([[False], cover >= 0.4 * len(rows), [False]])
    edges = np.flatnonzero(np.diff(inside.astype(int)))
    intervals = np.stack([edges[::2], edges[1::2]], axis=1).astype(float)
    intervals = regularize_columns(
        intervals[intervals[:, 1] - intervals[:, 0] >= 0.4 * LAYOUT_DIGIT_HEIGHT], cover / len(rows)
    )
    if len(intervals) < 3:
        raise InputError(f"no table found: only {len(intervals)} columns that run down the page")
    return intervals


def regularize_columns(columns: np.ndarray, coverage: np.ndarray) -> np.ndarray:
    """Split merged columns [n, 2] and restore faint ones, if most columns have the same width and pitch.

    Remains of a worn ruled line merge two columns, and faint print covers too few lines; but k merged columns are k − 1
    pitches wider than one, and a missing column leaves a gap. `coverage` is the share of lines with print at each x; columns
    are restored only where there is print.

    >>> left = np.array([0.0, 88, 176, 352, 440, 528])
    >>> joined = np.stack([left, left + np.array([71, 71, 159, 71, 71, 71])], axis=1)
    >>> regularize_columns(joined, np.full(600, 0.9))[:, 0].tolist()
    [0.0, 88.0, 176.0, 264.0, 352.0, 440.0, 528.0]
    """
    usual = _common_width_and_pitch(columns)
    if usual is None:
        return columns
    width, pitch = usual
    parted: list[tuple[float, float]] = []
    for left, right in columns.tolist():
        count = 1 + round((right - left - width) / pitch)
        fits = abs(right - left - width - (count - 1) * pitch) < 0.25 * pitch
        step = (right - left - width) / (count - 1) if count > 1 and fits else 0.0
        parted += (
            [(left + i * step, left + i * step + width) for i in range(count)] if step else [(left, right)]
        )
    result = parted[:1]
    for left, right in parted[1:]:
        count = max(0, round((left - result[-1][0]) / pitch) - 1)
        step = (left - result[-1][0]) / (count + 1)
        start = result[-1][0]
        faint = [_find_faint_column(coverage, start + i * step, width, pitch) for i in range(1, count + 1)]
        result += [*(each for each in faint if each is not None), (left, right)]
    while (before := _find_faint_column(coverage, result[0][0] - pitch, width, pitch)) is not None:
        result.insert(0, before)
    while (after := _find_faint_column(coverage, result[-1][0] + pitch, width, pitch)) is not None:
        result.append(after)
    return np.array(result)


def _common_width_and_pitch(columns: np.ndarray) -> tuple[float, float] | None:
    """Return width and pitch shared by at least four columns and half of all; else None."""
    if len(columns) < 4:
        return None
    widths = columns[:, 1] - columns[:, 0]
    width = float(np.median(widths))
    alike = np.abs(widths - width) < 0.15 * width
    steps = np.diff(columns[:, 0])[alike[:-1] & alike[1:]]
    if len(steps) == 0:
        return None
    pitch = float(np.median(steps))
    same = int((np.abs(steps - pitch) < 0.15 * pitch).sum())
    return (width, pitch) if alike.sum() >= max(4, len(columns) / 2) and same >= 3 else None


def _find_faint_column(
    coverage: np.ndarray, left: float, width: float, pitch: float
) -> tuple[float, float] | None:
    """Return the interval with most print within a fifth of a pitch of the expected column; None if there is too little.

    Print counts where at least a tenth of the lines have it; more than 60 % of the column's width must be covered.
    """
    reach = round(0.2 * pitch)
    starts = [
        s for s in range(round(left) - reach, round(left) + reach + 1) if 0 <= s <= len(coverage) - width
    ]
    if not starts:
        return None
    # Ties are resolved by the distance to the expected position.
    best = max(starts, key=lambda s: (float(coverage[s : s + round(width)].sum()), -abs(s - left)))
    shown = float((coverage[best : best + round(width)] >= 0.1).mean())
    return (float(best), best + width) if shown > 0.6 else None


def _is_in_columns(words: np.ndarray, columns: np.ndarray) -> bool:
    """Return whether the words of a line fit the columns; those of a heading do not."""
    slack = 0.5 * LAYOUT_DIGIT_HEIGHT
    inside = (words[:, :1] >= columns[:, 0] - slack) & (words[:, 1:] <= columns[:, 1] + slack)
    return bool(inside.any(axis=1).mean() >= 0.5) if len(words) else False


def _require_cells(digit_glyphs: Glyphs, rows: np.ndarray, columns: np.ndarray) -> None:
    """Raise InputError unless most glyphs are inside cells, as in a table but not in a photograph or a text."""
    on_row = (np.abs(digit_glyphs.y[:, None] - rows[None]) < 0.3 * LAYOUT_DIGIT_HEIGHT).any(axis=1)
    inside = (digit_glyphs.x[:, None] >= columns[:, 0] - 2) & (digit_glyphs.x[:, None] <= columns[:, 1] + 2)
    share = float((on_row & inside.any(axis=1)).mean())
    if len(rows) < 3 or share < 0.75:
        raise InputError(f"no table found: {share:.0%} of the glyphs form rows and columns")


def _require_upright(digit_glyphs: Glyphs, rows: np.ndarray, columns: np.ndarray) -> None:
    """Raise InputError if the page is upside down: the gap of the decimal point must be near the front, as in 9·093."""
    front = back = 0
    for y in rows:
        line = digit_glyphs.select(np.abs(digit_glyphs.y - y) < 0.3 * LAYOUT_DIGIT_HEIGHT)
        for x0, x1 in columns:
            x = np.sort(line.x[(line.x > x0 - 2) & (line.x < x1 + 2)])
            if len(x) == 4:
                gaps = np.diff(x)
                front += gaps[0] - np.median(gaps) > 0.15 * LAYOUT_DIGIT_HEIGHT and np.argmax(gaps) == 0
                back += gaps[2] - np.median(gaps) > 0.15 * LAYOUT_DIGIT_HEIGHT and np.argmax(gaps) == 2
    if back > 20 and back > 3 * front:
        raise InputError("the page seems to be upside down: turn it by 180 degrees")


def _find_borders(columns: np.ndarray, rules: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return cell borders: the vertical ruled line in each gutter if there is one, else the gutter's centre."""
    body = rules[int(rows.min()) : int(rows.max()) + 1]
    ruled = body.sum(axis=0)
    inner = []
    for left, right in zip(columns[:-1, 1], columns[1:, 0], strict=True):
        gutter = ruled[int(left) : int(right) + 1]
        best = int(np.argmax(gutter)) if gutter.size else 0
        result = gutter.size > 0 and gutter[best] > 0.15 * len(body)
        inner.append(left + best if result else (left + right) / 2)
    margin = 0.4 * LAYOUT_DIGIT_HEIGHT
    return np.array([columns[0, 0] - margin, *inner, columns[-1, 1] + margin])
