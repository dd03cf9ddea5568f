"""Scattered: parts that are zero but near each region, kept as they were computed until somebody asks for the matrix.

Early values are large and nearly all of their parts are zero. What a push computes of them, windows or active rows, takes
a few per cent of the matrix, and the products of two such parts need no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.engine.costs import Schedule
from bilrp.engine.parallel import parallel_for
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import INPUT, Key
from bilrp.engine.push_windowed import fit_windows, size_classes
from bilrp.engine.sparse_layout import SparseLayout, SparseTangent
from bilrp.engine.windows import Window

MAX_SPARSE_FRACTION = 0.25  # of the matrix: what takes more is kept as a matrix, and multiplied as one
MIN_TILE_SIDE = 8  # positions on a side: smaller tiles take longer to set up than to multiply


@dataclass(frozen=True, eq=False)
class PartsChunk(ABC):
    """Parts of some regions (`index`), in the way they were computed."""

    index: Tensor

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """All that may not be zero."""

    @property
    @abstractmethod
    def area(self) -> int:
        """Positions of the image that the regions reach, added up."""

    @abstractmethod
    def copy(self) -> PartsChunk:
        """In memory of its own."""

    @abstractmethod
    def scatter(self, out: Tensor, shape: torch.Size) -> None:
        """Write into the zeros of all regions' parts (regions, C·H·W)."""

    @abstractmethod
    def to_windows(self, shape: torch.Size) -> Iterator[WindowedChunk]:
        """The same on windows."""


@dataclass(frozen=True, eq=False)
class WindowedChunk(PartsChunk):
    """Parts of some regions on windows around them."""

    window: Window

    @property
    def values(self) -> Tensor:
        return self.window.data

    @property
    def area(self) -> int:
        height, width = self.window.shape
        return len(self.index) * height * width

    def copy(self) -> WindowedChunk:
        return _with_data(self, self.window.data.clone())

    def scatter(self, out: Tensor, shape: torch.Size) -> None:
        self.window.scatter(out, self.index, shape)

    def to_windows(self, shape: torch.Size) -> Iterator[WindowedChunk]:
        yield self


@dataclass(frozen=True, eq=False)
class SparseChunk(PartsChunk):
    """Parts of some regions on the rows of active features; its columns are these regions, in order."""

    tangent: SparseTangent

    @property
    def values(self) -> Tensor:
        return self.tangent.values

    @property
    def area(self) -> int:
        return self.tangent.layout.cone.area

    def copy(self) -> SparseChunk:
        layout = SparseLayout(
            self.tangent.layout.mask, self.tangent.layout.cone
        )  # without what the run worked out for it
        return replace(self, tangent=replace(self.tangent, values=self.tangent.values.clone(), layout=layout))

    def scatter(self, out: Tensor, shape: torch.Size) -> None:
        self.tangent.scatter(out, self.index)

    def to_windows(self, shape: torch.Size) -> Iterator[WindowedChunk]:
        cone = self.tangent.layout.cone
        for alike in size_classes({INPUT: cone}, INPUT, torch.arange(len(self.index))):
            origin, size = fit_windows(cone.select(alike))
            yield WindowedChunk(
                self.index[alike], Window(self.tangent.to_windows(alike, origin, size), origin)
            )


