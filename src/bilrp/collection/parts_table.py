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

from bilrp.collection import packed_parts, tables
from bilrp.collection.packed_parts import Packed
from bilrp.decomposition import Decomposition, as_stored, from_stored
from bilrp.errors import InputError, guarded

PACKED = ("columns", "values", "error")
HELD = 256  # parts in memory, of a collection that cannot be written to
WORD = "word "  # how the name of a tensor begins that is a text
MAX_FRAME_BYTES = 128_000_000  # unpacked: the labels of an input of 32 million numbers
FRAME = ("labels", "boxes", "reference")  # tensors of a frame; what people see lies in the table of items


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
        self._verified: set[str] = set()  # files whose checksums were compared
        self._held: dict[str, dict[str, Any]] = {}  # rows that could not be written

    def _table(self, keys: Sequence[str] = ()) -> _Opened:
        """The table, opened anew where it may have got these ids since."""
        if self._opened.dataset is None or not all(k in self._opened.rows or k in self._held for k in keys):
            dataset = tables.open_verified(self.path, tables.PARTS, self._verified)
            ids = [] if dataset is None else tables.columns(dataset, ["id"])["id"]
            self._opened = _Opened(dataset, {key: row for row, key in reversed(list(enumerate(ids)))})
        return self._opened

    @property
    def ids(self) -> set[str]:
        """Whose parts are kept by now."""
        self._opened = _Opened(None, {})
        return {*self._table().rows, *self._held}

    def packed(self, keys: Sequence[str]) -> list[Packed | None]:
        """Their parts as they are kept; None where they are not."""
        opened = self._table(keys)
        there = [key for key in dict.fromkeys(keys) if key in opened.rows]
        read = {
            key: self._unpacked(*(row[name] for name in PACKED))
            for key, row in self._held.items()
            if key in keys
        }
        if there:
            found = tables.taken(opened.dataset, [opened.rows[key] for key in there], PACKED)
            with guarded(f"parts in {self.path} are damaged: index it again under another name"):
                for key, columns, values, error in zip(there, *(found[n] for n in PACKED), strict=True):
                    read[key] = self._unpacked(columns.as_buffer(), values.as_buffer(), error.as_py())
        return [read.get(key) for key in keys]

    def _unpacked(self, columns: packed_parts.Buffer, values: packed_parts.Buffer, error: float) -> Packed:
        return packed_parts.from_bytes(columns, values, width=self.width, error=error)

    def frame(self, key: str) -> bytes:
        """Everything of a decomposition but its parts and its embedding."""
        if key in self._held:
            return self._held[key]["frame"]
        opened = self._table([key])
        return tables.taken(opened.dataset, [opened.rows[key]], ["frame"])["frame"][0].as_py()

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep these, in one commit."""
        if rows:
            tables.appended(self.path, tables.PARTS, rows, tables.parts_schema())

    def keep(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep these; where nothing can be written, in memory for a while."""
        try:
            self.add(rows)
        except InputError:
            held = self._held | {row["id"]: row for row in rows}
            self._held = dict(list(held.items())[-HELD:])


def row(key: str, found: Decomposition) -> dict[str, Any]:
    """A decomposition as a row of the table."""
    packed = packed_parts.pack(found.parts)
    tensors, words = as_stored(replace(found, view=None))
    frame = {name: tensor for name, tensor in tensors.items() if name not in ("parts", "embedding")}
    columns, values = packed_parts.to_bytes(packed)
    unpacked = to_safetensors(frame | _spelled(words))
    if len(unpacked) > MAX_FRAME_BYTES:
        raise InputError(f"its regions take more than {MAX_FRAME_BYTES // 1_000_000} MB: use a smaller input")
    return {
        "id": key,
        "columns": columns,
        "values": values,
        "error": packed.error,
        "frame": zlib.compress(unpacked, 3),
    }


def decomposition(packed: Packed, frame: bytes, embedding: Tensor) -> Decomposition:
    """The way back from `row`."""
    stored = from_safetensors(_unpack(frame))
    tensors = {name: stored[name] for name in FRAME if name in stored}
    tensors |= {"parts": packed.dense(), "embedding": embedding}
    return from_stored(tensors, _read(stored) | {"storage_error": packed.error.hex()})


def _unpack(frame: bytes) -> bytes:
    """The bytes of a frame, whoever packed it: no more are unpacked than a frame may have."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(frame, MAX_FRAME_BYTES)
    if not unpacking.eof:
        raise InputError(f"it is cut short, or unpacks to more than {MAX_FRAME_BYTES // 1_000_000} MB")
    return data


def _spelled(words: dict[str, str]) -> dict[str, Tensor]:
    return {
        WORD + n: torch.frombuffer(bytearray(w.encode()), dtype=torch.uint8) for n, w in words.items() if w
    }


def _read(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {n[len(WORD) :]: t.numpy().tobytes().decode() for n, t in tensors.items() if n.startswith(WORD)}
