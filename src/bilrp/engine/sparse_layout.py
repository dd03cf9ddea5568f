"""Layouts: which features of an image-shaped value can be non-zero, and where each of them has its row.

Features are (H, W, C): rows run by position, then channel; columns are regions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp import native
from bilrp.engine.windows import Cone, Geometry, crop_each

if TYPE_CHECKING:
    from bilrp.engine.maps.sparse_convolution import SparseConvolution

MAX_DENSE_REGIONS = 32  # regions that are laid out as images at once, where windows are cut out of them
UINT8_MAX = 255  # the most that a byte counts to


@dataclass(frozen=True, eq=False)
class SparseLayout:
    """Which features of an image-shaped value have a row: `mask` (H, W, C); and where regions (columns) can reach."""

    mask: Tensor
    cone: Cone

    @cached_property
    def rows_per_position(self) -> np.ndarray:
        """Rows of each position (H, W)."""
        channels = self.mask.permute(2, 0, 1).numpy().view(np.uint8)
        total = np.zeros(channels.shape[1:], np.int64)
        for start in range(0, len(channels), UINT8_MAX):  # added up byte by byte, which goes many at a time
            total += channels[start : start + UINT8_MAX].sum(0, dtype=np.uint8)
        return total

    @cached_property
    def row_offsets(self) -> Tensor:
        """Row number at which each position begins, and the total at the end."""
        return torch.from_numpy(np.concatenate([[0], self.rows_per_position.cumsum()]))

    @cached_property
    def row_offset_list(self) -> list[int]:
        """The same as plain numbers."""
        return self.row_offsets.tolist()

    @property
    def flat_index(self) -> Tensor:
        """Each row's index into the flattened (H, W, C)."""
        return self._index_tables[0]

    @property
    def channel(self) -> Tensor:
        """Each row's channel."""
        return self._index_tables[1]

    @property
    def chw_index(self) -> Tensor:
        """Each row's index into the flattened value (C, H, W)."""
        return self._index_tables[2]

    @cached_property
    def _index_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        return index_features_native(self.mask, self.row_count) or index_features(self.mask)

    @cached_property
    def row_of_feature(self) -> Tensor:
        """The row number of each feature, −1 where it has none."""
        number = torch.full((self.mask.numel(),), -1)
        return number.index_copy_(0, self.flat_index, torch.arange(self.row_count)).reshape(self.mask.shape)

    @property
    def row_count(self) -> int:
        return int(self.row_offsets[-1])

    @cached_property
    def numel(self) -> int:
        """Numbers that can be non-zero: for each row the regions that reach it."""
        return int((self.rows_per_position * self.cone.regions_per_block().numpy()).sum())

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What was worked out for rows that come from another layout."""
        return {}

    def equals(self, other: SparseLayout) -> bool:
        """Has it the same rows and columns in every place?"""
        same = self.cone is other.cone or (
            torch.equal(self.cone.low, other.cone.low) and torch.equal(self.cone.high, other.cone.high)
        )
        return same and torch.equal(self.mask, other.mask)

    def gather(self, full: Tensor) -> Tensor:
        """The entries of image-shaped constants (…, 1, C, H, W) at the rows."""
        return full.reshape(*full.shape[:-4], -1).index_select(-1, self.chw_index)

    def gather_optional(self, full: Tensor | None) -> Tensor | None:
        """The same, where there is one."""
        return None if full is None else self.gather(full)


def index_features(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the features of a mask (H, W, C) that have a row: their index into it, channel, and index into (C, H, W)."""
    height, width, channels = mask.shape
    flat = mask.flatten().nonzero()[:, 0]
    channel = flat % channels
    return flat, channel, channel * (height * width) + flat // channels


