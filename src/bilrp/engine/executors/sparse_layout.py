"""Sparse tangents of image-shaped values: their layout, their operations, and these operations in torch.

A tangent has one row per feature that can be non-zero, ordered by position, then channel; its columns are regions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.windows import Cone, Geometry, crop_each

UINT8_MAX = 255


@dataclass(frozen=True, eq=False)
class SparseLayout:
    """The rows and columns of a sparse tangent.

    Args:
        mask: Which features (H, W, C) have a row.
        cone: Receptive field of each region (column).
    """

    mask: Tensor
    cone: Cone

    @cached_property
    def rows_per_position(self) -> Tensor:
        """Number of rows of each position (H, W)."""
        channels = self.mask.permute(2, 0, 1).numpy().view(np.uint8)
        groups = range(0, len(channels), UINT8_MAX)  # sums of bytes are vectorised
        return torch.from_numpy(
            sum(channels[i : i + UINT8_MAX].sum(0, dtype=np.uint8).astype(np.int64) for i in groups)
        )

    @cached_property
    def row_offsets(self) -> Tensor:
        """Number of the first row of each position, and the total at the end."""
        return F.pad(self.rows_per_position.flatten().cumsum(0), (1, 0))

    @cached_property
    def flat_index(self) -> Tensor:
        """Index of each row into the flattened (H, W, C)."""
        return torch.from_numpy(np.flatnonzero(self.mask.contiguous().numpy()))

    @cached_property
    def channel(self) -> Tensor:
        """Channel of each row."""
        return self.flat_index % self.mask.shape[2]

    @cached_property
    def chw_index(self) -> Tensor:
        """Index of each row into the flattened (C, H, W)."""
        height, width, channels = self.mask.shape
        return self.channel * (height * width) + self.flat_index // channels

    @cached_property
    def row_of_feature(self) -> Tensor:
        """Row number of each feature (H, W, C), −1 for features without a row."""
        rows = torch.full((self.mask.numel(),), -1)
        rows[self.flat_index] = torch.arange(self.row_count)
        return rows.reshape(self.mask.shape)

    @property
    def row_count(self) -> int:
        return len(self.flat_index)

    @property
    def column_count(self) -> int:
        return len(self.cone.low)

    @cached_property
    def numel(self) -> int:
        """Elements that can be non-zero: for each row, the regions whose receptive field contains it."""
        return int((self.rows_per_position * self.cone.regions_per_position).sum())

    def gather(self, full: Tensor) -> Tensor:
        """Return the entries of an image-shaped constant (1, C, H, W) at the rows."""
        return full.reshape(-1).index_select(0, self.chw_index)


@dataclass(frozen=True, eq=False)
class RowTerm:
    """One summand of a combination of rows.

    Args:
        source: The tangent whose rows are read.
        shift: Row and column of the source that the first position of the target reads.
        factor: For each row of the target, a factor; None for 1.
    """

    source: SparseTangent
    shift: tuple[int, int] = (0, 0)
    factor: Tensor | None = None


@dataclass(frozen=True)
class Kernel:
    """Size, dilation and geometry of a convolution's kernel."""

    size: tuple[int, int]
    dilation: tuple[int, int]
    geometry: Geometry

    def count_inputs(self, source: SparseLayout) -> Tensor:
        """Return how many rows of the source are in the field of each output position (H, W)."""
        counts, ones = source.rows_per_position.double()[None, None], torch.ones(1, 1, *self.size).double()
        geometry = self.geometry
        return F.conv2d(counts, ones, None, geometry.stride, geometry.padding, self.dilation)[0, 0].long()


@dataclass(frozen=True, eq=False)
class WeightTerm:
    """diag(after) W diag(before): one summand of a sparse convolution, its factors at the rows; None is 1."""

    weight: Tensor
    before: Tensor | None
    after: Tensor | None


