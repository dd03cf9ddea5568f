"""Sparse parts of intermediate values: windows around each region, regrouped into tiles of the image.

A tile has one matrix: the regions whose windows overlap it × its features. Two inputs have the same tiles, so the
product of their parts is a sum of small products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from bilrp.engine.costs import Schedule
from bilrp.engine.executors.sparse_layout import SparseLayout, SparseTangent
from bilrp.engine.executors.windowed import fit_windows
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key
from bilrp.engine.windows import Window
from bilrp.sparse_parts import PartsBlock, SparseParts

MAX_SPARSE_FRACTION = 0.25  # of the dense matrix; larger parts are stored and multiplied dense
TILE_SIDE = 4  # positions; larger tiles hold more zeros, smaller ones take longer to set up than to multiply

Windows = tuple[Tensor, Window]  # regions, and a window for each


def choose_sparse_taps(context: PlanContext, schedule: Schedule) -> dict[Key, int]:
    """Return the taps whose parts are stored sparse, with the number of elements stored."""
    numel = {}
    for i, link in enumerate(context.links[: schedule.sparse_end]):
        if link.target in context.taps and link.target != context.program.output:
            layout = SparseLayout(context.output_support[link.target], context.cones[link.target])
            windowed = int((layout.cone.high - layout.cone.low).prod(1).sum()) * link.shape[-3]
            size = windowed if i < schedule.windowed_end else context.tangent_type.count_elements(layout)
            if size < MAX_SPARSE_FRACTION * context.region_count * link.shape.numel():
                numel[link.target] = size
    return numel


@dataclass(frozen=True, eq=False)
class TappedRows:
    """A copy of a sparse tangent whose columns belong to the regions `index`."""

    index: Tensor
    tangent: SparseTangent

    @staticmethod
    def copy(index: Tensor, tangent: SparseTangent) -> TappedRows:
        """Copy a tangent, whose memory the run will reuse, without the tables of its layout."""
        layout = SparseLayout(tangent.layout.mask, tangent.layout.cone)
        return TappedRows(index, replace(tangent, values=tangent.values.clone(), layout=layout))

    def to_windows(self) -> Windows:
        origin, size = fit_windows(self.tangent.layout.cone)
        columns = torch.arange(len(self.index))
        return self.index, Window(self.tangent.to_windows(columns, origin, size), origin)


def make_sparse_parts(
    stored: Sequence[Windows | TappedRows], region_count: int, shape: torch.Size, dtype: torch.dtype
) -> SparseParts:
    """Return the parts [regions, C·H·W] of an image-shaped value.

    Args:
        stored: Windows or rows of disjoint sets of regions, together all of them.
        region_count: Number of regions.
        shape: Shape (1, C, H, W) of the value.
        dtype: dtype of the parts.
    """

    def build() -> tuple[PartsBlock, ...]:
        windows = [each.to_windows() if isinstance(each, TappedRows) else each for each in stored]
        return _build_blocks(windows, region_count, shape, dtype)

    return SparseParts(build, (region_count, shape.numel()))


def _build_blocks(
    windows: Sequence[Windows], region_count: int, shape: torch.Size, dtype: torch.dtype
) -> tuple[PartsBlock, ...]:
    """Return a block for each tile, from windows of all regions."""
    low, size = torch.zeros(2, region_count, 2, dtype=torch.long)
    first, start = torch.zeros(region_count, dtype=torch.long), 0
    for index, window in windows:
        low[index], size[index] = window.origin, torch.tensor(window.shape)
        first[index] = start + torch.arange(len(index)) * window.data[0, 0].numel()
        start += window.data[:, 0].numel()
    positions = [window.data.permute(0, 2, 3, 1).flatten(0, 2).to(dtype) for _, window in windows]
    table = torch.cat(
        [*positions, positions[0].new_zeros(1, shape[1])]
    )  # (positions of all windows, C); the last is 0
    (_, channels, height, width), blocks = shape, []
    features = torch.arange(channels) * (height * width)
    for top, left in product(range(0, height, TILE_SIDE), range(0, width, TILE_SIDE)):
        bottom, right = min(top + TILE_SIDE, height), min(left + TILE_SIDE, width)
        overlaps = (low < torch.tensor([bottom, right])) & (low + size > torch.tensor([top, left]))
        rows = overlaps.all(1).nonzero()[:, 0]
        y, x = torch.arange(top, bottom) - low[rows, :1], torch.arange(left, right) - low[rows, 1:]
        down, across = size[rows].T[..., None]
        inside = ((y >= 0) & (y < down))[:, :, None] & ((x >= 0) & (x < across))[:, None, :]
        place = first[rows, None, None] + y[:, :, None] * across[:, None] + x[:, None, :]
        values = table.index_select(0, torch.where(inside, place, len(table) - 1).flatten())
        at = torch.arange(top, bottom)[:, None] * width + torch.arange(left, right)
        columns = (at[:, :, None] + features).flatten()  # by position, then channel, as in the table
        blocks.append(PartsBlock(rows, columns, values.reshape(len(rows), len(columns))))
    return tuple(blocks)
