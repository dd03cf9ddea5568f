"""Findings: groups of neighbouring regions of a matched with groups of neighbouring regions of b.

A finding contains every pair between its regions of a and its regions of b; its relevance is Σ_{I∈A} Σ_{I'∈B} R_II'.
No pair is in two findings; some pairs are in none.

Blocks grow around peaks of the relevance, and one correspondence may have several peaks: the eye of one cat matches both
eyes of another. So blocks of one sign with the same regions on one side become one finding, and a block whose regions are
all in stronger findings is dropped as redundant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilrp.findings.region_layout import RegionLayout, compute_layout
from bilrp.regions import Regions

# A block grows from a peak of the density while the mean density stays above an edge: EDGE_MEAN_FACTOR times the average
# of all pairs, but within EDGE_FRACTION_RANGE of the peak. A block that loses the sign of its peak, or is too large, is
# grown again with the RETRY_EDGE_FRACTIONS: the face of one cat matches all of another, and most of all its face.
EDGE_FRACTION_RANGE = (0.3, 0.75)
EDGE_MEAN_FACTOR = 2.0
RETRY_EDGE_FRACTIONS = (0.5, 0.75, 0.9)
# A block that overlaps stronger ones must keep one of these, else it is dropped.
MIN_REMAINING_FRACTION = 0.4  # of its relevance without the others
MIN_STRENGTH_FRACTION = 0.2  # of the strongest block
MAX_AREA_FRACTION = 0.25  # of either input: a larger block is not a finding,
MAX_SMALL_BLOCK_REGIONS = 4  # unless it has at most this many regions
MIN_FINDINGS = 3  # with fewer, the smoothing window is halved
MIN_REPORTED_FRACTION = 0.1  # of the strongest finding's relevance
# Findings are listed, strongest first, until they have this fraction of the |relevance| of all.
MAX_CARRIED_FRACTION = 0.95
# Two blocks are merged if they have one side in common (this fraction of the smaller set of regions), the weaker has
# at least this fraction of the relevance of the stronger, and the merged block keeps this fraction of their sum: pairs
# between their other regions have the same sign.
MIN_SAME_FRACTION = 0.5
MIN_MERGED_FRACTION = 0.25
MIN_KEPT_FRACTION = 0.8
MIN_RELIABILITY = 0.5  # mean weight of the pairs: findings below it are marked
MAX_PEAKS = 100
MAX_GROWTH_ROUNDS = 20  # most blocks converge after three


@dataclass(frozen=True)
class Finding:
    """Regions of a that match regions of b, their summed relevance, and its share of the score (None near zero).

    With weights of the inputs (`reliability=`), `reliability` is the mean weight of its pairs.

    >>> Finding([3, 4], [7], relevance=2.0, share=0.5).a
    [3, 4]
    """

    a: list[int]
    b: list[int]
    relevance: float
    share: float | None
    reliability: float | None = None

    @property
    def is_unreliable(self) -> bool:
        """Whether its regions are mostly unreliable input."""
        return self.reliability is not None and self.reliability < MIN_RELIABILITY


def extract_findings(
    relevance: np.ndarray, a: Regions, b: Regions, *, score: float, k: int = 12
) -> list[Finding]:
    """Return at most k findings of either sign, sorted by |relevance|.

    Each grows from a peak of the relevance per area: the connected regions around it whose mean relevance with the
    regions of the other side stays above a threshold, alternately for a and b until nothing changes.

    Args:
        relevance: Relevance [regions of a, regions of b].
        a, b: Regions of the two inputs.
        score: The similarity that shares refer to; 0: no shares.
        k: Maximum number of findings.

    >>> import torch
    >>> from bilrp.regions import tokens
    >>> words = tokens()(torch.zeros(1, 5, 4))
    >>> matrix = np.diag([0.0, 0, 0, 0, -3])
    >>> matrix[0, :2] = 5, 4
    >>> [(f.a, f.b, f.relevance) for f in extract_findings(matrix, words, words, score=6.0)]
    [([0], [0, 1], 9.0), ([4], [4], -3.0)]
    """
    layouts = compute_layout(a), compute_layout(b)
    density = RelevanceDensity.from_relevance(np.asarray(relevance, dtype=np.float64), *layouts)
    blocks = density.find_blocks()
    # a wide window can merge many small matches into one block that covers the input
    while len(blocks) < MIN_FINDINGS and density.is_blurred:
        layouts = density.a.halve_window(), density.b.halve_window()
        density = RelevanceDensity.from_relevance(density.relevance, *layouts)
        blocks = density.find_blocks()
    strongest = select_carrying(density.merge_blocks(blocks))[:k]
    return [
        Finding(
            np.flatnonzero(block.members[0]).tolist(),
            np.flatnonzero(block.members[1]).tolist(),
            block.relevance,
            block.relevance / score if score else None,
        )
        for block in strongest
    ]


def select_carrying(blocks: Sequence[_Block]) -> list[_Block]:
    """Return the strongest blocks that together carry nearly all |relevance| of the blocks, without those much weaker."""
    ordered = sorted(blocks, key=lambda block: -abs(block.relevance))
    strength = np.abs([block.relevance for block in ordered])
    before = np.cumsum(strength) - strength
    return [
        block
        for block, own, carried in zip(ordered, strength, before, strict=True)
        if own >= MIN_REPORTED_FRACTION * strength[0] and carried < MAX_CARRIED_FRACTION * strength.sum()
    ]


class _Block(NamedTuple):
    """A block grown around a peak: a boolean mask over the regions of a and one over those of b."""

    members: tuple[np.ndarray, np.ndarray]
    relevance: float

    def overlaps(self, other: _Block) -> bool:
        """Return whether the two blocks share a pair."""
        return all(bool((mine & its).any()) for mine, its in zip(self.members, other.members, strict=True))


@dataclass(frozen=True, eq=False)
class RelevanceDensity:
    """Relevance on pairs of regions, and its density per area, smoothed by the windows of both sides."""

    relevance: np.ndarray
    a: RegionLayout
    b: RegionLayout
    density: np.ndarray
    density_transposed: np.ndarray  # contiguous, so that its rows are read as fast
    mean_density: float

    @staticmethod
    def from_relevance(relevance: np.ndarray, a: RegionLayout, b: RegionLayout) -> RelevanceDensity:
        """Compute the density of a relevance matrix.

        Args:
            relevance: Relevance [regions of a, regions of b].
            a: Layout of the regions of the first input, with the width of its window.
            b: The same for the second input.
        """
        density = b.compute_density(a.compute_density(relevance).T).T
        average = float(a.area_fraction @ np.abs(density) @ b.area_fraction)
        return RelevanceDensity(relevance, a, b, density, np.ascontiguousarray(density.T), average)

    @property
    def is_blurred(self) -> bool:
        """Whether the density of either side is smoothed over more than a region."""
        return self.a.is_blurred or self.b.is_blurred

    def find_blocks(self) -> list[_Block]:
        """Return disjoint blocks, grown from the highest peak down."""
        accepted: list[_Block] = []
        for peak in self.find_peaks():
            alone = self.grow(peak)
            if alone is None or self.is_too_large(alone):
                continue
            overlaps = any(alone.overlaps(other) for other in accepted)
            block = self.grow(peak, accepted) if overlaps else alone
            if block is None or self.is_too_large(block):
                continue
            strongest = max((abs(other.relevance) for other in accepted), default=0.0)
            if abs(block.relevance) >= min(
                MIN_REMAINING_FRACTION * abs(alone.relevance), MIN_STRENGTH_FRACTION * strongest
            ):
                accepted.append(block)
        return accepted

    def merge_blocks(self, blocks: Sequence[_Block]) -> list[_Block]:
        """Return disjoint blocks, one for each fact: see the docstring of the module."""
        merged: list[_Block] = []
        for block in sorted(blocks, key=lambda block: -abs(block.relevance)):
            alike = [other for other in merged if other.relevance * block.relevance > 0]
            if self.is_covered(block, alike):
                continue
            union, target = self.find_merger(block, merged)
            if union is not None:
                merged = [union if other is target else other for other in merged]
            elif not any(block.overlaps(other) for other in merged):
                merged.append(block)
        return merged

    def is_covered(self, block: _Block, others: Sequence[_Block]) -> bool:
        """Return whether both sides of a block are mostly regions of other blocks."""
        if not others:
            return False
        for side, layout in enumerate((self.a, self.b)):
            mine, area = block.members[side], layout.area_fraction
            inside = mine & np.any([other.members[side] for other in others], axis=0)
            if area[inside].sum() < MIN_SAME_FRACTION * area[mine].sum():
                return False
        return True

    def find_merger(self, block: _Block, merged: Sequence[_Block]) -> tuple[_Block | None, _Block | None]:
        """Return the union of a block with the strongest that has the same regions on one side, and that other block."""
        for other in sorted(merged, key=lambda other: -abs(other.relevance)):
            if other.relevance * block.relevance <= 0 or not self.shares_a_side(block, other):
                continue
            if abs(block.relevance) < MIN_MERGED_FRACTION * abs(other.relevance):
                continue
            union = self.unite(block, other)
            total = block.relevance + other.relevance
            is_free = not any(union.overlaps(third) for third in merged if third is not other)
            is_one = self.has_joined_words(union) and not self.is_too_large(union)
            if is_free and is_one and union.relevance / total >= MIN_KEPT_FRACTION:
                return union, other
        return None, None

    def shares_a_side(self, one: _Block, other: _Block) -> bool:
        """Return whether two blocks have the same regions on one side, by area of the smaller."""
        for side, layout in enumerate((self.a, self.b)):
            area, mine, its = layout.area_fraction, one.members[side], other.members[side]
            least = min(area[mine].sum(), area[its].sum())
            if area[mine & its].sum() >= MIN_SAME_FRACTION * least:
                return True
        return False

    def has_joined_words(self, block: _Block) -> bool:
        """Return whether the words of a block are one phrase; areas of an image may be apart, as two eyes are."""
        return all(
            layout.window_width > 0 or layout.select_connected(mine, int(mine.argmax())).sum() == mine.sum()
            for layout, mine in zip((self.a, self.b), block.members, strict=True)
        )

    def unite(self, one: _Block, other: _Block) -> _Block:
        """Return the block of all regions of two blocks, with the relevance of all pairs between them."""
        members = (one.members[0] | other.members[0], one.members[1] | other.members[1])
        return _Block(members, float(self.relevance[np.ix_(*members)].sum()))

    def is_too_large(self, block: _Block) -> bool:
        """Return whether a block of more than a few regions covers too much of either input."""
        sides = zip(block.members, (self.a.area_fraction, self.b.area_fraction), strict=True)
        return any(
            bool(side.sum() > MAX_SMALL_BLOCK_REGIONS and weight[side].sum() > MAX_AREA_FRACTION)
            for side, weight in sides
        )

    def find_peaks(self) -> list[tuple[int, int]]:
        """Return the local maxima of the density of either sign, highest first."""
        peaks = []
        for density in (self.density, -self.density):
            highest = self.b.max_over_neighbors(self.a.max_over_neighbors(density).T).T
            rows, columns = np.nonzero((density == highest) & (density > 0))
            peaks += zip(density[rows, columns].tolist(), rows.tolist(), columns.tolist(), strict=True)
        return [(row, column) for _, row, column in sorted(peaks, reverse=True)[:MAX_PEAKS]]

    def grow(self, peak: tuple[int, int], accepted: Sequence[_Block] = ()) -> _Block | None:
        """Return the block around a peak that shares no pair with the accepted ones, or None.

        Where the density is not smoothed, no block is too large; where it is, narrower windows show its details.
        """
        lowest = min(
            max(EDGE_MEAN_FACTOR * self.mean_density / abs(self.density[peak]), EDGE_FRACTION_RANGE[0]),
            EDGE_FRACTION_RANGE[1],
        )
        for edge in (lowest, *(higher for higher in RETRY_EDGE_FRACTIONS if higher > lowest)):
            # start with either side, so that (a, b) and (b, a) have the same findings
            blocks = [self.grow_from_side(peak, accepted, first, edge) for first in (0, 1)]
            grown = [block for block in blocks if block is not None]
            if not self.is_blurred:
                grown = [block for block in grown if not self.is_too_large(block)]
            if grown:
                return max(grown, key=lambda block: abs(block.relevance))
        return None

    def grow_from_side(
        self, peak: tuple[int, int], accepted: Sequence[_Block], first_side: int, edge_fraction: float
    ) -> _Block | None:
        """Grow a block alternately on both sides; None if it vanishes or its relevance has another sign than its peak.

        Args:
            peak: The pair of regions to start from.
            accepted: Blocks that it must not overlap.
            first_side: The side to grow first, 0 (a) or 1 (b).
            edge_fraction: Density at which the block ends, as a fraction of the peak.
        """
        height = self.density[peak]
        edge = height * edge_fraction
        sides, densities = (self.a, self.b), (self.density, self.density_transposed)
        members = [np.arange(n) == index for n, index in zip(self.density.shape, peak, strict=True)]
        occupied = [np.array([block.members[side] for block in accepted]) for side in (0, 1)]
        for turn in range(2 * MAX_GROWTH_ROUNDS):
            side, other = (first_side + turn) % 2, (first_side + turn + 1) % 2
            weight = sides[other].area_fraction[members[other]]
            mean = weight @ densities[other][members[other]] / weight.sum()
            inside = mean / edge > 1
            if accepted:
                overlapping = occupied[other][:, members[other]].any(1)
                inside &= ~occupied[side][overlapping].any(0)
            grown = sides[side].select_connected(inside, peak[side])
            if not grown.any():
                return None
            converged = turn > 1 and np.array_equal(grown, members[side])
            members[side] = grown
            if converged:
                break
        relevance = float(self.relevance[np.ix_(*members)].sum())
        # another sign than the peak's: the windows smoothed over relevance that cancels
        return _Block((members[0], members[1]), relevance) if relevance * height > 0 else None
