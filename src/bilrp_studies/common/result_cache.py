"""Cached intermediate results from which an interrupted study resumes: sparse decompositions and rows of numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bilrp.decomposition import Decomposition, deserialize_decomposition, serialize_decomposition
from bilrp.errors import BilrpError, InputError, wrap_errors
from bilrp.io import store
from bilrp_studies.common.cache import Cache

MAX_SPARSE_DENSITY = 0.4  # below this share of non-zero entries, parts are stored in sparse form


def load_decomposition(cache: Cache, key: str) -> Decomposition | None:
    """Load a cached decomposition, or None; one that cannot be restored counts as missing."""
    cached = cache.get("decomposition", key)
    try:
        with wrap_errors("damaged"):
            return None if cached is None else unpack(*cached)
    except BilrpError:
        return cache.drop("decomposition", key)


def save_decomposition(cache: Cache, key: str, decomposition: Decomposition) -> None:
    """Save a decomposition to the cache, in sparse form if that is smaller.

    Args:
        cache: The cache.
        key: Its key; see `compute_key`.
        decomposition: The decomposition to save.
    """
    cache.put("decomposition", key, *pack(decomposition))


def load_or_compute_row(cache: Cache, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Load a row of results from the cache; compute and store it if it is missing or damaged.

    Args:
        cache: The cache.
        key: The row's key; see `compute_key`.
        compute: Returns the row; its values must be JSON-serialisable.

    >>> load_or_compute_row(Cache(tmp), "ab12", lambda: {"insertion": 0.62})
    {'insertion': 0.62}
    """
    cached = cache.get("row", key)
    if cached is not None and "row" in cached[1]:  # the cache has verified its checksum
        return json.loads(cached[1]["row"])
    row = compute()
    cache.put("row", key, {}, {"row": json.dumps(row)})
    return row


def pack(decomposition: Decomposition) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Serialise a decomposition to tensors and strings, its parts in sparse form if that is smaller; lossless.

    In early layers a region only affects its neighbourhood, and after a ReLU most coordinates are zero.
    """
    tensors, words = serialize_decomposition(decomposition)
    parts = tensors["parts"]
    filled = parts != 0
    if int(filled.sum()) < MAX_SPARSE_DENSITY * parts.numel() and _is_safe_size(parts.numel(), parts[filled]):
        del tensors["parts"]
        rows, columns = filled.nonzero(as_tuple=True)
        tensors |= {"values": parts[filled], "columns": columns.int(), "lengths": filled.sum(1).int()}
        del rows
    return tensors, {**words, "shape": json.dumps(list(parts.shape))}


def unpack(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Decomposition:
    """Restore a decomposition from the output of `pack`."""
    tensors = dict(tensors)
    if "parts" not in tensors:
        count, size = json.loads(metadata["shape"])
        values, columns, lengths = (tensors.pop(name) for name in ("values", "columns", "lengths"))
        fits = lengths.shape == (count,) and tensors["embedding"].shape == (size,)
        if not fits or not _is_safe_size(count * size, values):
            raise InputError(f"parts of {count} × {size} that are not there")
        parts = values.new_zeros(count, size)
        parts[torch.arange(count).repeat_interleave(lengths.long()), columns.long()] = values
        tensors["parts"] = parts
    return deserialize_decomposition(tensors, metadata)


def _is_safe_size(element_count: int, values: Tensor) -> bool:
    """Guard against decompression bombs: at most a gigabyte, or a hundred times the stored values."""
    return element_count * values.element_size() <= max(store.MAX_NPZ_BYTES, 100 * values.nbytes)
