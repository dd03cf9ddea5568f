"""Sparse tangents in torch: a dense matrix of active features × regions.

The reference implementation of `sparse_native`, and the fallback for other dtypes and without native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.engine.executors import sparse_convolution
from bilrp.engine.executors.position_blocks import make_blocks
from bilrp.engine.executors.sparse_layout import GatherTerm, SparseLayout, SparseTangent


@dataclass(frozen=True, eq=False)
class TorchSparseTangent(SparseTangent):
    """Sparse tangent stored as one matrix (rows, regions), with zeros outside the receptive fields."""

    @staticmethod
    def count_elements(layout: SparseLayout) -> int:
        return layout.row_count * len(layout.cone.low)

    @property
    def matrix(self) -> Tensor:
        return self.values.view(self.layout.row_count, len(self.layout.cone.low))

    def combine(self, terms: Sequence[GatherTerm]) -> None:
        target = self.matrix
        for i, term in enumerate(terms):
            assert isinstance(term.source, TorchSparseTangent)
            into, rows = (term.rows >= 0).nonzero()[:, 0], term.source.matrix
            all_rows = len(into) == len(target)
            if not all_rows or len(rows) > len(target):
                rows = rows.index_select(0, term.rows[into])
            elif not torch.equal(term.rows, torch.arange(len(rows))):
                rows = rows.index_select(0, term.rows)
            if term.factor is not None:
                rows = rows * term.factor[into, None]
            if all_rows:
                target.add_(rows) if i else target.copy_(rows)
            elif i:
                target.index_add_(0, into, rows)
            else:
                target.zero_().index_copy_(0, into, rows)

    def scale(self, factor: Tensor) -> None:
        self.matrix.mul_(factor[:, None])

    def convolve(self, source: SparseTangent, convolution: sparse_convolution.SparseConvolution) -> None:
        assert isinstance(source, TorchSparseTangent)
        side = convolution.cost(source.layout, self.layout).side
        blocks = make_blocks(self.layout.cone, side)
        sparse_convolution.convolve_blocks(
            convolution, blocks, source.matrix, source.layout, self.matrix, self.layout
        )

    def load_columns(self, images: Tensor, columns: Tensor, origin: Tensor | None = None) -> None:
        """Load some columns from dense images, or from windows at `origin`.

        Args:
            images: Images or windows (K, C, h, w).
            columns: Column of each of them.
            origin: Upper left corner (K, 2) of each window; None for whole images.
        """
        (height, width), layout, across = images.shape[-2:], self.layout, self.layout.mask.shape[1]
        corners = [[0, 0]] * len(images) if origin is None else origin.tolist()
        last, out = images.permute(0, 2, 3, 1), self.matrix
        for data, (top, left), column in zip(last, corners, columns.tolist(), strict=True):
            active, done = data[layout.mask[top : top + height, left : left + width]], 0
            for y in range(top, top + height):  # the rows of one image line are contiguous
                first, end = (layout.row_offset_list[y * across + x] for x in (left, left + width))
                out[first:end, column] = active[done : done + end - first]
                done += end - first

    def scatter(self, out: Tensor, index: Tensor, columns: Tensor | None = None) -> None:
        """Write columns into flattened images that are zero.

        Args:
            out: Flattened images (n, C·H·W).
            index: Row of `out` for each column.
            columns: Columns to write; None for all.
        """
        rows = self.matrix if columns is None else self.matrix[:, columns]
        # Sorted by target index, so that each image is written sequentially.
        place, order = self.layout.chw_index.sort()
        # the model may change the dtype
        out[index[:, None], place] = rows[order].T.contiguous().to(out.dtype)
