"""What a study that was interrupted goes on from: decompositions, without their zeros, and rows of numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bilrp.decomposition import Decomposition, as_stored, from_stored
from bilrp.io import store
from bilrp.io.cache import Cache
from bilrp.errors import BilrpError, InputError, guarded

SPARSE = 0.4  # below this share of non-zero entries, parts are kept with their places instead of their zeros


def kept(cache: Cache, key: str) -> Decomposition | None:
    """A kept decomposition, as it was; one that cannot be rebuilt counts as absent."""
    found = cache.get("decomposition", key)
    try:
        with guarded("damaged"):
            return None if found is None else unpacked(*found)
    except BilrpError:
        return cache.drop("decomposition", key)


def keep(cache: Cache, key: str, decomposition: Decomposition) -> None:
    """Keep a decomposition without its zeros."""
    cache.put("decomposition", key, *packed(decomposition))


def kept_row(cache: Cache, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row of numbers and words as it was kept; one that is absent or damaged is made, and kept.

    >>> kept_row(Cache(tmp), "ab12", lambda: {"insertion": 0.62})
    {'insertion': 0.62}
    """
    found = cache.get("row", key)
    if found is not None and "row" in found[1]:  # it has its checksum: it is what was kept
        return json.loads(found[1]["row"])
    row = make()
    cache.put("row", key, {}, {"row": json.dumps(row)})
    return row


def packed(decomposition: Decomposition) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A decomposition as tensors and words, its parts without zeros where that is smaller; nothing is rounded.

    In early layers a region reaches only its surroundings, and after a ReLU most coordinates are zero.
    """
    tensors, words = as_stored(decomposition)
    parts = tensors["parts"]
    filled = parts != 0
    if int(filled.sum()) < SPARSE * parts.numel() and _worth_packing(parts.numel(), parts[filled]):
        del tensors["parts"]
        rows, columns = filled.nonzero(as_tuple=True)
        tensors |= {"values": parts[filled], "columns": columns.int(), "lengths": filled.sum(1).int()}
        del rows
    return tensors, {**words, "shape": json.dumps(list(parts.shape))}


def unpacked(tensors: dict[str, Tensor], words: dict[str, str]) -> Decomposition:
    """The way back from `packed`."""
    tensors = dict(tensors)
    if "parts" not in tensors:
        count, size = json.loads(words["shape"])
        values, columns, lengths = (tensors.pop(name) for name in ("values", "columns", "lengths"))
        fits = lengths.shape == (count,) and tensors["embedding"].shape == (size,)
        if not fits or not _worth_packing(count * size, values):
            raise InputError(f"parts of {count} × {size} that are not there")
        parts = values.new_zeros(count, size)
        parts[torch.arange(count).repeat_interleave(lengths.long()), columns.long()] = values
        tensors["parts"] = parts
    return from_stored(tensors, words)


def _worth_packing(size: int, values: Tensor) -> bool:
    """A small file must not unpack to what fills the memory: a gigabyte, or a hundred times what it holds."""
    return size * values.element_size() <= max(store.MOST_BYTES, 100 * values.nbytes)
