"""Metrics of one explanation: against a ground truth, against the score, and under deletion and insertion of regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp import similarity as similarities
from bilrp.encoder import Encoder, EncoderLike, InputLike, as_encoder, read_tensor
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.regions import Regions
from bilrp.similarity import Similarity
from bilrp.trace.devices import to_float64

BATCH_INPUTS = 32  # inputs of a forward pass

# ---------------------------------------------------------------- against a ground truth


def cosine(explanation: Explanation | Tensor, truth: Explanation | Tensor) -> Tensor:
    """Return the cosine similarity of relevance and ground truth, ⟨R, T⟩ / (‖R‖‖T‖), over the last two axes.

    A batch [pairs, regions of a, regions of b] gives one value per pair; NaN where one of the two is all zero.

    >>> cosine(torch.eye(2), torch.ones(2, 2))
    tensor(0.7071)
    """
    left, right = get_relevance(explanation).flatten(-2), get_relevance(truth).flatten(-2)
    if left.shape[-1] != right.shape[-1]:
        raise InputError(
            f"the relevance is {tuple(get_relevance(explanation).shape)} and the truth {tuple(get_relevance(truth).shape)}: "
            "explain with the truth's regions, or coarsen"
        )
    right = right.to(left)
    norms = torch.linalg.vector_norm(left, dim=-1) * torch.linalg.vector_norm(right, dim=-1)
    return (left * right).sum(-1) / norms


def acs(explanations: Tensor | Sequence[Explanation], truth: Tensor | Sequence[Tensor]) -> float:
    """Return the average cosine similarity of explanations and ground truths (Eberle et al. 2022, section 4); 1 is best.

    Pairs whose ground truth is all zero are skipped; an all-zero explanation scores 0.

    >>> round(acs(torch.eye(2)[None], torch.ones(1, 2, 2)), 4)
    0.7071
    """
    relevance, matches = (
        to_float64(each if isinstance(each, Tensor) else torch.stack([get_relevance(e) for e in each]))
        for each in (explanations, truth)
    )
    known = matches.flatten(1).any(1)
    if not bool(known.any()):
        raise InputError("no pair has a match in its ground truth: ACS is not defined")
    return float(cosine(relevance[known], matches[known]).nan_to_num(0.0).mean())


@dataclass(frozen=True)
class RelevanceShare:
    """Share of the relevance that is on truly matching pairs.

    Args:
        positive: Σ_match R⁺ / Σ R⁺.
        signed: Σ_match R / Σ|R|, −1 … 1; cancelling noise scores 0.
        chance: share of pairs that match, which is what constant relevance scores.
    """

    positive: float
    signed: float
    chance: float

    @property
    def lift(self) -> float:
        """Return positive / chance."""
        return self.positive / self.chance


def relevance_share(
    explanation: Explanation | Tensor, match: Tensor, *, mask: Tensor | None = None
) -> RelevanceShare:
    """Return the share of relevance on true matches (after the pointing game of Zhang et al. 2018).

    Args:
        explanation: an explanation or its relevance [regions of a, regions of b].
        match: 0/1 matrix of true matches, of the same shape.
        mask: 0/1 matrix of the pairs to count; all by default.

    >>> relevance_share(torch.eye(3), torch.eye(3))
    RelevanceShare(positive=1.0, signed=1.0, chance=0.3333333333333333)
    """
    relevance, match, counted = _masked(explanation, match, mask)
    relevance = relevance * counted
    positive = relevance.clamp(min=0)
    return RelevanceShare(
        positive=safe_ratio((positive * match).sum(), positive.sum()),
        signed=safe_ratio((relevance * match).sum(), relevance.abs().sum()),
        chance=float(match.sum() / counted.sum()),
    )


def hit_rate(explanation: Explanation | Tensor, match: Tensor, *, mask: Tensor | None = None) -> float:
    """Return how often the strongest partner of a region is a true match, over the rows that have one.

    Of several equally strong partners, the fraction that match is counted, so constant relevance scores chance.

    Args:
        explanation: an explanation or its relevance [regions of a, regions of b].
        match: 0/1 matrix of true matches, of the same shape.
        mask: 0/1 matrix of the pairs to count; all by default.

    >>> hit_rate(torch.tensor([[2.0, 1.0], [3.0, 1.0]]), torch.eye(2))
    0.5
    """
    relevance, match, counted = _masked(explanation, match, mask)
    relevance = relevance.masked_fill(counted == 0, -torch.inf)
    best = (relevance == relevance.amax(1, keepdim=True)).double() * counted
    rows = match.any(1)
    return float(((best * match).sum(1) / best.sum(1).clamp(min=1))[rows].mean())


def roc_auc(explanation: Explanation | Tensor, match: Tensor, *, mask: Tensor | None = None) -> float:
    """Return the area under the ROC curve: how often a true match has more relevance than another pair; ties count half.

    Args:
        explanation, match, mask: as for `hit_rate`.

    >>> roc_auc(torch.tensor([[2.0, 1.0], [3.0, 1.0]]), torch.eye(2))
    0.375
    """
    relevance, match, counted = _masked(explanation, match, mask)
    inside = counted.flatten() > 0
    ranks, is_match = _ranks(relevance.flatten()[inside]), match.flatten()[inside] > 0
    positives, negatives = int(is_match.sum()), int((~is_match).sum())
    if not negatives:
        raise InputError("every pair of regions matches: the area is not defined")
    return (float(ranks[is_match].sum()) - positives * (positives - 1) / 2) / (positives * negatives)


def _masked(
    explanation: Explanation | Tensor, match: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return relevance, matches among the counted pairs, and which pairs are counted, in float64."""
    relevance = to_float64(get_relevance(explanation))
    if match.shape != relevance.shape:
        raise InputError(f"match has shape {tuple(match.shape)}, the relevance {tuple(relevance.shape)}")
    counted = torch.ones_like(relevance) if mask is None else mask.to(relevance).expand_as(relevance)
    match = match.to(relevance) * counted
    if not bool(match.any()):
        raise InputError("no pair of regions matches: the share is not defined")
    return relevance, match, counted


