"""Convolution on active rows: at each position a small dense product.

(active outputs × active inputs in reach) · (active inputs × regions in reach). Any number of terms is one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.layouts import Layout, seen
from bilrp.engine.windows import Cone, Reach

TILE = 4  # positions on a side that share one selection of columns


@dataclass(frozen=True)
class Kernel:
    """Where a convolution looks."""

    size: tuple[int, int]
    dilation: tuple[int, int]
    reach: Reach


@dataclass(frozen=True)
class Tile:
    """A block of output positions and the columns (regions) whose cone touches it."""

    top: int
    left: int
    bottom: int
    right: int
    columns: Tensor


def tiles(cone: Cone) -> list[Tile]:
    """Blocks of TILE × TILE positions that at least one region reaches."""
    height, width = cone.size
    down, across = _reached(cone)
    found = []
    for i, top in enumerate(range(0, height, TILE)):
        for j, left in enumerate(range(0, width, TILE)):
            columns = (down[i] & across[j]).nonzero()[:, 0]
            if len(columns):
                found.append(Tile(top, left, min(height, top + TILE), min(width, left + TILE), columns))
    return found


def _reached(cone: Cone) -> tuple[Tensor, Tensor]:
    """Which regions reach each line (tiles down, regions) and each column of tiles (tiles across, regions)."""
    tops, lefts = (torch.arange(0, size, TILE)[:, None] for size in cone.size)
    down = (cone.low[:, 0] < tops + TILE) & (cone.high[:, 0] > tops)
    return down, (cone.low[:, 1] < lefts + TILE) & (cone.high[:, 1] > lefts)


def work(kernel: Kernel, layout: Layout, target: Layout, cone: Cone) -> tuple[int, int]:
    """Multiply-adds and products that `convolve` will do, without doing them."""
    outputs = target.active.sum(2)
    macs_each = outputs * _field_sums(layout.active.sum(2, keepdim=True), kernel, outputs.shape)
    grown = F.pad(macs_each, (0, -macs_each.shape[1] % TILE, 0, -macs_each.shape[0] % TILE))
    blocks = grown.unflatten(0, (-1, TILE)).unflatten(2, (-1, TILE)).sum((1, 3))  # work of each tile
    down, across = (reached.double() for reached in _reached(cone))
    macs = int((blocks * (down @ across.T)).sum())
    return macs, int((macs_each > 0).sum())


def _field_sums(count: Tensor, kernel: Kernel, shape: torch.Size) -> Tensor:
    """Active inputs in reach of each output position."""
    total = torch.zeros(*shape, 1, dtype=count.dtype)
    for dy in range(kernel.size[0]):
        for dx in range(kernel.size[1]):
            offset = (dy * kernel.dilation[0], dx * kernel.dilation[1])
            total += seen(count, offset, kernel.reach, shape).clamp(min=0)
    return total[:, :, 0]


def convolve(work: Convolving, rows: Tensor, cone: Cone, out: Tensor) -> None:
    """Rows of the source → rows of the target, tile by tile."""
    target = work.target
    for tile in tiles(cone):
        everything = len(tile.columns) == rows.shape[1]
        strips = _Strips(rows, work.layout, None if everything else tile.columns)
        for y in range(tile.top, tile.bottom):
            for x in range(tile.left, tile.right):
                position = y * target.active.shape[1] + x
                start, stop = target.starts[position], target.starts[position + 1]
                if start == stop:
                    continue
                made = work.at(y, x, start, stop, strips)
                if made is None:
                    continue
                if everything:
                    out[start:stop] = made
                else:
                    out[start:stop].index_copy_(1, tile.columns, made)


class _Strips:
    """Runs of rows of one image line, cut to the tile's columns; each line is cut once for a tile."""

    def __init__(self, rows: Tensor, layout: Layout, columns: Tensor | None) -> None:
        self.rows, self.layout, self.columns = rows, layout, columns
        self.lines: dict[int, tuple[int, int, Tensor]] = {}

    def run(self, y: int, first: int, last: int) -> tuple[int, int, Tensor]:
        """Rows [start, stop) of positions first … last of line y, and their tangents."""
        width = self.layout.active.shape[1]
        start, stop = self.layout.starts[y * width + first], self.layout.starts[y * width + last + 1]
        if self.columns is None:
            return start, stop, self.rows[start:stop]
        begin, end, line = self.lines.get(y, (0, 0, self.rows))
        if start < begin or stop > end:
            # a little more than asked for: the next positions of the tile want it too
            until = self.layout.starts[y * width + min(width, last + TILE + 1)]
            begin, end = start, max(stop, until)
            line = self.rows[begin:end].index_select(1, self.columns)
            self.lines[y] = (begin, end, line)
        return start, stop, line[start - begin : stop - begin]


