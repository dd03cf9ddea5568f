"""Four measures of faithfulness for relevance on words × words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bilrp_studies.common.word_subsets import StudySentence
from bilrp_studies.sentences.methods import Relevance


def relevance_correlation(relevance: Relevance, reference: Relevance) -> float:
    """Pearson correlation of two explanations over all pairs of words.

    >>> relevance_correlation(torch.eye(3).double(), 2 * torch.eye(3).double() + 1)
    1.0
    """
    return _correlation(relevance.flatten(), reference.flatten())


@dataclass(frozen=True, eq=False)
class SubsetTest:
    """Random subsets of the words of two sentences, and the model's similarity of the remaining texts."""

    subsets_a: Bool[Tensor, "n words_a"]
    subsets_b: Bool[Tensor, "n words_b"]
    scores: Float[Tensor, " n"]

    @staticmethod
    def draw(a: StudySentence, b: StudySentence, count: int, *, seed: int) -> SubsetTest:
        kept_a = draw_subsets(len(a.words), count, seed=2 * seed)
        kept_b = draw_subsets(len(b.words), count, seed=2 * seed + 1)
        scores = (a.embed(kept_a).double() * b.embed(kept_b).double()).sum(1)
        return SubsetTest(kept_a, kept_b, scores)

    def correlation(self, relevance: Relevance) -> float:
        """Correlation of Σ_{S×S'} R with ⟨φ(S), φ'(S')⟩: does the relevance within the subsets predict their similarity?"""
        inside = ((self.subsets_a.double() @ relevance) * self.subsets_b.double()).sum(1)
        return _correlation(inside, self.scores)


def draw_subsets(words: int, count: int, *, seed: int) -> Bool[Tensor, "n words"]:
    """Draw random subsets, each word kept with probability one half; never empty.

    Args:
        words: Number of words.
        count: Number of subsets.
        seed: Seed of the subsets.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(count, words, generator=generator) < 0.5
    mask[~mask.any(1), 0] = True
    return mask


def deletion_area(relevance: Relevance, a: StudySentence, b: StudySentence, *, points: int = 8) -> float:
    """Area under the similarity while words of one sentence are deleted, most relevant first; mean over both sides.

    Relative to the similarity of the whole sentences; the last word stays; lower is better. The other sentence stays whole:
    if both lost their most relevant words, the same function words would remain in both, which are similar.

    Args:
        relevance: Relevance of the pair.
        a: The first sentence.
        b: The second sentence.
        points: Number of points of each curve.
    """
    areas = []
    for side, other, marginal in ((a, b, relevance.sum(1)), (b, a, relevance.sum(0))):
        order = marginal.argsort(descending=True)
        count = len(order)
        mask = torch.ones(points, count, dtype=torch.bool)
        for point in range(points):
            mask[point, order[: round((count - 1) * point / (points - 1))]] = False
        heights = side.embed(mask).double() @ other.embedding.double()
        areas.append(float(torch.trapezoid(heights, dx=1 / (points - 1)) / heights[0]))
    return sum(areas) / 2


def pair_share(relevance: Relevance, first: int, second: int) -> float:
    """Share of one pair of words in the total positive relevance.

    Args:
        relevance: Relevance of the pair of sentences.
        first: Index of the word in the first sentence.
        second: Index of the word in the second sentence.

    >>> pair_share(torch.tensor([[3.0, -1.0], [0.0, 1.0]]), 0, 0)
    0.75
    """
    total = float(relevance.clamp(min=0).sum())
    return float(relevance[first, second].clamp(min=0)) / total if total else 0.0


def cosine(relevance: Relevance, truth: Relevance) -> float:
    """Cosine of an explanation with the ground truth: the ACS of one pair.

    >>> cosine(torch.eye(2), 3 * torch.eye(2))
    1.0
    """
    lengths = float(relevance.norm() * truth.norm())
    return float((relevance * truth).sum()) / lengths if lengths else 0.0


def _correlation(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(), y - y.mean()
    lengths = float(x.norm() * y.norm())
    return min(1.0, float(x @ y) / lengths) if lengths else 0.0
