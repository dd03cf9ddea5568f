"""A pair of inputs whose true matches are known, and how an explanation is measured against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bilrp import evaluation
from bilrp.covering import embed_without_regions
from bilrp.encoder import Encoder, read_item
from bilrp.evaluation.metrics import safe_ratio
from bilrp.explanation import Explanation
from bilrp.inputs import Item, Text
from bilrp.regions import Regions
from bilrp.similarity import resolve_similarity

MIN_COVERED_REGIONS = 3  # of each side
MAX_FINDINGS = 100


@dataclass(frozen=True, eq=False)
class Case:
    """Two inputs and their true matches.

    Args:
        truth: name of the ground truth; cases of "warp: shift" are also counted as "warp".
        a: first input, a tensor or a text.
        b: second input.
        match: 0/1 matrix of true matches [units of a, units of b].
        mask: 0/1 matrix of the pairs that count.
        group: cases of one group share an input, and are resampled together.
        units: 0/1 matrices [units, regions] of both sides, where a unit (a chunk of a sentence) has several regions;
            None if units are regions.
        cover: whether the first findings are covered.
    """

    truth: str
    a: Any
    b: Any
    match: Tensor
    mask: Tensor
    group: int
    units: tuple[Tensor, Tensor] | None = None
    cover: bool = False


def measure(encoder: Encoder, explanation: Explanation, case: Case) -> dict[str, float]:
    """Return the measures of an explanation: × chance, signed share, hit, AUC, unattributed, and the fall under cover."""
    relevance = explanation.relevance.double()
    if case.units is not None:
        left, right = (each.double() for each in case.units)
        relevance = left @ relevance @ right.T
    share = evaluation.relevance_share(relevance, case.match, mask=case.mask)
    result = {
        "× chance": share.lift,
        "signed": share.signed,
        "hit": evaluation.hit_rate(relevance, case.match, mask=case.mask),
        "AUC": evaluation.roc_auc(relevance, case.match, mask=case.mask),
        "unattributed": safe_ratio(explanation.unattributed, explanation.score),
    }
    return result | cover_first(encoder, explanation, case) if case.cover else result


def cover_first(encoder: Encoder, explanation: Explanation, case: Case) -> dict[str, float]:
    """Cover the first regions of each side in turn; return by how much the score falls, relative to the score.

    Every method covers the same number of regions of each side, `count_covered`. "fall": those of its findings in their
    order, as listed by `order_regions`. "fall by region": those with the most relevance, whatever they go with, as
    listed by `rank_regions`. Regions of an image become its mean colour, words of a text are deleted.
    """
    similarity = resolve_similarity(None, encoder.similarity)
    embeddings = [side.embedding for side in (explanation.a, explanation.b)]
    falls = {"fall": 0.0, "fall by region": 0.0}
    for number, side in enumerate((explanation.a, explanation.b)):
        item = read_item(encoder, (case.a, case.b)[number])
        numbers = list_coverable(item, side.regions)
        for name, order in zip(falls, (order_regions, rank_regions), strict=True):
            hidden = order(explanation, number, numbers)[: count_covered(len(numbers))]
            covered = embed_without_regions(encoder, item, side.regions, hidden)
            pair = (embeddings[0], covered) if number else (covered, embeddings[1])
            falls[name] += (1 - similarity.score(*pair) / explanation.score) / 2
    return falls


def count_covered(regions: int) -> int:
    """Return how many regions of a side are covered: an eighth, at least three, never all.

    >>> [count_covered(n) for n in (2, 3, 9, 49)]
    [1, 2, 3, 6]
    """
    return max(1, min(max(MIN_COVERED_REGIONS, regions // 8), regions - 1))


def list_coverable(item: Item, regions: Regions) -> list[int]:
    """Return the regions that may be covered: all of an image, the words of a text without special tokens."""
    if isinstance(item.view, Text):
        return [number for number, span in enumerate(item.view.spans) if span is not None]
    return list(range(regions.count))


def order_regions(explanation: Explanation, side: int, numbers: Sequence[int]) -> list[int]:
    """Return regions of one side in the order in which an explanation covers them.

    First those of its findings that raise the score, in their order, and inside a finding by their relevance to its other
    side; then all others by their strongest pair. Ties keep the order of the regions.

    Args:
        explanation: The explanation.
        side: 0 for a, 1 for b.
        numbers: Regions of that side.
    """
    relevance = explanation.relevance.T if side else explanation.relevance
    strongest, rank = relevance.amax(1).tolist(), {}
    for place, finding in enumerate(
        each for each in explanation.findings(MAX_FINDINGS) if each.relevance > 0
    ):
        own, other = (finding.b, finding.a) if side else (finding.a, finding.b)
        for number, value in zip(own, relevance[own][:, other].sum(1).tolist(), strict=True):
            rank.setdefault(number, (place, -value))
    return sorted(numbers, key=lambda number: rank.get(number, (MAX_FINDINGS, -strongest[number])))


def rank_regions(explanation: Explanation, side: int, numbers: Sequence[int]) -> list[int]:
    """Return regions of one side by the sum of their relevance with the whole other side, largest first.

    A finding says what goes with what; this says what a region adds to the score, whatever it goes with.

    Args:
        explanation: The explanation.
        side: 0 for a, 1 for b.
        numbers: Regions of that side.
    """
    sums = explanation.marginals()[side].tolist()
    return sorted(numbers, key=lambda number: -sums[number])
