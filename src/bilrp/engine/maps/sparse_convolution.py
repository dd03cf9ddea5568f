"""Convolution on active rows: at each position a small dense product.

(active outputs × active inputs in reach) · (active inputs × regions in reach). Any number of terms is one product.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from bilrp.engine.sparse_layout import Layout
from bilrp.engine.maps.position_blocks import Amount, Blocks, Kernel, amount
from bilrp.engine.maps.gamma_factor import Ratio, RatioRows
from bilrp.engine.parallel import share

AHEAD = 8  # positions of a line whose rows are cut out at once
LINES = 8  # lines of positions that are remembered: those of the blocks at work


@dataclass(frozen=True, eq=False)
class Convolving:
    """Σ_t diag(after_t) W_t diag(before_t), as it is for whole images."""

    weights: tuple[Tensor, ...]
    before: tuple[Tensor | None, ...]
    after: tuple[Tensor | Ratio | None, ...]  # a ratio only behind a single term with nothing before it
    kernel: Kernel

    def amount(self, source: Layout, target: Layout) -> Amount:
        return amount(self.kernel, source, target)

    def at_rows(self, source: Layout, target: Layout) -> tuple[Factors, Factors, RatioRows | None]:
        """The factors before and after, at the rows of the source and of the target; what makes the latter of a ratio."""
        ratio = next((f.at_rows(source, target) for f in self.after if isinstance(f, Ratio)), None)
        after = (target.at(f) if isinstance(f, Tensor) else None for f in self.after)
        return tuple(map(source.at, self.before)), tuple(after), ratio


Factors = tuple[Tensor | None, ...]


def convolve(
    work: Convolving, found: Blocks, rows: Tensor, source: Layout, out: Tensor, target: Layout
) -> None:
    """Rows of the source → rows of the target, block by block: matrices of one row for each feature."""

    def fill(block: tuple[list[int], Tensor]) -> None:
        (top, left, bottom, right), columns = block
        everything = len(columns) == rows.shape[1]
        strips = _Strips(rows, source, None if everything else columns)
        for y in range(top, bottom):
            line = line_at(y)
            for x in range(left, right):
                start, stop = starts[y * width + x], starts[y * width + x + 1]
                if start == stop or line.empty(x):
                    out[start:stop] = 0
                    continue
                made = laid.at(line, x, start, stop, strips)
                if everything:
                    out[start:stop] = made
                else:
                    out[start:stop].index_copy_(1, columns, made)

    flat = tuple(weight.permute(0, 2, 3, 1).flatten(1).contiguous() for weight in work.weights)
    laid = _Laid(flat, *work.at_rows(source, target), work.kernel, source, target)
    line_at = lru_cache(LINES)(laid.line)
    starts, width = target.starts, target.active.shape[1]
    each = found.columns.tensor_split(found.ends[:-1])
    if any(len(columns) < rows.shape[1] for columns in each):
        out.zero_()
    share(fill, zip(found.boxes.tolist(), each, strict=True))


class _Strips:
    """Runs of rows of one image line, cut to the block's columns; each line is cut once for a block."""

    def __init__(self, rows: Tensor, layout: Layout, columns: Tensor | None) -> None:
        self.rows, self.layout, self.columns = rows, layout, columns
        self.lines: dict[int, tuple[int, int, Tensor]] = {}

    def of(self, y: int, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of line y."""
        if self.columns is None:
            return self.rows[start:stop]
        begin, end, line = self.lines.get(y, (0, 0, self.rows))
        if start < begin or stop > end:
            # more than asked for: the next positions of the block want it too
            begin, end = start, max(stop, self._ahead(y, start))
            line = self.rows[begin:end].index_select(1, self.columns)
            self.lines[y] = (begin, end, line)
        return line[start - begin : stop - begin]

    def _ahead(self, y: int, start: int) -> int:
        """Where the rows end that positions of the same block ask for after this one."""
        width = self.layout.active.shape[1]
        starts = self.layout.starts[y * width : (y + 1) * width + 1]
        return starts[min(width, bisect_right(starts, start) + AHEAD)]


@dataclass(frozen=True, eq=False)
class Line:
    """What the output positions of one line look at: runs of input rows, and the columns of W that belong to them."""

    columns: Tensor  # of all positions, one after another
    ends: list[int]  # where each position's end
    rows: Tensor  # of all positions
    runs: list[list[tuple[int, int, int]]]  # (line of the input, first row, last row + 1)

    def empty(self, x: int) -> bool:
        return self.ends[x] == self.ends[x + 1]

    def of(self, each: Tensor, x: int) -> Tensor:
        """The part of `each` that belongs to position x."""
        return each[self.ends[x] : self.ends[x + 1]]


@dataclass(frozen=True, eq=False)
class _Laid:
    """A convolution laid out for rows: one (outputs, kernel·inputs) matrix for each term, and its factors at the rows."""

    weights: tuple[Tensor, ...]
    before: Factors
    after: Factors
    ratio: RatioRows | None
    kernel: Kernel
    layout: Layout
    target: Layout

    def at(self, line: Line, x: int, start: int, stop: int, strips: _Strips) -> Tensor:
        """The active outputs of one position: (outputs × inputs in reach) · (inputs in reach × columns)."""
        runs = [strips.of(*run) for run in line.runs[x]]
        tangents = torch.cat(runs) if len(runs) > 1 else runs[0]
        outputs, columns = self.target.channel[start:stop], line.of(line.columns, x)
        if len(self.weights) == 1 and self.before[0] is None:
            weights = self.weights[0].index_select(0, outputs).index_select(1, columns)
            made = weights @ tangents
            if self.ratio is not None:
                sums = weights @ self.ratio.a[line.of(line.rows, x), None]
                return made.mul_(self.ratio.factor(sums[:, 0], slice(start, stop))[:, None])
            return made if self.after[0] is None else made.mul_(self.after[0][start:stop, None])
        return self._combined(outputs, columns, start, stop, line.of(line.rows, x)) @ tangents

    def _combined(self, outputs: Tensor, columns: Tensor, start: int, stop: int, rows: Tensor) -> Tensor:
        """Σ_t after_t · W_t · before_t on the active entries: any number of terms is one product."""
        total: Tensor | None = None
        for weight, before, after in zip(self.weights, self.before, self.after, strict=True):
            part = weight.index_select(0, outputs).index_select(1, columns)
            if before is not None:
                part.mul_(before[rows])
            if after is not None:
                part.mul_(after[start:stop, None])
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def line(self, y: int) -> Line:
        """What depends on where a position looks, for a whole line at once: small steps would cost more than products."""
        (height, width, channels), (tall, wide) = self.layout.active.shape, self.kernel.size
        (down, across), (top, left) = self.kernel.reach.stride, self.kernel.reach.padding
        xs = torch.arange(self.target.active.shape[1]) * across - left  # where each field begins
        lines, firsts, lasts, offsets = [], [], [], []
        for dy in range(tall):
            line = y * down - top + dy * self.kernel.dilation[0]
            if not 0 <= line < height:
                continue
            for dx, length in self._stretches:
                place = xs + dx * self.kernel.dilation[1]
                first, last = place.clamp(0, width), (place + length).clamp(0, width)
                lines.append(line)
                firsts.append(self._starts[line * width + first])
                lasts.append(self._starts[line * width + last])
                # the kernel's column at input position i is dx + i − place
                offsets.append((dy * wide + dx - place) * channels)
        if not lines:
            return Line(torch.empty(0, dtype=torch.long), [0] * (len(xs) + 1), xs[:0], [])
        first, last, offset = (torch.stack(each, 1) for each in (firsts, lasts, offsets))
        lengths = (last - first).flatten()
        ends = lengths.cumsum(0)
        shift = (first.flatten() - (ends - lengths)).repeat_interleave(lengths)
        rows = torch.arange(len(shift)).add_(shift)
        columns = self._along[rows].add_(offset.flatten().repeat_interleave(lengths))
        runs = [
            [(n, a, b) for n, a, b in zip(lines, begin, end, strict=True) if a < b]
            for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        ]
        return Line(columns, [0, *ends[len(lines) - 1 :: len(lines)].tolist()], rows, runs)

    @cached_property
    def _starts(self) -> Tensor:
        return self.layout.firsts

    @cached_property
    def _along(self) -> Tensor:
        """Column of W for each input row, but for the window's own offset."""
        _, width, channels = self.layout.active.shape
        return self.layout.flat % (width * channels)

    @cached_property
    def _stretches(self) -> list[tuple[int, int]]:
        """Neighbouring input positions under a line of the kernel, as (first, how many): all without dilation, else each."""
        wide = self.kernel.size[1]
        return [(0, wide)] if self.kernel.dilation[1] == 1 else [(dx, 1) for dx in range(wide)]
