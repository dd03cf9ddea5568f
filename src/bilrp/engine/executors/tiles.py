"""Tiles: pull only the tiles of a cotangent that are not zero.

A coordinate that counts rare patterns (one bigram on a page of digits) has a cotangent that is zero almost everywhere.
Through a chain of convolutions a tile of it reaches one window of each earlier value, so only these windows are
computed. Exact: everything omitted is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps import Gated, Map, Scale, Shapes, Weighted
from bilrp.engine.maps.base import full_mask, is_image, sum_in_place
from bilrp.engine.program import INPUT, Link, Program
from bilrp.engine.windows import Window
from bilrp.trace.devices import can_push_sparse
from bilrp.trace.linear_operators import Convolution

TILE_SIDE = 8  # positions per side of a tile
MAX_BATCH_TILES = 256  # tiles pulled at once


def count_chain_links(program: Program) -> int:
    """Return how many leading links form a chain of convolutions and gates that `pull_chain` can pull."""
    uses = [source for link in program.links for source in link.sources]
    if not is_image(program.x.shape) or not can_push_sparse(program.x) or uses.count(INPUT) != 1:
        return 0
    previous, length = INPUT, 0
    for link in program.links:
        if link.sources != (previous,) or not _can_pull(link.map, link.shapes):
            break
        previous, length = link.target, length + 1
        if uses.count(previous) != 1:
            break
    return length


def pull_chain(links: Sequence[Link], cotangents: Tensor) -> Tensor:
    """Pull cotangents (K, 1, C, H, W) through a chain of links to (K, *input)."""
    index = find_occupied_tiles(links[-1], cotangents)
    total = cotangents.new_zeros(len(cotangents), *links[0].shapes.sources[0])
    height, width = (-size % TILE_SIDE for size in cotangents.shape[-2:])
    blocks = (
        F.pad(cotangents[:, 0], (0, width, 0, height))
        .unflatten(-1, (-1, TILE_SIDE))
        .unflatten(2, (-1, TILE_SIDE))
    )
    for batch in index.split(MAX_BATCH_TILES):
        data = blocks[batch[:, 0], :, batch[:, 1], :, batch[:, 2]]
        windows = Window(data, batch[:, 1:] * TILE_SIDE)
        for link in reversed(links):
            windows = _pull_map(link.map, windows, link.shapes)
        _add_windows(windows, batch[:, 0], total)
    return total


def find_occupied_tiles(link: Link, cotangents: Tensor) -> Tensor:
    """Return coordinate, row and column (n, 3) of every tile that is not zero after the link's gate."""
    through = link.map.support([full_mask(shape) for shape in link.shapes.sources], link.shapes)
    nonzero = (cotangents[:, 0] != 0) & through.permute(2, 0, 1)
    occupied = nonzero.any(1, keepdim=True).to(torch.float32)
    return F.max_pool2d(occupied, TILE_SIDE, TILE_SIDE, ceil_mode=True)[:, 0].nonzero()


def tile_cost(links: Sequence[Link]) -> tuple[int, int]:
    """Return the MACs to pull one tile through a chain, and the elements of all its windows."""
    size, macs, numel = (TILE_SIDE, TILE_SIDE), 0, 0
    for link in reversed(links):
        assert link.geometry is not None
        macs += _count_macs(link.map, size, link.shapes)
        size = link.geometry.input_size(size)
        numel += size[0] * size[1] * link.shapes.sources[0][-3]
    return macs, numel


def _add_windows(windows: Window, coordinate: Tensor, total: Tensor) -> None:
    """Add windows to the images (K, 1, C, H, W) of their coordinates; positions outside are dropped."""
    channels, height, width = total.shape[-3:]
    ys, xs = windows.image_positions()
    image = coordinate[:, None] * channels + torch.arange(channels)
    place = (image[:, :, None, None] * height + ys[:, None, :, None]) * width + xs[:, None, None, :]
    inside = windows.inside_mask(height, width).expand(place.shape)
    total.view(-1).index_add_(0, place[inside], windows.data[inside])


# ---------------------------------------------------------------- kinds of maps


def _can_pull(map_: Map, shapes: Shapes) -> bool:
    """Return whether a map is a convolution or a full factor, gated or not."""
    inner = map_.inner if isinstance(map_, Gated) else map_
    if inner.on_mask or inner.geometry(shapes) is None:
        return False
    return isinstance(inner, Weighted) or (isinstance(inner, Scale) and inner.factor.shape == shapes.target)


def _pull_map(map_: Map, windows: Window, shapes: Shapes) -> Window:
    """Return Jᵀ c on the windows of the source that the windows of the target depend on."""
    if isinstance(map_, Gated):
        return _pull_map(map_.inner, windows.scale(map_.gate), shapes)
    if isinstance(map_, Scale):
        return windows.scale(map_.factor)
    geometry = map_.geometry(shapes)
    assert isinstance(map_, Weighted) and geometry is not None
    operator = _without_padding(map_)
    origin, size = geometry.input_origin(windows.origin), geometry.input_size(windows.shape)
    ones = windows.data.new_ones(()).expand(1, 1, *shapes.target[-2:])
    like = windows.data.new_empty(()).expand(shapes.sources[0][-3], *size)
    parts = []
    for term in map_.terms:
        window = windows.scale(ones if term.after is None else term.after)
        part = Window(operator.transpose(window.data, term.weight, like), origin)
        parts.append(part.data if term.before is None else part.scale(term.before).data)
    return Window(sum_in_place(parts), origin)


def _without_padding(map_: Weighted) -> Convolution:
    """Return the convolution without padding: around a window is the rest of the image."""
    assert isinstance(map_.operator, Convolution)
    return replace(map_.operator, padding=(0, 0))


def _count_macs(map_: Map, size: tuple[int, int], shapes: Shapes) -> int:
    """Return the multiply-adds to pull one window of the target."""
    inner = map_.inner if isinstance(map_, Gated) else map_
    if not isinstance(inner, Weighted):
        return 0
    geometry = inner.geometry(shapes)
    assert geometry is not None
    if _without_padding(inner).is_correlation(inner.terms[0].weight):
        size = geometry.input_size(size)
    return inner.weight_numel * size[0] * size[1]
