"""Numbers for one explanation: against a known truth, against the score, and as its regions come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp import similarity as similarities
from bilrp.encoder import Encoder, as_encoder, read_tensor
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.regions import Regions
from bilrp.similarity import Similarity
from bilrp.trace.devices import to_float64

# ---------------------------------------------------------------- against a known truth


def cosine(explanation: Explanation | Tensor, truth: Explanation | Tensor) -> Tensor:
    """Cosine of the angle between relevance and truth, ⟨R, T⟩ / (‖R‖‖T‖), over the last two axes.

    A batch [pairs, regions of a, regions of b] gives one number for each pair; NaN where one of the two is all zero.

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
    """Average cosine similarity of explanations to their ground truths (Eberle et al. 2022, section 4): 1 is perfect.

    Pairs whose truth is all zero have no angle and are left out; an explanation of all zeros scores 0.

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
    """How much of an explanation falls on the pairs that truly match.

    `positive` = Σ_match R⁺ / Σ R⁺ (1: all of it), `signed` = Σ_match R / Σ|R| (−1 … 1: cancelling noise doesn't
    count as success), `chance` = the share of pairs that match, which is what even relevance would score.
    """

    positive: float
    signed: float
    chance: float

    @property
    def lift(self) -> float:
        """How many times chance the positive relevance reaches."""
        return self.positive / self.chance


def relevance_share(
    explanation: Explanation | Tensor, match: Tensor, *, mask: Tensor | None = None
) -> RelevanceShare:
    """The share of relevance on true matches, given as a 0/1 matrix (after the pointing game of Zhang et al. 2018).

    `among` (0/1) restricts the account to pairs where the truth is known; everything by default.

    >>> relevance_share(torch.eye(3), torch.eye(3))
    RelevanceShare(positive=1.0, signed=1.0, chance=0.3333333333333333)
    """
    relevance = to_float64(get_relevance(explanation))
    match = match.to(relevance)
    if match.shape != relevance.shape:
        raise InputError(f"matches of shape {tuple(match.shape)} for relevance {tuple(relevance.shape)}")
    counted = torch.ones_like(relevance) if mask is None else mask.to(relevance).expand_as(relevance)
    match, relevance = match * counted, relevance * counted
    if not bool(match.any()):
        raise InputError("no pair of regions matches: there is nothing to find")
    positive = relevance.clamp(min=0)
    return RelevanceShare(
        positive=safe_ratio((positive * match).sum(), positive.sum()),
        signed=safe_ratio((relevance * match).sum(), relevance.abs().sum()),
        chance=float(match.sum() / counted.sum()),
    )


# ---------------------------------------------------------------- conservation


@dataclass(frozen=True)
class Conservation:
    """Where the score went: `explained` + `unattributed` = `score`; shares are of |score| and of Σ|R|."""

    score: float
    explained: float
    unattributed: float
    unattributed_share: float
    negative_share: float


def conservation(explanation: Explanation) -> Conservation:
    """Does relevance add up to the score (Prop. 1)? unattributed_share = |y − Σ R| / |y|: 0 is perfect.

    `negative_share` = Σ R⁻ / Σ|R| shows cancellation: ½ means as much negative as positive relevance. After the
    conservation that Bach et al. 2015 ask of relevance.

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
    """Spearman's rank correlation of two relevances, ties ranked by their mean; 0 where one is constant.

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
    """The similarity as regions are removed or added: `relevance_share` of regions changed, and `scores` at each.

    `area` is the mean height of the curve over the share, in units of the similarity of the two whole inputs.
    """

    fraction: Tensor
    scores: Tensor
    full_score: float

    @property
    def relative_scores(self) -> Tensor:
        """Scores in units of the similarity of the two whole inputs."""
        return self.scores / self.full_score

    @property
    def area(self) -> float:
        return float(torch.trapezoid(self.relative_scores, self.fraction))


def deletion(
    encoder: Any,
    explanation: Explanation,
    a: Any,
    b: Any,
    *,
    steps: int = 16,
    baseline: Callable[[Tensor], Tensor] | float = 0.0,
    similarity: str | Similarity | None = None,
) -> Curve:
    """Pair deletion: remove regions from both inputs in the order of pair relevance, and follow the similarity.

    An explanation predicts what is left when only the regions S of a and S' of b stay: Σ_{I∈S, I'∈S'} R_II'. Regions
    go in the order that makes this fall fastest (`removal_order`), and take the `baseline`'s values (a number, or a
    function of the input such as `blur_baseline(8)`). The faster the similarity falls, the better: the smaller the area.
    After the pixel flipping of Samek et al. 2017, in the second-order spirit of Vasileiou and Eberle 2024.

    >>> from bilrp import explain
    >>> from torch import nn
    >>> net, x = nn.Identity(), torch.tensor([[1.0, 3.0]])
    >>> deletion(net, explain(net, x, x, similarity="dot"), x, x, steps=4).scores
    tensor([10.,  1.,  0.,  0.,  0.])
    """
    order = removal_order(explanation.relevance)
    return _perturbation_curve(encoder, explanation, a, b, order, steps, baseline, similarity, insert=False)


def insertion(
    encoder: Any,
    explanation: Explanation,
    a: Any,
    b: Any,
    *,
    steps: int = 16,
    baseline: Callable[[Tensor], Tensor] | float = 0.0,
    similarity: str | Similarity | None = None,
) -> Curve:
    """Pair insertion: start from two baselines, add regions to both in the order of pair relevance.

    The mirror of `deletion` (Petsiuk et al. 2018): the last to go, if the least relevant are removed first, come
    first. The faster the similarity rises, the better; the larger the area.

    >>> from bilrp import explain
    >>> from torch import nn
    >>> net, x = nn.Identity(), torch.tensor([[1.0, 3.0]])
    >>> insertion(net, explain(net, x, x, similarity="dot"), x, x, steps=4).scores
    tensor([ 0.,  0.,  9.,  9., 10.])
    """
    order = insertion_order(explanation.relevance)
    return _perturbation_curve(encoder, explanation, a, b, order, steps, baseline, similarity, insert=True)


def removal_order(relevance: Tensor, *, most_relevant_first: bool = True) -> tuple[Tensor, Tensor]:
    """When each region of a and of b goes, 0, 1, … over both sides, if the relevance of what is left falls fastest.

    At each step the region goes that has most relevance with the regions still there on the other side. The plain
    walk down the pairs, both regions of each removed at once, would not do: the second removal changes nothing, and
    an explanation that knew nothing would break more matches than the truth.

    >>> removal_order(torch.tensor([[5.0, 0.0], [0.0, 3.0]]))
    (tensor([0, 1]), tensor([2, 3]))
    """
    table = relevance.detach().cpu().double().numpy()
    rows, columns = table.shape
    sign = 1.0 if most_relevant_first else -1.0
    left = sign * np.concatenate([table.sum(1), table.sum(0)])
    place = np.empty(rows + columns, dtype=np.int64)
    for step in range(rows + columns):
        region = int(left.argmax())
        place[region], left[region] = step, -np.inf
        if region < rows:
            left[rows:] -= sign * table[region]
        else:
            left[:rows] -= sign * table[:, region - rows]
    found = torch.from_numpy(place).to(relevance.device)
    return found[:rows], found[rows:]


def insertion_order(relevance: Tensor) -> tuple[Tensor, Tensor]:
    """When each region of a and of b comes: the reverse of removing the least relevant first, so that matches come in pairs.

    >>> insertion_order(torch.tensor([[5.0, 0.0], [0.0, 3.0]]))
    (tensor([1, 3]), tensor([0, 2]))
    """
    last = sum(relevance.shape) - 1
    a, b = removal_order(relevance, most_relevant_first=False)
    return last - a, last - b


def blur_baseline(radius: int) -> Callable[[Tensor], Tensor]:
    """A baseline: the image without detail finer than about `radius` pixels (a box blur, twice).

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
    encoder: Any,
    explanation: Explanation,
    a: Any,
    b: Any,
    order: tuple[Tensor, Tensor],
    steps: int,
    baseline: Callable[[Tensor], Tensor] | float,
    similarity: str | Similarity | None,
    *,
    insert: bool,
) -> Curve:
    """Both inputs at every step in one batch, encoded, and compared step by step."""
    if steps < 1:
        raise InputError(f"a curve needs at least one step, got {steps}")
    encoder = as_encoder(encoder)
    wanted = similarities.resolve_similarity(explanation.similarity if similarity is None else similarity)
    total = len(order[0]) + len(order[1])
    counts = torch.linspace(0, total, steps + 1).round().long()
    embeddings = []
    for item, side, place in ((a, explanation.a, order[0]), (b, explanation.b, order[1])):
        x = read_tensor(encoder, item)
        empty = baseline(x) if callable(baseline) else torch.full_like(x, baseline)
        embeddings.append(
            _encode_batch(encoder, replace_regions(x, empty, side.regions, place, counts, insert=insert))
        )
    scores = torch.tensor([wanted.score(p, q) for p, q in zip(*embeddings, strict=True)])
    return Curve(counts / total, scores, full_score=float(scores[-1 if insert else 0]))


def replace_regions(
    x: Tensor, baseline: Tensor, regions: Regions, order: Tensor, counts: Tensor, *, insert: bool = False
) -> Tensor:
    """[steps, *input]: x with the regions whose place is below each count emptied (`insert`: filled, all others empty).

    Features in no region never change.

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


def _encode_batch(encoder: Encoder, batch: Tensor, batch_size: int = 32) -> list[Tensor]:
    """Embeddings of a batch, flat, in chunks."""
    with torch.no_grad():
        return [row for part in batch.split(batch_size) for row in encoder.module(part).flatten(1)]


# ---------------------------------------------------------------- small help


def get_relevance(explanation: Explanation | Tensor) -> Tensor:
    """The relevance of an explanation; a tensor stays as it is."""
    return explanation.relevance if isinstance(explanation, Explanation) else explanation


def safe_ratio(part: float | Tensor, total: float | Tensor) -> float:
    """part / whole; 0 where there is nothing to share."""
    return float(part) / float(total) if float(total) != 0 else 0.0