# ---------------------------------------------------------------- conservation


@dataclass(frozen=True)
class Conservation:
    """Parts of the score: `explained` + `unattributed` = `score`; shares are relative to |score| and to Σ|R|."""

    score: float
    explained: float
    unattributed: float
    unattributed_share: float
    negative_share: float


def conservation(explanation: Explanation) -> Conservation:
    """Measure whether relevance adds up to the score (Prop. 1; Bach et al. 2015).

    unattributed_share = |y − Σ R| / |y| is best at 0. negative_share = Σ R⁻ / Σ|R| shows cancellation: ½ means as much
    negative as positive relevance.

    >>> from bilrp import explain
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU()).double()
    >>> conservation(explain(net, *torch.rand(2, 1, 4).double())).unattributed_share < 1e-9
    True
    """
    relevance = to_float64(explanation.relevance)
    return Conservation(
        score=explanation.score,
        explained=explanation.explained,
        unattributed=explanation.unattributed,
        unattributed_share=safe_ratio(abs(explanation.unattributed), abs(explanation.score)),
        negative_share=safe_ratio(relevance.clamp(max=0).abs().sum(), relevance.abs().sum()),
    )


# ---------------------------------------------------------------- against another explanation


def rank_correlation(explanation: Explanation | Tensor, other: Explanation | Tensor) -> float:
    """Return Spearman's rank correlation of two relevance matrices (ties get their mean rank); 0 if one is constant.

    >>> round(rank_correlation(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 20.0, 40.0]])), 6)
    1.0
    """
    first, second = (_ranks(get_relevance(r).flatten()) for r in (explanation, other))
    first, second = first - first.mean(), second - second.mean()
    return safe_ratio((first * second).sum(), first.norm() * second.norm())


def _ranks(values: Tensor) -> Tensor:
    _, group, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts.double() + 1) / 2)[group]


# ---------------------------------------------------------------- deletion and insertion


