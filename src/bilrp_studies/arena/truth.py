"""A pair of inputs whose true matches are known, and how an explanation is measured against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from bilrp import evaluation
from bilrp.covering import (
    PairRuns,
    count_needed_regions,
    find_needed_regions,
    order_by_findings,
    order_by_sum,
)
from bilrp.encoder import Encoder, read_item
from bilrp.evaluation.metrics import safe_ratio
from bilrp.explanation import Explanation
from bilrp.findings.special_tokens import exclude_special_tokens
from bilrp.similarity import resolve_similarity

MAX_FINDINGS = 100
COVER_MEASURES = ("fall", "fall by region", "fall, checked")

ScoresWithout: TypeAlias = dict[tuple[int, frozenset[int]], float]
"""(side, covered regions) → score: methods often cover the same regions of a pair."""


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


def measure(
    encoder: Encoder, explanation: Explanation, case: Case, covered: ScoresWithout | None = None
) -> dict[str, float]:
    """Return the measures of an explanation: × chance, signed share, hit, AUC, unattributed, and the fall under cover.

    Args:
        encoder: the encoder.
        explanation: the explanation of a method.
        case: the pair and its true matches.
        covered: scores without regions that are known from other methods; what is computed is added.
    """
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
    return result | cover_first(encoder, explanation, case, covered) if case.cover else result


def cover_first(
    encoder: Encoder, explanation: Explanation, case: Case, covered: ScoresWithout | None = None
) -> dict[str, float]:
    """Cover the first regions of each side in turn; return by how much the score falls, relative to the score.

    Every method covers as many regions of each side (`count_needed_regions`). "fall": those of its findings in their
    order; "fall by region": those with the most relevance, whatever they go with; "fall, checked": those that
    `find_needed_regions` chooses with the model. Regions of an image become its mean colour, words of a text are deleted.

    Args:
        encoder, explanation, case, covered: as for `measure`.
    """
    items = read_item(encoder, case.a), read_item(encoder, case.b)
    runs = PairRuns((encoder, encoder), items, resolve_similarity(None, encoder.similarity))
    embeddings = explanation.a.embedding, explanation.b.embedding
    regions = explanation.a.regions, explanation.b.regions
    known = {} if covered is None else covered
    falls: dict[str, float] = dict.fromkeys(COVER_MEASURES, 0.0)
    for side, item in enumerate(items):

        def score_without(numbers: Sequence[int], side: int = side) -> float:
            key = side, frozenset(numbers)
            if key not in known:
                known[key] = runs.score_without(side, numbers, embeddings, regions)
            return known[key]

        numbers = exclude_special_tokens(regions[side], item.view)
        count = count_needed_regions(len(numbers))
        by_finding = order_by_findings(
            explanation.relevance, explanation.findings(MAX_FINDINGS), side, numbers
        )
        by_sum = order_by_sum(explanation.relevance, side, numbers)
        _, checked = find_needed_regions(score_without, by_finding, by_sum, count)
        scores = (score_without(by_finding[:count]), score_without(by_sum[:count]), checked)
        for name, score in zip(COVER_MEASURES, scores, strict=True):
            falls[name] += (1 - score / explanation.score) / 2
    return falls
