"""Sparse tangents of image-shaped values: their layout and their operations.

A tangent has one row per feature that can be non-zero, ordered by position, then channel; its columns are regions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bilrp import native
from bilrp.engine.masks import full_mask
from bilrp.engine.windows import Cone, crop_each

if TYPE_CHECKING:
    from bilrp.engine.executors.sparse_convolution import SparseConvolution

MAX_DENSE_REGIONS = 32  # regions converted to dense images at once, to crop windows from them
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
    def rows_per_position(self) -> np.ndarray:
        """Number of rows of each position (H, W)."""
        channels = self.mask.permute(2, 0, 1).numpy().view(np.uint8)
        total = np.zeros(channels.shape[1:], np.int64)
        for start in range(0, len(channels), UINT8_MAX):  # sums of bytes are vectorised
            total += channels[start : start + UINT8_MAX].sum(0, dtype=np.uint8)
        return total

    @cached_property
    def row_offsets(self) -> Tensor:
        """Number of the first row of each position, and the total at the end."""
        return torch.from_numpy(np.concatenate([[0], self.rows_per_position.cumsum()]))

    @cached_property
    def row_offset_list(self) -> list[int]:
        """`row_offsets` as a list."""
        return self.row_offsets.tolist()

    @property
    def flat_index(self) -> Tensor:
        """Index of each row into the flattened (H, W, C)."""
        return self._index_tables[0]

    @property
    def channel(self) -> Tensor:
        """Channel of each row."""
        return self._index_tables[1]

    @property
    def chw_index(self) -> Tensor:
        """Index of each row into the flattened (C, H, W)."""
        return self._index_tables[2]

    @cached_property
    def _index_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        return index_features_native(self.mask, self.row_count) or index_features(self.mask)

    @cached_property
    def row_of_feature(self) -> Tensor:
        """Row number of each feature, −1 for features without a row."""
        rows = torch.full((self.mask.numel(),), -1)
        return rows.index_copy_(0, self.flat_index, torch.arange(self.row_count)).reshape(self.mask.shape)

    @property
    def row_count(self) -> int:
        return int(self.row_offsets[-1])

    @cached_property
    def numel(self) -> int:
        """Elements that can be non-zero: for each row, the regions whose receptive field contains it."""
        return int((self.rows_per_position * self.cone.regions_per_block().numpy()).sum())

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Cache of results that depend on this layout."""
        return {}

    def equals(self, other: SparseLayout) -> bool:
        """Return whether both have the same rows and columns."""
        same = self.cone is other.cone or (
            torch.equal(self.cone.low, other.cone.low) and torch.equal(self.cone.high, other.cone.high)
        )
        return same and torch.equal(self.mask, other.mask)

    def gather(self, full: Tensor) -> Tensor:
        """Return the entries of image-shaped constants (…, 1, C, H, W) at the rows."""
        return full.reshape(*full.shape[:-4], -1).index_select(-1, self.chw_index)

    def gather_optional(self, full: Tensor | None) -> Tensor | None:
        """`gather`, or None for None."""
        return None if full is None else self.gather(full)


