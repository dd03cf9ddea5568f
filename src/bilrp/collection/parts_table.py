"""The parts table of a collection; explaining a pair reads two rows."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

import torch
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from bilrp.collection import packed_parts, tables
from bilrp.collection.packed_parts import PackedParts
from bilrp.decomposition import Decomposition, deserialize_decomposition, serialize_decomposition
from bilrp.errors import InputError, wrap_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

PACKED_COLUMNS = ("columns", "values", "error")
MAX_UNSAVED_ROWS = 256  # rows kept in memory if the collection is read-only
TEXT_PREFIX = "word "  # prefix of the names of tensors that contain text
MAX_FRAME_BYTES = 128_000_000  # decompressed: the labels of an input of 32 million numbers
FRAME_TENSORS = ("labels", "boxes", "reference")  # tensors of a frame; the view is in the items table


class PartsRow(TypedDict):
    """A row of the table: the parts as `packed_parts.to_bytes` writes them, their rounding error, and the remainder."""

    id: str
    columns: bytes
    values: bytes
    error: float
    frame: bytes


@dataclass(frozen=True)
class _TableVersion:
    """The table at one version, and the row number of each id."""

    dataset: LanceDataset | None
    rows: dict[str, int]

    def take(self, keys: Sequence[str], names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Return columns of the rows of these ids."""
        numbers = [self.rows[key] for key in keys]
        assert self.dataset is not None
        return tables.take_rows(self.dataset, numbers, names)


class PartsTable:
    """Parts by item id. Rows never change, so the table is opened again only to look for missing ids."""

    def __init__(self, path: str, width: int) -> None:
        self.path, self.width = path, width
        self._current = _TableVersion(None, {})
        self._verified_files: set[str] = set()  # files whose checksums were verified
        self._unsaved_rows: dict[str, PartsRow] = {}  # rows that could not be written

    def _refresh(self, keys: Sequence[str] = ()) -> _TableVersion:
        """Return the table, opened again if any of these ids is unknown."""
        if self._current.dataset is None or not all(
            k in self._current.rows or k in self._unsaved_rows for k in keys
        ):
            dataset = tables.open_verified(self.path, tables.PARTS_TABLE, self._verified_files)
            ids = [] if dataset is None else tables.read_columns(dataset, ["id"])["id"]
            self._current = _TableVersion(dataset, {key: row for row, key in reversed(list(enumerate(ids)))})
        return self._current

    @property
    def ids(self) -> set[str]:
        """Ids whose parts are stored now."""
        self._current = _TableVersion(None, {})
        return {*self._refresh().rows, *self._unsaved_rows}

    def read_parts(self, keys: Sequence[str]) -> list[PackedParts | None]:
        """Return the stored parts of each id; None if there are none."""
        table = self._refresh(keys)
        stored = [key for key in dict.fromkeys(keys) if key in table.rows]
        parts = {
            key: self._from_bytes(row["columns"], row["values"], row["error"])
            for key, row in self._unsaved_rows.items()
            if key in keys
        }
        if stored:
            rows = table.take(stored, PACKED_COLUMNS)
            with wrap_errors(f"parts in {self.path} are damaged: {tables.REINDEX_HINT}"):
                for key, columns, values, error in zip(stored, *rows.values(), strict=True):
                    parts[key] = self._from_bytes(columns.as_buffer(), values.as_buffer(), error.as_py())
        return [parts.get(key) for key in keys]

    def _from_bytes(
        self, columns: packed_parts.Buffer, values: packed_parts.Buffer, error: float
    ) -> PackedParts:
        return packed_parts.from_bytes(columns, values, width=self.width, error=error)

    def read_frame(self, key: str) -> bytes:
        """Return the compressed remainder of a decomposition, without parts and embedding."""
        if key in self._unsaved_rows:
            return self._unsaved_rows[key]["frame"]
        return self._refresh([key]).take([key], ["frame"])["frame"][0].as_py()

    def add(self, rows: Sequence[PartsRow]) -> None:
        """Store rows in one commit."""
        if rows:
            tables.append_rows(self.path, tables.PARTS_TABLE, rows, tables.parts_schema())

    def add_or_cache(self, rows: Sequence[PartsRow]) -> None:
        """Store rows, or keep them in memory if the collection is read-only."""
        try:
            self.add(rows)
        except InputError:
            unsaved = self._unsaved_rows | {row["id"]: row for row in rows}
            self._unsaved_rows = dict(list(unsaved.items())[-MAX_UNSAVED_ROWS:])


def to_row(key: str, decomposition: Decomposition) -> PartsRow:
    """Convert a decomposition to a row of the table."""
    packed = packed_parts.pack(decomposition.parts)
    tensors, metadata = serialize_decomposition(replace(decomposition, view=None))
    frame = {name: tensor for name, tensor in tensors.items() if name not in ("parts", "embedding")}
    columns, values = packed_parts.to_bytes(packed)
    serialized = to_safetensors(frame | _metadata_to_tensors(metadata))
    if len(serialized) > MAX_FRAME_BYTES:
        raise InputError(f"its regions take more than {MAX_FRAME_BYTES // 1_000_000} MB: use a smaller input")
    return {
        "id": key,
        "columns": columns,
        "values": values,
        "error": packed.error,
        "frame": zlib.compress(serialized, 3),
    }


def restore_decomposition(packed: PackedParts, frame: bytes, embedding: Tensor) -> Decomposition:
    """Invert `to_row`.

    Args:
        packed, frame, embedding: The stored parts, the compressed remainder, and φ of the item.
    """
    stored = from_safetensors(_decompress_frame(frame))
    tensors = {name: stored[name] for name in FRAME_TENSORS if name in stored}
    tensors |= {"parts": packed.to_dense(), "embedding": embedding}
    return deserialize_decomposition(
        tensors, _metadata_from_tensors(stored) | {"storage_error": packed.error.hex()}
    )


def _decompress_frame(frame: bytes) -> bytes:
    """Decompress a frame, at most `MAX_FRAME_BYTES`: it is not trusted."""
    decompressor = zlib.decompressobj()
    data = decompressor.decompress(frame, MAX_FRAME_BYTES)
    if not decompressor.eof:
        raise InputError(f"it is truncated, or decompresses to more than {MAX_FRAME_BYTES // 1_000_000} MB")
    return data


def _metadata_to_tensors(metadata: dict[str, str]) -> dict[str, Tensor]:
    return {
        TEXT_PREFIX + name: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        for name, text in metadata.items()
        if text
    }


def _metadata_from_tensors(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {
        name.removeprefix(TEXT_PREFIX): tensor.numpy().tobytes().decode()
        for name, tensor in tensors.items()
        if name.startswith(TEXT_PREFIX)
    }
