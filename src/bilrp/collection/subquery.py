"""Queries by a part of an input, or by everything except that part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bilrp.decomposition import Decomposition
from bilrp.errors import InputError
from bilrp.findings.special_tokens import select_regions
from bilrp.inputs import Text
from bilrp.sparse_parts import SparseParts


def query_vector(
    embedding: np.ndarray,
    parts: SparseParts,
    *,
    part: Sequence[int] | None = None,
    without: Sequence[int] | None = None,
) -> np.ndarray:
    """Return Σ_{I ∈ part ∖ without} P_I, or φ − Σ_{I ∈ without} P_I if no part is given.

    Args:
        embedding, parts: φ [h] and the parts of the query.
        part, without: Regions to search by, and to leave out.

    >>> import torch
    >>> parts = SparseParts.from_dense(torch.tensor([[0.0, 1.0], [3.0, 2.0]]))
    >>> query_vector(np.array([3.0, 4.0]), parts, without=[1]).tolist()
    [0.0, 2.0]
    """
    included, excluded = _split_regions(parts.shape[0], part, without)
    return embedding - parts.sum(excluded).numpy() if part is None else parts.sum(included).numpy()


def as_vector(query: object, width: int) -> np.ndarray | None:
    """Return a query that is a vector [h] (tensor, array, or list of numbers) as float32; None for other queries.

    >>> as_vector([1, 0], 2).tolist(), as_vector("a text", 2)
    ([1.0, 0.0], None)
    """
    if isinstance(query, list | tuple) and query and all(isinstance(each, int | float) for each in query):
        query = np.asarray(query, dtype=np.float32)
    if isinstance(query, Tensor):
        query = query.detach().cpu().numpy() if query.dim() == 1 else None
    if not isinstance(query, np.ndarray) or query.ndim != 1 or query.dtype.kind not in "fiu":
        return None
    if query.shape != (width,) or not np.isfinite(query).all():
        raise InputError(f"a vector to search by needs {width} finite numbers, got {list(query.shape)}")
    return query.astype(np.float32)


def restrict_query(
    decomposition: Decomposition, *, part: Sequence[int] | None = None, without: Sequence[int] | None = None
) -> Decomposition:
    """Return a decomposition with only some regions, whose embedding is their `query_vector`.

    Args:
        decomposition: Decomposition of the query.
        part: Regions to search by; None for all.
        without: Regions to leave out.
    """
    included, excluded = _split_regions(decomposition.regions.count, part, without)
    parts, view = decomposition.parts[included], decomposition.view
    if isinstance(view, Text):
        view = Text(view.text, tuple(view.spans[region] for region in included))
    whole = decomposition.embedding
    embedding = whole - decomposition.parts[excluded].sum(0) if part is None else parts.sum(0)
    regions = select_regions(decomposition.regions, included)
    reference = decomposition.reference
    if part is not None and reference is not None:
        reference = torch.zeros_like(reference)  # what any two inputs share belongs to no part
    return replace(
        decomposition, parts=parts, embedding=embedding, regions=regions, view=view, reference=reference
    )


def _split_regions(
    count: int, part: Sequence[int] | None, without: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Return the regions to include and those to exclude, each once."""
    for region in (*(part or ()), *(without or ())):
        if not 0 <= region < count:
            raise InputError(f"regions of this query are numbered 0 … {count - 1}, got {region}")
    excluded = set(without or ())
    included = dict.fromkeys(range(count) if part is None else part)
    return [region for region in included if region not in excluded], sorted(excluded)
