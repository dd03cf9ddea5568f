"""Similarities as bilinear forms on parts: a score, and a pair relevance that sums to it up to the unattributed.

>>> import torch
>>> dot().score(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
11.0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.errors import InputError, MismatchError

__all__ = [
    "Similarity",
    "bilinear",
    "cosine",
    "dot",
    "maxsim",
    "projected",
    "random_projection",
    "resolve_similarity",
    "squared_distance",
]

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Similarity:
    """y(φ, φ') and its pair relevance R.

    Args:
        name: to show, and to store.
        score_fn: (φ, φ') -> y.
        relevance_fn: (φ, φ') -> function (P, P') -> R.
        has_self_terms: y also has terms P Pᵀ and P' P'ᵀ of each side with itself.
        is_distance: y grows where inputs differ.
        unit_form: for a similarity that divides by ‖φ‖ and ‖φ'‖, its form on unit vectors.
        form_for_shapes: (shape of φ, shape of φ') -> the similarity, where it depends on shapes.
        any_size: the two embeddings may differ in size.
        needs_only_products: R needs only scaled products P P'ᵀ, so sparse parts (`sparse_parts`) stay sparse.
    """

    name: str
    score_fn: Callable[[Tensor, Tensor], Tensor]
    relevance_fn: Callable[[Tensor, Tensor], Callable[[Tensor, Tensor], Tensor]]
    has_self_terms: bool = False
    is_distance: bool = False
    unit_form: Similarity | None = None
    form_for_shapes: Callable[[Shape, Shape], Similarity] | None = None
    any_size: bool = False
    needs_only_products: bool = False

    def for_shapes(self, a: Shape, b: Shape) -> Similarity:
        """Return the similarity for embeddings of these shapes."""
        return self if self.form_for_shapes is None else self.form_for_shapes(a, b)

    def score(self, a: Float[Tensor, " h"], b: Float[Tensor, " k"]) -> float:
        """Return y for two embeddings."""
        return float(self.score_fn(a, b))

    def relevance(
        self,
        parts_a: Float[Tensor, "regions_a h"],
        parts_b: Float[Tensor, "regions_b k"],
        a: Float[Tensor, " h"],
        b: Float[Tensor, " k"],
    ) -> Float[Tensor, "regions_a regions_b"]:
        """Return R[I, I'].

        Args:
            parts_a, parts_b: Parts of the inputs.
            a, b: Their embeddings.
        """
        return self.relevance_fn(a, b)(parts_a, parts_b)


def dot() -> Similarity:
    """y = ⟨φ, φ'⟩, R = P P'ᵀ."""
    return Similarity("dot", torch.dot, lambda a, b: multiply_parts, needs_only_products=True)


def cosine() -> Similarity:
    """y = ⟨φ, φ'⟩ / (‖φ‖‖φ'‖), R = P P'ᵀ / (‖φ‖‖φ'‖)."""

    return Similarity(
        "cosine",
        lambda a, b: torch.dot(a / norm(a), b / norm(b)),
        lambda a, b: lambda p, q: multiply_parts(p / norm(a), q / norm(b)),
        unit_form=dot(),
        needs_only_products=True,
    )


def norm(embedding: Tensor) -> Tensor:
    """Return ‖φ‖ without underflow or overflow of squares; a zero vector is an error."""
    largest = embedding.abs().max()
    if float(largest) == 0:
        raise InputError("cosine needs non-zero embeddings, and one of these is zero: use similarity='dot'")
    return largest * torch.linalg.vector_norm(embedding / largest)


def bilinear(matrix: Tensor, name: str = "bilinear") -> Similarity:
    """y = φᵀ M φ', R = P M P'ᵀ: whitening, Mahalanobis, a learned head."""
    if matrix.dim() != 2:
        raise InputError(f"bilinear needs a matrix, got shape {tuple(matrix.shape)}")

    def checked_matrix(a: Tensor, b: Tensor) -> Tensor:
        if matrix.shape != (a.shape[0], b.shape[0]):
            raise MismatchError(
                f"the matrix is {tuple(matrix.shape)}, the embeddings have {a.shape[0]} and {b.shape[0]} coordinates"
            )
        return matrix.to(a)

    return Similarity(
        name,
        lambda a, b: a @ checked_matrix(a, b) @ b,
        lambda a, b: lambda p, q: p @ checked_matrix(a, b) @ q.T,
    )


def projected(dimensions: int, seed: int = 0) -> Similarity:
    """y = ⟨Wφ, Wφ'⟩ with W random: an unbiased estimate of dot from exact parts."""

    def score(a: Tensor, b: Tensor) -> Tensor:
        w = random_projection(dimensions, a.shape[0], seed=seed, like=a)
        return torch.dot(w @ a, w @ b)

    def weigh(a: Tensor, b: Tensor):
        w = random_projection(dimensions, a.shape[0], seed=seed, like=a)
        return lambda p, q: (p @ w.T) @ (q @ w.T).T

    return Similarity(f"projected({dimensions}, seed={seed})", score, weigh)


def squared_distance() -> Similarity:
    """y = ‖φ − φ'‖², R = −2 P P'ᵀ across, P Pᵀ and P' P'ᵀ within each side."""
    return Similarity(
        "squared_distance",
        lambda a, b: (a - b).square().sum(),
        lambda a, b: lambda p, q: -2 * multiply_parts(p, q),
        has_self_terms=True,
        is_distance=True,
        needs_only_products=True,
    )


def maxsim(width: int | None = None) -> Similarity:
    """Late interaction (ColBERT, ColPali): y = Σ_i max_j ⟨φ_i, φ'_j⟩, R[I, I'] = Σ_i ⟨P_I,i, P'_I',j(i)⟩.

    φ_i are the token vectors of a, and j(i) is the best token of b for each, held fixed (ties share equally).

    Args:
        width: the length of a token's vector, for flat embeddings; others have shape (1, tokens, width).

    >>> a, b = torch.tensor([1.0, 0.0, 0.0, 2.0]), torch.tensor([3.0, 0.0, 1.0, 1.0])
    >>> maxsim(2).score(a, b)
    5.0
    """

    def for_shapes(a: Shape, b: Shape) -> Similarity:
        if len(a) < 3 or len(b) < 3 or a[-1] != b[-1]:
            raise InputError(
                f"maxsim compares the vectors of tokens, (1, tokens, width), and these embeddings have shapes {a} and "
                f"{b}: use an encoder that does not pool, without a projection"
            )
        return maxsim(a[-1])

    def refuse(a: Tensor, b: Tensor) -> Tensor:
        raise InputError("maxsim of flat embeddings needs the length of a token's vector: use maxsim(width)")

    if width is None:
        return Similarity(
            "maxsim",
            refuse,
            lambda a, b: lambda p, q: refuse(p, q),
            form_for_shapes=for_shapes,
            any_size=True,
        )
    size = width

    def vectors(flat: Tensor) -> Tensor:
        if flat.shape[-1] % size:
            raise InputError(f"{flat.shape[-1]} coordinates cannot be split into vectors of width {size}")
        return flat.unflatten(-1, (-1, size))

    def weigh(a: Tensor, b: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        products = vectors(a) @ vectors(b).T
        best = (products == products.amax(1, keepdim=True)).to(a.dtype)
        shares = best / best.sum(1, keepdim=True)
        return lambda p, q: p @ (shares @ vectors(q)).flatten(1).T

    return Similarity("maxsim", lambda a, b: (vectors(a) @ vectors(b).T).amax(1).sum(), weigh, any_size=True)


def random_projection(
    dimensions: int, size: int, *, seed: int = 0, like: Tensor
) -> Float[Tensor, "{dimensions} {size}"]:
    """Return W (dimensions × size) with entries N(0, 1/dimensions), equal for equal seeds on every device.

    Args:
        dimensions: Number of random dimensions.
        size: Number of coordinates of the embedding.
        seed: Seed of the generator.
        like: Tensor whose dtype and device the result gets.

    >>> random_projection(2, 3, like=torch.zeros(1)).shape
    torch.Size([2, 3])
    """
    if dimensions < 1:
        raise InputError(f"a projection needs at least one dimension, got {dimensions}")
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(dimensions, size, generator=generator, dtype=torch.float64)
    return (normal / dimensions**0.5).to(like)


SIMILARITIES = {"dot": dot, "cosine": cosine, "squared_distance": squared_distance, "maxsim": maxsim}


DEFAULT_SIMILARITY = "cosine"
"""The similarity of encoders that name none."""


def resolve_similarity(similarity: str | Similarity | None, *defaults: str | Similarity | None) -> Similarity:
    """Return the similarity that was asked for, else the encoder's own, else cosine.

    Every caller (Python, command line, collection, server) resolves `similarity=None` here.

    Args:
        similarity: a name, a Similarity, or None for the default.
        defaults: the own similarity of each side: `Encoder.similarity`, or `origin["similarity"]` of a decomposition.

    >>> resolve_similarity(None).name, resolve_similarity(None, "dot").name, resolve_similarity("cosine", "dot").name
    ('cosine', 'dot', 'cosine')
    """
    if similarity is None:
        own = {similarity_name(default): default for default in defaults or (None,)}
        if len(own) > 1:
            raise MismatchError(
                f"the two sides have different similarities ({' and '.join(own)}): give one, e.g. similarity='cosine'"
            )
        similarity = next(iter(own.values())) or DEFAULT_SIMILARITY
    if isinstance(similarity, Similarity):
        return similarity
    if not isinstance(similarity, str) or similarity not in SIMILARITIES:
        raise InputError(
            f"unknown similarity {similarity!r}: use one of {', '.join(SIMILARITIES)}, or bilrp.similarity.bilinear(M)"
        )
    return SIMILARITIES[similarity]()


def similarity_name(similarity: str | Similarity | None) -> str:
    """Return the name of a similarity, as origins store it; None is the default."""
    return similarity.name if isinstance(similarity, Similarity) else similarity or DEFAULT_SIMILARITY


def multiply_parts(p: Any, q: Any) -> Tensor:
    """Return P P'ᵀ of dense or sparse parts; half precision is accumulated in float32."""
    if not isinstance(p, Tensor):
        return p.product(q)
    return (p.float() @ q.T.float()).to(p.dtype) if p.dtype in (torch.float16, torch.bfloat16) else p @ q.T