@dataclass(frozen=True, eq=False)
class SparseParts:
    """Parts [regions, C·H·W] of an image-shaped value, in pieces that hold every region once."""

    chunks: tuple[PartsChunk, ...]
    region_count: int
    value_shape: torch.Size  # (…, C, H, W)
    dtype: torch.dtype
    divisor: Tensor | None = None  # of products

    @property
    def shape(self) -> tuple[int, int]:
        return self.region_count, self.value_shape.numel()

    @cached_property
    def dense_parts(self) -> Tensor:
        """Parts [regions, C·H·W]: made for whoever asks first, and kept (made twice, it is the same)."""
        out = lazy_zeros(*self.shape, self.chunks[0].values.new_empty(0, dtype=self.dtype))
        for piece in self.chunks:
            piece.scatter(out, self.value_shape)
        return out

    @cached_property
    def windowed_chunks(self) -> tuple[WindowedChunk, ...]:
        """All pieces on windows, in the type of the value."""
        found = (each for piece in self.chunks for each in piece.to_windows(self.value_shape))
        return tuple(_with_data(each, each.window.data.to(self.dtype)) for each in found)

    def sum(self, axis: int = 0) -> Tensor:
        """Σ_I P_I, as a matrix's sum over its rows."""
        assert axis == 0
        total = self.windowed_chunks[0].window.data.new_zeros(self.value_shape[-3:])
        for each in self.windowed_chunks:
            height, width = each.window.shape
            for data, (top, left) in zip(each.window.data, each.window.origin.tolist(), strict=True):
                total[:, top : top + height, left : left + width] += data
        return total.flatten()

    def __truediv__(self, number: Tensor) -> SparseParts:
        """For products alone: what was worked out for them is shared."""
        made, name = (
            replace(self, divisor=number.to(self.dtype)),
            "_window_table" if self._is_small else "dense_parts",
        )
        vars(made)[name] = getattr(self, name)
        return made

    def _divide(self, parts: Tensor) -> Tensor:
        return parts if self.divisor is None else parts / self.divisor

    def product(self, other: SparseParts) -> Tensor:
        """P P'ᵀ, tile by tile of the image: a small product of the regions whose windows touch it."""
        alike = self.value_shape[-3:] == other.value_shape[-3:] and self.dtype == other.dtype
        if not (alike and self._is_small and other._is_small):
            return self._divide(self.dense_parts) @ other._divide(other.dense_parts).T
        ours, theirs = self._window_table, other._window_table
        tiles = list(_iter_tiles(self.value_shape, ours.tile_size))
        made: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

        def multiply(number: int) -> None:
            (rows, left), (columns, right) = (each.gather_tile(*tiles[number]) for each in (ours, theirs))
            made[number] = rows, columns, self._divide(left) @ other._divide(right).T

        parallel_for(multiply, range(len(tiles)))
        out = ours.values.new_zeros(self.region_count, other.region_count)
        for number in range(len(tiles)):  # in one order, whichever thread was first: sums round
            rows, columns, found = made[number]
            out[rows[:, None], columns] += found
        return out

    @cached_property
    def _is_small(self) -> bool:
        """Do regions reach a small part of the image, so that few of them touch a tile?"""
        return (
            sum(piece.area for piece in self.chunks)
            <= MAX_SPARSE_FRACTION * self.region_count * self.value_shape[-2:].numel()
        )

    @cached_property
    def _window_table(self) -> _WindowTable:
        return _build_window_table(self.windowed_chunks, self.region_count)


AnyParts = Tensor | SparseParts
if TYPE_CHECKING:
    LazyDenseParts = Float[Tensor, "regions h"]  # what a field under `lazy_dense` is for whoever reads it
else:
    LazyDenseParts = Float[Tensor, "regions h"] | SparseParts  # what it may be given


def densify(parts: AnyParts) -> Tensor:
    """Parts as a matrix, however they are kept."""
    return parts if isinstance(parts, Tensor) else parts.dense_parts


def lazy_zeros(rows: int, columns: int, like: Tensor) -> Tensor:
    """Zeros that take memory only where they are written: early values are zero for a region but near it."""
    if like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.zeros((rows, columns), like.numpy().dtype))
    return like.new_zeros(rows, columns)


T = TypeVar("T")


def lazy_dense(cls: type[T]) -> type[T]:
    """A dataclass whose field `parts` may be given as `SparseParts`: once read it is a matrix; `stored_parts(found)`
    is what it is.
    """

    def keep(found: T, parts: AnyParts) -> None:
        vars(found)["parts"] = parts

    def read(found: T) -> Tensor:
        parts = stored_parts(found)
        if not isinstance(parts, Tensor):
            keep(found, parts := parts.dense_parts)  # made twice, it is the same
        return parts

    cls.parts = property(read, keep)  # type: ignore[attr-defined]
    # what is kept otherwise belongs to this process and its library
    cls.__getstate__ = lambda found: {**vars(found), "parts": read(found)}  # type: ignore[attr-defined]
    return cls


