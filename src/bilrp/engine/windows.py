"""Windows: pieces of image-shaped values, one for each region or coordinate, each in its own place.

Tangents are (K, channels, height, width) in channels-last memory. Windows of one batch have one size. Where a map
looks beyond the border of the image, what it pads with zeros is zero here too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """How far a spatial map looks: output position o sees inputs o·stride − padding … + extent, on each axis."""

    extent: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def input_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """How much of the input a window of that size of the output looks at."""
        height, width = ((n - 1) * s + e for n, s, e in zip(size, self.stride, self.extent, strict=True))
        return height, width

    def input_origin(self, origin: Tensor) -> Tensor:
        """Where that begins (it may lie over the border), for windows of the output that begin at `origin` (K, 2)."""
        return origin * torch.tensor(self.stride) - torch.tensor(self.padding)


@dataclass(frozen=True, eq=False)
class Cone:
    """Where each region can have any influence: [low, high) on both image axes, each (regions, 2), inside `size`."""

    low: Tensor
    high: Tensor
    size: tuple[int, int]

    def select(self, index: Tensor) -> Cone:
        """Of some regions; of all of them in order it is this one, with what was worked out for it."""
        if len(index) == len(self.low) and torch.equal(index, torch.arange(len(index))):
            return self
        return Cone(self.low[index], self.high[index], self.size)

    def max_extent(self) -> tuple[int, int]:
        """The largest interval on each axis: the window that holds every region of a batch."""
        height, width = (self.high - self.low).amax(0).tolist()
        return height, width

    @property
    def area(self) -> int:
        """Positions that the regions reach, added up."""
        return int((self.high - self.low).prod(1).sum())

    def propagate(self, geometry: Geometry, size: tuple[int, int]) -> Cone:
        """One map further: outputs whose field touches the interval; a region that reaches none keeps one cell."""
        if geometry == Geometry() and size == self.size:
            return self
        room = torch.tensor(size)
        extent, stride, padding = (
            torch.tensor(v) for v in (geometry.extent, geometry.stride, geometry.padding)
        )
        low = -((extent - 1 - padding - self.low) // stride)  # ceil((low + padding - extent + 1) / stride)
        high = (self.high - 1 + padding) // stride + 1
        low = torch.minimum(low.clamp(min=0), room - 1)
        high = torch.maximum(torch.minimum(high, room), low + 1)
        return Cone(low, high, size)

    def union(self, other: Cone) -> Cone:
        """The smallest intervals around both."""
        if other is self:
            return self
        return Cone(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high), self.size)

    @cached_property
    def extent_counts(self) -> Counter[tuple[int, ...]]:
        """How many regions have intervals of each size."""
        return Counter(map(tuple, (self.high - self.low).tolist()))

    def regions_per_block(self, side: int = 1) -> Tensor:
        """How many regions reach each block of so many positions on a side."""
        if side not in self.memo:
            self.memo[side] = self._count_regions(side)
        return self.memo[side]

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What was worked out: many values have one cone."""
        return {}

    def _count_regions(self, side: int) -> Tensor:
        """Rectangles added up by their corners."""
        height, width = (-(-size // side) for size in self.size)
        (top, left), (bottom, right) = (self.low // side).numpy().T, (-(-self.high // side)).numpy().T
        corners = np.zeros((height + 1, width + 1), np.int32)
        for rows, columns, sign in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
            np.add.at(corners, (rows, columns), sign)
        return torch.from_numpy(corners.cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32)[:height, :width])


@dataclass(frozen=True, eq=False)
class Window:
    """Tangents or cotangents on windows: data (K, C, h, w), each with its own upper left corner (K, 2)."""

    data: Tensor
    origin: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[-2], self.data.shape[-1]

    def image_positions(self) -> tuple[Tensor, Tensor]:
        """Rows (K, h) and columns (K, w) of the image that the windows show; some may lie outside of it."""
        height, width = self.shape
        return self.origin[:, :1] + torch.arange(height), self.origin[:, 1:] + torch.arange(width)

    def inside_mask(self, height: int, width: int) -> Tensor:
        """Which positions (K, 1, h, w) lie inside an image of that size."""
        ys, xs = self.image_positions()
        rows, columns = (ys >= 0) & (ys < height), (xs >= 0) & (xs < width)
        return (rows[:, :, None] & columns[:, None, :])[:, None]

    def scale(self, factor: Tensor) -> Window:
        """Multiplied by an image-shaped factor, which is zero outside of the image."""
        ys, xs = self.image_positions()
        height, width = factor.shape[-2:]
        cut = factor[0][:, ys.clamp(0, height - 1)[:, :, None], xs.clamp(0, width - 1)[:, None, :]]
        return replace(self, data=self.data * cut.transpose(0, 1).mul_(self.inside_mask(height, width)))

    def scatter(self, out: Tensor, index: Tensor, shape: torch.Size) -> None:
        """Write into rows `index` of flattened images (n, C·H·W) of that shape (…, C, H, W)."""
        ys, xs = self.image_positions()
        channels = torch.arange(shape[-3]).reshape(1, -1, 1, 1)
        place = (channels * shape[-2] + ys[:, None, :, None]) * shape[-1] + xs[:, None, None, :]
        out[index.reshape(-1, 1), place.flatten(1)] = self.data.flatten(1).to(out.dtype)

    def to_images(self, shape: torch.Size) -> Tensor:
        """Laid out in images of that shape (1, C, H, W) that hold nothing else: (K, 1, C, H, W)."""
        count, (height, width) = len(self.data), shape[-2:]
        at = Window(self.data, self.origin)
        return reframe_window(at, torch.zeros(count, 2, dtype=torch.long), (height, width)).reshape(
            count, *shape
        )


def crop_windows(full: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut windows out of one image-shaped constant (…, C, H, W): (K, C, h, w), or (1, C, h, w) if all coincide."""
    image = full.reshape(full.shape[-3:])
    if bool((origin == origin[0]).all()):
        top, left = origin[0].tolist()
        return image[None, :, top : top + size[0], left : left + size[1]]
    rows = origin[:, :1] + torch.arange(size[0])
    columns = origin[:, 1:] + torch.arange(size[1])
    last = image.permute(1, 2, 0).contiguous()
    return last[rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def prepare_for_crop(full: Tensor) -> Tensor:
    """The same, laid out as `crop_windows` reads it: done once where many windows are cut out of it."""
    return full.contiguous(memory_format=torch.channels_last) if full.dim() == 4 else full


def crop_each(images: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut one window out of each of K images (K, 1, C, H, W): (K, C, h, w)."""
    rows = origin[:, :1] + torch.arange(size[0])
    columns = origin[:, 1:] + torch.arange(size[1])
    which = torch.arange(len(origin))[:, None, None]
    return images[:, 0].permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def reframe_window(window: Window, origin: Tensor, size: tuple[int, int]) -> Tensor:
    """The same tangents in windows that stand elsewhere: zeros where they reach beyond, cut where they end short."""
    shift = window.origin - origin
    if bool((shift == shift[0]).all()):
        top, left = shift[0].tolist()
        height, width = window.shape
        if not (-height < top < size[0] and -width < left < size[1]):  # nothing of it is seen from there
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
