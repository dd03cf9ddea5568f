"""Search of a collection: nearest items of queries, what regions share with items, and means of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bilrp.collection import packed_parts
from bilrp.collection.neighbours import MeanContrast, Neighbour, Query, check_count, make_neighbours
from bilrp.collection.subquery import as_vector, query_vector
from bilrp.decomposition import Decomposition
from bilrp.errors import InputError
from bilrp.sparse_parts import SparseParts

if TYPE_CHECKING:
    from bilrp.collection.core import Collection

MAX_SPARSE_FRACTION = 0.25  # of the coordinates: with fewer active ones, a product on these alone is faster

PartsReader: TypeAlias = Callable[[Query], SparseParts]
"""Returns the parts of a query on the coordinates where they are not zero."""


def find_nearest(
    collection: Collection,
    query: Query,
    k: int,
    read_parts: PartsReader,
    *,
    part: Sequence[int] | None,
    without: Sequence[int] | None,
    similarity: str,
    approximate: bool,
    where: str | None,
) -> list[Neighbour]:
    """Return the k nearest items of one query, see `Collection.nearest`.

    Args:
        collection: The collection.
        query: An item, an input or a vector.
        k: Number of neighbours.
        read_parts: Returns the parts of a query.
        part: Regions of the query to search by.
        without: Regions of the query to leave out.
        similarity: "dot" or "cosine".
        approximate: Use an approximate index if the collection exceeds memory.
        where: SQL condition on the items, or None.
    """
    by_part = part is not None or without is not None
    given = as_vector(query, collection.width)
    if by_part and given is not None:
        raise InputError("a vector has no regions: give the input itself to search by a part of it")
    if by_part and collection.position(query) is None:
        query = collection.decomposition(query)
    parts = cache(partial(read_parts, query))
    vector = collection.embedding(query).numpy() if given is None else given
    if by_part:
        vector = query_vector(vector, parts(), part=part, without=without)
    if where is None:
        index = collection.items.index(similarity) if approximate else None
        best, scores = collection.items.top_k(vector, k, similarity, index=index)
    else:
        best, scores = collection.items.rank(collection.items.find(where), vector, k, similarity)
    share = partial(share_with_item, collection, parts, _query_norm(vector, similarity))
    return make_neighbours(collection, best, scores, share)


def find_nearest_many(
    collection: Collection,
    queries: Sequence[Query] | np.ndarray,
    k: int,
    read_parts: PartsReader,
    *,
    similarity: str,
    where: str | None,
) -> list[list[Neighbour]]:
    """Return the k nearest items of each query.

    Args:
        collection: The collection.
        queries: Items, inputs or vectors.
        k: Number of neighbours of each.
        read_parts: Returns the parts of a query.
        similarity: "dot" or "cosine".
        where: SQL condition on the items, or None.
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
    shares = [
        partial(share_with_item, collection, cache(partial(read_parts, query)), _query_norm(v, similarity))
        for query, v in zip(queries, vectors, strict=True)
    ]
    return [make_neighbours(collection, *best, share) for share, best in zip(shares, ranked, strict=True)]


def _query_norm(vector: np.ndarray, similarity: str) -> float | None:
    """Return the norm that scores of a query are divided by; None for the dot product."""
    return float(np.linalg.norm(vector)) or 1.0 if similarity == "cosine" else None


def embed_queries(collection: Collection, queries: Sequence[Query]) -> list[np.ndarray]:
    """Return the vector of each query; inputs that are not in the collection are encoded in batches."""
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


def share_with_item(
    collection: Collection, parts: Callable[[], SparseParts], query_norm: float | None, position: int
) -> Tensor:
    """Return ⟨P_I, φ(x')⟩ of each region of a query with one item.

    Args:
        collection: The collection.
        parts: Returns the parts of the query.
        query_norm: For cosine, the norm of the query; the result is divided by both norms.
        position: Position of the item.
    """
    scale = 1.0 if query_norm is None else query_norm * (float(collection.items.norms[position]) or 1.0)
    (block,) = parts().blocks
    return block.values @ torch.from_numpy(collection.items.embeddings([position])[0])[block.columns] / scale


