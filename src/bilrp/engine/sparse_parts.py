"""Sparse parts: stored as windows or sparse tangents, and densified on first access.

The parts of early values are large and nearly all zero. Windows or sparse tangents take a few per cent of the dense
matrix, and the product of two sparse parts needs no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.engine.costs import Schedule
from bilrp.engine.executors.sparse_layout import SparseLayout, SparseTangent
from bilrp.engine.executors.windowed import fit_windows, size_classes
from bilrp.engine.parallel import parallel_for
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import INPUT, Key
from bilrp.engine.windows import Window

MAX_SPARSE_FRACTION = 0.25  # of the dense matrix; larger parts are stored and multiplied dense
STORED_NAME = "_stored_parts"  # attribute behind a field that is dense on read
MIN_TILE_SIDE = 8  # positions per side; smaller tiles take longer to set up than to multiply


@dataclass(frozen=True, eq=False)
class PartsChunk(ABC):
    """Parts of the regions `index`, in the format in which they were computed."""

    index: Tensor

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """The stored numbers."""

    @property
    @abstractmethod
    def area(self) -> int:
        """Sum of the areas of the regions' windows or receptive fields."""

    @abstractmethod
    def copy(self) -> PartsChunk:
        """Return a copy with its own memory."""

    @abstractmethod
    def scatter(self, out: Tensor, shape: torch.Size) -> None:
        """Write into the zero-initialised parts (regions, C·H·W) of all regions."""

    @abstractmethod
    def to_windows(self, shape: torch.Size) -> Iterator[WindowedChunk]:
        """Yield the parts as windows."""


@dataclass(frozen=True, eq=False)
class WindowedChunk(PartsChunk):
    """Parts on windows around each region."""

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
    """Parts as a sparse tangent whose columns are the regions `index`, in order."""

    tangent: SparseTangent

    @property
    def values(self) -> Tensor:
        return self.tangent.values

    @property
    def area(self) -> int:
        return self.tangent.layout.cone.area

    def copy(self) -> SparseChunk:
        layout = SparseLayout(self.tangent.layout.mask, self.tangent.layout.cone)  # without its caches
        return replace(self, tangent=replace(self.tangent, values=self.tangent.values.clone(), layout=layout))

    def scatter(self, out: Tensor, shape: torch.Size) -> None:
        self.tangent.scatter(out, self.index)

    def to_windows(self, shape: torch.Size) -> Iterator[WindowedChunk]:
        cone = self.tangent.layout.cone
        for columns in size_classes({INPUT: cone}, INPUT, torch.arange(len(self.index))):
            origin, size = fit_windows(cone.select(columns))
            yield WindowedChunk(
                self.index[columns], Window(self.tangent.to_windows(columns, origin, size), origin)
            )


