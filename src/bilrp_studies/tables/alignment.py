"""Put the transcription of a page onto its glyphs: where each digit is, and which ones are certain."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from bilrp.errors import InputError
from bilrp_studies.tables.page_layout import HEIGHT, ZOOM, Glyphs, Layout

PITCH = 0.69 * HEIGHT
"""Advance from digit to digit, used only to guess how many digits a merged shape holds."""


@dataclass(frozen=True)
class Transcription:
    """The value cells of one page as text, rows from top to bottom; labels in the margin are left out."""

    values: tuple[tuple[str, ...], ...]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.values), len(self.values[0])


@dataclass(frozen=True)
class Digits:
    """Every transcribed digit of a page: class, centre (network pixels), cell and place in its number."""

    value: np.ndarray
    x: np.ndarray
    y: np.ndarray
    row: np.ndarray
    column: np.ndarray
    place: np.ndarray
    certain: np.ndarray

    def __len__(self) -> int:
        return len(self.value)

    def where(self, keep: np.ndarray) -> Digits:
        """The digits selected by a mask or an index array."""
        return Digits(
            *(getattr(self, name)[keep] for name in ("value", "x", "y", "row", "column", "place", "certain"))
        )

    def bigrams(self) -> np.ndarray:
        """Indices [n, 2] of the digits that follow one another in the same number."""
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


def digits_of(text: str) -> str:
    """The digits of a cell in reading order, its decimal point skipped.

    >>> digits_of("9.093")
    '9093'
    """
    return "".join(c for c in text if c in "0123456789")


def bigram_counts(texts: tuple[str, ...] | list[str]) -> np.ndarray:
    """How often each bigram 00…99 occurs in some cells: counts[10 j + k].

    >>> int(bigram_counts(["9.093"]).sum()), int(bigram_counts(["9.093"])[90])
    (3, 1)
    """
    counts = np.zeros(100)
    for text in texts:
        digits = [int(c) for c in digits_of(text)]
        for j, k in pairwise(digits):
            counts[10 * j + k] += 1
    return counts


def align(layout: Layout, transcription: Transcription) -> Digits:
    """Place every transcribed digit on the page; raise InputError where table and text do not fit.

    A cell is certain if it shows exactly as many digit-shaped glyphs as its text has digits, each where
    the page's other cells have theirs. The digits of the other cells are placed by what is left of
    their number, or by their row and column, with the spacing of the certain cells.
    """
    tall = _digit_shapes(layout.glyphs)
    columns, rows = _register(layout, tall, transcription)
    centres = _cell_glyphs(layout, tall, rows, columns)
    texts = [[digits_of(t) for t in row] for row in transcription.values]
    pages = _spacing(centres, texts)
    certain = _certain_cells(centres, texts, pages)
    if certain.mean() < 0.2:
        raise InputError(f"table and transcription do not fit: {certain.mean():.0%} of the cells agree")
    seen = _numbers_seen(centres, texts, pages, certain)
    # Where a column or row has hardly a number to go by, its interval on the page must do.
    middle = layout.columns[columns].mean(axis=1), layout.rows[rows]
    return _place(centres, texts, pages, certain, seen, middle)


def _digit_shapes(glyphs: Glyphs) -> Glyphs:
    keep = (glyphs.height >= 0.72 * HEIGHT) & (glyphs.height <= 1.3 * HEIGHT)
    return glyphs.where(keep & (glyphs.width >= 0.1 * HEIGHT) & (glyphs.width <= 2.6 * HEIGHT))


def _inside(layout: Layout, glyphs: Glyphs, row: int, column: int) -> np.ndarray:
    x0, _, x1, _ = layout.cell(row, column)
    near = np.abs(glyphs.y - layout.rows[row]) < 0.35 * HEIGHT
    return np.flatnonzero(near & (glyphs.x > x0) & (glyphs.x < x1))


def _register(layout: Layout, tall: Glyphs, text: Transcription) -> tuple[np.ndarray, np.ndarray]:
    """Which found columns and rows the transcription covers: the window whose digit counts fit best."""
    want_rows, want_columns = text.shape
    found = (len(layout.rows), len(layout.columns))
    if found[0] < want_rows or found[1] < want_columns:
        raise InputError(
            f"found {found[0]} rows and {found[1]} columns, "
            f"the transcription has {want_rows} and {want_columns}"
        )
    shown = np.array([[_count(layout, tall, r, c) for c in range(found[1])] for r in range(found[0])])
    wanted = np.array([[len(digits_of(t)) for t in row] for row in text.values])
    scores = {
        (r, c): float((shown[r : r + want_rows, c : c + want_columns] == wanted).mean())
        for r in range(found[0] - want_rows + 1)
        for c in range(found[1] - want_columns + 1)
    }
    (row, column), best = max(scores.items(), key=lambda item: item[1])
    if best < 0.5:
        raise InputError(f"table and transcription do not fit: digit counts agree in {best:.0%} of the cells")
    return np.arange(column, column + want_columns), np.arange(row, row + want_rows)


def _count(layout: Layout, tall: Glyphs, row: int, column: int) -> int:
    widths = tall.width[_inside(layout, tall, row, column)]
    return int(np.sum(np.maximum(1, np.round(widths / PITCH))))


def _cell_glyphs(
    layout: Layout, tall: Glyphs, rows: np.ndarray, columns: np.ndarray
) -> list[list[np.ndarray]]:
    """Centres [n, 2] (x, y) of the single-digit shapes of each cell, left to right."""
    single = tall.where(tall.width <= 0.9 * HEIGHT)
    centres = np.stack([single.x, single.y], axis=1)
    cells = []
    for r in rows:
        found = [centres[_inside(layout, single, int(r), int(c))] for c in columns]
        cells.append([c[np.argsort(c[:, 0])] for c in found])
    return cells


@dataclass(frozen=True)
class _Spacing:
    """Where the digits of a number stand: offsets from its mean x, for each pattern of its text."""

    offsets: dict[int, np.ndarray]


def _spacing(centres: list[list[np.ndarray]], texts: list[list[str]]) -> _Spacing:
    by_length: dict[int, list[np.ndarray]] = {}
    for row, row_texts in zip(centres, texts, strict=True):
        for c, t in zip(row, row_texts, strict=True):
            if len(c) == len(t) > 0:
                by_length.setdefault(len(t), []).append(c[:, 0] - c[:, 0].mean())
    return _Spacing({n: np.median(np.array(o), axis=0) for n, o in by_length.items()})


def _certain_cells(centres: list[list[np.ndarray]], texts: list[list[str]], spacing: _Spacing) -> np.ndarray:
    def fits(c: np.ndarray, t: str) -> bool:
        if len(c) != len(t) or not t:
            return False
        strays = np.abs(c[:, 0] - c[:, 0].mean() - spacing.offsets[len(t)])
        level = np.abs(c[:, 1] - np.median(c[:, 1]))
        return bool(strays.max() < 0.14 * HEIGHT and level.max() < 0.14 * HEIGHT)

    return np.array(
        [[fits(c, t) for c, t in zip(*pair, strict=True)] for pair in zip(centres, texts, strict=True)]
    )


def _numbers_seen(
    centres: list[list[np.ndarray]], texts: list[list[str]], spacing: _Spacing, certain: np.ndarray
) -> np.ndarray:
    """Mean place [rows, columns, 2] of each number's digits by those of them that are whole; NaN where none is."""
    found = np.full((len(texts), len(texts[0]), 2), np.nan)
    for j in range(len(texts[0])):
        column = [(i, centres[i][j], spacing.offsets.get(len(texts[i][j]))) for i in range(len(texts))]
        shown = [(i, c, offsets) for i, c, offsets in column if offsets is not None and len(c)]
        if not shown:
            continue
        sure = [centres[i][j][:, 0].mean() for i in np.flatnonzero(certain[:, j])]
        middle = np.median(sure) if len(sure) >= 3 else _vote([(c, offsets) for _, c, offsets in shown])
        for i, c, offsets in shown:
            strays = c[:, :1] - offsets - middle
            strays = strays[np.arange(len(c)), np.abs(strays).argmin(axis=1)]
            own = np.abs(strays) < 0.2 * HEIGHT
            if own.any():
                found[i, j] = middle + np.median(strays[own]), np.median(c[own, 1])
    return found