def index_features_native(mask: Tensor, row_count: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """The same in native code, where there is a library."""
    if native.load_library() is None:
        return None
    flat, channel, places = made = tuple(torch.empty(row_count, dtype=torch.long) for _ in range(3))
    native.call("build_row_index", mask, tuple(mask.shape), mask.stride(), *made)
    return flat, channel, places


@dataclass(frozen=True, eq=False)
class GatherTerm:
    """One summand of a combination of rows: for each row of the target the source's row (−1: none), times a factor."""

    source: SparseTangent
    rows: Tensor
    factor: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SparseTangent(ABC):
    """Tangents on active rows: a number for each feature of the layout and each region (column) that can reach it.

    What maps do with rows is one of these calls; how the numbers lie is a matter of the kind: `engine.sparse_torch` in
    torch, `engine.sparse_native` in native code.
    """

    values: Tensor  # as many as `required_numel` says
    layout: SparseLayout

    @staticmethod
    @abstractmethod
    def required_numel(layout: SparseLayout) -> int:
        """How many numbers there are."""

    @abstractmethod
    def combine(self, terms: Sequence[GatherTerm]) -> None:
        """target[r] = Σ_t factor_t[r] · source_t[rows_t[r]]."""

    def max_pool(self, source: SparseTangent, selection: MaxPoolSelection) -> None:
        """target[c] = Σ_o share_o[c] · source[c, where offset o of each field lies]."""
        shares = self.layout.gather(selection.shares)
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
        """Each row times its factor."""

    @abstractmethod
    def convolve(self, source: SparseTangent, convolution: SparseConvolution) -> None:
        """target = Σ_t diag(after_t) W_t diag(before_t) · source."""

    @abstractmethod
    def load_columns(self, images: Tensor, columns: Tensor, origin: Tensor | None = None) -> None:
        """Take the numbers of some columns from whole images (K, C, H, W), or from windows that begin at `origin`."""

    @abstractmethod
    def scatter(self, out: Tensor, index: Tensor, columns: Tensor | None = None) -> None:
        """Write some columns (or all) into the zeros of flattened images: rows `index` of (n, C·H·W)."""

    def to_windows(self, columns: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
        """Some columns on windows (K, C, h, w) that begin at `origin` and hold all that their regions reach."""
        height, width, channels = self.layout.mask.shape
        shape, some = (
            torch.Size((1, channels, height, width)),
            (columns.split(MAX_DENSE_REGIONS), origin.split(MAX_DENSE_REGIONS)),
        )
        return torch.cat(
            [crop_each(self.to_dense(shape, each), at, size) for each, at in zip(*some, strict=True)]
        )

    def to_dense(self, shape: torch.Size, columns: Tensor | None = None) -> Tensor:
        """Whole values (K, *shape), for some or all columns."""
        count, like = len(self.layout.cone.low) if columns is None else len(columns), self.values
        out = like.new_zeros(count, shape.numel())
        self.scatter(out, torch.arange(count), columns)
        return out.reshape(count, *shape)


@dataclass(frozen=True, eq=False)
class MaxPoolSelection:
    """Which offsets of each field of a pooling win which share (offsets, 1, C, H, W)."""

    shares: Tensor
    offsets: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def source_rows(
        self, target: SparseLayout, source: SparseLayout, offset: tuple[int, ...], selected: Tensor
    ) -> Tensor:
        """For each row of the target that is `selected` the source's row at one offset of its field, −1 where there
        is none.
        """
        (height, width, channels), across = source.mask.shape, target.mask.shape[1]
        which = selected.nonzero()[:, 0]
        place, channel = target.flat_index[which] // channels, target.channel[which]
        steps = zip((place // across, place % across), self.stride, self.padding, offset, strict=True)
        y, x = (at * step - pad + o for at, step, pad, o in steps)
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        there = torch.where(inside, (y * width + x) * channels + channel, 0)
        found = torch.full((len(selected),), -1)
        found[which] = torch.where(inside, source.row_of_feature.flatten()[there], -1)
        return found


def to_hwc(full: Tensor) -> Tensor:
    """(…, C, H, W) → (H, W, C)."""
    return full.reshape(full.shape[-3:]).permute(1, 2, 0)


def nonzero_mask(full: Tensor) -> Tensor:
    """Features (H, W, C) where image-shaped constants are not zero, in memory as in the constants.

    Numpy compares many numbers at a time, torch one.
    """
    if full.device.type != "cpu" or full.dtype == torch.bfloat16:
        return to_hwc(full) != 0
    here = full.detach().reshape(full.shape[-3:])
    return torch.from_numpy(here.numpy() != 0).permute(1, 2, 0)


def reached_mask(cone: Cone, channels: int) -> Tensor:
    """The features (H, W, C) that any region reaches."""
    there = cone.regions_per_block() > 0
    if bool(there.all()):
        return full_mask(torch.Size((channels, *cone.size)))
    return there[:, :, None].expand(-1, -1, channels)


def full_mask(shape: torch.Size) -> Tensor:
    """All features (H, W, C) of a value of that shape: one number, seen everywhere."""
    return torch.ones((), dtype=torch.bool).expand(shape[-3:]).permute(1, 2, 0)


def _is_full(mask: Tensor) -> bool:
    return not any(mask.stride()) and bool(mask.flatten()[:1].all())


def mask_and(a: Tensor, b: Tensor) -> Tensor:
    """What both masks have."""
    return b if _is_full(a) else a if _is_full(b) else a & b


def mask_or(masks: Iterable[Tensor]) -> Tensor:
    """What any of the masks has. One by one: stacking them first would copy each into another order of memory."""
    return reduce(_mask_or_pair, masks)


def _mask_or_pair(a: Tensor, b: Tensor) -> Tensor:
    return a if a is b or _is_full(a) else b if _is_full(b) else a | b


def select_offset(source: Tensor, offset: Sequence[int], geometry: Geometry, shape: Sequence[int]) -> Tensor:
    """What each output position sees of `source` (H, W, C) at one offset of its field (nothing beyond the border)."""
    return pad_to_fields(source, geometry, shape)[offset_slices(offset, geometry, shape)]


def offset_slices(offset: Sequence[int], geometry: Geometry, shape: Sequence[int]) -> tuple[slice, ...]:
    """Where, in a grown source, the positions lie that outputs (H, W) see at one offset."""
    return tuple(
        slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(offset, shape[:2], geometry.stride, strict=True)
    )


def pad_to_fields(source: Tensor, geometry: Geometry, shape: Sequence[int]) -> Tensor:
    """Padded so that every field of every output position lies inside."""
    have = zip(shape[:2], geometry.stride, geometry.extent, geometry.padding, source.shape[:2], strict=True)
    ends = [max(0, (n - 1) * s + e - p - size) for n, s, e, p, size in have]
    top, left = geometry.padding
    empty = -1 if source.dtype == torch.long else 0
    return F.pad(source, (0, 0, left, ends[1], top, ends[0]), value=empty)
