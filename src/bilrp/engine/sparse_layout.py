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
from bilrp.engine.windows import Cone, Reach, cut_each

if TYPE_CHECKING:
    from bilrp.engine.maps.sparse_convolution import Convolving

IMAGES = 32  # regions that are laid out as images at once, where windows are cut out of them
BYTE = 255  # the most that a byte counts to


@dataclass(frozen=True, eq=False)
class Layout:
    """Which features of an image-shaped value have a row: `active` (H, W, C); and where regions (columns) can reach."""

    active: Tensor
    cone: Cone

    @cached_property
    def counts(self) -> np.ndarray:
        """Rows of each position (H, W)."""
        channels = self.active.permute(2, 0, 1).numpy().view(np.uint8)
        total = np.zeros(channels.shape[1:], np.int64)
        for start in range(0, len(channels), BYTE):  # added up byte by byte, which goes many at a time
            total += channels[start : start + BYTE].sum(0, dtype=np.uint8)
        return total

    @cached_property
    def firsts(self) -> Tensor:
        """Row number at which each position begins, and the total at the end."""
        return torch.from_numpy(np.concatenate([[0], self.counts.cumsum()]))

    @cached_property
    def starts(self) -> list[int]:
        """The same as plain numbers."""
        return self.firsts.tolist()

    @property
    def flat(self) -> Tensor:
        """Each row's index into the flattened (H, W, C)."""
        return self._tables[0]

    @property
    def channel(self) -> Tensor:
        """Each row's channel."""
        return self._tables[1]

    @property
    def places(self) -> Tensor:
        """Each row's index into the flattened value (C, H, W)."""
        return self._tables[2]

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        return laid_natively(self.active, self.rows) or laid(self.active)

    @cached_property
    def row(self) -> Tensor:
        """The row number of each feature, −1 where it has none."""
        number = torch.full((self.active.numel(),), -1)
        return number.index_copy_(0, self.flat, torch.arange(self.rows)).reshape(self.active.shape)

    @property
    def rows(self) -> int:
        return int(self.firsts[-1])

    @cached_property
    def reached(self) -> int:
        """Numbers that can be non-zero: for each row the regions that reach it."""
        return int((self.counts * self.cone.regions().numpy()).sum())

    @cached_property
    def known(self) -> dict[Any, Any]:
        """What was worked out for rows that come from another layout."""
        return {}

    def equals(self, other: Layout) -> bool:
        """Has it the same rows and columns in every place?"""
        same = self.cone is other.cone or (
            torch.equal(self.cone.low, other.cone.low) and torch.equal(self.cone.high, other.cone.high)
        )
        return same and torch.equal(self.active, other.active)

    def of(self, full: Tensor) -> Tensor:
        """The entries of image-shaped constants (…, 1, C, H, W) at the rows."""
        return full.reshape(*full.shape[:-4], -1).index_select(-1, self.places)

    def at(self, full: Tensor | None) -> Tensor | None:
        """The same, where there is one."""
        return None if full is None else self.of(full)


