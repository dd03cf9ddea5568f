"""Convolution of sparse tangents in torch: at each position a small dense product.

(active outputs × active inputs in the field) · (active inputs × regions). Any number of terms is one product.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from bilrp.engine.executors.position_blocks import Blocks, ConvolutionCost, Kernel, convolution_cost
from bilrp.engine.executors.sparse_layout import SparseLayout
from bilrp.engine.maps import LazyGammaFactor
from bilrp.engine.masks import nonzero_mask
from bilrp.engine.parallel import parallel_for

PREFETCH_POSITIONS = 8  # positions of a line whose rows are copied at once
MAX_CACHED_LINES = 8  # indexed lines: those of the blocks in progress


@dataclass(frozen=True, eq=False)
class SparseConvolution:
    """Σ_t diag(after_t) W_t diag(before_t), with image-shaped factors.

    Args:
        weights: W of each term.
        before: Input factor of each term, None for 1.
        after: Output factor of each term, None for 1; lazy only for a single term without an input factor.
        kernel: Kernel of the convolution.
    """

    weights: tuple[Tensor, ...]
    before: tuple[Tensor | None, ...]
    after: tuple[Tensor | LazyGammaFactor | None, ...]
    kernel: Kernel

    def cost(self, source: SparseLayout, target: SparseLayout) -> ConvolutionCost:
        """Return the cost with the cheapest block size."""
        return convolution_cost(self.kernel, source, target)

    def at_rows(
        self, source: SparseLayout, target: SparseLayout
    ) -> tuple[Factors, Factors, SparseGammaFactor | None]:
        """Return the input factors at the source's rows, the output factors at the target's, and the lazy factor."""
        gamma_factor = next(
            (gamma_at_rows(f, source, target) for f in self.after if isinstance(f, LazyGammaFactor)), None
        )
        after = (target.gather_optional(f) if isinstance(f, Tensor) else None for f in self.after)
        return tuple(map(source.gather_optional, self.before)), tuple(after), gamma_factor


Factors = tuple[Tensor | None, ...]


def is_covered(factor: LazyGammaFactor, source: SparseLayout) -> bool:
    """Return whether every non-zero input has a row, so that a sparse push can compute the denominators."""
    if factor not in source.memo:  # used by planning, counting and running
        source.memo[factor] = not bool((nonzero_mask(factor.a) & ~source.mask).any())
    return source.memo[factor]


def gamma_at_rows(factor: LazyGammaFactor, source: SparseLayout, target: SparseLayout) -> SparseGammaFactor:
    """Return a lazy factor restricted to the rows of two layouts.

    Args:
        factor: The factor on all features.
        source: Layout before the convolution.
        target: Layout after it.
    """
    numerator = target.gather(factor.numerator)
    if factor.bias is None:
        bias = numerator.new_zeros(target.row_count)
    else:  # one per channel, or one for all
        bias = factor.bias.expand(target.mask.shape[2])[target.channel]
    return SparseGammaFactor(source.gather(factor.a), bias, numerator, factor.min_denominator(numerator))


@dataclass(frozen=True, eq=False)
class SparseGammaFactor:
    """`LazyGammaFactor` on rows: a at those of the source; the other tensors at those of the target."""

    a: Tensor
    bias: Tensor
    numerator: Tensor
    min_denominator: Tensor

    def compute(self, sums: Tensor, rows: slice) -> Tensor:
        """Return z⁺ / (ρ(W)a + ρ(b)) for some rows of the target, given `sums` = ρ(W)a."""
        return self.numerator[rows] / torch.maximum(sums + self.bias[rows], self.min_denominator[rows])


def convolve_blocks(
    convolution: SparseConvolution,
    blocks: Blocks,
    rows: Tensor,
    source: SparseLayout,
    out: Tensor,
    target: SparseLayout,
) -> None:
    """Convolve a matrix (source rows, regions) into `out` (target rows, regions), block by block.

    Args:
        convolution: Weights, factors and kernel.
        blocks: Blocks of the target's positions.
        rows: Tangents of the source.
        source: Layout of `rows`.
        out: Where the result is written.
        target: Layout of `out`.
    """

    def fill(block: tuple[list[int], Tensor]) -> None:
        (top, left, bottom, right), columns = block
        all_columns = len(columns) == rows.shape[1]
        row_cache = _RowCache(rows, source, None if all_columns else columns)
        for y in range(top, bottom):
            line = line_at(y)
            for x in range(left, right):
                start, stop = starts[y * width + x], starts[y * width + x + 1]
                if start == stop or line.is_empty(x):
                    out[start:stop] = 0
                    continue
                outputs = indexed.outputs_at(line, x, start, stop, row_cache)
                if all_columns:
                    out[start:stop] = outputs
                else:
                    out[start:stop].index_copy_(1, columns, outputs)

    flat = tuple(weight.permute(0, 2, 3, 1).flatten(1).contiguous() for weight in convolution.weights)
    indexed = _IndexedConvolution(
        flat, *convolution.at_rows(source, target), convolution.kernel, source, target
    )
    line_at = lru_cache(MAX_CACHED_LINES)(indexed.index_line)
    starts, width = target.row_offset_list, target.mask.shape[1]
    block_columns = blocks.columns.tensor_split(blocks.ends[:-1])
    if any(len(columns) < rows.shape[1] for columns in block_columns):
        out.zero_()
    parallel_for(fill, zip(blocks.boxes.tolist(), block_columns, strict=True))


class _RowCache:
    """Rows restricted to a block's columns; each image line is copied once per block."""

    def __init__(self, rows: Tensor, layout: SparseLayout, columns: Tensor | None) -> None:
        self.rows, self.layout, self.columns = rows, layout, columns
        self.lines: dict[int, tuple[int, int, Tensor]] = {}

    def get(self, y: int, start: int, stop: int) -> Tensor:
        """Return rows of an image line, restricted to the block's columns.

        Args:
            y: Line of the input image.
            start: First row.
            stop: Last row + 1.
        """
        if self.columns is None:
            return self.rows[start:stop]
        begin, end, line = self.lines.get(y, (0, 0, self.rows))
        if start < begin or stop > end:
            # prefetch for the next positions of the block
            begin, end = start, max(stop, self._prefetch_end(y, start))
            line = self.rows[begin:end].index_select(1, self.columns)
            self.lines[y] = (begin, end, line)
        return line[start - begin : stop - begin]

    def _prefetch_end(self, y: int, start: int) -> int:
        """Return the end of the rows that the next positions of the block need."""
        width = self.layout.mask.shape[1]
        starts = self.layout.row_offset_list[y * width : (y + 1) * width + 1]
        return starts[min(width, bisect_right(starts, start) + PREFETCH_POSITIONS)]


