"""Blocks of positions that share one selection of regions, and what a convolution on rows takes with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bilrp import native
from bilrp.engine.sparse_layout import SparseLayout, select_offset
from bilrp.engine.windows import Cone, Geometry

BLOCK_SIDES = (1, 2, 4)  # positions on a side of a block
# Rough speeds, as multiply-adds that pass while …
MACS_PER_COPIED_NUMBER = 32  # … one number is cut out for a block
MACS_PER_WEIGHT_LOOKUP = 10  # … one weight is looked up, in native code
MACS_PER_TORCH_PRODUCT = 10_000_000  # … one small product is set up in torch


@dataclass(frozen=True)
class Kernel:
    """Where a convolution looks."""

    size: tuple[int, int]
    dilation: tuple[int, int]
    geometry: Geometry


@dataclass(frozen=True, eq=False)
class Blocks:
    """Square blocks of output positions, each with the columns (regions) whose cone touches it."""

    boxes: Tensor  # (n, 4): top, left, bottom, right
    columns: Tensor  # of all, one after another
    ends: Tensor  # (n,): where each one's columns end


def make_blocks(cone: Cone, side: int, *, include_empty: bool = False) -> Blocks:
    """The blocks of that side that at least one region reaches, or all of them."""
    if (make_blocks, side, include_empty) not in cone.memo:
        made = make_blocks_torch if native.load_library() is None else make_blocks_native
        cone.memo[make_blocks, side, include_empty] = made(cone, side, include_empty=include_empty)
    return cone.memo[make_blocks, side, include_empty]


def make_blocks_torch(cone: Cone, side: int, *, include_empty: bool) -> Blocks:
    tops, lefts = (torch.arange(0, size, side)[:, None] for size in cone.size)
    down = (cone.low[:, 0] < tops + side) & (cone.high[:, 0] > tops)
    across = (cone.low[:, 1] < lefts + side) & (cone.high[:, 1] > lefts)
    touched = down[:, None] & across  # blocks down, blocks across, regions
    counts = touched.sum(2)
    chosen = (counts > 0) | include_empty
    corner = chosen.nonzero() * side
    boxes = torch.cat([corner, torch.minimum(corner + side, torch.tensor(cone.size))], 1)
    return Blocks(boxes, touched.nonzero()[:, 2].contiguous(), counts[chosen].cumsum(0))


def make_blocks_native(cone: Cone, side: int, *, include_empty: bool) -> Blocks:
    """The same in native code."""
    most = math.prod(-(-size // side) for size in cone.size)
    boxes, ends = torch.empty(most, 4, dtype=torch.long), torch.empty(most, dtype=torch.long)
    columns = torch.empty(int(cone.regions_per_block(side).sum()), dtype=torch.long)
    low, high = cone.low.contiguous(), cone.high.contiguous()
    found = native.call(
        "find_block_regions", low, high, len(low), cone.size, side, int(include_empty), boxes, columns, ends
    )
    return Blocks(boxes[:found], columns, ends[:found])


@dataclass(frozen=True)
class ConvolutionCost:
    """What a convolution on rows takes with blocks of one side."""

    side: int
    macs: int
    product_count: int  # one for each position
    weight_lookups: int  # numbers that are looked up for them
    copied_numbers: int  # numbers that are cut out for blocks

    @property
    def overhead_macs(self) -> int:
        """Multiply-adds that pass while numbers are moved about."""
        return MACS_PER_COPIED_NUMBER * self.copied_numbers + (
            MACS_PER_WEIGHT_LOOKUP * self.weight_lookups
            if native.load_library()
            else MACS_PER_TORCH_PRODUCT * self.product_count
        )


def convolution_cost(kernel: Kernel, source: SparseLayout, target: SparseLayout) -> ConvolutionCost:
    """What a convolution will take with blocks of the side that costs least.

    A large block cuts its rows out once for all its positions, but multiplies every region that reaches any of them.
    """
    asked = (convolution_cost, kernel, source)  # planned, counted and done: asked for three times
    if asked not in target.memo:
        sums = _integral_image(source.rows_per_position)
        weights = target.rows_per_position * _active_inputs_per_field(
            source.rows_per_position, sums, kernel, target.cone.size
        )
        found = (
            _cost_with_side(side, weights, sums, kernel, target.cone)
            for side in _candidate_sides(kernel, target)
        )
        target.memo[asked] = min(found, key=lambda each: each.macs + each.overhead_macs)
    return target.memo[asked]


def _candidate_sides(kernel: Kernel, target: SparseLayout) -> list[int]:
    """Positions whose fields do not overlap have nothing to share; and all threads are to have blocks: four on a side."""
    apart = all(
        extent <= stride
        for extent, stride in zip(kernel.geometry.extent, kernel.geometry.stride, strict=True)
    )
    return [side for side in BLOCK_SIDES if side == 1 or (not apart and 4 * side <= min(target.cone.size))]


def _cost_with_side(
    side: int, weights: np.ndarray, sums: np.ndarray, kernel: Kernel, cone: Cone
) -> ConvolutionCost:
    down, across = (np.arange(0, size, side) for size in cone.size)
    each = (
        np.add.reduceat(np.add.reduceat(weights, down, 0), across, 1) if side > 1 else weights
    )  # of each block
    regions = cone.regions_per_block(side).numpy()
    cut = _rows_in_field(side, sums, kernel, cone.size) * (each > 0) * regions
    macs, products = int((each * regions).sum()), int(np.count_nonzero(weights))
    return ConvolutionCost(side, macs, products, int(weights.sum()), int(cut.sum()))


def _integral_image(counts: np.ndarray) -> np.ndarray:
    """Of all positions above and to the left: any rectangle's sum is told from its corners."""
    sums = np.zeros((counts.shape[0] + 1, counts.shape[1] + 1), counts.dtype)
    np.cumsum(np.cumsum(counts, 0), 1, out=sums[1:, 1:])
    return sums


def _active_inputs_per_field(
    inputs: np.ndarray, sums: np.ndarray, kernel: Kernel, size: tuple[int, int]
) -> np.ndarray:
    """Active inputs in reach of each output position."""
    if kernel.dilation == (1, 1):  # its field is a rectangle
        return _rows_in_field(1, sums, kernel, size)
    total, whole = np.zeros((*size, 1), inputs.dtype), torch.from_numpy(inputs[:, :, None])
    for dy in range(kernel.size[0]):
        for dx in range(kernel.size[1]):
            offset = (dy * kernel.dilation[0], dx * kernel.dilation[1])
            total += select_offset(whole, offset, kernel.geometry, size).clamp(min=0).numpy()
    return total[:, :, 0]


def _rows_in_field(side: int, sums: np.ndarray, kernel: Kernel, size: tuple[int, int]) -> np.ndarray:
    """Active inputs in the rectangle that each block looks at."""
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
    """Where blocks of one axis begin and stop to look."""
    first = np.arange(0, size, side)
    last = np.minimum(first + side, size) - 1
    return (first * stride - padding).clip(0, inputs), (last * stride - padding + extent).clip(0, inputs)
