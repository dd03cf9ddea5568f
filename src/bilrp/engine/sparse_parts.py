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

from bilrp.engine.costs import Way
from bilrp.engine.push_windowed import frame, size_classes
from bilrp.engine.sparse_layout import Layout, Rows
from bilrp.engine.program import INPUT, Key
from bilrp.engine.plan_context import Setting
from bilrp.engine.parallel import share
from bilrp.engine.windows import Window

SMALL = 0.25  # of the matrix: what takes more is kept as a matrix, and multiplied as one
TILE = 8  # positions on a side: smaller tiles take longer to set up than to multiply


@dataclass(frozen=True, eq=False)
class Piece(ABC):
    """Parts of some regions (`index`), in the way they were computed."""

    index: Tensor

    @property
    @abstractmethod
    def numbers(self) -> Tensor:
        """All that may not be zero."""

    @property
    @abstractmethod
    def area(self) -> int:
        """Positions of the image that the regions reach, added up."""

    @abstractmethod
    def copy(self) -> Piece:
        """In memory of its own."""

    @abstractmethod
    def spread(self, out: Tensor, shape: torch.Size) -> None:
        """Write into the zeros of all regions' parts (regions, C·H·W)."""

    @abstractmethod
    def windows(self, shape: torch.Size) -> Iterator[OnWindows]:
        """The same on windows."""


@dataclass(frozen=True, eq=False)
class OnWindows(Piece):
    """Parts of some regions on windows around them."""

    window: Window

    @property
    def numbers(self) -> Tensor:
        return self.window.data

    @property
    def area(self) -> int:
        height, width = self.window.shape
        return len(self.index) * height * width

    def copy(self) -> OnWindows:
        return _with(self, self.window.data.clone())

    def spread(self, out: Tensor, shape: torch.Size) -> None:
        self.window.scatter(out, self.index, shape)

    def windows(self, shape: torch.Size) -> Iterator[OnWindows]:
        yield self


@dataclass(frozen=True, eq=False)
class OnRows(Piece):
    """Parts of some regions on the rows of active features; its columns are these regions, in order."""

    rows: Rows

    @property
    def numbers(self) -> Tensor:
        return self.rows.numbers

    @property
    def area(self) -> int:
        return self.rows.layout.cone.area

    def copy(self) -> OnRows:
        layout = Layout(
            self.rows.layout.active, self.rows.layout.cone
        )  # without what the run worked out for it
        return replace(self, rows=replace(self.rows, numbers=self.rows.numbers.clone(), layout=layout))

    def spread(self, out: Tensor, shape: torch.Size) -> None:
        self.rows.spread(out, self.index)

    def windows(self, shape: torch.Size) -> Iterator[OnWindows]:
        cone = self.rows.layout.cone
        for alike in size_classes({INPUT: cone}, INPUT, torch.arange(len(self.index))):
            origin, size = frame(cone.at(alike))
            yield OnWindows(self.index[alike], Window(self.rows.windows(alike, origin, size), origin))


@dataclass(frozen=True, eq=False)
class Scattered:
    """Parts [regions, C·H·W] of an image-shaped value, in pieces that hold every region once."""

    pieces: tuple[Piece, ...]
    regions: int
    image: torch.Size  # (…, C, H, W)
    dtype: torch.dtype
    divisor: Tensor | None = None  # of products

    @property
    def shape(self) -> tuple[int, int]:
        return self.regions, self.image.numel()

    @cached_property
    def matrix(self) -> Tensor:
        """Parts [regions, C·H·W]: made for whoever asks first, and kept (made twice, it is the same)."""
        out = zeros(*self.shape, self.pieces[0].numbers.new_empty(0, dtype=self.dtype))
        for piece in self.pieces:
            piece.spread(out, self.image)
        return out

    @cached_property
    def windows(self) -> tuple[OnWindows, ...]:
        """All pieces on windows, in the type of the value."""
        found = (each for piece in self.pieces for each in piece.windows(self.image))
        return tuple(_with(each, each.window.data.to(self.dtype)) for each in found)

    def sum(self, axis: int = 0) -> Tensor:
        """Σ_I P_I, as a matrix's sum over its rows."""
        assert axis == 0
        total = self.windows[0].window.data.new_zeros(self.image[-3:])
        for each in self.windows:
            height, width = each.window.shape
            for data, (top, left) in zip(each.window.data, each.window.origin.tolist(), strict=True):
                total[:, top : top + height, left : left + width] += data
        return total.flatten()

    def __truediv__(self, number: Tensor) -> Scattered:
        """For products alone: what was worked out for them is shared."""
        made, name = replace(self, divisor=number.to(self.dtype)), "_table" if self._small else "matrix"
        vars(made)[name] = getattr(self, name)
        return made

    def _divided(self, parts: Tensor) -> Tensor:
        return parts if self.divisor is None else parts / self.divisor

    def product(self, other: Scattered) -> Tensor:
        """P P'ᵀ, tile by tile of the image: a small product of the regions whose windows touch it."""
        alike = self.image[-3:] == other.image[-3:] and self.dtype == other.dtype
        if not (alike and self._small and other._small):
            return self._divided(self.matrix) @ other._divided(other.matrix).T
        ours, theirs = self._table, other._table
        tiles = list(_tiles(self.image, ours.side))
        made: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

        def multiply(number: int) -> None:
            (rows, left), (columns, right) = (each.inside(*tiles[number]) for each in (ours, theirs))
            made[number] = rows, columns, self._divided(left) @ other._divided(right).T

        share(multiply, range(len(tiles)))
        out = ours.numbers.new_zeros(self.regions, other.regions)
        for number in range(len(tiles)):  # in one order, whichever thread was first: sums round
            rows, columns, found = made[number]
            out[rows[:, None], columns] += found
        return out

    @cached_property
    def _small(self) -> bool:
        """Do regions reach a small part of the image, so that few of them touch a tile?"""
        return sum(piece.area for piece in self.pieces) <= SMALL * self.regions * self.image[-2:].numel()

    @cached_property
    def _table(self) -> _Table:
        return _table(self.windows, self.regions)


