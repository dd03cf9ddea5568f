"""Compact parts: only the active coordinates, stored in bfloat16 with the rounding error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bilrp.errors import InputError
from bilrp.sparse_parts import SparseParts

if TYPE_CHECKING:
    import pyarrow as pa

Buffer: TypeAlias = "bytes | pa.Buffer"  # supports the buffer protocol


@dataclass(frozen=True, eq=False)
class PackedParts:
    """Parts [regions, width] that are zero outside `columns`; `bits` is [regions, columns] in bfloat16.

    `error` is ‖stored − computed‖ / ‖computed‖. The arrays may be views of a memory-mapped file.
    """

    columns: np.ndarray
    bits: np.ndarray
    width: int
    error: float

    def values(self, selection: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the parts on a selection of the columns in float32; bfloat16 is the upper half of float32."""
        return (self.bits[:, selection].astype(np.uint32) << 16).view(np.float32)

    def to_dense(self) -> Tensor:
        """Return the stored parts on all coordinates."""
        return torch.from_numpy(scatter_columns(self.columns, self.values(), self.width))

    def unpack(self) -> SparseParts:
        """Return the stored parts on the active coordinates in float32."""
        columns = torch.from_numpy(self.columns.astype(np.int64))
        return SparseParts.from_columns(columns, torch.from_numpy(self.values()), self.width)

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes + self.bits.nbytes


def pack(parts: Tensor) -> PackedParts:
    """Pack the active coordinates in bfloat16, which has the range of float32, so that nothing overflows.

    >>> packed = pack(torch.tensor([[0.0, 1.0, 0.0, 3.0]]))
    >>> packed.columns.tolist(), packed.to_dense().tolist(), packed.error
    ([1, 3], [[0.0, 1.0, 0.0, 3.0]], 0.0)
    """
    parts = parts.detach().cpu()
    columns = parts.any(0).nonzero()[:, 0]
    values = parts[:, columns]
    rounded = values.bfloat16()
    norm = float(torch.linalg.vector_norm(values.double())) or 1.0
    error = float(torch.linalg.vector_norm(rounded.double() - values.double())) / norm
    bits = rounded.contiguous().view(torch.int16).numpy().view(np.uint16)
    return PackedParts(columns.int().numpy(), bits, parts.shape[1], error)


def scatter_columns(columns: np.ndarray, values: np.ndarray, width: int) -> np.ndarray:
    """Expand values [..., columns] to all coordinates, zero elsewhere.

    Args:
        columns, values: Coordinates, and their values [..., columns].
        width: Number of coordinates of the result.
    """
    dense = np.zeros((*values.shape[:-1], width), values.dtype)
    dense[..., columns] = values
    return dense


def intersect_columns(a: PackedParts, b: PackedParts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the coordinates that are active in both, and their indices in the columns of each."""
    return np.intersect1d(a.columns, b.columns, assume_unique=True, return_indices=True)


def compute_relevance(a: PackedParts, b: PackedParts) -> Tensor:
    """Return R = P P'ᵀ, summed over the coordinates that are active in both."""
    _, in_a, in_b = intersect_columns(a, b)
    return torch.from_numpy(a.values(in_a) @ b.values(in_b).T)


def to_bytes(packed: PackedParts) -> tuple[bytes, bytes]:
    """Return `columns` and `bits` as bytes."""
    return packed.columns.tobytes(), packed.bits.tobytes()


def from_bytes(columns: Buffer, bits: Buffer, *, width: int, error: float) -> PackedParts:
    """Invert `to_bytes`; the number of regions follows from the sizes.

    Args:
        columns, bits: Active coordinates (int32, ascending), and their bfloat16 values [regions, columns].
        width: Number of coordinates of an embedding.
        error: Relative rounding error of the stored values.

    >>> from_bytes(np.array([3, 1], np.int32).tobytes(), bytes(4), width=4, error=0.0)
    Traceback (most recent call last):
    bilrp.errors.InputError: the coordinates of parts must be ascending and below 4
    """
    active = np.frombuffer(columns, dtype=np.int32)
    ascending = bool((active[1:] > active[:-1]).all())
    if not ascending or (len(active) and not 0 <= active[0] <= active[-1] < width):
        raise InputError(f"the coordinates of parts must be ascending and below {width}")
    if not 0 <= error < float("inf"):
        raise InputError(f"the storage error of parts must be finite and not negative, got {error}")
    return PackedParts(active, np.frombuffer(bits, dtype=np.uint16).reshape(-1, len(active)), width, error)