def stored_parts(owner: object) -> AnyParts:
    """Parts as they are kept."""
    return vars(owner)["parts"]


# ---------------------------------------------------------------- what is kept so


def choose_sparse_taps(context: PlanContext, schedule: Schedule) -> dict[Key, int]:
    """Values on the way that are kept as they are computed, on windows or rows, and how many numbers that takes."""
    arrived = context.links[schedule.cut - 1].target if schedule.cut else context.program.output
    found = {}
    for number, link in enumerate(context.links[: schedule.sparse_end]):
        if link.target in context.taps and link.target != arrived:
            size = _windowed_numel(context, link.target, link.shape) if number < schedule.windowed_end else 0
            size = size or context.tangent_type.required_numel(
                SparseLayout(context.output_support[link.target], context.cones[link.target])
            )
            if size < MAX_SPARSE_FRACTION * context.region_count * link.shape.numel():
                found[link.target] = size
    return found


def _windowed_numel(context: PlanContext, key: Key, shape: torch.Size) -> int:
    return context.cones[key].area * shape[-3]


# ---------------------------------------------------------------- products


@dataclass(frozen=True, eq=False)
class _WindowTable:
    """Windows of all regions, one position after another: numbers (positions + 1, C), the last of them zero."""

    values: Tensor
    offset: Tensor  # position of each region
    low: Tensor  # its window's upper left corner (regions, 2)
    size: Tensor

    @property
    def tile_size(self) -> tuple[int, int]:
        """An ordinary window's: tiles as large touch few regions, and there are few of them."""
        height, width = self.size.double().mean(0).ceil().int().clamp(min=MIN_TILE_SIDE).tolist()
        return height, width

    def gather_tile(self, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Regions whose windows touch a tile of the image, and their numbers there (regions, positions · C)."""
        begin, end = torch.tensor([[rows.start, columns.start], [rows.stop, columns.stop]])
        touch = ((self.low < end) & (self.low + self.size > begin)).all(1).nonzero()[:, 0]
        (top, left), (height, width) = self.low[touch].T[..., None], self.size[touch].T[..., None]
        y, x = torch.arange(rows.start, rows.stop) - top, torch.arange(columns.start, columns.stop) - left
        there = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
        place = self.offset[touch][:, None, None] + y[:, :, None] * width[:, None] + x[:, None, :]
        place = torch.where(there, place, len(self.values) - 1)
        found = self.values.index_select(0, place.flatten())
        return touch, found.reshape(*place.shape, found.shape[1]).flatten(1)


def _build_window_table(chunks: Sequence[WindowedChunk], region_count: int) -> _WindowTable:
    numbers = [each.window.data.permute(0, 2, 3, 1).flatten(0, 2) for each in chunks]
    first, low, size = torch.zeros(region_count).long(), *torch.zeros(2, region_count, 2).long()
    begin = 0
    for each in chunks:
        first[each.index] = begin + torch.arange(len(each.index)) * each.window.data[0, 0].numel()
        low[each.index], size[each.index] = each.window.origin, torch.tensor(each.window.shape)
        begin += each.area
    return _WindowTable(torch.cat([*numbers, numbers[0].new_zeros(1, numbers[0].shape[1])]), first, low, size)


def _iter_tiles(shape: torch.Size, side: tuple[int, int]) -> Iterator[tuple[range, range]]:
    """The image cut into tiles of that size, smaller ones at its end."""
    tops, lefts = (
        [range(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(shape[-2:], side, strict=True)
    )
    return product(tops, lefts)


def _with_data(chunk: WindowedChunk, data: Tensor) -> WindowedChunk:
    return replace(chunk, window=replace(chunk.window, data=data))
