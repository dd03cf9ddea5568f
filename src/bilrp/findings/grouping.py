"""Findings: neighbouring regions of one input that match neighbouring regions of the other, as one.

A finding owns every pair between its regions of a and its regions of b: its relevance is Σ_{I∈A} Σ_{I'∈B} R_II'. No
pair belongs to two findings; what none owns is the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilrp.findings.region_layout import RegionLayout, compute_layout
from bilrp.regions import Regions

EDGE_FRACTION_RANGE = (
    0.3,
    0.75,
)  # of a peak's relevance per area: a finding ends where the mean falls below it,
EDGE_MEAN_FACTOR = 2.0  # which is, between these two, this many times the average of all pairs
RETRY_EDGE_FRACTIONS = 0.5, 0.75  # where a block that ends there has run away from its peak
MIN_REMAINING_FRACTION = 0.4  # of a finding must be left where stronger ones have taken pairs of it,
MIN_STRENGTH_FRACTION = 0.2  # or this much of the strongest, or it is dropped
MAX_AREA_FRACTION = 0.25  # of either input at most: a finding is a part, not the whole
MAX_SMALL_BLOCK_REGIONS = 4  # regions are always a part
MIN_FINDINGS = 3  # findings, and a finer window is tried
MIN_REPORTED_FRACTION = 0.02  # of the strongest finding, or it is not worth a word
MAX_PEAKS = 100  # the strongest that are looked at
MAX_GROWTH_ROUNDS = 20  # of growth; most settle after three


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


def extract_findings(
    relevance: np.ndarray, a: Regions, b: Regions, *, score: float, k: int = 12
) -> list[Finding]:
    """At most k findings, those with the most relevance, of either sign, first.

    Each grows from a peak of the relevance per area: the regions around it whose mean relevance with those of the other
    side stays above the edge, in turn for a and for b until nothing changes.

    >>> import torch
    >>> from bilrp.regions import tokens
    >>> words = tokens()(torch.zeros(1, 5, 4))
    >>> matrix = np.diag([0.0, 0, 0, 0, -3])
    >>> matrix[0, :2] = 5, 4
    >>> [(f.a, f.b, f.relevance) for f in extract_findings(matrix, words, words, score=6.0)]
    [([0], [0, 1], 9.0), ([4], [4], -3.0)]
    """
    field = RelevanceDensity.from_relevance(
        np.asarray(relevance, dtype=np.float64), compute_layout(a), compute_layout(b)
    )
    blocks = field.find_blocks()
    # a model of details shows little more than one block all over through a wide window
    while len(blocks) < MIN_FINDINGS and (field.a.is_blurred or field.b.is_blurred):
        field = RelevanceDensity.from_relevance(
            field.relevance, field.a.halve_window(), field.b.halve_window()
        )
        blocks = field.find_blocks()
    strongest = sorted(blocks, key=lambda block: -abs(block.relevance))[:k]
    strongest = [
        block
        for block in strongest
        if abs(block.relevance) >= MIN_REPORTED_FRACTION * abs(strongest[0].relevance)
    ]
    return [
        Finding(
            np.flatnonzero(block.members[0]).tolist(),
            np.flatnonzero(block.members[1]).tolist(),
            block.relevance,
            block.relevance / score if score else None,
        )
        for block in strongest
    ]


class _Block(NamedTuple):
    """What has grown around a peak: one truth for each region of a, and one for each of b."""

    members: tuple[np.ndarray, np.ndarray]
    relevance: float

    def overlaps(self, other: _Block) -> bool:
        """Do the two share a pair?"""
        return all(bool((mine & its).any()) for mine, its in zip(self.members, other.members, strict=True))


@dataclass(frozen=True, eq=False)
class RelevanceDensity:
    """Relevance on pairs of regions, and its density per area as seen through the windows of both sides."""

    relevance: np.ndarray
    a: RegionLayout
    b: RegionLayout
    density: np.ndarray
    density_transposed: np.ndarray  # the same with b first, laid out so that its rows are read as fast
    mean_density: float

    @staticmethod
    def from_relevance(relevance: np.ndarray, a: RegionLayout, b: RegionLayout) -> RelevanceDensity:
        density = b.compute_density(a.compute_density(relevance).T).T
        average = float(a.area_fraction @ np.abs(density) @ b.area_fraction)
        return RelevanceDensity(relevance, a, b, density, np.ascontiguousarray(density.T), average)

    def find_blocks(self) -> list[_Block]:
        """Blocks that share no pair, each a part of either input."""
        taken: list[_Block] = []
        for peak in self.find_peaks():  # highest first: the broad and faint take what is left
            alone = self.grow(peak)
            if alone is None or self.is_too_large(alone):
                continue
            met = any(alone.overlaps(other) for other in taken)
            block = self.grow(peak, taken) if met else alone
            if block is None:
                continue
            strongest = max((abs(other.relevance) for other in taken), default=0.0)
            if abs(block.relevance) >= min(
                MIN_REMAINING_FRACTION * abs(alone.relevance), MIN_STRENGTH_FRACTION * strongest
            ):
                taken.append(block)
        return taken

    def is_too_large(self, block: _Block) -> bool:
        """Is it most of an input, and no part of it? (A few regions are always a part.)"""
        sides = zip(block.members, (self.a.area_fraction, self.b.area_fraction), strict=True)
        return any(
            bool(side.sum() > MAX_SMALL_BLOCK_REGIONS and weight[side].sum() > MAX_AREA_FRACTION)
            for side, weight in sides
        )

    def find_peaks(self) -> list[tuple[int, int]]:
        """The strongest pairs that no neighbouring pair exceeds, of either sign."""
        found = []
        for field in (self.density, -self.density):
            highest = self.b.max_over_neighbors(self.a.max_over_neighbors(field).T).T
            rows, columns = np.nonzero((field == highest) & (field > 0))
            found += zip(field[rows, columns].tolist(), rows.tolist(), columns.tolist(), strict=True)
        return [(row, column) for _, row, column in sorted(found, reverse=True)[:MAX_PEAKS]]

    def grow(self, peak: tuple[int, int], accepted: Sequence[_Block] = ()) -> _Block | None:
        """The block around a peak that shares no pair with those taken; None where nothing is left of it."""
        lowest = min(
            max(EDGE_MEAN_FACTOR * self.mean_density / abs(self.density[peak]), EDGE_FRACTION_RANGE[0]),
            EDGE_FRACTION_RANGE[1],
        )
        # a block that runs away from its own peak ends sooner
        for edge in (lowest, *(higher for higher in RETRY_EDGE_FRACTIONS if higher > lowest)):
            # begun with either side, so that (a, b) and (b, a) have the same findings
            both = [
                b for first in (0, 1) if (b := self.grow_from_side(peak, accepted, first, edge)) is not None
            ]
            block = max(both, key=lambda one: abs(one.relevance), default=None)
            if block is not None:
                return block
        return None

    def grow_from_side(
        self, peak: tuple[int, int], accepted: Sequence[_Block], first_side: int, edge_fraction: float
    ) -> _Block | None:
        height = self.density[peak]
        edge = height * edge_fraction
        sides, fields = (self.a, self.b), (self.density, self.density_transposed)
        members = [np.arange(n) == at for n, at in zip(self.density.shape, peak, strict=True)]
        owned = [np.array([block.members[one] for block in accepted]) for one in (0, 1)]
        for turn in range(2 * MAX_GROWTH_ROUNDS):
            side, other = (first_side + turn) % 2, (first_side + turn + 1) % 2
            weight = sides[other].area_fraction[members[other]]
            mean = weight @ fields[other][members[other]] / weight.sum()
            inside = mean / edge > 1
            if accepted:
                met = owned[other][:, members[other]].any(1)
                inside &= ~owned[side][met].any(0)
            grown = sides[side].select_connected(inside, peak[side])
            if not grown.any():
                return None
            settled = turn > 1 and np.array_equal(grown, members[side])
            members[side] = grown
            if settled:
                break
        relevance = float(self.relevance[np.ix_(*members)].sum())
        # without the sign of its peak it is no finding: the windows blurred what cancels
        return _Block((members[0], members[1]), relevance) if relevance * height > 0 else None
