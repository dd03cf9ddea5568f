"""Features and decompositions kept on disk: computed once for one content and one origin, then read again.

The name of a file is a hash of what went in (the pixels) and of what worked on it (encoder, weights, rules, regions),
so nothing stale can be read, and a study that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp.decomposition import Decomposition, as_stored, from_stored
from bilrp.disk import store
from bilrp.errors import BilrpError, InputError, guarded

SPARSE = 0.4  # below this share of non-zero entries, parts are kept with their places instead of their zeros


@dataclass(frozen=True)
class Cache:
    """A folder of results, each under the hash of its content and origin; `folder=None` keeps nothing.

    >>> cache = Cache(tmp); key = key_of("content", {"encoder": "toy"})
    >>> cache.put("features", key, {"5": torch.ones(2)})
    >>> cache.get("features", key)[0]["5"]
    tensor([1., 1.])
    """

    folder: Path | None

    def path(self, kind: str, key: str) -> Path:
        """Where a result is, or would be."""
        if self.folder is None:
            raise InputError("this cache keeps nothing: give it a folder")
        return self.folder / kind / key[:2] / f"{key}.safetensors"

    def has(self, kind: str, key: str) -> bool:
        """Is it there? (Files appear whole or not at all.)"""
        return self.folder is not None and self.path(kind, key).is_file()

    def get(
        self, kind: str, key: str, *, only: str | None = None
    ) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """The stored tensors and words (or `only` one of the tensors), or None; a damaged file counts as absent."""
        if not self.has(kind, key):
            return None
        path = self.path(kind, key)
        try:
            tensors, words = store.read(path, kind=kind, only=None if only is None else (only,))
        except BilrpError:
            return self._absent(path)
        if words.pop("key", None) != key or words.pop("unchecked", None) or (only and only not in tensors):
            return self._absent(path)
        return tensors, words

    def put(
        self, kind: str, key: str, tensors: Mapping[str, Tensor], words: Mapping[str, str] | None = None
    ) -> None:
        """Keep a result, whole or not at all."""
        if self.folder is None:
            return
        path = self.path(kind, key)
        store.write(path, dict(tensors), {**(words or {}), "kind": kind, "key": key})

    def decomposition(self, key: str) -> Decomposition | None:
        """A kept decomposition, as it was; one that cannot be rebuilt counts as absent."""
        found = self.get("decomposition", key)
        try:
            with guarded("damaged"):
                return None if found is None else unpacked(*found)
        except BilrpError:
            return self._absent(self.path("decomposition", key))

    def keep(self, key: str, decomposition: Decomposition) -> None:
        """Keep a decomposition without its zeros."""
        self.put("decomposition", key, *packed(decomposition))

    def _absent(self, path: Path) -> None:
        """Take a damaged entry away, where that can be done."""
        with suppress(OSError):
            path.unlink(missing_ok=True)


def key_of(content: str, origin: Mapping[str, Any]) -> str:
    """sha256 of a content hash and an origin; any difference in either gives another key.

    >>> key_of("a", {"layer": 5}) == key_of("a", {"layer": 31})
    False
    """
    text = json.dumps({"content": content, "origin": dict(origin)}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def content_of(pixels: np.ndarray | Tensor) -> str:
    """sha256 of an array's shape, type and bytes: two files with the same pixels share their results."""
    array = np.ascontiguousarray(pixels.detach().cpu().numpy() if isinstance(pixels, Tensor) else pixels)
    digest = hashlib.sha256(f"{array.shape}{array.dtype}".encode())
    digest.update(array.tobytes())
    return digest.hexdigest()


def weights_of(module: nn.Module) -> str:
    """sha256 over a module's parameters and buffers, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{content_of(tensor)}".encode())
    return digest.hexdigest()[:16]


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
