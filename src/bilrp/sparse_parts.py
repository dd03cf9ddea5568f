"""Sparse parts: what regions contribute to coordinates, as a few small matrices instead of one that is nearly all zeros.

The parts of early layers are zero outside the receptive field of each region, and those of deep ones at coordinates
that a ReLU switched off. Imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor


class PartsBlock(NamedTuple):
    """parts[rows][:, columns] = values; columns ascend where two inputs may have others."""

    rows: Tensor
    columns: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class SparseParts:
    """Parts [regions, h] that are zero outside some blocks, no two of which share a coordinate.

    Args:
        build: Returns the blocks, in an order that depends on `shape` alone, so that those of two inputs correspond.
            Called when they are first read.
        shape: Number of regions, and of coordinates h.

    >>> sparse = SparseParts.from_dense(torch.tensor([[0.0, 1.0, 2.0], [0.0, 5.0, 0.0]]))
    >>> sparse.blocks[0].columns.tolist(), sparse.sum().tolist(), sparse.sum([1]).tolist()
    ([1, 2], [0.0, 6.0, 2.0], [0.0, 5.0, 0.0])
    """

    build: Callable[[], tuple[PartsBlock, ...]]
    shape: tuple[int, int]

    @cached_property
    def blocks(self) -> tuple[PartsBlock, ...]:
        """The blocks."""
        return self.build()

    def __reduce__(self) -> tuple[object, ...]:
        return _from_blocks, (self.blocks, self.shape)

    @staticmethod
    def from_dense(parts: Tensor) -> SparseParts:
        """Return parts on the coordinates where they are not zero, as one block."""
        columns = parts.any(0).nonzero()[:, 0]
        return SparseParts.from_columns(columns, parts.index_select(1, columns), parts.shape[1])

    @staticmethod
    def from_columns(columns: Tensor, values: Tensor, width: int) -> SparseParts:
        """Return parts that are zero except at some coordinates, as one block.

        Args:
            columns: Numbers of these coordinates.
            values: Parts at them, [regions, columns].
            width: Number of all coordinates, h.
        """
        block = PartsBlock(torch.arange(len(values)), columns, values)
        return _from_blocks((block,), (len(values), width))

    @property
    def dtype(self) -> torch.dtype:
        return self.blocks[0].values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(t.numel() * t.element_size() for block in self.blocks for t in block)

    def to_dense(self) -> Tensor:
        """Return the parts [regions, h] as one matrix, made at the first call."""
        return self._dense

    @cached_property
    def _dense(self) -> Tensor:
        dense = allocate_zeros(*self.shape, self.blocks[0].values)
        for rows, columns, values in self.blocks:
            dense[rows[:, None], columns] = values
        return dense

    def sum(self, regions: Sequence[int] | None = None) -> Tensor:
        """Return Σ P_I over these regions, or over all, [h]."""
        total = self.blocks[0].values.new_zeros(self.shape[1])
        weights = self.blocks[0].values.new_zeros(self.shape[0])
        weights[slice(None) if regions is None else torch.tensor(regions, dtype=torch.long)] = 1
        for rows, columns, values in self.blocks:
            total[columns] = weights[rows] @ values
        return total

    def __truediv__(self, number: Tensor | float) -> SparseParts:
        blocks = (PartsBlock(rows, columns, values / number) for rows, columns, values in self.blocks)
        return _from_blocks(tuple(blocks), self.shape)

    def product(self, other: SparseParts) -> Tensor:
        """Return P P'ᵀ [regions, other's regions], block by block where the blocks correspond."""
        if (len(self.blocks), self.shape[1]) != (len(other.blocks), other.shape[1]):
            return self.to_dense() @ other.to_dense().T
        out = self.blocks[0].values.new_zeros(self.shape[0], other.shape[0])
        for (rows, ours, left), (columns, theirs, right) in zip(self.blocks, other.blocks, strict=True):
            if not torch.equal(ours, theirs):
                common = ours[torch.isin(ours, theirs, assume_unique=True)]
                left = left[:, torch.searchsorted(ours, common)]
                right = right[:, torch.searchsorted(theirs, common)]
            out[rows[:, None], columns] += left @ right.T
        return out


def _from_blocks(blocks: tuple[PartsBlock, ...], shape: tuple[int, int]) -> SparseParts:
    return SparseParts(lambda: blocks, shape)


AnyParts: TypeAlias = Tensor | SparseParts


def densify(parts: AnyParts) -> Tensor:
    """Return parts as one matrix."""
    return parts if isinstance(parts, Tensor) else parts.to_dense()


def allocate_zeros(rows: int, columns: int, like: Tensor) -> Tensor:
    """Return zeros whose pages are only committed where they are written.

    Args:
        rows, columns: Numbers of rows and columns.
        like: Tensor that gives dtype and device.
    """
    if like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.zeros((rows, columns), str(like.dtype).removeprefix("torch.")))
    return like.new_zeros(rows, columns)