def _vote(shown: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The middle of a column none of whose numbers is whole.

    Which digit of its number a shape is cannot be known, so it votes for every place its number could have:
    only the true one gets the votes of all shapes.
    """
    votes = np.concatenate([(c[:, :1] - offsets).ravel() for c, offsets in shown])
    near = np.abs(votes[:, None] - votes[None]) < 0.2 * HEIGHT
    return float(np.median(votes[near[int(near.sum(1).argmax())]]))


def _place(
    centres: list[list[np.ndarray]],
    texts: list[list[str]],
    spacing: _Spacing,
    certain: np.ndarray,
    seen: np.ndarray,
    middle: tuple[np.ndarray, np.ndarray],
) -> Digits:
    """Digits of all cells: seen centres where certain, else by their number's place and the spacing."""
    mean = seen.copy()
    for r, c in np.argwhere(certain):
        mean[r, c] = centres[r][c].mean(axis=0)
    mean = _believable(mean, middle)
    entries = []
    for r, row in enumerate(texts):
        for c, text in enumerate(row):
            sure = bool(certain[r, c])
            known = sure or len(text) in spacing.offsets
            for place, digit in enumerate(text if known else ""):
                x, y = mean[r, c]
                spot = centres[r][c][place] if sure else (x + spacing.offsets[len(text)][place], y)
                entries.append((int(digit), spot[0] / ZOOM, spot[1] / ZOOM, r, c, place, sure))
    columns = [np.array(column) for column in zip(*entries, strict=True)]
    return Digits(*columns)


def _believable(mean: np.ndarray, middle: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Each number's place, by the line through its column's (x) and its row's (y) others where it strays or is unknown."""
    down, across = np.arange(mean.shape[0]), np.arange(mean.shape[1])
    x = np.stack([_line(down, mean[:, c, 0], float(middle[0][c])) for c in across], axis=1)
    y = np.stack([_line(across, mean[r, :, 1], float(middle[1][r])) for r in down])
    line = np.stack([x, y], axis=2)
    strays = ~(np.abs(mean - line) <= 0.15 * HEIGHT)
    return np.where(strays, line, mean)


def _line(t: np.ndarray, values: np.ndarray, default: float) -> np.ndarray:
    """A straight line through the values that are known, outliers left out; flat where fewer than three are."""
    known = np.isfinite(values)
    if known.sum() < 3:
        return np.full(len(t), default)
    fit = np.polyfit(t[known], values[known], 1)
    stray = np.abs(values - np.polyval(fit, t))
    good = known & (stray <= max(3 * float(np.median(stray[known])), 1.0))
    return np.polyval(np.polyfit(t[good], values[good], 1), t) if good.sum() >= 3 else np.polyval(fit, t)
