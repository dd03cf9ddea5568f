"""Windows of image-shaped values, one per region or coordinate, and the receptive fields they cover.

Tangents are (K, channels, height, width) in channels-last memory format. The windows of a batch have one size, and are
zero outside the image, like zero padding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """Field of a spatial map: output o reads inputs o·stride − padding … + extent − 1, on each axis."""

    extent: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def input_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size of the input window that an output window of that size depends on."""
        height, width = ((n - 1) * s + e for n, s, e in zip(size, self.stride, self.extent, strict=True))
        return height, width

    def input_origin(self, origin: Tensor) -> Tensor:
        """Return the origins (K, 2) of the input windows of output windows at `origin`; they may be outside the image."""
        return origin * torch.tensor(self.stride) - torch.tensor(self.padding)


@dataclass(frozen=True, eq=False)
class Cone:
    """The receptive field of each region in one value: positions that the region can influence.

    Args:
        low, high: First, and last + 1, row and column of each region, (regions, 2).
        size: Height and width of the value.
    """

    low: Tensor
    high: Tensor
    size: tuple[int, int]

    def select(self, index: Tensor) -> Cone:
        """Return the cone of some regions; itself, with its caches, for all of them in order."""
        if len(index) == len(self.low) and torch.equal(index, torch.arange(len(index))):
            return self
        return Cone(self.low[index], self.high[index], self.size)

    def max_extent(self) -> tuple[int, int]:
        """Return the largest height and width: the window size that fits every region."""
        height, width = (self.high - self.low).amax(0).tolist()
        return height, width

    @property
    def area(self) -> int:
        """Sum of the areas of all receptive fields."""
        return int((self.high - self.low).prod(1).sum())

    def propagate(self, geometry: Geometry, size: tuple[int, int]) -> Cone:
        """Return the receptive field after one more map: outputs whose field overlaps it, at least one position."""
        if geometry == Geometry() and size == self.size:
            return self
        end = torch.tensor(size)
        extent, stride, padding = (
            torch.tensor(v) for v in (geometry.extent, geometry.stride, geometry.padding)
        )
        low = -((extent - 1 - padding - self.low) // stride)  # ceil((low + padding - extent + 1) / stride)
        high = (self.high - 1 + padding) // stride + 1
        low = torch.minimum(low.clamp(min=0), end - 1)
        high = torch.maximum(torch.minimum(high, end), low + 1)
        return Cone(low, high, size)

    def union(self, other: Cone) -> Cone:
        """Return the smallest intervals that contain both."""
        if other is self:
            return self
        return Cone(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high), self.size)

    @cached_property
    def extent_counts(self) -> Counter[tuple[int, ...]]:
        """Number of regions by (height, width) of their receptive field."""
        return Counter(map(tuple, (self.high - self.low).tolist()))

    @cached_property
    def regions_by_position(self) -> tuple[Tensor, Tensor]:
        """Where the regions of each position start, and the regions whose receptive field contains it, ascending."""
        (top, left), (bottom, right) = self.low.numpy().T, self.high.numpy().T
        ys, xs = (np.arange(size)[:, None] for size in self.size)
        down, across = (ys >= top) & (ys < bottom), (xs >= left) & (xs < right)
        contained = (down[:, None] & across).reshape(-1, len(self.low))  # positions, regions
        starts = np.concatenate([[0], np.cumsum(np.count_nonzero(contained, axis=1))])
        return torch.from_numpy(starts), torch.from_numpy(np.flatnonzero(contained) % len(self.low))

    def regions_at(self, position: int) -> Tensor:
        """Return the regions whose receptive field contains a position, y · width + x."""
        starts, regions = self.regions_by_position
        return regions[starts[position] : starts[position + 1]]

    @cached_property
    def regions_per_position(self) -> Tensor:
        """Number of receptive fields that contain each position (H, W)."""
        return self.regions_by_position[0].diff().reshape(self.size)


