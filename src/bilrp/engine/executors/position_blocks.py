"""Blocks of output positions that share one selection of regions, and the cost of a sparse convolution with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bilrp import native
from bilrp.engine.executors.sparse_layout import SparseLayout
from bilrp.engine.masks import select_offset
from bilrp.engine.windows import Cone, Geometry

BLOCK_SIDES = (1, 2, 4)  # positions per side of a block
# Rough equivalents in multiply-adds.
MACS_PER_COPIED_NUMBER = 32  # one number is copied for a block
MACS_PER_WEIGHT_LOOKUP = 10  # one weight is looked up, in native code
MACS_PER_TORCH_PRODUCT = 10_000_000  # overhead of one small product in torch


@dataclass(frozen=True)
class Kernel:
    """Size, dilation and geometry of a convolution's kernel."""

    size: tuple[int, int]
    dilation: tuple[int, int]
    geometry: Geometry


@dataclass(frozen=True, eq=False)
class Blocks:
    """Square blocks of output positions, each with the columns (regions) whose receptive field overlaps it."""

    boxes: Tensor  # (n, 4): top, left, bottom, right
    columns: Tensor  # of all blocks, concatenated
    ends: Tensor  # (n,): end of each block's columns


def make_blocks(cone: Cone, side: int, *, include_empty: bool = False) -> Blocks:
    """Return the blocks of output positions with the regions that overlap them; cached in the cone.

    Args:
        cone: Receptive field of each region.
        side: Positions per side of a block.
        include_empty: Whether to return blocks that overlap no receptive field, too.
    """
    if (make_blocks, side, include_empty) not in cone.memo:
        make = make_blocks_torch if native.load_library() is None else make_blocks_native
        cone.memo[make_blocks, side, include_empty] = make(cone, side, include_empty=include_empty)
    return cone.memo[make_blocks, side, include_empty]


def make_blocks_torch(cone: Cone, side: int, *, include_empty: bool) -> Blocks:
    """Compute `make_blocks` in torch.

    Args:
        cone: Receptive field of each region.
        side: Positions per side of a block.
        include_empty: Whether to return blocks that overlap no receptive field, too.
    """
    tops, lefts = (torch.arange(0, size, side)[:, None] for size in cone.size)
    down = (cone.low[:, 0] < tops + side) & (cone.high[:, 0] > tops)
    across = (cone.low[:, 1] < lefts + side) & (cone.high[:, 1] > lefts)
    overlaps = down[:, None] & across  # blocks down, blocks across, regions
    counts = overlaps.sum(2)
    chosen = (counts > 0) | include_empty
    corner = chosen.nonzero() * side
    boxes = torch.cat([corner, torch.minimum(corner + side, torch.tensor(cone.size))], 1)
    return Blocks(boxes, overlaps.nonzero()[:, 2].contiguous(), counts[chosen].cumsum(0))


