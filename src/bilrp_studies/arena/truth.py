"""A pair of inputs whose true matches are known, and how an explanation is measured against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bilrp import evaluation
from bilrp.covering import cover_regions
from bilrp.encoder import Encoder, read_item
from bilrp.evaluation.metrics import safe_ratio
from bilrp.explanation import Explanation
from bilrp.findings.grouping import Finding
from bilrp.similarity import resolve_similarity

NUM_COVERED_FINDINGS = 3


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
    return result | cover_findings(encoder, explanation, case) if case.cover else result


def cover_findings(encoder: Encoder, explanation: Explanation, case: Case) -> dict[str, float]:
    """Cover the first findings of each side in turn; return the mean fall of the score and the fraction covered.

    Regions of an image become its mean colour, words of a text are deleted. Both are relative to the score and to the
    number of regions. Only findings that raise the score are covered; an explanation without any has its strongest pairs.
    """
    findings = [each for each in explanation.findings(100) if each.relevance > 0][:NUM_COVERED_FINDINGS]
    if not findings:  # relevance without peaks has none: its strongest pairs
        findings = [Finding([m.a], [m.b], m.relevance, None) for m in explanation.top(NUM_COVERED_FINDINGS)]
    similarity = resolve_similarity(None, encoder.similarity)
    embeddings = [side.embedding for side in (explanation.a, explanation.b)]
    falls, fractions = [], []
    for number, side in enumerate((explanation.a, explanation.b)):
        hidden = sorted({n for each in findings for n in (each.b if number else each.a)})
        if not hidden or len(hidden) == side.regions.count:
            return {"fall": 0.0, "covered": float(len(hidden) > 0)}
        covered = cover_regions(encoder, read_item(encoder, (case.a, case.b)[number]), side.regions, hidden)
        pair = (embeddings[0], covered) if number else (covered, embeddings[1])
        falls.append(1 - similarity.score(*pair) / explanation.score)
        fractions.append(len(hidden) / side.regions.count)
    return {"fall": sum(falls) / 2, "covered": sum(fractions) / 2}