def share_with_items(
    collection: Collection,
    parts: SparseParts,
    query_norm: float | None,
    against: Sequence[int | str] | int | str | None,
) -> Tensor:
    """Return ⟨P_I, φ(x')⟩ [regions, items] of each region of a query with each item, see `Collection.share`.

    Args:
        collection: The collection.
        parts: The parts of the query.
        query_norm: For cosine, the norm of the query; the result is divided by both norms.
        against: Items to compare with, or the name of a group; None for all.
    """
    items, width = collection.items, collection.width
    columns, values = (each.numpy() for each in parts.blocks[0][1:])
    norms = np.ones(len(items), np.float32)
    if query_norm is not None:
        values = values / query_norm
        norms = np.where(items.norms > 0, items.norms, 1).astype(np.float32)
    if against is not None:
        positions = _select_items(collection, against)
        return torch.from_numpy(values @ items.embeddings(positions)[:, columns].T / norms[positions])
    shares, start = np.empty((len(items), len(values)), np.float32), 0
    if len(columns) > MAX_SPARSE_FRACTION * width:
        columns, values = slice(None), packed_parts.scatter_columns(columns, values, width)
    for block in items.iter_blocks():
        np.matmul(block[:, columns], values.T, out=shares[start : start + len(block)])
        start += len(block)
    shares /= norms[:, None]
    return torch.from_numpy(shares).T


def _select_items(collection: Collection, chosen: Sequence[int | str] | int | str) -> list[int]:
    """Return positions of items: those of a group by its name, one item, or several."""
    if isinstance(chosen, str) and chosen in (groups := collection.groups()):
        return list(groups[chosen])
    every = [chosen] if isinstance(chosen, int | np.integer | str) else list(chosen)
    positions = [collection.position(each) for each in every]
    missing = [each for each, at in zip(every, positions, strict=True) if at is None]
    if missing:
        raise InputError(f"{missing[0]!r} is no item of the collection and no group: give positions or ids")
    return [at for at in positions if at is not None]


def compute_mean(collection: Collection, group: str | Sequence[int]) -> Tensor:
    """Return the mean embedding of a group, given by its name or by the positions of its items."""
    if isinstance(group, str):
        groups = collection.groups()
        if group not in groups:
            raise InputError(f"there is no group {group!r}: choose one of {', '.join(sorted(groups)[:12])}")
        group = groups[group]
    if not len(group):
        raise InputError("a group needs at least one item")
    total, start, is_member = np.zeros(collection.width), 0, np.zeros(len(collection), dtype=bool)
    is_member[list(group)] = True
    for block in collection.items.iter_blocks():
        total += block[is_member[start : start + len(block)]].sum(0, dtype=np.float64)
        start += len(block)
    return torch.from_numpy(total / len(set(group))).float()


def contrast_means(
    collection: Collection, g: str | Sequence[int], h: str | Sequence[int], *, cosine: bool
) -> MeanContrast:
    """Contrast the mean embeddings of two groups, see `Collection.contrast`.

    Args:
        collection: The collection.
        g: The first group, by name or positions.
        h: The second group.
        cosine: Divide the means by their norms and P by ‖φ(x)‖.
    """
    means = [collection.mean(g), collection.mean(h)]
    if cosine:
        means = [mean / (float(mean.norm()) or 1.0) for mean in means]
    direction = means[0] - means[1]

    def share(query: Query) -> Tensor:
        decomposition = collection.decomposition(query)
        scale = float(decomposition.embedding.float().norm()) or 1.0 if cosine else 1.0
        return decomposition.parts.float() @ direction / scale

    return MeanContrast(direction, share)
