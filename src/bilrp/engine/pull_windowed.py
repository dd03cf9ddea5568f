"""pull restricted to where there is something to pull: tiles of a cotangent that are not zero, and what they reach.

A coordinate that counts rare things (one bigram on a whole page of digits) has a cotangent that is zero almost
everywhere. Down a chain of convolutions a tile of it reaches one window of each earlier value, so only those windows
are computed. Exact: what is left out is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps.base import is_image
from bilrp.engine.program import INPUT, Link, Program
from bilrp.engine.sparse_layout import full_mask
from bilrp.engine.windows import Window

TILE_SIDE = 8  # positions on a side
MAX_BATCH_TILES = 256  # tiles pulled at once


def count_chain_links(program: Program) -> int:
    """How many links from the input on are a chain of convolutions and gates: what `pull_chain` can pull."""
    uses = [source for link in program.links for source in link.sources]
    if not is_image(program.x.shape) or program.x.device.type != "cpu" or uses.count(INPUT) != 1:
        return 0
    previous, length = INPUT, 0
    for link in program.links:
        if link.sources != (previous,) or not link.map.can_pull_windows(link.shapes):
            break
        previous, length = link.target, length + 1
        if uses.count(previous) != 1:
            break
    return length


def pull_chain(links: Sequence[Link], cotangents: Tensor) -> Tensor:
    """Pull (K, 1, C, H, W) down a chain to (K, *input)."""
    index = find_occupied_tiles(links[-1], cotangents)
    total = cotangents.new_zeros(len(cotangents), *links[0].shapes.sources[0])
    height, width = (-size % TILE_SIDE for size in cotangents.shape[-2:])
    blocks = (
        F.pad(cotangents[:, 0], (0, width, 0, height))
        .unflatten(-1, (-1, TILE_SIDE))
        .unflatten(2, (-1, TILE_SIDE))
    )
    for some in index.split(MAX_BATCH_TILES):
        data = blocks[some[:, 0], :, some[:, 1], :, some[:, 2]]
        windows = Window(data, some[:, 1:] * TILE_SIDE)
        for link in reversed(links):
            windows = link.map.pull_windows(windows, link.shapes)
        _add_windows(windows, some[:, 0], total)
    return total


def find_occupied_tiles(link: Link, cotangents: Tensor) -> Tensor:
    """Coordinate, row and column (n, 3) of every tile with something in it that the link lets through."""
    through = link.map.output_support([full_mask(shape) for shape in link.shapes.sources], link.shapes)
    some = (cotangents[:, 0] != 0) & through.permute(2, 0, 1)
    some = some.any(1, keepdim=True).to(torch.float32)
    return F.max_pool2d(some, TILE_SIDE, TILE_SIDE, ceil_mode=True)[:, 0].nonzero()


def tile_cost(links: Sequence[Link]) -> tuple[int, int]:
    """Multiply-adds to pull one tile down a chain, and the numbers in the windows on its way."""
    size, macs, numbers = (TILE_SIDE, TILE_SIDE), 0, 0
    for link in reversed(links):
        assert link.geometry is not None
        macs += link.map.window_macs(size, link.shapes, back=True)
        size = link.geometry.input_size(size)
        numbers += size[0] * size[1] * link.shapes.sources[0][-3]
    return macs, numbers


def _add_windows(windows: Window, coordinate: Tensor, total: Tensor) -> None:
    """Add windows to the images (K, 1, C, H, W) they were cut for; what lies outside is dropped."""
    channels, height, width = total.shape[-3:]
    ys, xs = windows.image_positions()
    image = coordinate[:, None] * channels + torch.arange(channels)
    place = (image[:, :, None, None] * height + ys[:, None, :, None]) * width + xs[:, None, None, :]
    inside = windows.inside_mask(height, width).expand(place.shape)
    total.view(-1).index_add_(0, place[inside], windows.data[inside])