@dataclass(frozen=True, eq=False)
class SparseParts:
    """Parts [regions, C·H·W] of an image-shaped value.

    Args:
        chunks: Parts of disjoint sets of regions, together all of them.
        region_count: Number of regions.
        value_shape: Shape (…, C, H, W) of the value.
        dtype: dtype of the value, and of the dense parts.
        divisor: Per-feature divisor that `product` applies to these parts.
    """

    chunks: tuple[PartsChunk, ...]
    region_count: int
    value_shape: torch.Size
    dtype: torch.dtype
    divisor: Tensor | None = None
    memo: dict[str, Any] = field(default_factory=dict, repr=False)  # computed once, shared by quotients

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as dense parts: sparse ones depend on this process and its native library."""
        return densify, (self.dense_parts,)

    @property
    def shape(self) -> tuple[int, int]:
        return self.region_count, self.value_shape.numel()

    @property
    def dense_parts(self) -> Tensor:
        """Dense parts [regions, C·H·W]; threads that compute them twice get the same result."""
        key = f"dense_parts {self.dtype}"
        if key not in self.memo:
            self.memo[key] = self._compute_dense_parts()
        return self.memo[key]

    def _compute_dense_parts(self) -> Tensor:
        out = lazy_zeros(*self.shape, self.chunks[0].values.new_empty(0, dtype=self.dtype))
        for chunk in self.chunks:
            chunk.scatter(out, self.value_shape)
        return out

    @cached_property
    def windowed_chunks(self) -> tuple[WindowedChunk, ...]:
        """All chunks as windows, in the dtype of the value."""
        windowed = (each for chunk in self.chunks for each in chunk.to_windows(self.value_shape))
        return tuple(_with_data(each, each.window.data.to(self.dtype)) for each in windowed)

    def sum(self, axis: int = 0) -> Tensor:
        """Return Σ_I P_I, like `Tensor.sum(0)`."""
        assert axis == 0
        total = self.windowed_chunks[0].window.data.new_zeros(self.value_shape[-3:])
        for each in self.windowed_chunks:
            height, width = each.window.shape
            for data, (top, left) in zip(each.window.data, each.window.origin.tolist(), strict=True):
                total[:, top : top + height, left : left + width] += data
        return total.flatten()

    def __truediv__(self, number: Tensor) -> SparseParts:
        """Divide every region's parts by `number`, for `product` only."""
        return replace(self, divisor=number.to(self.dtype))

    def _divide(self, parts: Tensor) -> Tensor:
        return parts if self.divisor is None else parts / self.divisor

    def product(self, other: SparseParts) -> Tensor:
        """Return P P'ᵀ, as a sum over tiles of products of the regions whose windows overlap the tile."""
        same_shape = self.value_shape[-3:] == other.value_shape[-3:] and self.dtype == other.dtype
        if not (same_shape and self._is_small and other._is_small):
            return self._divide(self.dense_parts) @ other._divide(other.dense_parts).T
        ours, theirs = self._window_table, other._window_table
        tiles = list(_iter_tiles(self.value_shape, ours.tile_size))
        products: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

        def multiply(number: int) -> None:
            (rows, left), (columns, right) = (each.gather_tile(*tiles[number]) for each in (ours, theirs))
            products[number] = rows, columns, self._divide(left) @ other._divide(right).T

        parallel_for(multiply, range(len(tiles)))
        out = ours.values.new_zeros(self.region_count, other.region_count)
        for number in range(len(tiles)):  # in a fixed order, so that rounding does not depend on the threads
            rows, columns, values = products[number]
            out[rows[:, None], columns] += values
        return out

    @cached_property
    def _is_small(self) -> bool:
        """Whether windows cover a small part of the image, so that few of them overlap a tile."""
        return (
            sum(chunk.area for chunk in self.chunks)
            <= MAX_SPARSE_FRACTION * self.region_count * self.value_shape[-2:].numel()
        )

    @property
    def _window_table(self) -> _WindowTable:
        if "_window_table" not in self.memo:
            self.memo["_window_table"] = self._compute_window_table()
        return self.memo["_window_table"]

    def _compute_window_table(self) -> _WindowTable:
        return _build_window_table(self.windowed_chunks, self.region_count)


AnyParts = Tensor | SparseParts
if TYPE_CHECKING:
    LazyDenseParts = Float[Tensor, "regions h"]  # type of a `DenseOnRead` field when read
else:
    LazyDenseParts = Float[Tensor, "regions h"] | SparseParts  # types it may be set to


def densify(parts: AnyParts) -> Tensor:
    """Return dense parts."""
    return parts if isinstance(parts, Tensor) else parts.dense_parts


def lazy_zeros(rows: int, columns: int, like: Tensor) -> Tensor:
    """Return zeros whose pages are only committed where they are written.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        like: Tensor that gives dtype and device.
    """
    if like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.zeros((rows, columns), like.numpy().dtype))
    return like.new_zeros(rows, columns)


class DenseOnRead:
    """Descriptor of a dataclass field that may be set to `SparseParts` and reads as dense parts."""

    def __set__(self, owner: object, parts: AnyParts) -> None:
        object.__setattr__(owner, STORED_NAME, parts)  # the dataclass is frozen

    def __get__(self, owner: object | None, kind: type | None = None) -> Tensor:
        if owner is None:
            raise AttributeError("parts")  # so that the field has no default
        parts = densify(get_stored_parts(owner))
        self.__set__(owner, parts)
        return parts