Parts = Tensor | Scattered
if TYPE_CHECKING:
    Asked = Float[Tensor, "regions h"]  # what a field under `matrix_when_asked` is for whoever reads it
else:
    Asked = Float[Tensor, "regions h"] | Scattered  # what it may be given


def matrix(parts: Parts) -> Tensor:
    """Parts as a matrix, however they are kept."""
    return parts if isinstance(parts, Tensor) else parts.matrix


def zeros(rows: int, columns: int, like: Tensor) -> Tensor:
    """Zeros that take memory only where they are written: early values are zero for a region but near it."""
    if like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.zeros((rows, columns), like.numpy().dtype))
    return like.new_zeros(rows, columns)


T = TypeVar("T")


def matrix_when_asked(held: type[T]) -> type[T]:
    """A dataclass whose field `parts` may be given as `Scattered`: once read it is a matrix; `kept(found)` is what it is."""

    def keep(found: T, parts: Parts) -> None:
        vars(found)["parts"] = parts

    def read(found: T) -> Tensor:
        parts = kept(found)
        if not isinstance(parts, Tensor):
            keep(found, parts := parts.matrix)  # made twice, it is the same
        return parts

    held.parts = property(read, keep)  # type: ignore[attr-defined]
    # what is kept otherwise belongs to this process and its library
    held.__getstate__ = lambda found: {**vars(found), "parts": read(found)}  # type: ignore[attr-defined]
    return held


def kept(found: object) -> Parts:
    """Parts as they are kept."""
    return vars(found)["parts"]


# ---------------------------------------------------------------- what is kept so


def worth_keeping(setting: Setting, way: Way) -> dict[Key, int]:
    """Values on the way that are kept as they are computed, on windows or rows, and how many numbers that takes."""
    arrived = setting.links[way.cut - 1].target if way.cut else setting.program.output
    found = {}
    for number, link in enumerate(setting.links[: way.rows]):
        if link.target in setting.taps and link.target != arrived:
            size = _on_windows(setting, link.target, link.shape) if number < way.crops else 0
            size = size or setting.rows.size(
                Layout(setting.possible[link.target], setting.cones[link.target])
            )
            if size < SMALL * setting.regions * link.shape.numel():
                found[link.target] = size
    return found


def _on_windows(setting: Setting, key: Key, shape: torch.Size) -> int:
    return setting.cones[key].area * shape[-3]


# ---------------------------------------------------------------- products


@dataclass(frozen=True, eq=False)
class _Table:
    """Windows of all regions, one position after another: numbers (positions + 1, C), the last of them zero."""

    numbers: Tensor
    first: Tensor  # position of each region
    low: Tensor  # its window's upper left corner (regions, 2)
    size: Tensor

    @property
    def side(self) -> tuple[int, int]:
        """An ordinary window's: tiles as large touch few regions, and there are few of them."""
        height, width = self.size.double().mean(0).ceil().int().clamp(min=TILE).tolist()
        return height, width

    def inside(self, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Regions whose windows touch a tile of the image, and their numbers there (regions, positions · C)."""
        begin, end = torch.tensor([[rows.start, columns.start], [rows.stop, columns.stop]])
        touch = ((self.low < end) & (self.low + self.size > begin)).all(1).nonzero()[:, 0]
        (top, left), (height, width) = self.low[touch].T[..., None], self.size[touch].T[..., None]
        y, x = torch.arange(rows.start, rows.stop) - top, torch.arange(columns.start, columns.stop) - left
        there = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
        place = self.first[touch][:, None, None] + y[:, :, None] * width[:, None] + x[:, None, :]
        place = torch.where(there, place, len(self.numbers) - 1)
        found = self.numbers.index_select(0, place.flatten())
        return touch, found.reshape(*place.shape, found.shape[1]).flatten(1)


def _table(pieces: Sequence[OnWindows], regions: int) -> _Table:
    numbers = [each.window.data.permute(0, 2, 3, 1).flatten(0, 2) for each in pieces]
    first, low, size = torch.zeros(regions).long(), *torch.zeros(2, regions, 2).long()
    begin = 0
    for each in pieces:
        first[each.index] = begin + torch.arange(len(each.index)) * each.window.data[0, 0].numel()
        low[each.index], size[each.index] = each.window.origin, torch.tensor(each.window.shape)
        begin += each.area
    return _Table(torch.cat([*numbers, numbers[0].new_zeros(1, numbers[0].shape[1])]), first, low, size)


def _tiles(image: torch.Size, side: tuple[int, int]) -> Iterator[tuple[range, range]]:
    """The image cut into tiles of that size, smaller ones at its end."""
    tops, lefts = (
        [range(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(image[-2:], side, strict=True)
    )
    return product(tops, lefts)


def _with(piece: OnWindows, data: Tensor) -> OnWindows:
    return replace(piece, window=replace(piece.window, data=data))