@dataclass(frozen=True, eq=False)
class Curve:
    """Similarity as regions are deleted or inserted.

    Args:
        fraction: fraction of the regions changed at each step.
        scores: similarity at each step.
        full_score: similarity of the two unchanged inputs.
    """

    fraction: Tensor
    scores: Tensor
    full_score: float

    @property
    def relative_scores(self) -> Tensor:
        """Return scores / full_score."""
        return self.scores / self.full_score

    @property
    def area(self) -> float:
        """Return the area under the relative scores, by the trapezoidal rule."""
        return float(torch.trapezoid(self.relative_scores, self.fraction))


def deletion(
    encoder: EncoderLike,
    explanation: Explanation,
    a: InputLike,
    b: InputLike,
    *,
    steps: int = 16,
    baseline: Callable[[Tensor], Tensor] | float = 0.0,
    similarity: str | Similarity | None = None,
) -> Curve:
    """Delete regions from both inputs in the order of pair relevance, and record the similarity; a small area is best.

    If only the regions S of a and S' of b remain, an explanation predicts the similarity Σ_{I∈S, I'∈S'} R_II'. Regions
    are deleted in the order that makes this fall fastest (`removal_order`). After the pixel flipping of Samek et al. 2017
    and its second-order form by Vasileiou and Eberle 2024.

    Args:
        encoder: encoder of both inputs.
        explanation: explanation of `a` and `b`.
        a, b: the inputs.
        steps: number of steps of the curve.
        baseline: values of deleted regions: a number, or a function of the input such as `blur_baseline(8)`.
        similarity: the explanation's own by default.

    >>> from bilrp import explain
    >>> from torch import nn
    >>> net, x = nn.Identity(), torch.tensor([[1.0, 3.0]])
    >>> deletion(net, explain(net, x, x, similarity="dot"), x, x, steps=4).scores
    tensor([10.,  1.,  0.,  0.,  0.])
    """
    return _perturbation_curve(encoder, explanation, a, b, steps, baseline, similarity, insert=False)


def insertion(
    encoder: EncoderLike,
    explanation: Explanation,
    a: InputLike,
    b: InputLike,
    *,
    steps: int = 16,
    baseline: Callable[[Tensor], Tensor] | float = 0.0,
    similarity: str | Similarity | None = None,
) -> Curve:
    """Insert regions into two baselines in `insertion_order`, and record the similarity; a large area is best.

    The counterpart of `deletion` (Petsiuk et al. 2018).

    Args:
        encoder, explanation, a, b, steps, similarity: as for `deletion`.
        baseline: values before insertion: a number, or a function of the input such as `blur_baseline(8)`.

    >>> from bilrp import explain
    >>> from torch import nn
    >>> net, x = nn.Identity(), torch.tensor([[1.0, 3.0]])
    >>> insertion(net, explain(net, x, x, similarity="dot"), x, x, steps=4).scores
    tensor([ 0.,  0.,  9.,  9., 10.])
    """
    return _perturbation_curve(encoder, explanation, a, b, steps, baseline, similarity, insert=True)


def removal_order(relevance: Tensor, *, most_relevant_first: bool = True) -> tuple[Tensor, Tensor]:
    """Return the step at which each region of a and of b is removed, such that the remaining relevance falls fastest.

    Each step removes the region with the largest relevance to the remaining regions of the other side. Removing both
    regions of the most relevant pairs instead would waste every second removal, and random relevance would then break
    more matches than the ground truth does.

    >>> removal_order(torch.tensor([[5.0, 0.0], [0.0, 3.0]]))
    (tensor([0, 1]), tensor([2, 3]))
    """
    table = relevance.detach().cpu().double().numpy()
    rows, columns = table.shape
    sign = 1.0 if most_relevant_first else -1.0
    remaining = sign * np.concatenate([table.sum(1), table.sum(0)])
    order = np.empty(rows + columns, dtype=np.int64)
    for step in range(rows + columns):
        region = int(remaining.argmax())
        order[region], remaining[region] = step, -np.inf
        if region < rows:
            remaining[rows:] -= sign * table[region]
        else:
            remaining[:rows] -= sign * table[:, region - rows]
    steps = torch.from_numpy(order).to(relevance.device)
    return steps[:rows], steps[rows:]


