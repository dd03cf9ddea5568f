"""Align the transcription of a page with its glyphs: the position of each digit, and whether it is certain."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from bilrp.errors import InputError
from bilrp_studies.tables.page_layout import LAYOUT_DIGIT_HEIGHT, LAYOUT_SCALE, Glyphs, TableLayout

DIGIT_PITCH_PIXELS = 0.69 * LAYOUT_DIGIT_HEIGHT
"""Advance from digit to digit, used only to guess how many digits a merged shape holds."""


@dataclass(frozen=True)
class Transcription:
    """The value cells of one page as text, rows from top to bottom, without the row and column labels."""

    values: tuple[tuple[str, ...], ...]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.values), len(self.values[0])


@dataclass(frozen=True)
class Digits:
    """Every transcribed digit of a page: class, centre (network pixels), cell and index within its number."""

    value: np.ndarray
    x: np.ndarray
    y: np.ndarray
    row: np.ndarray
    column: np.ndarray
    place: np.ndarray
    certain: np.ndarray

    def __len__(self) -> int:
        return len(self.value)

    def select(self, selection: np.ndarray) -> Digits:
        """Return the digits selected by a mask or an index array."""
        return Digits(
            *(
                getattr(self, name)[selection]
                for name in ("value", "x", "y", "row", "column", "place", "certain")
            )
        )

    def bigrams(self) -> np.ndarray:
        """Return indices [n, 2] of consecutive digits of the same number."""
        order = np.lexsort((self.place, self.column, self.row))
        a, b = order[:-1], order[1:]
        follows = (self.row[a] == self.row[b]) & (self.column[a] == self.column[b])
        follows &= self.place[b] == self.place[a] + 1
        return np.stack([a[follows], b[follows]], axis=1)


def read_transcription(path: str | Path) -> Transcription:
    """Read a CSV of cells: first row and first column are labels, the rest are numbers such as '9.093'.

    >>> read_transcription("page.csv").shape  # doctest: +SKIP
    (32, 25)
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [[c.strip() for c in row] for row in csv.reader(file, quotechar="'") if row]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the transcription {path}: {error}") from error
    values = tuple(tuple(row[1:]) for row in rows[1:])
    if not values or not values[0] or len({len(v) for v in values}) != 1:
        raise InputError(f"the transcription {path} is not a table with a label row and a label column")
    return Transcription(values)


def extract_digits(text: str) -> str:
    """Return the digits of a cell in reading order, without the decimal point.

    >>> extract_digits("9.093")
    '9093'
    """
    return "".join(c for c in text if c in "0123456789")


def count_bigrams(texts: tuple[str, ...] | list[str]) -> np.ndarray:
    """Count how often each bigram 00…99 occurs in some cells: counts[10 j + k].

    >>> int(count_bigrams(["9.093"]).sum()), int(count_bigrams(["9.093"])[90])
    (3, 1)
    """
    counts = np.zeros(100)
    for text in texts:
        digits = [int(c) for c in extract_digits(text)]
        for j, k in pairwise(digits):
            counts[10 * j + k] += 1
    return counts


def align_digits(layout: TableLayout, transcription: Transcription) -> Digits:
    """Locate every transcribed digit on the page; raise InputError if table and text do not fit.

    A cell is certain if it shows exactly as many digit-shaped glyphs as its text has digits, with the spacing of the page's
    other cells. The digits of other cells are located by the visible part of their number, or by their row and column, with
    the spacing of the certain cells.
    """
    tall = _select_digit_glyphs(layout.glyphs)
    columns, rows = _register_text(layout, tall, transcription)
    centres = _cell_centers(layout, tall, rows, columns)
    texts = [[extract_digits(t) for t in row] for row in transcription.values]
    pages = _spacing(centres, texts)
    certain = _certain_cells(centres, texts, pages)
    if certain.mean() < 0.2:
        raise InputError(f"table and transcription do not fit: {certain.mean():.0%} of the cells agree")
    seen = _locate_numbers(centres, texts, pages, certain)
    # Fallback for columns and rows with too few located numbers: their interval on the page.
    middle = layout.columns[columns].mean(axis=1), layout.rows[rows]
    return _place_digits(centres, texts, pages, certain, seen, middle)