def make_blocks_native(cone: Cone, side: int, *, include_empty: bool) -> Blocks:
    """Compute `make_blocks` in native code.

    Args:
        cone: Receptive field of each region.
        side: Positions per side of a block.
        include_empty: Whether to return blocks that overlap no receptive field, too.
    """
    max_count = math.prod(-(-size // side) for size in cone.size)
    boxes, ends = torch.empty(max_count, 4, dtype=torch.long), torch.empty(max_count, dtype=torch.long)
    columns = torch.empty(int(cone.regions_per_block(side).sum()), dtype=torch.long)
    low, high = cone.low.contiguous(), cone.high.contiguous()
    count = native.call(
        "find_block_regions", low, high, len(low), cone.size, side, int(include_empty), boxes, columns, ends
    )
    return Blocks(boxes[:count], columns, ends[:count])


@dataclass(frozen=True)
class ConvolutionCost:
    """Cost of a sparse convolution with blocks of one side length."""

    side: int
    macs: int
    product_count: int  # one per position
    weight_lookups: int  # weights gathered for them
    copied_numbers: int  # input numbers copied for blocks

    @property
    def overhead_macs(self) -> int:
        """Memory traffic and overhead, in multiply-adds."""
        return MACS_PER_COPIED_NUMBER * self.copied_numbers + (
            MACS_PER_WEIGHT_LOOKUP * self.weight_lookups
            if native.load_library()
            else MACS_PER_TORCH_PRODUCT * self.product_count
        )


def convolution_cost(kernel: Kernel, source: SparseLayout, target: SparseLayout) -> ConvolutionCost:
    """Return the cost of a sparse convolution with the cheapest block size.

    A large block copies its rows once for all its positions, but multiplies every region that reaches any of them.

    Args:
        kernel: Kernel of the convolution.
        source: Layout of the input.
        target: Layout of the output.
    """
    cache_key = (convolution_cost, kernel, source)  # used by planning, counting and running
    if cache_key not in target.memo:
        sums = _integral_image(source.rows_per_position)
        weights = target.rows_per_position * _active_inputs_per_field(
            source.rows_per_position, sums, kernel, target.cone.size
        )
        costs = (
            _cost_with_side(side, weights, sums, kernel, target.cone)
            for side in _candidate_sides(kernel, target)
        )
        target.memo[cache_key] = min(costs, key=lambda cost: cost.macs + cost.overhead_macs)
    return target.memo[cache_key]


def _candidate_sides(kernel: Kernel, target: SparseLayout) -> list[int]:
    """Large blocks need overlapping fields, to share rows, and at least 4 × 4 blocks, for all threads."""
    disjoint = all(
        extent <= stride
        for extent, stride in zip(kernel.geometry.extent, kernel.geometry.stride, strict=True)
    )
    return [side for side in BLOCK_SIDES if side == 1 or (not disjoint and 4 * side <= min(target.cone.size))]


def _cost_with_side(
    side: int, weights: np.ndarray, sums: np.ndarray, kernel: Kernel, cone: Cone
) -> ConvolutionCost:
    down, across = (np.arange(0, size, side) for size in cone.size)
    block_weights = np.add.reduceat(np.add.reduceat(weights, down, 0), across, 1) if side > 1 else weights
    regions = cone.regions_per_block(side).numpy()
    copied = _rows_in_field(side, sums, kernel, cone.size) * (block_weights > 0) * regions
    macs, products = int((block_weights * regions).sum()), int(np.count_nonzero(weights))
    return ConvolutionCost(side, macs, products, int(weights.sum()), int(copied.sum()))


def _integral_image(counts: np.ndarray) -> np.ndarray:
    """Return prefix sums over both axes, from which the sum of any rectangle follows by its corners."""
    sums = np.zeros((counts.shape[0] + 1, counts.shape[1] + 1), counts.dtype)
    np.cumsum(np.cumsum(counts, 0), 1, out=sums[1:, 1:])
    return sums


def _active_inputs_per_field(
    inputs: np.ndarray, sums: np.ndarray, kernel: Kernel, size: tuple[int, int]
) -> np.ndarray:
    """Return the number of active inputs in the field of each output position."""
    if kernel.dilation == (1, 1):  # the field is a full rectangle
        return _rows_in_field(1, sums, kernel, size)
    total, counts = np.zeros((*size, 1), inputs.dtype), torch.from_numpy(inputs[:, :, None])
    for dy in range(kernel.size[0]):
        for dx in range(kernel.size[1]):
            offset = (dy * kernel.dilation[0], dx * kernel.dilation[1])
            total += select_offset(counts, offset, kernel.geometry, size).clamp(min=0).numpy()
    return total[:, :, 0]


def _rows_in_field(side: int, sums: np.ndarray, kernel: Kernel, size: tuple[int, int]) -> np.ndarray:
    """Return the number of active inputs in the field of each block."""
    (top, bottom), (left, right) = (
        _field_bounds(
            side,
            n,
            kernel.geometry.stride[axis],
            kernel.geometry.padding[axis],
            kernel.geometry.extent[axis],
            sums.shape[axis] - 1,
        )
        for axis, n in enumerate(size)
    )
    rows = sums[bottom] - sums[top]
    return rows[:, right] - rows[:, left]


@lru_cache(256)
def _field_bounds(
    side: int, size: int, stride: int, padding: int, extent: int, inputs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the fields of the blocks start and stop on one axis."""
    first = np.arange(0, size, side)
    last = np.minimum(first + side, size) - 1
    return (first * stride - padding).clip(0, inputs), (last * stride - padding + extent).clip(0, inputs)
