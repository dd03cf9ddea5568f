"""Layouts: which features of an image-shaped value can be non-zero, and where each of them has its row.

Features are (H, W, C): rows run by position, then channel. A matrix of rows has one column for each region.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.windows import Reach


@dataclass(frozen=True, eq=False)
class Layout:
    """Which features of an image-shaped value have a row: `active` (H, W, C)."""

    active: Tensor

    @cached_property
    def starts(self) -> list[int]:
        """Row number at which each position begins, and the total at the end."""
        return [0, *self.active.flatten(0, 1).sum(1).cumsum(0).tolist()]

    @cached_property
    def flat(self) -> Tensor:
        """Each row's index into the flattened (H, W, C)."""
        return self.active.flatten().nonzero()[:, 0]

    @cached_property
    def channel(self) -> Tensor:
        return self.flat % self.active.shape[2]

    @cached_property
    def row(self) -> Tensor:
        """The row number of each feature, −1 where it has none."""
        return torch.where(self.active, self.active.flatten().cumsum(0).reshape(self.active.shape) - 1, -1)

    @property
    def rows(self) -> int:
        return self.starts[-1]

    def of(self, full: Tensor) -> Tensor:
        """The entries of an image-shaped constant at the rows."""
        return channels_last(full)[self.active]

    def places(self) -> Tensor:
        """Each row's index into the flattened value (C, H, W)."""
        height, width, channels = self.active.shape
        return self.channel * (height * width) + self.flat // channels


@dataclass(frozen=True, eq=False)
class Rows:
    """Tangents as a matrix: one row for each feature of the layout, one column for each region."""

    matrix: Tensor
    layout: Layout

    def dense(self, shape: torch.Size, columns: Tensor | None = None) -> Tensor:
        """Whole values (K, *shape), for some or all columns."""
        chosen = self.matrix if columns is None else self.matrix[:, columns]
        out = chosen.new_zeros(chosen.shape[1], shape.numel())
        scatter(chosen, self.layout, out, torch.arange(len(out)))
        return out.reshape(-1, *shape)


def scatter(rows: Tensor, layout: Layout, out: Tensor, index: Tensor) -> None:
    """Write rows into the zeros of parts (regions, C·H·W), for the regions `index`."""
    # In the order of their places, so that writing runs along each region's parts.
    place, order = layout.places().sort()
    out[index[:, None], place] = rows[order].T.contiguous()


def channels_last(full: Tensor) -> Tensor:
    """(…, C, H, W) → (H, W, C)."""
    return full.reshape(full.shape[-3:]).permute(1, 2, 0)


def everything(shape: torch.Size) -> Tensor:
    """All features (H, W, C) of a value of that shape."""
    return torch.ones(*shape[-2:], shape[-3], dtype=torch.bool)


def union(masks: Iterable[Tensor]) -> Tensor:
    """What any of the masks has. One by one: stacking them first would copy each into another order of memory."""
    return reduce(or_, masks)


def seen(source: Tensor, offset: Sequence[int], reach: Reach, shape: Sequence[int]) -> Tensor:
    """What each output position sees of `source` (H, W, C) at one offset of its field (nothing beyond the border)."""
    return grown(source, reach, shape)[steps(offset, reach, shape)]


def steps(offset: Sequence[int], reach: Reach, shape: Sequence[int]) -> tuple[slice, ...]:
    """Where, in a grown source, the positions lie that outputs (H, W) see at one offset."""
    return tuple(
        slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(offset, shape[:2], reach.stride, strict=True)
    )


def grown(source: Tensor, reach: Reach, shape: Sequence[int]) -> Tensor:
    """Padded so that every field of every output position lies inside."""
    have = zip(shape[:2], reach.stride, reach.extent, reach.padding, source.shape[:2], strict=True)
    ends = [max(0, (n - 1) * s + e - p - size) for n, s, e, p, size in have]
    top, left = reach.padding
    empty = -1 if source.dtype == torch.long else 0
    return F.pad(source, (0, 0, left, ends[1], top, ends[0]), value=empty)