@dataclass(frozen=True, eq=False)
class Convolving:
    """A convolution laid out for rows: one (outputs, kernel·inputs) matrix for each term, and its factors at the rows."""

    weights: tuple[Tensor, ...]
    before: tuple[Tensor | None, ...]
    after: tuple[Tensor | None, ...]
    kernel: Kernel
    layout: Layout
    target: Layout

    @cached_property
    def along(self) -> Tensor:
        """Column of W for each input row, but for the window's own offset."""
        _, width, channels = self.layout.active.shape
        return self.layout.flat % (width * channels)

    def at(self, y: int, x: int, start: int, stop: int, strips: _Strips) -> Tensor | None:
        """The active outputs of one position: (outputs × inputs in reach) · (inputs in reach × columns)."""
        runs = list(self._runs(y, x, strips))
        if not runs:
            return None
        columns = torch.cat([c for c, _, _ in runs]) if len(runs) > 1 else runs[0][0]
        tangents = torch.cat([t for _, _, t in runs]) if len(runs) > 1 else runs[0][2]
        outputs = self.target.channel[start:stop]
        if len(self.weights) == 1 and self.before[0] is None:
            made = self.weights[0].index_select(0, outputs).index_select(1, columns) @ tangents
            return made if self.after[0] is None else made.mul_(self.after[0][start:stop, None])
        return self._combined(outputs, columns, start, stop, [r for _, r, _ in runs]) @ tangents

    def _combined(self, outputs: Tensor, columns: Tensor, start: int, stop: int, runs: list[slice]) -> Tensor:
        """Σ_t after_t · W_t · before_t on the active entries: any number of terms is one product."""
        total: Tensor | None = None
        for weight, before, after in zip(self.weights, self.before, self.after, strict=True):
            part = weight.index_select(0, outputs).index_select(1, columns)
            if before is not None:
                part.mul_(torch.cat([before[r] for r in runs]))
            if after is not None:
                part.mul_(after[start:stop, None])
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def _runs(self, y: int, x: int, strips: _Strips) -> Iterator[tuple[Tensor, slice, Tensor]]:
        """(columns of W, rows, tangents) for each stretch of input positions the window covers."""
        height, width, channels = self.layout.active.shape
        (down, across), (top, left) = self.kernel.reach.stride, self.kernel.reach.padding
        top, left = y * down - top, x * across - left
        for dy in range(self.kernel.size[0]):
            line = top + dy * self.kernel.dilation[0]
            if not 0 <= line < height:
                continue
            for dx, first, last in self._stretches(left, width):
                start, stop, tangents = strips.run(line, first, last)
                if start < stop:
                    # kernel column of input position i is (i - left) / dilation; within a stretch it moves with i
                    offset = (dy * self.kernel.size[1] + dx - first) * channels
                    yield self.along[start:stop] + offset, slice(start, stop), tangents

    def _stretches(self, left: int, width: int) -> Iterator[tuple[int, int, int]]:
        """Neighbouring input positions under the kernel: one stretch without dilation, single positions with it."""
        (_, wide), (_, across) = self.kernel.size, self.kernel.dilation
        if across == 1:
            first, last = max(0, left), min(width - 1, left + wide - 1)
            if first <= last:
                yield first - left, first, last
            return
        for dx in range(wide):
            place = left + dx * across
            if 0 <= place < width:
                yield dx, place, place
