"""Blocks of positions that share one selection of regions, and what a convolution on rows takes with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine import native
from bilrp.engine.layouts import Layout, seen
from bilrp.engine.windows import Cone, Reach

SIDES = (1, 2, 4)  # positions on a side of a block
# Rough speeds, as multiply-adds that pass while …
CUT = 16  # … one number is cut out for a block
WEIGHT = 24  # … one weight is looked up, in native code
PRODUCT = 10_000_000  # … one small product is set up in torch


@dataclass(frozen=True)
class Kernel:
    """Where a convolution looks."""

    size: tuple[int, int]
    dilation: tuple[int, int]
    reach: Reach


@dataclass(frozen=True, eq=False)
class Blocks:
    """Square blocks of output positions, each with the columns (regions) whose cone touches it."""

    boxes: Tensor  # (n, 4): top, left, bottom, right
    columns: Tensor  # of all, one after another
    ends: Tensor  # (n,): where each one's columns end


def blocks(cone: Cone, side: int, *, empty: bool = False) -> Blocks:
    """The blocks of that side that at least one region reaches, or all of them."""
    if (blocks, side, empty) not in cone.known:
        cone.known[blocks, side, empty] = _blocks(cone, side, empty=empty)
    return cone.known[blocks, side, empty]


def _blocks(cone: Cone, side: int, *, empty: bool) -> Blocks:
    tops, lefts = (torch.arange(0, size, side)[:, None] for size in cone.size)
    down = (cone.low[:, 0] < tops + side) & (cone.high[:, 0] > tops)
    across = (cone.low[:, 1] < lefts + side) & (cone.high[:, 1] > lefts)
    touched = down[:, None] & across  # blocks down, blocks across, regions
    counts = touched.sum(2)
    chosen = (counts > 0) | empty
    corner = chosen.nonzero() * side
    boxes = torch.cat([corner, torch.minimum(corner + side, torch.tensor(cone.size))], 1)
    return Blocks(boxes, touched.nonzero()[:, 2].contiguous(), counts[chosen].cumsum(0))


@dataclass(frozen=True)
class Amount:
    """What a convolution on rows takes with blocks of one side."""

    side: int
    macs: int
    products: int  # one for each position
    weights: int  # numbers that are looked up for them
    cut: int  # numbers that are cut out for blocks

    @property
    def moving(self) -> int:
        """Multiply-adds that pass while numbers are moved about."""
        return CUT * self.cut + (WEIGHT * self.weights if native.library() else PRODUCT * self.products)


def amount(kernel: Kernel, source: Layout, target: Layout) -> Amount:
    """What a convolution will take with blocks of the side that costs least.

    A large block cuts its rows out once for all its positions, but multiplies every region that reaches any of them.
    """
    asked = (amount, kernel, source)  # planned, counted and done: asked for three times
    if asked not in target.known:
        weights = target.counts * _field_sums(source.counts, kernel, target.counts.shape)
        found = (
            _with_side(side, weights, source.counts, kernel, target.cone) for side in _sides(kernel, target)
        )
        target.known[asked] = min(found, key=lambda each: each.macs + each.moving)
    return target.known[asked]


def _sides(kernel: Kernel, target: Layout) -> list[int]:
    """Positions whose fields do not overlap have nothing to share; and all threads are to have blocks: four on a side."""
    apart = all(
        extent <= stride for extent, stride in zip(kernel.reach.extent, kernel.reach.stride, strict=True)
    )
    return [side for side in SIDES if side == 1 or (not apart and 4 * side <= min(target.cone.size))]


def _with_side(side: int, weights: Tensor, inputs: Tensor, kernel: Kernel, cone: Cone) -> Amount:
    grown = F.pad(weights, (0, -weights.shape[1] % side, 0, -weights.shape[0] % side))
    each = grown.unflatten(0, (-1, side)).unflatten(2, (-1, side)).sum((1, 3))  # of each block
    regions = cone.regions(side)
    cut = (_rows_in_field(side, inputs, kernel, cone) * (each > 0) * regions).sum()
    return Amount(side, int((each * regions).sum()), int((weights > 0).sum()), int(weights.sum()), int(cut))


def _field_sums(inputs: Tensor, kernel: Kernel, shape: torch.Size) -> Tensor:
    """Active inputs in reach of each output position."""
    total = torch.zeros(*shape, 1, dtype=inputs.dtype)
    for dy in range(kernel.size[0]):
        for dx in range(kernel.size[1]):
            offset = (dy * kernel.dilation[0], dx * kernel.dilation[1])
            total += seen(inputs[:, :, None], offset, kernel.reach, shape).clamp(min=0)
    return total[:, :, 0]


def _rows_in_field(side: int, inputs: Tensor, kernel: Kernel, cone: Cone) -> Tensor:
    """Active inputs in the rectangle that each block looks at."""
    sums = F.pad(inputs, (1, 0, 1, 0)).cumsum(0).cumsum(1)
    lows, highs = [], []
    for axis, size in enumerate(cone.size):
        first = torch.arange(0, size, side)
        last = (first + side).clamp(max=size) - 1
        start, stride = kernel.reach.padding[axis], kernel.reach.stride[axis]
        lows.append((first * stride - start).clamp(0, inputs.shape[axis]))
        highs.append((last * stride - start + kernel.reach.extent[axis]).clamp(0, inputs.shape[axis]))
    (top, left), (bottom, right) = lows, highs
    top, bottom = top[:, None], bottom[:, None]
    return sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
