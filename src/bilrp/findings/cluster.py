"""Findings: neighbouring regions of one input that match neighbouring regions of the other, as one.

A finding owns every pair between its regions of a and its regions of b: its relevance is Σ_{I∈A} Σ_{I'∈B} R_II'. No
pair belongs to two findings; what none owns is the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bilrp.findings.layout import Layout, layout
from bilrp.regions import Regions

EDGE = 0.4  # of its peak: where the mean relevance falls below this, a finding ends
PEAKS = 400  # how many of the strongest are looked at
FLOOR = 2.0
KEPT = 0.5  # of a finding must be left when stronger ones have taken their pairs, or it is dropped
ROUNDS = 20  # of growth; most settle after three


@dataclass(frozen=True)
class Finding:
    """Regions of a that match regions of b, their summed relevance, and its share of the score (nan of a score of 0).

    >>> Finding([3, 4], [7], relevance=2.0, share=0.5).a
    [3, 4]
    """

    a: list[int]
    b: list[int]
    relevance: float
    share: float


def find(relevance: np.ndarray, a: Regions, b: Regions, *, score: float, k: int = 12) -> list[Finding]:
    """At most k findings, those with the most relevance first.

    Each grows from a peak of the relevance per area: the regions around it whose mean relevance with the other side
    stays above EDGE of the peak, in turn for a and for b until nothing changes.

    >>> import torch
    >>> from bilrp.regions import tokens
    >>> words = tokens()(torch.zeros(1, 3, 4))
    >>> [(f.a, f.b) for f in find(np.array([[5.0, 4, 0], [0, 0, 0], [0, 0, -3]]), words, words, score=6.0)]
    [([0], [0, 1]), ([2], [2])]
    """
    field = _field(np.asarray(relevance, dtype=np.float64), layout(a), layout(b))
    taken: list[_Block] = []
    for peak in field.peaks():  # strongest first: broad and faint ones take what is left
        alone = field.grown(peak)
        block = alone if alone is None or not any(alone.meets(t) for t in taken) else field.grown(peak, taken)
        if block is not None and abs(block.relevance) >= KEPT * abs(alone.relevance):
            taken.append(block)
    taken = sorted(taken, key=lambda block: -abs(block.relevance))[:k]
    return [
        Finding(
            np.flatnonzero(block.rows).tolist(),
            np.flatnonzero(block.columns).tolist(),
            block.relevance,
            block.relevance / score if score else math.nan,
        )
        for block in taken
    ]


@dataclass(frozen=True, eq=False)
class _Block:
    """What has grown around a peak (row, column): rows and columns, as one truth for each region of a and of b."""

    peak: tuple[int, int]
    rows: np.ndarray
    columns: np.ndarray
    relevance: float

    def meets(self, other: _Block) -> bool:
        """Do the two share a pair?"""
        return bool((self.rows & other.rows).any() and (self.columns & other.columns).any())


@dataclass(frozen=True, eq=False)
class _Field:
    """Relevance on pairs of regions, and its density per area as seen through the windows of both sides."""

    relevance: np.ndarray
    density: np.ndarray
    a: Layout
    b: Layout
    average: float

    def peaks(self) -> list[tuple[int, int]]:
        """The strongest pairs that no neighbouring pair exceeds, of either sign."""
        found = []
        for field in (self.density, -self.density):
            highest = self.b.highest(self.a.highest(field).T).T
            rows, columns = np.nonzero((field == highest) & (field > 0))
            found += zip(field[rows, columns].tolist(), rows.tolist(), columns.tolist(), strict=True)
        return [(row, column) for _, row, column in sorted(found, reverse=True)[:PEAKS]]

    def grown(self, peak: tuple[int, int], taken: Sequence[_Block] = ()) -> _Block | None:
        """The block around a peak that shares no pair with those taken; None where nothing is left of it."""
        sign = math.copysign(1.0, self.density[peak])
        edge = max(EDGE * abs(self.density[peak]), FLOOR*self.average)
        rows, columns = (np.arange(n) == at for n, at in zip(self.density.shape, peak, strict=True))
        for _ in range(ROUNDS):
            before = rows, columns
            barred = [block.rows for block in taken if (block.columns & columns).any()]
            rows = self.a.connected(_above(sign * self.density, columns, self.b, edge, barred), peak[0])
            barred = [block.columns for block in taken if (block.rows & rows).any()]
            columns = self.b.connected(_above(sign * self.density.T, rows, self.a, edge, barred), peak[1])
            if not rows.any() or not columns.any():
                return None
            if np.array_equal(rows, before[0]) and np.array_equal(columns, before[1]):
                break
        relevance = float(self.relevance[np.ix_(rows, columns)].sum())
        # a sum that has not the sign of its peak is no finding: the windows blurred two that cancel
        return _Block(peak, rows, columns, relevance) if sign * relevance > 0 else None


def _above(density: np.ndarray, others: np.ndarray, side: Layout, edge: float, barred: list[np.ndarray]) -> np.ndarray:
    """Which regions have a mean density above the edge with the `others` of the other side, and are not barred?"""
    size = side.size[others]
    inside = density[:, others] @ size > edge * size.sum()
    for rows in barred:
        inside &= ~rows
    return inside


def _field(relevance: np.ndarray, a: Layout, b: Layout) -> _Field:
    density = b.density(a.density(relevance).T).T
    average = float(a.size @ np.abs(density) @ b.size / (a.size.sum() * b.size.sum()))
    return _Field(relevance, density, a, b, average)
