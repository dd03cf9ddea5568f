"""Compare two sets of inputs: the similarity of every pair, what members share on average, the most similar pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bilrp.decomposition import Decomposition
from bilrp.explanation import Explanation, pair
from bilrp.groups import GroupResult, explain_sets
from bilrp.similarity import Similarity, norm, resolve_similarity

if TYPE_CHECKING:
    from bilrp.render.group_views import GroupView


@dataclass(frozen=True, eq=False)
class SetMember:
    """A member of a set: mean = values.sum() + unattributed is its mean similarity with all members of the other set.

    Args:
        number: its position in the set.
        side: its decomposition.
        values: what each of its regions contributes to that mean; zeros for similarities other than dot and cosine.
        mean: the mean.
    """

    number: int
    side: Decomposition
    values: Tensor
    mean: float


@dataclass(frozen=True, eq=False)
class SetComparison(GroupResult):
    """Two sets of inputs: the similarity of every pair, members with what they share on average, the most similar pairs.

    Args:
        explanation: the sum over all pairs, as `explain_sets` returns it.
        scores: the similarity of every pair, [|A|, |B|].
        similarity: its name.
        members_a, members_b: members of each set, most similar to the other set first.
        examples: explanations of the most similar pairs, no member in two of them.
    """

    explanation: Explanation
    scores: Tensor
    similarity: str
    members_a: tuple[SetMember, ...]
    members_b: tuple[SetMember, ...]
    examples: tuple[Explanation, ...]

    @property
    def mean(self) -> float:
        """The mean of the similarities of all pairs: the score of `explanation` divided by their number."""
        return float(self.scores.double().mean())

    def summary(self, names: Sequence[str] | None = None) -> str:
        """Return the mean similarity of the pairs and its range in one sentence.

        Args:
            names: names of the two sets.
        """
        from bilrp.render import group_views

        return group_views.describe_sets(self, names)

    def _view(self, names: Sequence[str] | None = None) -> GroupView:
        from bilrp.render import group_views

        return group_views.view_sets(self, names)

    def _save_numbers(self, path: Path) -> Path:
        return self.explanation.save(path)  # the sum over all pairs


def compare_sets(
    a: Sequence[Decomposition],
    b: Sequence[Decomposition],
    *,
    similarity: str | Similarity | None = None,
    members: int = 6,
    examples: int = 3,
) -> SetComparison:
    """Compare two sets of inputs: all similarities, what members share with the other set, the most similar pairs.

    Args:
        a, b: the sets; a sequence may compute its items when they are read.
        similarity: a name or a Similarity; None is the encoder's own.
        members: how many members of each set to show.
        examples: how many pairs to explain.

    >>> import bilrp
    >>> net = torch.nn.Linear(4, 3, bias=False)
    >>> sides = [bilrp.decompose(net, torch.rand(1, 4)) for _ in range(5)]
    >>> both = compare_sets(sides[:2], sides[2:], similarity="dot")
    >>> abs(both.mean - both.explanation.score / 6) < 1e-6
    True
    """
    embeddings: tuple[list[Tensor], list[Tensor]] = ([], [])

    def collect(side: Iterable[Decomposition], kept: list[Tensor]) -> Iterator[Decomposition]:
        for d in side:
            kept.append(d.embedding.detach().cpu().double())
            yield d

    collected = [collect(side, kept) for side, kept in zip((a, b), embeddings, strict=True)]
    explanation = explain_sets(collected[0], collected[1], similarity=similarity)
    name = explanation.similarity.removeprefix("sum of ")
    wanted = resolve_similarity(similarity, *(side[0].origin.get("similarity") for side in (a, b)))
    rows = [[wanted.score(x, y) for y in embeddings[1]] for x in embeddings[0]]
    scores = torch.tensor(rows, dtype=torch.float64)
    chosen = (
        _choose_members(a, embeddings[1], scores.mean(1), wanted, members),
        _choose_members(b, embeddings[0], scores.mean(0), wanted, members),
    )
    best = _choose_pairs(-scores if wanted.is_distance else scores, examples)
    pairs = tuple(pair(a[i], b[j], similarity=wanted) for i, j in best)
    return SetComparison(explanation, scores, name, *chosen, pairs)


def _choose_members(
    side: Sequence[Decomposition], others: Sequence[Tensor], means: Tensor, wanted: Similarity, count: int
) -> tuple[SetMember, ...]:
    """Return the members with the largest mean similarity, each with what its regions contribute to it."""
    is_cosine = wanted.unit_form is not None
    target = torch.stack([other / norm(other) if is_cosine else other for other in others]).mean(0)
    order = means.argsort(descending=not wanted.is_distance, stable=True)[:count].tolist()
    chosen = []
    for number in order:
        d = side[number]
        values = torch.zeros(d.regions.count, dtype=torch.float64)
        if wanted.name in ("dot", "cosine"):
            length = norm(d.embedding.detach().cpu().double()) if is_cosine else 1.0
            values = d.parts.detach().cpu().double() @ target / length
        chosen.append(SetMember(number, d, values, float(means[number])))
    return tuple(chosen)


def _choose_pairs(scores: Tensor, count: int) -> list[tuple[int, int]]:
    """Return the pairs with the largest scores, no row and no column twice.

    >>> _choose_pairs(torch.tensor([[3.0, 2.0], [2.5, 1.0]]), 2)
    [(0, 0), (1, 1)]
    """
    free, chosen = scores.clone(), []
    for _ in range(min(count, *scores.shape)):
        i, j = divmod(int(free.argmax()), scores.shape[1])
        chosen.append((i, j))
        free[i], free[:, j] = -torch.inf, -torch.inf
    return chosen
