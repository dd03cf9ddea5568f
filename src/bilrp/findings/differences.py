"""Differences: what each region adds to the squared distance of two embeddings, in groups of neighbouring regions.

With δ = φ − φ', region I of a adds ⟨P_I, δ⟩ and region I' of b adds −⟨P'_I', δ⟩. Together with what is unattributed
they add up to ‖δ‖². A large positive value belongs to what is in one input and has no counterpart in the other.

The part of an unchanged region also changes with its surroundings: it may add much in a, and its counterpart in b take
the same away. So two regions that are each other's closest (largest cosine of their parts) share what they add, half each;
sums stay as they are. On photographs with a pasted, erased or recoloured patch the first difference was centred on the
patch in 56 of 60 cases with VGG-16 (44 without), and in 23 of 30 with MobileNet (15 without). This was chosen on other
patches in the same 64 photographs.

A matching word or object may add much to the distance too: “guitar” and “instrument” are alike and not the same. It should
not be listed both as a match and as the first difference. So counterparts whose parts have a cosine of at least
MIN_MATCHED_COSINE are *matched*: groups do not mix matched regions with others, and matched groups come last, unless
nothing else adds much, as for an object that only changed its colour. A phrase is also matched if its product with the
other text is most of its product with its own: ⟨P_G, φ'⟩ ≥ MIN_MATCHED_FRACTION ⟨P_G, φ⟩. `bilrp study changes` measures
the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bilrp.findings.region_layout import RegionLayout, compute_layout
from bilrp.findings.special_tokens import exclude_special_tokens, select_regions
from bilrp.inputs import View
from bilrp.regions import Regions

EDGE_FRACTIONS = (
    0.4,
    0.6,
    0.8,
)  # of a peak's density, where its group ends: the first that leaves it small enough
MAX_AREA_FRACTION = 0.25  # of the input: a larger group is grown again with the next edge,
MAX_SMALL_GROUP_REGIONS = 4  # unless it has at most this many regions
# Cosine of the parts of two counterparts from which they match: more than half of each is in the other.
MIN_MATCHED_COSINE = 0.5
# ⟨P_G, φ'⟩ / ⟨P_G, φ⟩ from which a phrase is matched by several words, or by the whole text.
MIN_MATCHED_FRACTION = 0.6
# If regions without a match have less than this of the largest difference, matched ones are listed too.
MIN_UNMATCHED_FRACTION = 0.1
MAX_EQUAL_FRACTION = 1e-9  # of ‖φ‖² + ‖φ'‖²: a smaller squared distance is rounding

Side = Literal["a", "b"]


@dataclass(frozen=True)
class Difference:
    """Neighbouring regions of one side, and what they add to the squared distance of the two embeddings.

    Args:
        side: "a" or "b".
        regions: Its regions.
        contribution: What they add.
        is_matched: Whether each of them has a counterpart on the other side that is much like it.

    >>> Difference("b", [4], contribution=0.15).side
    'b'
    """

    side: Side
    regions: list[int]
    contribution: float
    is_matched: bool = field(default=False, repr=False)


@dataclass(frozen=True, eq=False)
class DistanceBreakdown:
    """squared_distance = a.sum() + b.sum() + unattributed, in float64; `unattributed` is defined as the remainder.

    Args:
        squared_distance: ‖φ − φ'‖², of embeddings of length one where `is_normalized`.
        a: What each region of a adds, [regions of a].
        b: The same for b.
        is_normalized: Whether embeddings and parts were divided by the length of the embedding.
        is_zero: Whether the two embeddings are equal but for rounding.
        counterparts: Pairs of a region of a and one of b whose parts are each other's closest.
        matched: Those of them whose parts have a cosine of at least MIN_MATCHED_COSINE.
        product_with_own: ⟨P_I, φ⟩ of each region with its own embedding, of a and of b.
        product_with_other: ⟨P_I, φ'⟩ of each region with the other embedding, of a and of b.
    """

    squared_distance: float
    a: np.ndarray
    b: np.ndarray
    is_normalized: bool
    is_zero: bool
    counterparts: tuple[tuple[int, int], ...] = ()
    matched: tuple[tuple[int, int], ...] = ()
    product_with_own: tuple[np.ndarray, np.ndarray] | None = None
    product_with_other: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def unattributed(self) -> float:
        """What belongs to no region: biases, constants, references, features in no region."""
        return self.squared_distance - float(self.a.sum()) - float(self.b.sum())

    def share_between_counterparts(self) -> DistanceBreakdown:
        """Return the breakdown in which both regions of a pair of counterparts have the mean of what the two add.

        >>> apart = DistanceBreakdown(1.0, np.array([5.0, 0.5]), np.array([-5.0, 0.5]), False, False, ((0, 0),))
        >>> apart.share_between_counterparts().a
        array([0. , 0.5])
        """
        a, b = self.a.copy(), self.b.copy()
        for i, j in self.counterparts:
            a[i] = b[j] = (self.a[i] + self.b[j]) / 2
        return replace(self, a=a, b=b)

    def compute_share(self, value: float) -> float | None:
        """Return value / squared distance, or None for equal embeddings."""
        return None if self.is_zero else value / self.squared_distance


def break_down_distance(
    parts: tuple[Tensor, Tensor], embeddings: tuple[Tensor, Tensor], *, normalize: bool
) -> DistanceBreakdown:
    """Return what each region adds to the squared distance of two embeddings.

    Args:
        parts, embeddings: [regions, h] and [h] of each side.
        normalize: Divide both by the length of the embedding, as the cosine does.
    """
    vectors = [e.detach().cpu().double() for e in embeddings]
    lengths = [float(torch.linalg.vector_norm(e)) or 1.0 if normalize else 1.0 for e in vectors]
    first, second = (e / length for e, length in zip(vectors, lengths, strict=True))
    delta = first - second
    a, b = (
        _multiply(p, delta) * (sign / length) for p, length, sign in zip(parts, lengths, (1, -1), strict=True)
    )
    with_own, with_other = (
        (_multiply(parts[0], one) / lengths[0], _multiply(parts[1], other) / lengths[1])
        for one, other in ((first, second), (second, first))
    )
    distance = float(delta @ delta)
    is_zero = distance <= MAX_EQUAL_FRACTION * float(first @ first + second @ second)
    counterparts, matched = (find_counterparts(*parts, least=least) for least in (0.0, MIN_MATCHED_COSINE))
    return DistanceBreakdown(distance, a, b, normalize, is_zero, counterparts, matched, with_own, with_other)


def _multiply(parts: Tensor, vector: Tensor) -> np.ndarray:
    """Return the products of parts [regions, h] with a vector, row by row: all parts in float64 may not fit the memory."""
    return np.array([float(part.double() @ vector) for part in parts.detach().cpu()])


def find_counterparts(a: Tensor, b: Tensor, *, least: float = 0.0) -> tuple[tuple[int, int], ...]:
    """Return the pairs of rows of a and b that are each other's closest, by their cosine, if that is above `least`.

    Args:
        a, b: Parts [regions, h] of the two inputs.
        least: Cosine.
    """
    p, q = (each.detach().cpu().float() for each in (a, b))
    # not the normalized parts, which are copies
    lengths = [
        torch.linalg.vector_norm(each, dim=1).clamp(min=torch.finfo(torch.float32).tiny) for each in (p, q)
    ]
    cosine = (p @ q.T / lengths[0][:, None]) / lengths[1]
    partner, back = cosine.argmax(1).tolist(), cosine.argmax(0).tolist()
    return tuple((i, j) for i, j in enumerate(partner) if back[j] == i and float(cosine[i, j]) > least)


def extract_differences(
    breakdown: DistanceBreakdown, regions: tuple[Regions, Regions], views: tuple[View | None, View | None]
) -> list[Difference]:
    """Return all differences of both sides, largest first; every region is in exactly one of them.

    Args:
        breakdown: What each region adds.
        regions: The regions of a and of b.
        views: The inputs as people see them; their special tokens are not grouped with words.
    """
    differences = []
    sides: Sequence[tuple[Side, np.ndarray]] = (("a", breakdown.a), ("b", breakdown.b))
    for number, ((side, values), partition, view) in enumerate(zip(sides, regions, views, strict=True)):
        visible = exclude_special_tokens(partition, view)
        layout = compute_layout(select_regions(partition, visible))
        special = sorted(set(range(partition.count)) - set(visible))
        matched = np.isin(np.arange(partition.count), [pair[number] for pair in breakdown.matched])
        groups = [
            [visible[n] for n in group] for group in _group_regions(values[visible], matched[visible], layout)
        ]
        for numbers in (*groups, *([region] for region in special)):
            is_matched = bool(matched[numbers].all()) or _is_in_other(breakdown, number, numbers, layout)
            differences.append(Difference(side, numbers, float(values[numbers].sum()), is_matched))
    return order_differences(differences)


def _is_in_other(
    breakdown: DistanceBreakdown, side: int, numbers: Sequence[int], layout: RegionLayout
) -> bool:
    """Return whether most of what a phrase adds to its own text is in the other; areas of an image are not judged so."""
    products = breakdown.product_with_own, breakdown.product_with_other
    if products[0] is None or products[1] is None or layout.window_width > 0:
        return False
    own, other = (float(values[side][numbers].sum()) for values in products if values is not None)
    return own > 0 and other >= MIN_MATCHED_FRACTION * own


def order_differences(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences with the largest first, those that are matched after the others unless only they add much.

    >>> apart, match = Difference("a", [0], 1.0), Difference("a", [1], 2.0, is_matched=True)
    >>> [d.contribution for d in order_differences([match, apart])]
    [1.0, 2.0]
    """
    ordered = sorted(differences, key=lambda difference: -difference.contribution)
    unmatched = [d.contribution for d in ordered if not d.is_matched]
    if not unmatched or unmatched[0] < MIN_UNMATCHED_FRACTION * ordered[0].contribution:
        return ordered
    return sorted(ordered, key=lambda difference: difference.is_matched)


def _group_regions(values: np.ndarray, matched: np.ndarray, layout: RegionLayout) -> Iterator[list[int]]:
    """Yield disjoint connected groups that cover all regions, each around a peak of the density of one sign."""
    density = layout.compute_density(values[:, None])[:, 0]
    remaining = np.ones(len(values), dtype=bool)
    while remaining.any():
        peak = int(np.where(remaining, np.abs(density), -1.0).argmax())
        alike = remaining & (matched == matched[peak])
        group = _grow_group(density * np.sign(density[peak]), layout, alike, peak)
        remaining &= ~group
        yield np.flatnonzero(group).tolist()


def _grow_group(density: np.ndarray, layout: RegionLayout, remaining: np.ndarray, peak: int) -> np.ndarray:
    """Return a mask of the connected regions around a peak; with a higher edge if the group would be too large."""
    group = remaining
    for edge in EDGE_FRACTIONS:
        group = layout.select_connected(remaining & (density >= edge * density[peak]), peak)
        if group.sum() <= MAX_SMALL_GROUP_REGIONS or layout.area_fraction[group].sum() <= MAX_AREA_FRACTION:
            break
    return group
