"""Relevance of a pair by pulling the parts of the smaller input through the larger one.

R = P P'ᵀ for the dot product, so its rows are pulls of the rows of P: as many vectors as the smaller input has regions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.attribution import LinearForm
from bilrp.decomposition import Decomposition, check_pair
from bilrp.encoder import diff_origins
from bilrp.errors import InputError, MismatchError
from bilrp.pipeline import PreparedInput
from bilrp.similarity import Similarity
from bilrp.sparse_parts import PartsBlock, SparseParts


class PulledPair(NamedTuple):
    """Both inputs and their relevance; names as in `Explanation`."""

    a: Decomposition
    b: Decomposition
    score: float
    relevance: Float[Tensor, "regions_a regions_b"]
    similarity: str
    reference_terms: tuple[Tensor, Tensor] | None
    reference_score: float


def pull_pair(
    smaller: Decomposition,
    larger: PreparedInput,
    larger_side: Literal[0, 1],
    decompose_larger: Callable[[], Decomposition],
    similarity: Similarity,
) -> PulledPair | None:
    """Pull the parts of one input through the other, whose own parts are computed when they are first read.

    None if that does not cost less than the parts of both, or if the similarity is not linear in an embedding.

    Args:
        smaller, larger: The two inputs.
        larger_side: 0 if the larger input is the first, 1 if it is the second.
        decompose_larger: Decomposes the larger input in a new run, since a kept one would hold all activations.
        similarity: The similarity.
    """

    def build() -> tuple[PartsBlock, ...]:
        decomposition = decompose_larger()
        if difference := diff_origins(origin, decomposition.origin):
            raise MismatchError(
                f"explain again: since this explanation was made, the encoder changed in {difference}"
            )
        return SparseParts.from_dense(decomposition.parts).blocks

    origin, shape = larger.origin, (larger.regions.count, larger.embeddings[None].numel())
    other = larger.attach_parts(larger.regions, SparseParts(build, shape))
    first, second = (smaller, other) if larger_side else (other, smaller)
    similarity, score = score_pair(first, second, similarity)
    if similarity.has_self_terms or not larger.is_cheaper_to_pull(smaller.regions.count + 1):
        return None
    form = similarity.relevance_fn(first.embedding, second.embedding)
    left, right = reference_rows(first, second)
    rows = torch.cat([smaller.parts, left if larger_side else right])
    vectors = LinearForm(similarity, (first.embedding, second.embedding)).vectors(larger_side, rows)
    values = larger.pull(vectors)
    relevance, pulled = values[:, :-1], values[:, -1]
    relevance = relevance.T if larger_side else relevance
    if first.reference is None and second.reference is None:
        return PulledPair(first, second, score, relevance, similarity.name, None, 0.0)
    single = form(smaller.parts, right)[:, 0] if larger_side else form(left, smaller.parts)[0]
    terms = (single, pulled) if larger_side else (pulled, single)
    return PulledPair(first, second, score, relevance, similarity.name, terms, float(form(left, right)))


def score_pair(a: Decomposition, b: Decomposition, similarity: Similarity) -> tuple[Similarity, float]:
    """Return the similarity for these embeddings, and the score; raise if they do not belong together.

    Args:
        a, b: The inputs.
        similarity: The similarity, of embeddings of any shape.
    """
    check_pair(a, b, any_size=similarity.any_size)
    chosen = similarity.for_shapes(*(d.shape or tuple(d.embedding.shape) for d in (a, b)))
    score = chosen.score(a.embedding, b.embedding)
    if not math.isfinite(score):
        raise InputError(
            f"the {chosen.name} of these embeddings is {score} in {a.embedding.dtype}: explain them in float64"
        )
    return chosen, score


def reference_rows(a: Decomposition, b: Decomposition) -> tuple[Tensor, Tensor]:
    """Return φ₀ and φ₀' as rows [1, h]; zeros for a side without a reference."""
    rows = [torch.zeros_like(d.embedding) if d.reference is None else d.reference for d in (a, b)]
    return rows[0][None], rows[1][None]