def laid(active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the features of a mask (H, W, C) that have a row: their index into it, channel, and index into (C, H, W)."""
    height, width, channels = active.shape
    flat = active.flatten().nonzero()[:, 0]
    channel = flat % channels
    return flat, channel, channel * (height * width) + flat // channels


def laid_natively(active: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """The same in native code, where there is a library."""
    if native.library() is None:
        return None
    flat, channel, places = made = tuple(torch.empty(rows, dtype=torch.long) for _ in range(3))
    native.call("lay", active, tuple(active.shape), active.stride(), *made)
    return flat, channel, places


@dataclass(frozen=True, eq=False)
class Term:
    """One summand of a combination of rows: for each row of the target the source's row (−1: none), times a factor."""

    source: Rows
    rows: Tensor
    factor: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Rows(ABC):
    """Tangents on active rows: a number for each feature of the layout and each region (column) that can reach it.

    What maps do with rows is one of these calls; how the numbers lie is a matter of the kind: `engine.matrix` in torch,
    `engine.ragged` in native code.
    """

    numbers: Tensor  # as many as `size` says
    layout: Layout

    @staticmethod
    @abstractmethod
    def size(layout: Layout) -> int:
        """How many numbers there are."""

    @abstractmethod
    def combine(self, terms: Sequence[Term]) -> None:
        """target[r] = Σ_t factor_t[r] · source_t[rows_t[r]]."""

    def pool(self, source: Rows, work: Winners) -> None:
        """target[c] = Σ_o share_o[c] · source[c, where offset o of each field lies]."""
        shares = self.layout.of(work.shares)
        self.combine(
            [
                Term(source, work.seen_from(self.layout, source.layout, offset, share != 0), share)
                for share, offset in zip(shares, work.offsets, strict=True)
            ]
        )

    @abstractmethod
    def scale(self, factor: Tensor) -> None:
        """Each row times its factor."""

    @abstractmethod
    def convolve(self, source: Rows, work: Convolving) -> None:
        """target = Σ_t diag(after_t) W_t diag(before_t) · source."""

    @abstractmethod
    def collect(self, images: Tensor, columns: Tensor, origin: Tensor | None = None) -> None:
        """Take the numbers of some columns from whole images (K, C, H, W), or from windows that begin at `origin`."""

    @abstractmethod
    def spread(self, out: Tensor, index: Tensor, columns: Tensor | None = None) -> None:
        """Write some columns (or all) into the zeros of flattened images: rows `index` of (n, C·H·W)."""

    def windows(self, columns: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
        """Some columns on windows (K, C, h, w) that begin at `origin` and hold all that their regions reach."""
        height, width, channels = self.layout.active.shape
        shape, some = torch.Size((1, channels, height, width)), (columns.split(IMAGES), origin.split(IMAGES))
        return torch.cat(
            [cut_each(self.dense(shape, each), at, size) for each, at in zip(*some, strict=True)]
        )

    def dense(self, shape: torch.Size, columns: Tensor | None = None) -> Tensor:
        """Whole values (K, *shape), for some or all columns."""
        count, like = len(self.layout.cone.low) if columns is None else len(columns), self.numbers
        out = like.new_zeros(count, shape.numel())
        self.spread(out, torch.arange(count), columns)
        return out.reshape(count, *shape)


@dataclass(frozen=True, eq=False)
class Winners:
    """Which offsets of each field of a pooling win which share (offsets, 1, C, H, W)."""

    shares: Tensor
    offsets: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def seen_from(self, target: Layout, source: Layout, offset: tuple[int, ...], won: Tensor) -> Tensor:
        """For each row of the target that has `won` the source's row at one offset of its field, −1 where there is none."""
        (height, width, channels), across = source.active.shape, target.active.shape[1]
        which = won.nonzero()[:, 0]
        place, channel = target.flat[which] // channels, target.channel[which]
        steps = zip((place // across, place % across), self.stride, self.padding, offset, strict=True)
        y, x = (at * step - pad + o for at, step, pad, o in steps)
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        there = torch.where(inside, (y * width + x) * channels + channel, 0)
        found = torch.full((len(won),), -1)
        found[which] = torch.where(inside, source.row.flatten()[there], -1)
        return found


def channels_last(full: Tensor) -> Tensor:
    """(…, C, H, W) → (H, W, C)."""
    return full.reshape(full.shape[-3:]).permute(1, 2, 0)


def not_zero(full: Tensor) -> Tensor:
    """Features (H, W, C) where image-shaped constants are not zero, in memory as in the constants.

    Numpy compares many numbers at a time, torch one.
    """
    if full.device.type != "cpu" or full.dtype == torch.bfloat16:
        return channels_last(full) != 0
    here = full.detach().reshape(full.shape[-3:])
    return torch.from_numpy(here.numpy() != 0).permute(1, 2, 0)


def reached(cone: Cone, channels: int) -> Tensor:
    """The features (H, W, C) that any region reaches."""
    there = cone.regions() > 0
    if bool(there.all()):
        return everything(torch.Size((channels, *cone.size)))
    return there[:, :, None].expand(-1, -1, channels)


def everything(shape: torch.Size) -> Tensor:
    """All features (H, W, C) of a value of that shape: one number, seen everywhere."""
    return torch.ones((), dtype=torch.bool).expand(shape[-3:]).permute(1, 2, 0)


def _is_everything(mask: Tensor) -> bool:
    return not any(mask.stride()) and bool(mask.flatten()[:1].all())


def both(a: Tensor, b: Tensor) -> Tensor:
    """What both masks have."""
    return b if _is_everything(a) else a if _is_everything(b) else a & b


def union(masks: Iterable[Tensor]) -> Tensor:
    """What any of the masks has. One by one: stacking them first would copy each into another order of memory."""
    return reduce(_either, masks)


def _either(a: Tensor, b: Tensor) -> Tensor:
    return a if a is b or _is_everything(a) else b if _is_everything(b) else a | b


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
