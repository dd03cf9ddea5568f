"""Check an explanation against the model: does the score fall when regions are covered, and which does it need?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.encoder import MODEL_RUN_LOCK, Encoder
from bilrp.errors import InputError
from bilrp.findings.formatting import format_number
from bilrp.findings.grouping import Finding
from bilrp.inputs import Item, Text
from bilrp.regions import Regions
from bilrp.similarity import Similarity

# Regions of a side that `find_needed_regions` covers together: this fraction, at least so many.
NEEDED_FRACTION = 1 / 8
MIN_NEEDED_REGIONS = 3
# Fraction of the regions, those with the most relevance, that are covered one by one. With a quarter the score falls less
# (MobileNetV2 by .070, half .075, all .072 of 40 pairs), and all take twice the forward passes.
PROPOSED_FRACTION = 0.5
MAX_PROPOSED_REGIONS = 64  # more small ones change little each
MAX_NEEDED_REGIONS = MAX_PROPOSED_REGIONS // 2


@dataclass(frozen=True)
class CoveredFinding:
    """The score with the regions of a finding covered in a, and in b; findings are numbered from 1.

    >>> CoveredFinding(1, Finding([0], [1], 0.2, 0.25), score=0.8, without_a=0.5, without_b=0.7).fall
    0.2
    """

    number: int
    finding: Finding
    score: float
    without_a: float
    without_b: float

    @property
    def fall(self) -> float:
        """By how much the score falls, the mean of both sides."""
        return _mean_fall(self.score, self.without_a, self.without_b)


@dataclass(frozen=True)
class NeededRegions:
    """Regions of a and of b, and the score with those of a covered, and with those of b.

    They are the best of three candidates: with `fall` <= 0 the score needs none of them, and with NaN nothing is left to
    score without them.

    >>> NeededRegions([4, 2], [7], score=0.8, without_a=0.5, without_b=0.7).fall
    0.2
    """

    a: list[int]
    b: list[int]
    score: float
    without_a: float
    without_b: float

    @property
    def fall(self) -> float:
        """By how much the score falls, the mean of both sides."""
        return _mean_fall(self.score, self.without_a, self.without_b)


def _mean_fall(score: float, *covered: float) -> float:
    return round(score - sum(covered) / len(covered), 12)


@dataclass(frozen=True, eq=False)
class PairRuns:
    """Two inputs with their encoders and similarity, to score them again without some of their regions."""

    encoders: tuple[Encoder, Encoder]
    items: tuple[Item, Item]
    similarity: Similarity

    def score_without(
        self,
        side: int,
        numbers: Sequence[int],
        embeddings: tuple[Tensor, Tensor],
        regions: tuple[Regions, Regions],
    ) -> float:
        """Return the score with regions of one side covered: one forward pass. NaN if what is left is an embedding of zeros.

        Args:
            side: 0 for a, 1 for b.
            numbers: the regions of that side.
            embeddings, regions: of both inputs.
        """
        covered = embed_without_regions(
            self.encoders[side],
            self.items[side],
            regions[side],
            numbers,
            can_delete=not self.similarity.any_size,
        )
        try:
            return self.similarity.score(*((embeddings[0], covered) if side else (covered, embeddings[1])))
        except InputError:  # of the cosine of zeros
            if bool(covered.any()):
                raise
            return math.nan


def embed_without_regions(
    encoder: Encoder, item: Item, regions: Regions, numbers: Sequence[int], *, can_delete: bool = True
) -> Tensor:
    """Return the embedding of an input with some regions deleted or replaced by a mean.

    Words of a text are deleted; regions of an image, and words of a text whose length is fixed, become the mean of the
    input; other features become zero.

    Args:
        encoder, item, regions: the encoder, the input, and its regions.
        numbers: which of them are deleted or replaced.
        can_delete: whether words may be deleted.
    """
    x = item.x
    inside = torch.isin(regions.labels, torch.tensor(list(numbers)).to(regions.labels))[None].expand(x.shape)
    is_text = isinstance(item.view, Text)
    # Not where the model runs on token ids or, as in a DualEncoder, pools at a fixed token, and not the whole text.
    can_delete &= is_text and x.dim() == 3 and item.model_input is None and encoder.embedding_space is None
    if can_delete and not bool(inside.all()):
        covered = x[:, ~inside[0, :, 0]]
    else:
        axes = (1,) if is_text else tuple(range(2, x.dim()))
        covered = torch.where(inside, x.mean(axes, keepdim=True) if axes else torch.zeros_like(x), x)
    with torch.no_grad(), MODEL_RUN_LOCK:
        return encoder.forward_fn(item.model_input)(covered).flatten()


def count_needed_regions(regions: int) -> int:
    """Return how many regions of a side are covered together: an eighth, at least three and at most 32, never all.

    >>> [count_needed_regions(n) for n in (1, 2, 3, 9, 49, 784)]
    [1, 1, 2, 3, 6, 32]
    """
    count = min(max(MIN_NEEDED_REGIONS, int(regions * NEEDED_FRACTION)), MAX_NEEDED_REGIONS)
    return max(1, min(count, regions - 1))


def count_proposed_regions(regions: int, count: int) -> int:
    """Return how many regions of a side are covered one by one to choose `count` of them.

    >>> [count_proposed_regions(n, 6) for n in (4, 9, 49, 784)]
    [4, 7, 25, 64]
    """
    half = min(math.ceil(PROPOSED_FRACTION * regions), MAX_PROPOSED_REGIONS)
    return min(regions, max(count + 1, half))


def order_by_findings(
    relevance: Tensor, findings: Sequence[Finding], side: int, numbers: Sequence[int]
) -> list[int]:
    """Return regions of one side in the order of findings.

    First those of findings that raise the score, in their order, and inside a finding by their relevance to its other
    side; then all others by their strongest pair. Ties keep the order of the regions.

    Args:
        relevance: relevance [regions of a, regions of b].
        findings: findings, strongest first.
        side: 0 for a, 1 for b.
        numbers: regions of that side.
    """
    own_relevance = relevance.detach().cpu().double()
    own_relevance = own_relevance.T if side else own_relevance
    strongest, rank = own_relevance.amax(1).tolist(), dict[int, tuple[int, float]]()
    raising = [each for each in findings if each.relevance > 0]
    for place, finding in enumerate(raising):
        own, other = (finding.b, finding.a) if side else (finding.a, finding.b)
        for number, value in zip(own, own_relevance[own][:, other].sum(1).tolist(), strict=True):
            rank.setdefault(number, (place, -value))
    return sorted(numbers, key=lambda number: rank.get(number, (len(raising), -strongest[number])))


def order_by_sum(relevance: Tensor, side: int, numbers: Sequence[int]) -> list[int]:
    """Return regions of one side by the sum of their relevance with the whole other side, largest first.

    A finding says what goes with what; this says what a region adds to the score, whatever it goes with.

    Args:
        relevance, side, numbers: as for `order_by_findings`.
    """
    sums = relevance.detach().cpu().double().sum(0 if side else 1).tolist()
    return sorted(numbers, key=lambda number: -sums[number])


def find_needed_regions(
    score_without: Callable[[Sequence[int]], float],
    by_finding: Sequence[int],
    by_sum: Sequence[int],
    count: int,
) -> tuple[list[int], float]:
    """Return the regions of one side without which the score is lowest, of three candidates, and that score.

    The candidates are the first regions of the findings, those with the most relevance in sum, and, among the half with
    the most relevance (at most 64, but more than `count`), those without which the score is lowest when each is covered
    alone.

    Args:
        score_without: the score without some regions; NaN if it has none.
        by_finding: regions of the side, those of the first findings first.
        by_sum: the same regions, those with the most relevance first.
        count: how many regions a candidate has.
    """
    known: dict[frozenset[int], float] = {}

    def lowest_first(numbers: Sequence[int]) -> float:
        key = frozenset(numbers)
        if key not in known:
            score = score_without(sorted(numbers))
            known[key] = score if math.isfinite(score) else math.inf
        return known[key]

    proposed = by_sum[: count_proposed_regions(len(by_sum), count)]
    by_covering = sorted(proposed, key=lambda number: lowest_first([number]))
    needed = min((order[:count] for order in (by_covering, by_sum, by_finding)), key=lowest_first)
    score = lowest_first(needed)
    return list(needed), score if math.isfinite(score) else math.nan


def describe_covering(covered: Sequence[CoveredFinding]) -> str:
    """Say in a sentence what happens to the score without each finding; '' without findings.

    >>> finding = Finding([0], [1], 0.2, 0.25)
    >>> describe_covering([CoveredFinding(1, finding, 0.8, 0.5, 0.7)])
    'Checked with the model: without match 1 the score falls from 0.8 to 0.6.'
    >>> describe_covering([CoveredFinding(1, finding, 0.8, 0.9, 0.9)])
    'Careful: without match 1 the score does not fall (0.8, then 0.9); the model may rely on something else.'
    """
    if not covered:
        return ""
    score, first = format_number(covered[0].score), covered[0]
    if first.fall <= 0:
        return (
            f"Careful: without match {first.number} the score does not fall ({score}, then "
            f"{format_number(first.score - first.fall)}); the model may rely on something else."
        )
    each = [
        f"to {format_number(c.score - c.fall)} without match {c.number}" for c in covered[1:] if c.fall > 0
    ]
    falls = [
        f"without match {first.number} the score falls from {score} to {format_number(first.score - first.fall)}"
    ]
    rest = [f"match {c.number}" for c in covered if c.fall <= 0]
    not_falling = f"; it does not fall without {' or '.join(rest)}" if rest else ""
    return f"Checked with the model: {', '.join(falls + each)}{not_falling}."
