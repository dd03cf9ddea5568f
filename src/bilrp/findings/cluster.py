"""Findings: neighbouring regions of one input that match neighbouring regions of the other, as one.

A finding owns every pair between its regions of a and its regions of b: its relevance is Σ_{I∈A} Σ_{I'∈B} R_II'. No
pair belongs to two findings; what none owns is the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilrp.findings.layout import Layout, layout
from bilrp.regions import Regions

EDGE = 0.3, 0.75  # of a peak's relevance per area: a finding ends where the mean falls below it,
FLOOR = 2.0  # which is, between these two, this many times the average of all pairs
KEPT = 0.35  # of a finding must be left where stronger ones have taken pairs of it, or it is dropped
PART = 0.25  # of either input at most: a finding is a part, not the whole
FEW = 3  # findings, and a finer window is tried
LEAST = 0.02  # of the strongest finding, or it is not worth a word
PEAKS = 200  # the strongest that are looked at
ROUNDS = 20  # of growth; most settle after three


@dataclass(frozen=True)
class Finding:
    """Regions of a that match regions of b, their summed relevance, and its share of the score (None of a score of 0).

    >>> Finding([3, 4], [7], relevance=2.0, share=0.5).a
    [3, 4]
    """

    a: list[int]
    b: list[int]
    relevance: float
    share: float | None


def find(relevance: np.ndarray, a: Regions, b: Regions, *, score: float, k: int = 12) -> list[Finding]:
    """At most k findings, those with the most relevance, of either sign, first.

    Each grows from a peak of the relevance per area: the regions around it whose mean relevance with those of the other
    side stays above the edge, in turn for a and for b until nothing changes.

    >>> import torch
    >>> from bilrp.regions import tokens
    >>> words = tokens()(torch.zeros(1, 5, 4))
    >>> matrix = np.diag([0.0, 0, 0, 0, -3])
    >>> matrix[0, :2] = 5, 4
    >>> [(f.a, f.b, f.relevance) for f in find(matrix, words, words, score=6.0)]
    [([0], [0, 1], 9.0), ([4], [4], -3.0)]
    """
    field = _Field.of(np.asarray(relevance, dtype=np.float64), layout(a), layout(b))
    blocks = field.blocks()
    while len(blocks) < FEW and (field.a.blurred or field.b.blurred):  # details, seen through too wide a window
        field = _Field.of(field.relevance, field.a.finer(), field.b.finer())
        blocks = field.blocks()
    strongest = sorted(blocks, key=lambda block: -abs(block.relevance))[:k]
    strongest = [block for block in strongest if abs(block.relevance) >= LEAST * abs(strongest[0].relevance)]
    return [
        Finding(
            np.flatnonzero(block.rows).tolist(),
            np.flatnonzero(block.columns).tolist(),
            block.relevance,
            block.relevance / score if score else None,
        )
        for block in strongest
    ]


class _Block(NamedTuple):
    """What has grown around a peak: rows and columns, one truth for each region of a and of b."""

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
    a: Layout
    b: Layout
    density: np.ndarray
    average: float

    @staticmethod
    def of(relevance: np.ndarray, a: Layout, b: Layout) -> _Field:
        density = b.density(a.density(relevance).T).T
        return _Field(relevance, a, b, density, float(a.weight @ np.abs(density) @ b.weight))

    def blocks(self) -> list[_Block]:
        """Blocks that share no pair, each a part of either input."""
        taken: list[_Block] = []
        for peak in self.peaks():  # highest first: the broad and faint take what is left
            alone = self.grown(peak)
            if alone is None or self.is_whole(alone):
                continue
            met = any(alone.meets(other) for other in taken)
            block = self.grown(peak, taken) if met else alone
            if block is not None and abs(block.relevance) >= KEPT * abs(alone.relevance):
                taken.append(block)
        return taken

    def is_whole(self, block: _Block) -> bool:
        """Is it most of an input, and no part of it?"""
        return max(self.a.weight[block.rows].sum(), self.b.weight[block.columns].sum()) > PART

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
        height = abs(self.density[peak])
        edge = height * min(max(FLOOR * self.average / height, EDGE[0]), EDGE[1])
        field = math.copysign(1.0, self.density[peak]) * self.density
        rows, columns = (np.arange(n) == at for n, at in zip(field.shape, peak, strict=True))
        for _ in range(ROUNDS):
            before = rows, columns
            barred = [block.rows for block in taken if (block.columns & columns).any()]
            rows = self.a.connected(_above(field, self.b, columns, edge, barred), peak[0])
            barred = [block.columns for block in taken if (block.rows & rows).any()]
            columns = self.b.connected(_above(field.T, self.a, rows, edge, barred), peak[1])
            if not rows.any() or not columns.any():
                return None
            if np.array_equal(rows, before[0]) and np.array_equal(columns, before[1]):
                break
        relevance = float(self.relevance[np.ix_(rows, columns)].sum())
        # without the sign of its peak it is no finding: the windows blurred what cancels
        return _Block(rows, columns, relevance) if relevance * self.density[peak] > 0 else None


def _above(field: np.ndarray, side: Layout, others: np.ndarray, edge: float, barred: Sequence[np.ndarray]) -> np.ndarray:
    """Which rows have a mean above the edge over the `others`, regions of the other side, and are not barred?"""
    weight = side.weight[others]
    inside = field[:, others] @ weight > edge * weight.sum()
    for rows in barred:
        inside &= ~rows
    return inside