def index_features(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each row of a mask (H, W, C) its flat index, its channel, and its index into (C, H, W)."""
    height, width, channels = mask.shape
    flat = mask.flatten().nonzero()[:, 0]
    channel = flat % channels
    return flat, channel, channel * (height * width) + flat // channels


def index_features_native(mask: Tensor, row_count: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """`index_features` in native code; None if there is no native library."""
    if native.load_library() is None:
        return None
    flat, channel, chw = (torch.empty(row_count, dtype=torch.long) for _ in range(3))
    native.call("build_row_index", mask, tuple(mask.shape), mask.stride(), flat, channel, chw)
    return flat, channel, chw


@dataclass(frozen=True, eq=False)
class GatherTerm:
    """One summand of a combination of rows.

    Args:
        source: The tangent whose rows are read.
        rows: For each row of the target, a row of the source, or −1 for none.
        factor: For each row of the target, a factor; None for 1.
    """

    source: SparseTangent
    rows: Tensor
    factor: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SparseTangent(ABC):
    """Tangents of many regions: a number per row of the layout and region whose receptive field contains it.

    Maps use the operations below; the memory format depends on the subclass: `sparse_torch` in torch,
    `sparse_native` in native code.

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
    def combine(self, terms: Sequence[GatherTerm]) -> None:
        """Set self[r] = Σ_t factor_t[r] · source_t[rows_t[r]]."""

    def combine_offsets(self, source: SparseTangent, selection: OffsetWeights) -> None:
        """Set self[c] = Σ_o weight_o[c] · source[c at offset o of its field]."""
        shares = self.layout.gather(selection.weights)
        self.combine(
            [
                GatherTerm(
                    source, selection.source_rows(self.layout, source.layout, offset, share != 0), share
                )
                for share, offset in zip(shares, selection.offsets, strict=True)
            ]
        )

    @abstractmethod
    def scale(self, factor: Tensor) -> None:
        """Multiply each row by its factor."""

    @abstractmethod
    def convolve(self, source: SparseTangent, convolution: SparseConvolution) -> None:
        """Set self = Σ_t diag(after_t) W_t diag(before_t) · source."""

    @abstractmethod
    def load_columns(self, images: Tensor, columns: Tensor, origin: Tensor | None = None) -> None:
        """Read some columns from dense images (K, C, H, W), or from windows at `origin`.

        Args:
            images: Images or windows (K, C, h, w).
            columns: Column of each of them.
            origin: Upper left corner (K, 2) of each window; None for whole images.
        """

    @abstractmethod
    def scatter(self, out: Tensor, index: Tensor, columns: Tensor | None = None) -> None:
        """Write columns into flattened images that are zero.

        Args:
            out: Flattened images (n, C·H·W).
            index: Row of `out` for each column.
            columns: Columns to write; None for all.
        """

    def to_windows(self, columns: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
        """Return columns on windows (K, C, h, w).

        Args:
            columns: Columns to return.
            origin: Upper left corner (K, 2) of each window.
            size: Window size, large enough for the receptive field of each column.
        """
        height, width, channels = self.layout.mask.shape
        shape = torch.Size((1, channels, height, width))
        batches = zip(columns.split(MAX_DENSE_REGIONS), origin.split(MAX_DENSE_REGIONS), strict=True)
        return torch.cat([crop_each(self.to_dense(shape, batch), at, size) for batch, at in batches])

    def to_dense(self, shape: torch.Size, columns: Tensor | None = None) -> Tensor:
        """Return dense tangents (K, *shape) of some columns, or of all."""
        count = len(self.layout.cone.low) if columns is None else len(columns)
        out = self.values.new_zeros(count, shape.numel())
        self.scatter(out, torch.arange(count), columns)
        return out.reshape(count, *shape)


@dataclass(frozen=True, eq=False)
class OffsetWeights:
    """A sum over the offsets of a field, channel by channel: the winners of a max-pooling, or a depthwise convolution."""

    weights: Tensor  # (offsets, 1, C, H, W)
    offsets: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def source_rows(
        self, target: SparseLayout, source: SparseLayout, offset: tuple[int, ...], selected: Tensor
    ) -> Tensor:
        """Return the source's row at one offset of the field of each target row, −1 for none.

        Args:
            target: Layout of the pooled tangent.
            source: Layout of the tangent to pool.
            offset: Offset within the field.
            selected: Which rows of the target to look up; the others get −1.
        """
        (height, width, channels), across = source.mask.shape, target.mask.shape[1]
        index = selected.nonzero()[:, 0]
        position, channel = target.flat_index[index] // channels, target.channel[index]
        steps = zip((position // across, position % across), self.stride, self.padding, offset, strict=True)
        y, x = (at * step - pad + o for at, step, pad, o in steps)
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        feature = torch.where(inside, (y * width + x) * channels + channel, 0)
        rows = torch.full((len(selected),), -1)
        rows[index] = torch.where(inside, source.row_of_feature.flatten()[feature], -1)
        return rows


def mask_reached(cone: Cone, channels: int) -> Tensor:
    """Return the mask (H, W, C) of the union of all receptive fields."""
    reached = cone.regions_per_block() > 0
    if bool(reached.all()):
        return full_mask(torch.Size((channels, *cone.size)))
    return reached[:, :, None].expand(-1, -1, channels)
