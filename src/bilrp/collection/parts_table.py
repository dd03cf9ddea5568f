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
from bilrp.collection.packed_parts import PackedParts
from bilrp.decomposition import Decomposition, deserialize_decomposition, serialize_decomposition
from bilrp.errors import InputError, wrap_errors

PACKED_COLUMNS = ("columns", "values", "error")
MAX_UNSAVED_ROWS = 256  # parts in memory, of a collection that cannot be written to
TEXT_PREFIX = "word "  # how the name of a tensor begins that is a text
MAX_FRAME_BYTES = 128_000_000  # unpacked: the labels of an input of 32 million numbers
FRAME_TENSORS = (
    "labels",
    "boxes",
    "reference",
)  # tensors of a frame; what people see lies in the table of items


@dataclass(frozen=True)
class _TableVersion:
    """The table at one version, and in which row each id is."""

    dataset: Any
    rows: dict[str, int]


class PartsTable:
    """Parts by the id of their item. A part never changes, so what was read once stays true; what is missing may come."""

    def __init__(self, path: str, width: int) -> None:
        self.path, self.width = path, width
        self._current = _TableVersion(None, {})
        self._verified_files: set[str] = set()  # files whose checksums were compared
        self._unsaved_rows: dict[str, dict[str, Any]] = {}  # rows that could not be written

    def _refresh(self, keys: Sequence[str] = ()) -> _TableVersion:
        """The table, opened anew where it may have got these ids since."""
        if self._current.dataset is None or not all(
            k in self._current.rows or k in self._unsaved_rows for k in keys
        ):
            dataset = tables.open_verified(self.path, tables.PARTS_TABLE, self._verified_files)
            ids = [] if dataset is None else tables.read_columns(dataset, ["id"])["id"]
            self._current = _TableVersion(dataset, {key: row for row, key in reversed(list(enumerate(ids)))})
        return self._current

    @property
    def ids(self) -> set[str]:
        """Whose parts are kept by now."""
        self._current = _TableVersion(None, {})
        return {*self._refresh().rows, *self._unsaved_rows}

    def read_parts(self, keys: Sequence[str]) -> list[PackedParts | None]:
        """Their parts as they are kept; None where they are not."""
        opened = self._refresh(keys)
        there = [key for key in dict.fromkeys(keys) if key in opened.rows]
        read = {
            key: self._from_bytes(*(row[name] for name in PACKED_COLUMNS))
            for key, row in self._unsaved_rows.items()
            if key in keys
        }
        if there:
            found = tables.take_rows(opened.dataset, [opened.rows[key] for key in there], PACKED_COLUMNS)
            with wrap_errors(f"parts in {self.path} are damaged: index it again under another name"):
                for key, columns, values, error in zip(
                    there, *(found[n] for n in PACKED_COLUMNS), strict=True
                ):
                    read[key] = self._from_bytes(columns.as_buffer(), values.as_buffer(), error.as_py())
        return [read.get(key) for key in keys]

    def _from_bytes(
        self, columns: packed_parts.Buffer, values: packed_parts.Buffer, error: float
    ) -> PackedParts:
        return packed_parts.from_bytes(columns, values, width=self.width, error=error)

    def read_frame(self, key: str) -> bytes:
        """Everything of a decomposition but its parts and its embedding."""
        if key in self._unsaved_rows:
            return self._unsaved_rows[key]["frame"]
        opened = self._refresh([key])
        return tables.take_rows(opened.dataset, [opened.rows[key]], ["frame"])["frame"][0].as_py()

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep these, in one commit."""
        if rows:
            tables.append_rows(self.path, tables.PARTS_TABLE, rows, tables.parts_schema())

    def add_or_cache(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep these; where nothing can be written, in memory for a while."""
        try:
            self.add(rows)
        except InputError:
            held = self._unsaved_rows | {row["id"]: row for row in rows}
            self._unsaved_rows = dict(list(held.items())[-MAX_UNSAVED_ROWS:])


def to_row(key: str, decomposition: Decomposition) -> dict[str, Any]:
    """A decomposition as a row of the table."""
    packed = packed_parts.pack(decomposition.parts)
    tensors, words = serialize_decomposition(replace(decomposition, view=None))
    frame = {name: tensor for name, tensor in tensors.items() if name not in ("parts", "embedding")}
    columns, values = packed_parts.to_bytes(packed)
    unpacked = to_safetensors(frame | _metadata_to_tensors(words))
    if len(unpacked) > MAX_FRAME_BYTES:
        raise InputError(f"its regions take more than {MAX_FRAME_BYTES // 1_000_000} MB: use a smaller input")
    return {
        "id": key,
        "columns": columns,
        "values": values,
        "error": packed.error,
        "frame": zlib.compress(unpacked, 3),
    }


def restore_decomposition(packed: PackedParts, frame: bytes, embedding: Tensor) -> Decomposition:
    """The way back from `to_row`."""
    stored = from_safetensors(_decompress_frame(frame))
    tensors = {name: stored[name] for name in FRAME_TENSORS if name in stored}
    tensors |= {"parts": packed.to_dense(), "embedding": embedding}
    return deserialize_decomposition(
        tensors, _metadata_from_tensors(stored) | {"storage_error": packed.error.hex()}
    )


def _decompress_frame(frame: bytes) -> bytes:
    """The bytes of a frame, whoever packed it: no more are unpacked than a frame may have."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(frame, MAX_FRAME_BYTES)
    if not unpacking.eof:
        raise InputError(f"it is cut short, or unpacks to more than {MAX_FRAME_BYTES // 1_000_000} MB")
    return data


def _metadata_to_tensors(metadata: dict[str, str]) -> dict[str, Tensor]:
    return {
        TEXT_PREFIX + n: torch.frombuffer(bytearray(w.encode()), dtype=torch.uint8)
        for n, w in metadata.items()
        if w
    }


def _metadata_from_tensors(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {
        n[len(TEXT_PREFIX) :]: t.numpy().tobytes().decode()
        for n, t in tensors.items()
        if n.startswith(TEXT_PREFIX)
    }