def _select_digit_glyphs(glyphs: Glyphs) -> Glyphs:
    keep = (glyphs.height >= 0.72 * LAYOUT_DIGIT_HEIGHT) & (glyphs.height <= 1.3 * LAYOUT_DIGIT_HEIGHT)
    return glyphs.select(
        keep & (glyphs.width >= 0.1 * LAYOUT_DIGIT_HEIGHT) & (glyphs.width <= 2.6 * LAYOUT_DIGIT_HEIGHT)
    )


def _glyphs_in_cell(layout: TableLayout, glyphs: Glyphs, row: int, column: int) -> np.ndarray:
    x0, _, x1, _ = layout.cell(row, column)
    neighbours = np.abs(glyphs.y - layout.rows[row]) < 0.35 * LAYOUT_DIGIT_HEIGHT
    return np.flatnonzero(neighbours & (glyphs.x > x0) & (glyphs.x < x1))


def _register_text(
    layout: TableLayout, digit_glyphs: Glyphs, text: Transcription
) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns and rows that the transcription covers: the window whose digit counts agree best."""
    want_rows, want_columns = text.shape
    result = (len(layout.rows), len(layout.columns))
    if result[0] < want_rows or result[1] < want_columns:
        raise InputError(
            f"found {result[0]} rows and {result[1]} columns, "
            f"the transcription has {want_rows} and {want_columns}"
        )
    shown = np.array(
        [[_count_digits(layout, digit_glyphs, r, c) for c in range(result[1])] for r in range(result[0])]
    )
    expected = np.array([[len(extract_digits(t)) for t in row] for row in text.values])
    scores = {
        (r, c): float((shown[r : r + want_rows, c : c + want_columns] == expected).mean())
        for r in range(result[0] - want_rows + 1)
        for c in range(result[1] - want_columns + 1)
    }
    (row, column), best = max(scores.items(), key=lambda item: item[1])
    if best < 0.5:
        raise InputError(f"table and transcription do not fit: digit counts agree in {best:.0%} of the cells")
    return np.arange(column, column + want_columns), np.arange(row, row + want_rows)


def _count_digits(layout: TableLayout, digit_glyphs: Glyphs, row: int, column: int) -> int:
    widths = digit_glyphs.width[_glyphs_in_cell(layout, digit_glyphs, row, column)]
    return int(np.sum(np.maximum(1, np.round(widths / DIGIT_PITCH_PIXELS))))


def _cell_centers(
    layout: TableLayout, digit_glyphs: Glyphs, rows: np.ndarray, columns: np.ndarray
) -> list[list[np.ndarray]]:
    """Return centres [n, 2] (x, y) of the single-digit shapes of each cell, left to right."""
    single = digit_glyphs.select(digit_glyphs.width <= 0.9 * LAYOUT_DIGIT_HEIGHT)
    centres = np.stack([single.x, single.y], axis=1)
    cells = []
    for r in rows:
        result = [centres[_glyphs_in_cell(layout, single, int(r), int(c))] for c in columns]
        cells.append([c[np.argsort(c[:, 0])] for c in result])
    return cells


@dataclass(frozen=True)
class _Spacing:
    """Positions of the digits of a number as offsets from its mean x, by number of digits."""

    offsets: dict[int, np.ndarray]


def _spacing(centers: list[list[np.ndarray]], texts: list[list[str]]) -> _Spacing:
    by_length: dict[int, list[np.ndarray]] = {}
    for row, row_texts in zip(centers, texts, strict=True):
        for c, t in zip(row, row_texts, strict=True):
            if len(c) == len(t) > 0:
                by_length.setdefault(len(t), []).append(c[:, 0] - c[:, 0].mean())
    return _Spacing({n: np.median(np.array(o), axis=0) for n, o in by_length.items()})


def _certain_cells(centers: list[list[np.ndarray]], texts: list[list[str]], spacing: _Spacing) -> np.ndarray:
    def fits(c: np.ndarray, t: str) -> bool:
        if len(c) != len(t) or not t:
            return False
        strays = np.abs(c[:, 0] - c[:, 0].mean() - spacing.offsets[len(t)])
        level = np.abs(c[:, 1] - np.median(c[:, 1]))
        return bool(strays.max() < 0.14 * LAYOUT_DIGIT_HEIGHT and level.max() < 0.14 * LAYOUT_DIGIT_HEIGHT)

    return np.array(
        [[fits(c, t) for c, t in zip(*pair, strict=True)] for pair in zip(centers, texts, strict=True)]
    )


def _locate_numbers(
    centers: list[list[np.ndarray]], texts: list[list[str]], spacing: _Spacing, certain: np.ndarray
) -> np.ndarray:
    """Return the mean position [rows, columns, 2] of each number, from its intact digits; NaN if there are none."""
    result = np.full((len(texts), len(texts[0]), 2), np.nan)
    for j in range(len(texts[0])):
        column = [(i, centers[i][j], spacing.offsets.get(len(texts[i][j]))) for i in range(len(texts))]
        shown = [(i, c, offsets) for i, c, offsets in column if offsets is not None and len(c)]
        if not shown:
            continue
        sure = [centers[i][j][:, 0].mean() for i in np.flatnonzero(certain[:, j])]
        middle = (
            np.median(sure)
            if len(sure) >= 3
            else _vote_column_center([(c, offsets) for _, c, offsets in shown])
        )
        for i, c, offsets in shown:
            strays = c[:, :1] - offsets - middle
            strays = strays[np.arange(len(c)), np.abs(strays).argmin(axis=1)]
            own = np.abs(strays) < 0.2 * LAYOUT_DIGIT_HEIGHT
            if own.any():
                result[i, j] = middle + np.median(strays[own]), np.median(c[own, 1])
    return result


def _vote_column_center(candidates: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the centre of a column in which no number is complete.

    It is unknown which digit of its number a shape is, so each shape votes for every possible position of the number; only
    the true position gets votes from all shapes.
    """
    votes = np.concatenate([(c[:, :1] - offsets).ravel() for c, offsets in candidates])
    neighbours = np.abs(votes[:, None] - votes[None]) < 0.2 * LAYOUT_DIGIT_HEIGHT
    return float(np.median(votes[neighbours[int(neighbours.sum(1).argmax())]]))