@dataclass(frozen=True, eq=False)
class LineIndex:
    """The fields of the output positions of one line: runs of input rows, and the columns of W they multiply."""

    columns: Tensor  # of all positions, concatenated
    ends: list[int]  # end of each position's columns
    rows: Tensor  # of all positions, concatenated
    runs: list[list[tuple[int, int, int]]]  # (line of the input, first row, last row + 1)

    def is_empty(self, x: int) -> bool:
        """Return whether position x has no active inputs."""
        return self.ends[x] == self.ends[x + 1]

    def slice_at(self, tensor: Tensor, x: int) -> Tensor:
        """Return the part of `tensor` that belongs to position x."""
        return tensor[self.ends[x] : self.ends[x + 1]]


@dataclass(frozen=True, eq=False)
class _IndexedConvolution:
    """A convolution prepared for two layouts: an (outputs, kernel·inputs) matrix per term, and factors at the rows."""

    weights: tuple[Tensor, ...]
    before: Factors
    after: Factors
    gamma_factor: SparseGammaFactor | None
    kernel: Kernel
    source: SparseLayout
    target: SparseLayout

    def outputs_at(self, line: LineIndex, x: int, start: int, stop: int, row_cache: _RowCache) -> Tensor:
        """Return the active outputs of one position: (outputs × inputs in the field) · (inputs × columns).

        Args:
            line: Fields of the output line.
            x: Position in the line.
            start: First row of the position in the target.
            stop: Last row + 1.
            row_cache: Tangents of the source.
        """
        runs = [row_cache.get(*run) for run in line.runs[x]]
        tangents = torch.cat(runs) if len(runs) > 1 else runs[0]
        outputs, columns = self.target.channel[start:stop], line.slice_at(line.columns, x)
        if len(self.weights) == 1 and self.before[0] is None:
            weights = self.weights[0].index_select(0, outputs).index_select(1, columns)
            result = weights @ tangents
            if self.gamma_factor is not None:
                sums = weights @ self.gamma_factor.a[line.slice_at(line.rows, x), None]
                return result.mul_(self.gamma_factor.compute(sums[:, 0], slice(start, stop))[:, None])
            return result if self.after[0] is None else result.mul_(self.after[0][start:stop, None])
        return self._combine_weights(outputs, columns, start, stop, line.slice_at(line.rows, x)) @ tangents

    def _combine_weights(
        self, outputs: Tensor, columns: Tensor, start: int, stop: int, rows: Tensor
    ) -> Tensor:
        """Return Σ_t after_t · W_t · before_t on the active entries."""
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

    def index_line(self, y: int) -> LineIndex:
        """Index a whole line of positions at once: per position, indexing would cost more than the products."""
        (height, width, channels), (tall, wide) = self.source.mask.shape, self.kernel.size
        (down, across), (top, left) = self.kernel.geometry.stride, self.kernel.geometry.padding
        xs = torch.arange(self.target.mask.shape[1]) * across - left  # where each field begins
        lines, firsts, lasts, offsets = [], [], [], []
        for dy in range(tall):
            line = y * down - top + dy * self.kernel.dilation[0]
            if not 0 <= line < height:
                continue
            for dx, length in self._kernel_runs:
                place = xs + dx * self.kernel.dilation[1]
                first, last = place.clamp(0, width), (place + length).clamp(0, width)
                lines.append(line)
                firsts.append(self._row_offsets[line * width + first])
                lasts.append(self._row_offsets[line * width + last])
                # the kernel's column at input position i is dx + i − place
                offsets.append((dy * wide + dx - place) * channels)
        if not lines:
            return LineIndex(torch.empty(0, dtype=torch.long), [0] * (len(xs) + 1), xs[:0], [])
        first, last, offset = (torch.stack(each, 1) for each in (firsts, lasts, offsets))
        lengths = (last - first).flatten()
        ends = lengths.cumsum(0)
        shift = (first.flatten() - (ends - lengths)).repeat_interleave(lengths)
        rows = torch.arange(len(shift)).add_(shift)
        columns = self._weight_column[rows].add_(offset.flatten().repeat_interleave(lengths))
        runs = [
            [(n, a, b) for n, a, b in zip(lines, begin, end, strict=True) if a < b]
            for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        ]
        return LineIndex(columns, [0, *ends[len(lines) - 1 :: len(lines)].tolist()], rows, runs)

    @cached_property
    def _row_offsets(self) -> Tensor:
        return self.source.row_offsets

    @cached_property
    def _weight_column(self) -> Tensor:
        """Column of W for each input row, up to the offset of the field."""
        _, width, channels = self.source.mask.shape
        return self.source.flat_index % (width * channels)

    @cached_property
    def _kernel_runs(self) -> list[tuple[int, int]]:
        """Runs (first, length) of adjacent input positions in a kernel line: one without dilation, else single positions."""
        wide = self.kernel.size[1]
        return [(0, wide)] if self.kernel.dilation[1] == 1 else [(dx, 1) for dx in range(wide)]