def insertion_order(relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the step at which each region is inserted: the reverse of removing the least relevant first.

    Matching regions are then inserted one after the other.

    >>> insertion_order(torch.tensor([[5.0, 0.0], [0.0, 3.0]]))
    (tensor([1, 3]), tensor([0, 2]))
    """
    last = sum(relevance.shape) - 1
    a, b = removal_order(relevance, most_relevant_first=False)
    return last - a, last - b


def blur_baseline(radius: int) -> Callable[[Tensor], Tensor]:
    """Return a baseline function that removes detail finer than about `radius` pixels (a box blur, twice).

    >>> blur_baseline(4)(torch.rand(1, 3, 32, 32)).shape
    torch.Size([1, 3, 32, 32])
    """

    def blur(x: Tensor) -> Tensor:
        width = 2 * radius + 1
        for _ in range(2):
            x = F.avg_pool2d(F.pad(x, (radius,) * 4, mode="replicate"), width, stride=1)
        return x

    return blur


def _perturbation_curve(
    encoder: EncoderLike,
    explanation: Explanation,
    a: InputLike,
    b: InputLike,
    steps: int,
    baseline: Callable[[Tensor], Tensor] | float,
    similarity: str | Similarity | None,
    *,
    insert: bool,
) -> Curve:
    """Encode both inputs at every step in one batch, and return their similarities."""
    if steps < 1:
        raise InputError(f"a curve needs at least one step, got {steps}")
    encoder = as_encoder(encoder)
    resolved = similarities.resolve_similarity(explanation.similarity if similarity is None else similarity)
    order = (insertion_order if insert else removal_order)(explanation.relevance)
    total = len(order[0]) + len(order[1])
    counts = torch.linspace(0, total, steps + 1).round().long()
    embeddings = []
    for item, side, steps_of_regions in ((a, explanation.a, order[0]), (b, explanation.b, order[1])):
        x = read_tensor(encoder, item)
        empty = baseline(x) if callable(baseline) else torch.full_like(x, baseline)
        embeddings.append(
            _encode_batch(
                encoder, replace_regions(x, empty, side.regions, steps_of_regions, counts, insert=insert)
            )
        )
    scores = torch.tensor([resolved.score(p, q) for p, q in zip(*embeddings, strict=True)])
    return Curve(counts / total, scores, full_score=float(scores[-1 if insert else 0]))


def replace_regions(
    x: Tensor, baseline: Tensor, regions: Regions, order: Tensor, counts: Tensor, *, insert: bool = False
) -> Tensor:
    """Return [steps, *input]: x with the first `counts` regions in `order` replaced by the baseline.

    Args:
        x: input.
        baseline: values of deleted regions, shaped like x.
        regions: regions of x; features in no region are never replaced.
        order: step of each region.
        counts: number of regions changed at each step.
        insert: start from the baseline, and replace by values of x.

    >>> from bilrp.regions import features
    >>> x = torch.tensor([[1.0, 2.0]])
    >>> replace_regions(x, 0 * x, features()(x), torch.tensor([1, 0]), torch.tensor([0, 1, 2]))
    tensor([[1., 2.],
            [1., 0.],
            [0., 0.]])
    """
    last = torch.cat([order.new_full((1,), torch.iinfo(order.dtype).max), order])
    start, end = (baseline, x) if insert else (x, baseline)
    changed = last[regions.labels + 1] < counts.to(order.device).reshape(-1, *[1] * regions.labels.dim())
    return torch.where(changed, end, start)


def _encode_batch(encoder: Encoder, batch: Tensor) -> list[Tensor]:
    """Return the flat embeddings of a batch, encoded in chunks."""
    with torch.no_grad():
        return [row for part in batch.split(BATCH_INPUTS) for row in encoder.module(part).flatten(1)]


# ---------------------------------------------------------------- helpers


def get_relevance(explanation: Explanation | Tensor) -> Tensor:
    """Return the relevance of an explanation; a tensor is returned unchanged."""
    return explanation.relevance if isinstance(explanation, Explanation) else explanation


def safe_ratio(part: float | Tensor, total: float | Tensor) -> float:
    """Return part / total, or 0 if total is 0."""
    return float(part) / float(total) if float(total) != 0 else 0.0
