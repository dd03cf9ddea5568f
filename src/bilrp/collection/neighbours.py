"""What searches of a collection take and return: `Query`, `Neighbour`, `MeanContrast`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float
from torch import Tensor

from bilrp.collection.subquery import as_vector
from bilrp.decomposition import Decomposition
from bilrp.encoder import InputLike
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.collection.core import Collection

Query: TypeAlias = int | InputLike | Decomposition
"""A position, an id, a path, anything the encoder reads, or a decomposition of it."""


@dataclass(frozen=True, eq=False)
class Neighbour:
    """An item near a query, with its score; `share`, `text` and `metadata` are read on first access."""

    id: str
    name: str
    score: float
    position: int
    _share: Callable[[], Tensor] = field(repr=False)
    _row: Callable[[], Mapping[str, Any]] = field(repr=False)

    @property
    def text(self) -> str | None:
        """The whole text; None for an image."""
        return self._row()["text"]

    @property
    def group(self) -> str:
        """The group of the item: its folder, or its value in the column of groups; '' without one."""
        return self._row()["group"]

    @property
    def metadata(self) -> dict[str, Any]:
        """The other columns of the item's record."""
        return {name: value for name, value in self._row().items() if name not in ("text", "group")}

    @cached_property
    def share(self) -> Float[Tensor, " regions"]:
        """⟨P_I, φ(x')⟩ of each region I of the query; with the unattributed remainder they sum to the dot product."""
        return self._share()


@dataclass(frozen=True, eq=False)
class MeanContrast:
    """The direction m₁ − m₂ between the mean embeddings of two groups."""

    direction: Float[Tensor, " h"]
    _share: Callable[[Query], Tensor] = field(repr=False)

    def share(self, query: Query) -> Float[Tensor, " regions"]:
        """Return ⟨P_I, m₁ − m₂⟩: positive if region I of the query resembles the first group more than the second."""
        return self._share(query)


def make_neighbours(
    collection: Collection, positions: np.ndarray, scores: np.ndarray, share: Callable[[int], Tensor]
) -> list[Neighbour]:
    """Return the neighbours at some positions; their texts and metadata are read together, on first access.

    Args:
        collection: The collection.
        positions: Positions of the items, best first.
        scores: Their scores.
        share: Position → what each region of the query contributes.
    """
    numbers = [int(position) for position in positions]
    rows = cache(partial(collection.read_rows, numbers))
    return [
        Neighbour(
            collection.ids[i], collection.names[i], float(score), i, partial(share, i), lambda n=n: rows()[n]
        )
        for n, (i, score) in enumerate(zip(numbers, scores, strict=True))
    ]


def check_count(k: object) -> None:
    """Raise `InputError` unless k is a number of neighbours: a whole number of at least 1."""
    if not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number and at least 1, got {k!r}")


def find_many(
    collection: Collection,
    queries: Sequence[Query] | np.ndarray,
    k: int,
    similarity: str,
    where: str | None,
    share: Callable[[Query, float | None], Callable[[int], Tensor]],
) -> list[list[Neighbour]]:
    """Return the k nearest items of each query.

    Args:
        collection: The collection.
        queries: Items, inputs or vectors.
        k: Number of neighbours of each.
        similarity: "dot" or "cosine".
        where: SQL condition on the items, or None.
        share: (query, its norm for cosine) → (position → what each region of the query contributes).
    """
    check_count(k)
    if isinstance(queries, str) or not isinstance(queries, Sequence | np.ndarray | Tensor):
        raise InputError("nearest_many takes a list of queries or vectors; for one query use nearest")
    vectors = embed_queries(collection, list(queries))
    if where is None:
        ranked = collection.items.top_k_many(vectors, k, similarity)
    else:
        positions = collection.items.find(where)
        ranked = [collection.items.rank(positions, vector, k, similarity) for vector in vectors]
    norms = [float(np.linalg.norm(v)) or 1.0 if similarity == "cosine" else None for v in vectors]
    return [
        make_neighbours(collection, *best, share(query, norm))
        for query, norm, best in zip(queries, norms, ranked, strict=True)
    ]


def embed_queries(collection: Collection, queries: Sequence[Query]) -> list[np.ndarray]:
    """Return the vector of each query; inputs that are not in the collection are encoded in batches.

    Args:
        collection: The collection.
        queries: Items, inputs, decompositions or vectors.
    """
    vectors = [as_vector(query, collection.width) for query in queries]
    new = [
        n
        for n, (query, vector) in enumerate(zip(queries, vectors, strict=True))
        if vector is None and not isinstance(query, Decomposition) and collection.position(query) is None
    ]
    for n, embedding in zip(new, collection.embed_inputs([queries[n] for n in new]), strict=True):
        if isinstance(embedding, str):
            raise InputError(f"query {n + 1}: {embedding}")
        vectors[n] = embedding.float().numpy()
    return [
        collection.embedding(query).numpy() if vector is None else vector
        for query, vector in zip(queries, vectors, strict=True)
    ]