def get_stored_parts(owner: object) -> AnyParts:
    """Return parts as they are stored, sparse or dense."""
    return getattr(owner, STORED_NAME)


# ---------------------------------------------------------------- which taps are sparse


def choose_sparse_taps(context: PlanContext, schedule: Schedule) -> dict[Key, int]:
    """Return the taps whose parts are stored sparse, with the number of elements stored."""
    last_pushed = context.links[schedule.cut - 1].target if schedule.cut else context.program.output
    numel = {}
    for i, link in enumerate(context.links[: schedule.sparse_end]):
        if link.target in context.taps and link.target != last_pushed:
            size = _windowed_numel(context, link.target, link.shape) if i < schedule.windowed_end else 0
            size = size or context.tangent_type.count_elements(
                SparseLayout(context.output_support[link.target], context.cones[link.target])
            )
            if size < MAX_SPARSE_FRACTION * context.region_count * link.shape.numel():
                numel[link.target] = size
    return numel


def _windowed_numel(context: PlanContext, key: Key, shape: torch.Size) -> int:
    return context.cones[key].area * shape[-3]


# ---------------------------------------------------------------- products


@dataclass(frozen=True, eq=False)
class _WindowTable:
    """The windows of all regions as one table of positions."""

    values: Tensor  # (positions + 1, C), the last one zero
    offset: Tensor  # (regions,): first position of each region
    low: Tensor  # (regions, 2): upper left corner of its window
    size: Tensor  # (regions, 2): height and width of its window

    @property
    def tile_size(self) -> tuple[int, int]:
        """The mean window size: such tiles are few and overlap few regions."""
        height, width = self.size.double().mean(0).ceil().int().clamp(min=MIN_TILE_SIDE).tolist()
        return height, width

    def gather_tile(self, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Return the regions whose windows overlap a tile, and their values there (regions, positions · C)."""
        begin, end = torch.tensor([[rows.start, columns.start], [rows.stop, columns.stop]])
        overlapping = ((self.low < end) & (self.low + self.size > begin)).all(1).nonzero()[:, 0]
        (top, left), (height, width) = self.low[overlapping].T[..., None], self.size[overlapping].T[..., None]
        y, x = torch.arange(rows.start, rows.stop) - top, torch.arange(columns.start, columns.stop) - left
        inside = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
        place = self.offset[overlapping][:, None, None] + y[:, :, None] * width[:, None] + x[:, None, :]
        place = torch.where(inside, place, len(self.values) - 1)
        values = self.values.index_select(0, place.flatten())
        return overlapping, values.reshape(*place.shape, values.shape[1]).flatten(1)


def _build_window_table(chunks: Sequence[WindowedChunk], region_count: int) -> _WindowTable:
    values = [each.window.data.permute(0, 2, 3, 1).flatten(0, 2) for each in chunks]
    first, low, size = torch.zeros(region_count).long(), *torch.zeros(2, region_count, 2).long()
    begin = 0
    for each in chunks:
        first[each.index] = begin + torch.arange(len(each.index)) * each.window.data[0, 0].numel()
        low[each.index], size[each.index] = each.window.origin, torch.tensor(each.window.shape)
        begin += each.area
    return _WindowTable(torch.cat([*values, values[0].new_zeros(1, values[0].shape[1])]), first, low, size)


def _iter_tiles(shape: torch.Size, side: tuple[int, int]) -> Iterator[tuple[range, range]]:
    """Yield the row and column ranges of tiles; those at the end may be smaller."""
    tops, lefts = (
        [range(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(shape[-2:], side, strict=True)
    )
    return product(tops, lefts)


def _with_data(chunk: WindowedChunk, data: Tensor) -> WindowedChunk:
    return replace(chunk, window=replace(chunk.window, data=data))