def _place_digits(
    centers: list[list[np.ndarray]],
    texts: list[list[str]],
    spacing: _Spacing,
    certain: np.ndarray,
    number_centers: np.ndarray,
    fallback_centers: tuple[np.ndarray, np.ndarray],
) -> Digits:
    """Return the digits of all cells: detected centres if certain, else from the number's position and the spacing."""
    mean = number_centers.copy()
    for r, c in np.argwhere(certain):
        mean[r, c] = centers[r][c].mean(axis=0)
    mean = _replace_outliers(mean, fallback_centers)
    entries = []
    for r, row in enumerate(texts):
        for c, text in enumerate(row):
            sure = bool(certain[r, c])
            known = sure or len(text) in spacing.offsets
            for position, digit in enumerate(text if known else ""):
                x, y = mean[r, c]
                spot = centers[r][c][position] if sure else (x + spacing.offsets[len(text)][position], y)
                entries.append(
                    (int(digit), spot[0] / LAYOUT_SCALE, spot[1] / LAYOUT_SCALE, r, c, position, sure)
                )
    columns = [np.array(column) for column in zip(*entries, strict=True)]
    return Digits(*columns)


def _replace_outliers(mean: np.ndarray, fallback_centers: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Replace unknown and outlying positions by a line fitted to the other numbers of the column (x) and the row (y)."""
    down, across = np.arange(mean.shape[0]), np.arange(mean.shape[1])
    x = np.stack([_fit_line(down, mean[:, c, 0], float(fallback_centers[0][c])) for c in across], axis=1)
    y = np.stack([_fit_line(across, mean[r, :, 1], float(fallback_centers[1][r])) for r in down])
    line = np.stack([x, y], axis=2)
    strays = ~(np.abs(mean - line) <= 0.15 * LAYOUT_DIGIT_HEIGHT)
    return np.where(strays, line, mean)


def _fit_line(t: np.ndarray, values: np.ndarray, default: float) -> np.ndarray:
    """Fit a straight line to the known values without outliers; constant `default` if fewer than three are known."""
    known = np.isfinite(values)
    if known.sum() < 3:
        return np.full(len(t), default)
    fit = np.polyfit(t[known], values[known], 1)
    stray = np.abs(values - np.polyval(fit, t))
    good = known & (stray <= max(3 * float(np.median(stray[known])), 1.0))
    return np.polyval(np.polyfit(t[good], values[good], 1), t) if good.sum() >= 3 else np.polyval(fit, t)
