"""Parts in little space: on the coordinates that are active, in half precision, with what that cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bilrp.errors import InputError

Buffer: TypeAlias = Any  # whatever gives its memory: bytes, a buffer of Arrow


@dataclass(frozen=True, eq=False)
class PackedParts:
    """Parts [regions, coordinates] that are zero but on `columns`; `bits` are those of bfloat16 [regions, columns].

    `error` is ‖kept − computed‖ / ‖computed‖. Both may lie in a file's own memory: nothing is copied before it is used.
    """

    columns: np.ndarray
    bits: np.ndarray
    width: int
    error: float

    def values(self, selection: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Parts on these of the columns, [regions, selection] in float32, of which bfloat16 is the upper half."""
        return (self.bits[:, selection].astype(np.uint32) << 16).view(np.float32)

    def to_dense(self) -> Tensor:
        """The parts as they are kept, every coordinate of them."""
        return torch.from_numpy(scatter_columns(self.columns, self.values(), self.width))

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes + self.bits.nbytes


def pack(parts: Tensor) -> PackedParts:
    """Keep active coordinates only, in bfloat16: it has float32's range, so that nothing overflows.

    >>> packed = pack(torch.tensor([[0.0, 1.0, 0.0, 3.0]]))
    >>> packed.columns.tolist(), packed.to_dense().tolist(), packed.error
    ([1, 3], [[0.0, 1.0, 0.0, 3.0]], 0.0)
    """
    parts = parts.detach().cpu()
    columns = parts.any(0).nonzero()[:, 0]
    values = parts[:, columns]
    kept = values.bfloat16()
    size = float(torch.linalg.vector_norm(values.double())) or 1.0
    error = float(torch.linalg.vector_norm(kept.double() - values.double())) / size
    bits = kept.contiguous().view(torch.int16).numpy().view(np.uint16)
    return PackedParts(columns.int().numpy(), bits, parts.shape[1], error)


def scatter_columns(columns: np.ndarray, values: np.ndarray, width: int) -> np.ndarray:
    """Values [..., columns] on all coordinates, zero elsewhere.

    >>> scatter_columns(np.array([1, 3]), np.array([5.0, 7.0]), 4).tolist()
    [0.0, 5.0, 0.0, 7.0]
    """
    found = np.zeros((*values.shape[:-1], width), values.dtype)
    found[..., columns] = values
    return found


def intersect_columns(a: PackedParts, b: PackedParts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates that are active in both, and where they are among the columns of each."""
    return np.intersect1d(a.columns, b.columns, assume_unique=True, return_indices=True)


def compute_relevance(a: PackedParts, b: PackedParts) -> Tensor:
    """R = P P'ᵀ on the coordinates that are active in both.

    >>> compute_relevance(pack(torch.tensor([[0.0, 2.0, 1.0]])), pack(torch.tensor([[5.0, 3.0, 0.0]]))).tolist()
    [[6.0]]
    """
    _, ours, theirs = intersect_columns(a, b)
    return torch.from_numpy(a.values(ours) @ b.values(theirs).T)


def to_bytes(packed: PackedParts) -> tuple[bytes, bytes]:
    return packed.columns.tobytes(), packed.bits.tobytes()


def from_bytes(columns: Buffer, bits: Buffer, *, width: int, error: float) -> PackedParts:
    """The way back from `to_bytes`; the number of regions follows from the sizes.

    >>> from_bytes(np.array([3, 1], np.int32).tobytes(), bytes(4), width=4, error=0.0)
    Traceback (most recent call last):
    bilrp.errors.InputError: parts lie on coordinates in order, each below 4
    """
    active = np.frombuffer(columns, dtype=np.int32)
    ordered = bool((active[1:] > active[:-1]).all())
    if not ordered or (
        len(active) and not 0 <= active[0] <= active[-1] < width
    ):  # else other numbers are summed
        raise InputError(f"parts lie on coordinates in order, each below {width}")
    if not 0 <= error < float("inf"):
        raise InputError(f"the storage error of parts is a number, got {error}")
    return PackedParts(active, np.frombuffer(bits, dtype=np.uint16).reshape(-1, len(active)), width, error)
