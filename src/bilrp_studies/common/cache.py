"""Content-addressed cache of results on disk.

A file name is a hash of the content (the pixels) and of the origin (encoder, weights, rules, regions), so a stale entry
is never read, and an interrupted study resumes where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from bilrp.errors import BilrpError, InputError
from bilrp.io import store


@dataclass(frozen=True)
class Cache:
    """A folder of results, each named by the hash of its content and origin.

    Args:
        folder: Where entries are stored; None disables the cache.

    >>> cache = Cache(tmp); key = compute_key("content", {"encoder": "toy"})
    >>> cache.put("features", key, {"5": torch.ones(2)})
    >>> cache.get("features", key)[0]["5"]
    tensor([1., 1.])
    """

    folder: Path | None

    def path(self, kind: str, key: str) -> Path:
        """Return the path of an entry, whether it exists or not."""
        if self.folder is None:
            raise InputError("this cache is disabled: create it with a folder, Cache(path)")
        return self.folder / kind / key[:2] / f"{key}.safetensors"

    def has(self, kind: str, key: str) -> bool:
        """Return whether an entry exists."""
        return self.folder is not None and self.path(kind, key).is_file()

    def get(
        self, kind: str, key: str, *, only: str | None = None
    ) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """Return the stored tensors and metadata, or None; a damaged entry is deleted and counts as absent.

        Args:
            kind: The kind of result, also the name of the subfolder.
            key: What `compute_key` returned.
            only: Read this tensor alone.
        """
        if not self.has(kind, key):
            return None
        path = self.path(kind, key)
        try:
            tensors, metadata = store.read(path, kind=kind, only=None if only is None else (only,))
        except BilrpError:
            return self._discard(path)
        if metadata.pop("key", None) != key or (only and only not in tensors):
            return self._discard(path)
        return tensors, metadata

    def put(
        self, kind: str, key: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Store a result atomically; does nothing if the cache is disabled.

        Args:
            kind: The kind of result, also the name of the subfolder.
            key: What `compute_key` returned.
            tensors: Tensors by name.
            metadata: Strings by name; "kind" and "key" are added.
        """
        if self.folder is None:
            return
        path = self.path(kind, key)
        store.write(path, dict(tensors), {**(metadata or {}), "kind": kind, "key": key})

    def drop(self, kind: str, key: str) -> None:
        """Delete an entry."""
        self._discard(self.path(kind, key))

    def _discard(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def compute_key(content_hash: str, origin: Mapping[str, object]) -> str:
    """Return the sha256 of a content hash and an origin.

    >>> compute_key("a", {"layer": 5}) == compute_key("a", {"layer": 31})
    False
    """
    text = json.dumps({"content": content_hash, "origin": dict(origin)}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_array(array_like: np.ndarray | Tensor) -> str:
    """Return the sha256 of an array's shape, dtype and bytes, so that files with equal pixels share their results."""
    array = np.ascontiguousarray(
        array_like.detach().cpu().numpy() if isinstance(array_like, Tensor) else array_like
    )
    digest = hashlib.sha256(f"{array.shape}{array.dtype}".encode())
    digest.update(array.tobytes())
    return digest.hexdigest()


def hash_weights(module: nn.Module) -> str:
    """Return the first 16 hex digits of the sha256 over a module's parameters and buffers, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{hash_array(tensor)}".encode())
    return digest.hexdigest()[:16]
