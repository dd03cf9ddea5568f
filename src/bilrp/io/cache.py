"""Results kept on disk: computed once for one content and one origin, then read again.

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
from torch import Tensor, nn

from bilrp.errors import BilrpError, InputError
from bilrp.io import store


@dataclass(frozen=True)
class Cache:
    """A folder of results, each under the hash of its content and origin; `folder=None` keeps nothing.

    >>> cache = Cache(tmp); key = compute_key("content", {"encoder": "toy"})
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
            return self._discard(path)
        if words.pop("key", None) != key or words.pop("unchecked", None) or (only and only not in tensors):
            return self._discard(path)
        return tensors, words

    def put(
        self, kind: str, key: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Keep a result, whole or not at all."""
        if self.folder is None:
            return
        path = self.path(kind, key)
        store.write(path, dict(tensors), {**(metadata or {}), "kind": kind, "key": key})

    def drop(self, kind: str, key: str) -> None:
        """Take an entry away that turned out to be damaged: it counts as absent."""
        self._discard(self.path(kind, key))

    def _discard(self, path: Path) -> None:
        """Take a damaged entry away, where that can be done."""
        with suppress(OSError):
            path.unlink(missing_ok=True)


def compute_key(content_hash: str, origin: Mapping[str, Any]) -> str:
    """sha256 of a content hash and an origin; any difference in either gives another key.

    >>> compute_key("a", {"layer": 5}) == compute_key("a", {"layer": 31})
    False
    """
    text = json.dumps({"content": content_hash, "origin": dict(origin)}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_array(array_like: np.ndarray | Tensor) -> str:
    """sha256 of an array's shape, type and bytes: two files with the same pixels share their results."""
    array = np.ascontiguousarray(
        array_like.detach().cpu().numpy() if isinstance(array_like, Tensor) else array_like
    )
    digest = hashlib.sha256(f"{array.shape}{array.dtype}".encode())
    digest.update(array.tobytes())
    return digest.hexdigest()


def hash_weights(module: nn.Module) -> str:
    """sha256 over a module's parameters and buffers, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{hash_array(tensor)}".encode())
    return digest.hexdigest()[:16]
