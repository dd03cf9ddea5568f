"""What a study that was interrupted goes on from: decompositions, without their zeros, and rows of numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bilrp.decomposition import Decomposition, deserialize_decomposition, serialize_decomposition
from bilrp.errors import BilrpError, InputError, wrap_errors
from bilrp.io import store
from bilrp.io.cache import Cache

MAX_SPARSE_DENSITY = (
    0.4  # below this share of non-zero entries, parts are kept with their places instead of their zeros
)


def load_decomposition(cache: Cache, key: str) -> Decomposition | None:
    """A kept decomposition, as it was; one that cannot be rebuilt counts as absent."""
    found = cache.get("decomposition", key)
    try:
        with wrap_errors("damaged"):
            return None if found is None else unpack(*found)
    except BilrpError:
        return cache.drop("decomposition", key)


def save_decomposition(cache: Cache, key: str, decomposition: Decomposition) -> None:
    """Keep a decomposition without its zeros."""
    cache.put("decomposition", key, *pack(decomposition))


def load_or_compute_row(cache: Cache, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row of numbers and words as it was kept; one that is absent or damaged is made, and kept.

    >>> load_or_compute_row(Cache(tmp), "ab12", lambda: {"insertion": 0.62})
    {'insertion': 0.62}
    """
    found = cache.get("row", key)
    if found is not None and "row" in found[1]:  # it has its checksum: it is what was kept
        return json.loads(found[1]["row"])
    row = compute()
    cache.put("row", key, {}, {"row": json.dumps(row)})
    return row


def pack(decomposition: Decomposition) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A decomposition as tensors and words, its parts without zeros where that is smaller; nothing is rounded.

    In early layers a region reaches only its surroundings, and after a ReLU most coordinates are zero.
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
    """The way back from `pack`."""
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
    """A small file must not unpack to what fills the memory: a gigabyte, or a hundred times what it holds."""
    return element_count * values.element_size() <= max(store.MAX_NPZ_BYTES, 100 * values.nbytes)