@dataclass(frozen=True, eq=False)
class SparseTangent(ABC):
    """Tangents of many regions: a number per row of the layout and region whose receptive field contains it.

    `TorchSparseTangent` is the reference; `sparse_native` has the same operations in C.

    Args:
        values: The numbers, `count_elements(layout)` of them.
        layout: Which features and regions they belong to.
    """

    values: Tensor
    layout: SparseLayout

    @staticmethod
    @abstractmethod
    def count_elements(layout: SparseLayout) -> int:
        """Return the number of elements of `values` for a layout."""

    @abstractmethod
    def combine(self, terms: Sequence[RowTerm], stride: tuple[int, ...] = (1, 1)) -> None:
        """Set self[c at p] = Σ_t factor_t[c at p] · source_t[c at p · stride + shift_t]; no source may be self."""

    @abstractmethod
    def convolve(self, source: SparseTangent, terms: Sequence[WeightTerm], kernel: Kernel) -> None:
        """Set self = Σ_t diag(after_t) W_t diag(before_t) · source.

        Args:
            source: The tangent in front of the convolution.
            terms: Weights of each summand, with factors at the rows of both sides.
            kernel: Size, stride, padding and dilation, the same for all summands.
        """

    @abstractmethod
    def load_columns(self, images: Tensor, columns: Tensor, origin: Tensor | None = None) -> None:
        """Read some columns from dense images, or from windows.

        Args:
            images, columns: Images or windows (K, C, h, w), and the column of each of them.
            origin: Upper left corner (K, 2) of each window; None for whole images.
        """

    @abstractmethod
    def to_dense(self, columns: Tensor | None = None) -> Tensor:
        """Return dense tangents (K, C, H, W) of some columns, or of all."""

    def write(self, out: Tensor, index: Tensor) -> None:
        """Write all columns into the rows `index` of flattened images (n, C·H·W) that are zero there."""
        out[index] = self.to_dense().flatten(1).to(out.dtype)

    def to_windows(self, columns: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
        """Return columns on windows (K, C, h, w) that contain their receptive fields.

        Args:
            columns: Columns to return.
            origin, size: Upper left corner (K, 2) of each window, and the height and width of all.
        """
        return crop_each(self.to_dense(columns)[:, None], origin, size)


@dataclass(frozen=True, eq=False)
class TorchSparseTangent(SparseTangent):
    """Sparse tangent as one matrix (rows, regions), zero outside the receptive fields: for dtypes without native code."""

    @staticmethod
    def count_elements(layout: SparseLayout) -> int:
        return layout.row_count * layout.column_count

    @property
    def matrix(self) -> Tensor:
        return self.values.view(self.layout.row_count, self.layout.column_count)

    def combine(self, terms: Sequence[RowTerm], stride: tuple[int, ...] = (1, 1)) -> None:
        self.matrix.zero_()
        _, width, channels = self.layout.mask.shape
        flat = self.layout.flat_index // channels
        for term in terms:
            assert isinstance(term.source, TorchSparseTangent)
            rows = term.source.layout.row_of_feature
            y, x = flat // width * stride[0] + term.shift[0], flat % width * stride[1] + term.shift[1]
            inside = (y >= 0) & (y < rows.shape[0]) & (x >= 0) & (x < rows.shape[1])
            into = inside.nonzero()[:, 0]
            row = rows[y[into], x[into], self.layout.channel[into]]
            into, row = into[row >= 0], row[row >= 0]
            part = term.source.matrix[row]
            self.matrix.index_add_(0, into, part if term.factor is None else part * term.factor[into, None])

    def convolve(self, source: SparseTangent, terms: Sequence[WeightTerm], kernel: Kernel) -> None:
        assert isinstance(source, TorchSparseTangent)
        weights = [term.weight.permute(0, 2, 3, 1).flatten(1) for term in terms]
        offsets, width = self.layout.row_offsets.tolist(), self.layout.mask.shape[1]
        self.matrix.zero_()
        fields = _pad_to_fields(source.layout.row_of_feature, kernel.geometry, self.layout.mask.shape)
        (down, across), (tall, wide) = kernel.geometry.stride, kernel.geometry.extent
        for position, (first, last) in enumerate(pairwise(offsets)):
            y, x = position // width * down, position % width * across
            field = fields[y : y + tall : kernel.dilation[0], x : x + wide : kernel.dilation[1]].flatten()
            inputs, rows, outputs = field >= 0, field[field >= 0], self.layout.channel[first:last]
            total = weights[0].new_zeros(last - first, len(rows))
            for weight, term in zip(weights, terms, strict=True):
                part = weight[outputs][:, inputs]
                part = part if term.before is None else part * term.before[rows]
                total += part if term.after is None else part * term.after[first:last, None]
            columns = self.layout.cone.regions_at(position)
            self.matrix[first:last, columns] = total.to(self.values) @ source.matrix[rows][:, columns]

    def load_columns(self, images: Tensor, columns: Tensor, origin: Tensor | None = None) -> None:
        height, width, _ = self.layout.mask.shape
        for data, at, column in zip(images, columns if origin is None else origin, columns, strict=True):
            top, left = (0, 0) if origin is None else at.tolist()
            right, bottom = width - left - data.shape[2], height - top - data.shape[1]
            whole = F.pad(data, (left, right, top, bottom)).to(self.values.dtype)
            self.matrix[:, column] = self.layout.gather(whole[None])

    def to_dense(self, columns: Tensor | None = None) -> Tensor:
        height, width, channels = self.layout.mask.shape
        chosen = self.matrix if columns is None else self.matrix[:, columns]
        out = chosen.new_zeros(chosen.shape[1], channels * height * width)
        out[:, self.layout.chw_index] = chosen.T
        return out.view(-1, channels, height, width)


def _pad_to_fields(rows: Tensor, geometry: Geometry, shape: Sequence[int]) -> Tensor:
    """Pad row numbers (H, W, C) by −1 so that they contain the whole field of every output position."""
    axes = zip(shape[:2], geometry.stride, geometry.extent, geometry.padding, rows.shape[:2], strict=True)
    ends = [max(0, (n - 1) * s + e - p - size) for n, s, e, p, size in axes]
    top, left = geometry.padding
    return F.pad(rows, (0, 0, left, ends[1], top, ends[0]), value=-1)
