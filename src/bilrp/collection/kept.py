"""The parts of a collection: a table that stays open, of which a pair reads two rows and nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from bilrp.collection import packing, tables
from bilrp.collection.packing import Packed
from bilrp.decomposition import Decomposition, as_stored, from_stored
from bilrp.errors import guarded

PACKED = ("columns", "values", "error")
WORD = "word "  # how the name of a tensor begins that is a text


@dataclass(frozen=True)
class _Opened:
    """The table at one version, and in which row each id is."""

    dataset: Any
    rows: dict[str, int]


class Parts:
    """Parts by the id of their item. A part never changes, so what was read once stays true; what is missing may come."""

    def __init__(self, path: str, width: int) -> None:
        self.path, self.width = path, width
        self._opened = _Opened(None, {})

    def _table(self, keys: Sequence[str] = ()) -> _Opened:
        """The table, opened anew where it may have got these ids since."""
        if self._opened.dataset is None or not all(key in self._opened.rows for key in keys):
            dataset = tables.opened(self.path, tables.PARTS)
            ids = [] if dataset is None else tables.columns(dataset, ["id"])["id"]
            self._opened = _Opened(dataset, {key: row for row, key in reversed(list(enumerate(ids)))})
        return self._opened

    @property
    def ids(self) -> set[str]:
        """Whose parts are kept by now."""
        self._opened = _Opened(None, {})
        return set(self._table().rows)

    def packed(self, keys: Sequence[str]) -> list[Packed | None]:
        """Their parts as they are kept; None where they are not."""
        opened = self._table(keys)
        there = [key for key in dict.fromkeys(keys) if key in opened.rows]
        if not there:
            return [None] * len(keys)
        found = tables.taken(opened.dataset, [opened.rows[key] for key in there], PACKED)
        with guarded(f"parts in {self.path} are damaged: index it again under another name"):
            read = {
                key: packing.from_bytes(
                    columns.as_buffer(), values.as_buffer(), width=self.width, error=error.as_py()
                )
                for key, columns, values, error in zip(there, *(found[n] for n in PACKED), strict=True)
            }
        return [read.get(key) for key in keys]

    def frame(self, key: str) -> bytes:
        """Everything of a decomposition but its parts and its embedding."""
        opened = self._table([key])
        return tables.taken(opened.dataset, [opened.rows[key]], ["frame"])["frame"][0].as_py()

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep these, in one commit."""
        if rows:
            tables.appended(self.path, tables.PARTS, rows, tables.parts_schema())


def row(key: str, found: Decomposition) -> dict[str, Any]:
    """A decomposition as a row of the table."""
    packed = packing.pack(found.parts)
    tensors, words = as_stored(replace(found, view=None))
    frame = {name: tensor for name, tensor in tensors.items() if name not in ("parts", "embedding")}
    columns, values = packing.to_bytes(packed)
    return {
        "id": key,
        "columns": columns,
        "values": values,
        "error": packed.error,
        "frame": zlib.compress(to_safetensors(frame | _spelled(words)), 3),
    }


def decomposition(packed: Packed, frame: bytes, embedding: Tensor) -> Decomposition:
    """The way back from `row`."""
    stored = from_safetensors(zlib.decompress(frame))
    tensors = {name: tensor for name, tensor in stored.items() if not name.startswith(WORD)}
    tensors |= {"parts": packed.dense(), "embedding": embedding}
    return from_stored(tensors, _read(stored) | {"storage_error": packed.error.hex()})


def _spelled(words: dict[str, str]) -> dict[str, Tensor]:
    return {
        WORD + n: torch.frombuffer(bytearray(w.encode()), dtype=torch.uint8) for n, w in words.items() if w
    }


def _read(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {n[len(WORD) :]: t.numpy().tobytes().decode() for n, t in tensors.items() if n.startswith(WORD)}