@dataclass(frozen=True, eq=False)
class Window:
    """Tangents or cotangents on windows: data (K, C, h, w), and the upper left corner of each, origin (K, 2)."""

    data: Tensor
    origin: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[-2], self.data.shape[-1]

    def image_positions(self) -> tuple[Tensor, Tensor]:
        """Return the image rows (K, h) and columns (K, w) of the windows; some may be outside the image."""
        height, width = self.shape
        return self.origin[:, :1] + torch.arange(height), self.origin[:, 1:] + torch.arange(width)

    def inside_mask(self, height: int, width: int) -> Tensor:
        """Return which positions (K, 1, h, w) are inside an image of that size."""
        ys, xs = self.image_positions()
        rows, columns = (ys >= 0) & (ys < height), (xs >= 0) & (xs < width)
        return (rows[:, :, None] & columns[:, None, :])[:, None]

    def scale(self, factor: Tensor) -> Window:
        """Multiply by an image-shaped factor, and by zero outside the image."""
        ys, xs = self.image_positions()
        height, width = factor.shape[-2:]
        crop = factor[0][:, ys.clamp(0, height - 1)[:, :, None], xs.clamp(0, width - 1)[:, None, :]]
        return replace(self, data=self.data * crop.transpose(0, 1).mul_(self.inside_mask(height, width)))

    def to_images(self, shape: torch.Size) -> Tensor:
        """Return images (K, 1, C, H, W) that are zero outside the windows."""
        count, (height, width) = len(self.data), shape[-2:]
        origin = torch.zeros(count, 2, dtype=torch.long)
        return reframe_window(self, origin, (height, width)).reshape(count, *shape)


def crop_windows(full: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop windows from an image-shaped constant: (K, C, h, w), or (1, C, h, w) if all coincide.

    Args:
        full: The constant (…, C, H, W).
        origin, size: Upper left corner (K, 2) of each window, and the height and width of all.
    """
    image = full.reshape(full.shape[-3:])
    if bool((origin == origin[0]).all()):
        top, left = origin[0].tolist()
        return image[None, :, top : top + size[0], left : left + size[1]]
    rows = origin[:, :1] + torch.arange(size[0])
    columns = origin[:, 1:] + torch.arange(size[1])
    last = image.permute(1, 2, 0).contiguous()
    return last[rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def crop_each(images: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop one window from each of K images.

    Args:
        images: (K, 1, C, H, W).
        origin, size: As for `crop_windows`.

    Returns:
        (K, C, h, w).
    """
    rows = origin[:, :1] + torch.arange(size[0])
    columns = origin[:, 1:] + torch.arange(size[1])
    image = torch.arange(len(origin))[:, None, None]
    return images[:, 0].permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def reframe_window(window: Window, origin: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the tangents on other windows: zero outside the old ones, cropped to the new ones.

    Args:
        window: The tangents.
        origin, size: Of the new windows, as for `crop_windows`.
    """
    shift = window.origin - origin
    if bool((shift == shift[0]).all()):
        top, left = shift[0].tolist()
        height, width = window.shape
        if not (-height < top < size[0] and -width < left < size[1]):  # no overlap
            return window.data.new_zeros(*window.data.shape[:2], *size)
        pads = (left, size[1] - left - width, top, size[0] - top - height)
        return F.pad(window.data, pads) if any(pads) else window.data
    out = window.data.new_zeros(len(shift), size[0], size[1], window.data.shape[1]).permute(0, 3, 1, 2)
    for step in torch.unique(shift, dim=0):
        member = (shift == step).all(1).nonzero()[:, 0]
        (into_y, from_y), (into_x, from_x) = (
            _overlap(int(step[axis]), window.shape[axis], size[axis]) for axis in (0, 1)
        )
        out[member, :, into_y, into_x] = window.data[member, :, from_y, from_x]
    return out


def _overlap(shift: int, source_size: int, target_size: int) -> tuple[slice, slice]:
    start, stop = max(0, shift), max(max(0, shift), min(target_size, shift + source_size))
    return slice(start, stop), slice(start - shift, stop - shift)
