"""Check findings against the model: does the score fall when their regions are covered?"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        return round(self.score - (self.without_a + self.without_b) / 2, 12)


@dataclass(frozen=True, eq=False)
class PairRuns:
    """Two inputs with their encoders and similarity, to score them again without some of their regions."""

    encoders: tuple[Encoder, Encoder]
    items: tuple[Item, Item]
    similarity: Similarity

    def cover(
        self, finding: Finding, embeddings: tuple[Tensor, Tensor], regions: tuple[Regions, Regions]
    ) -> tuple[float, float]:
        """Return the score with a finding covered in a, and in b: one forward pass each.

        Args:
            finding: the finding.
            embeddings, regions: of the two inputs.
        """
        covered = [
            embed_without_regions(encoder, item, each, numbers, can_delete=not self.similarity.any_size)
            for encoder, item, each, numbers in zip(
                self.encoders, self.items, regions, (finding.a, finding.b), strict=True
            )
        ]
        return self._score(covered[0], embeddings[1]), self._score(embeddings[0], covered[1])

    def _score(self, a: Tensor, b: Tensor) -> float:
        """Return the score, or NaN where covering leaves an embedding that has none."""
        try:
            return self.similarity.score(a, b)
        except InputError:
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
