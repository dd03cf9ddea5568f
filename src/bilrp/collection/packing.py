"""Parts in little space: on the coordinates that are active, in half precision, with what that cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Packed:
    """Parts [regions, coordinates] that are zero but on `columns`; `values` are bfloat16 [regions, columns].

    `error` is ‖kept − computed‖ / ‖computed‖.
    """

    columns: np.ndarray
    values: Tensor
    width: int
    error: float

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The parts as they are kept, every coordinate of them."""
        parts = torch.zeros(len(self.values), self.width, dtype=dtype)
        return parts.index_copy_(1, torch.from_numpy(self.columns).long(), self.values.to(dtype))

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes + 2 * self.values.numel()


def pack(parts: Tensor) -> Packed:
    """Keep active coordinates only, in bfloat16: it has float32's range, so that nothing overflows.

    >>> packed = pack(torch.tensor([[0.0, 1.0, 0.0, 3.0]]))
    >>> packed.columns.tolist(), packed.dense().tolist(), packed.error
    ([1, 3], [[0.0, 1.0, 0.0, 3.0]], 0.0)
    """
    parts = parts.detach().cpu()
    columns = parts.any(0).nonzero()[:, 0]
    values = parts[:, columns]
    kept = values.bfloat16()
    size = float(torch.linalg.vector_norm(values.double())) or 1.0
    error = float(torch.linalg.vector_norm(kept.double() - values.double())) / size
    return Packed(columns.int().numpy(), kept, parts.shape[1], error)


def spread(columns: np.ndarray, values: np.ndarray, width: int) -> np.ndarray:
    """Values [..., columns] on all coordinates, zero elsewhere.

    >>> spread(np.array([1, 3]), np.array([5.0, 7.0]), 4).tolist()
    [0.0, 5.0, 0.0, 7.0]
    """
    found = np.zeros((*values.shape[:-1], width), values.dtype)
    found[..., columns] = values
    return found


def relevance(a: Packed, b: Packed) -> Tensor:
    """R = P P'ᵀ on the coordinates that are active in both.

    >>> relevance(pack(torch.tensor([[0.0, 2.0, 1.0]])), pack(torch.tensor([[5.0, 3.0, 0.0]]))).tolist()
    [[6.0]]
    """
    _, ours, theirs = np.intersect1d(a.columns, b.columns, assume_unique=True, return_indices=True)
    left, right = (p.values[:, torch.from_numpy(at)].float() for p, at in ((a, ours), (b, theirs)))
    return left @ right.T


def to_bytes(packed: Packed) -> tuple[bytes, bytes]:
    return packed.columns.tobytes(), packed.values.contiguous().view(torch.int16).numpy().tobytes()


def from_bytes(columns: bytes, values: bytes, *, width: int, error: float) -> Packed:
    """The way back from `to_bytes`; the number of regions follows from the sizes."""
    active = np.frombuffer(bytearray(columns), dtype=np.int32)
    numbers = (
        torch.frombuffer(bytearray(values), dtype=torch.int16).view(torch.bfloat16)
        if values
        else torch.empty(0)
    )
    return Packed(active, numbers.reshape(-1, len(active)), width, error)
