"""pull restricted to where there is something to pull: tiles of a cotangent that are not zero, and what they reach.

A coordinate that counts rare things (one bigram on a whole page of digits) has a cotangent that is zero almost
everywhere. Down a chain of convolutions a tile of it reaches one window of each earlier value, so only those windows
are computed. Exact: what is left out is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.cones import is_image, reach_of
from bilrp.engine.crops import Window
from bilrp.engine.maps import Scale, Weighted
from bilrp.engine.program import INPUT, Link, Program
from bilrp.trace.operators import Convolution

TILE = 8  # positions on a side
BATCH = 256  # tiles pulled at once
WORTH = 0.5  # windows must cover less than this share of the whole, or the whole is pulled at once


def chain(program: Program) -> int:
    """How many links from the input on are a chain of convolutions and gates: what `pull` can pull."""
    uses = [source for link in program.links for source in link.sources]
    if not is_image(program.x.shape) or program.x.device.type != "cpu" or uses.count(INPUT) != 1:
        return 0
    previous, length = INPUT, 0
    for link in program.links:
        if link.sources != (previous,) or not _pullable(link):
            break
        previous, length = link.target, length + 1
        if uses.count(previous) != 1:
            break
    return length


def _pullable(link: Link) -> bool:
    if reach_of(link) is None:
        return False
    if isinstance(link.map, Scale):
        return link.map.factor.shape == link.shape
    return (
        isinstance(link.map, Weighted) and isinstance(link.map.operator, Convolution) and not link.map.on_mask
    )


def _times(windows: Window, factor: Tensor) -> Window:
    """Windows multiplied by an image-shaped factor, which is zero outside of the image."""
    ys, xs = windows.places()
    height, width = factor.shape[-2:]
    cut = factor[0][:, ys.clamp(0, height - 1)[:, :, None], xs.clamp(0, width - 1)[:, None, :]]
    inside = _inside(ys, height)[:, :, None] & _inside(xs, width)[:, None, :]
    return replace(windows, data=windows.data * cut.transpose(0, 1).mul_(inside[:, None]))


def _inside(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)


def pull(links: Sequence[Link], cotangents: Tensor) -> Tensor | None:
    """Pull (K, 1, C, H, W) down a chain to (K, *input); None where too much is occupied for this to pay.

    >>> pull(program.links[:chain(program)], cotangents)  # doctest: +SKIP
    """
    index = occupied(links[-1], cotangents)
    if not _pays(links, len(index), len(cotangents)):
        return None
    total = cotangents.new_zeros(len(cotangents), *links[0].shapes[0])
    height, width = (-size % TILE for size in cotangents.shape[-2:])
    blocks = F.pad(cotangents[:, 0], (0, width, 0, height)).unflatten(-1, (-1, TILE)).unflatten(2, (-1, TILE))
    for some in index.split(BATCH):
        data = blocks[some[:, 0], :, some[:, 1], :, some[:, 2]]
        windows = Window(data, some[:, 1:] * TILE)
        for link in reversed(links):
            windows = pull_windows(link, windows)
        _add(windows, some[:, 0], total)
    return total


def occupied(link: Link, cotangents: Tensor) -> Tensor:
    """Coordinate, row and column (n, 3) of every tile with something in it that the link lets through."""
    some = (cotangents[:, 0] != 0) & _open(link)
    some = some.any(1, keepdim=True).to(torch.float32)
    return F.max_pool2d(some, TILE, TILE, ceil_mode=True)[:, 0].nonzero()


def _open(link: Link) -> Tensor:
    """Where (C, H, W) the last factors of a link are not zero."""
    if isinstance(link.map, Scale):
        return link.map.factor[0] != 0
    assert isinstance(link.map, Weighted)
    after = [term.after for term in link.map.terms]
    everything = torch.ones(link.shape[1:], dtype=torch.bool)
    return torch.stack([everything if factor is None else factor[0] != 0 for factor in after]).any(0)


def _pays(links: Sequence[Link], tiles: int, coordinates: int) -> bool:
    """Do the windows of the chain hold clearly fewer positions than the whole values?"""
    size, windows, whole = (TILE, TILE), 0, 0
    for link in reversed(links):
        reach = reach_of(link)
        assert reach is not None
        rows, columns = ((n - 1) * s + e for n, s, e in zip(size, reach.stride, reach.extent, strict=True))
        size = (rows, columns)
        windows += rows * columns * link.shapes[0][-3]
        whole += link.shapes[0].numel()
    return tiles * windows < WORTH * coordinates * whole


def pull_windows(link: Link, windows: Window) -> Window:
    """Windows of a link's target → windows of its source, grown by the link's reach."""
    if isinstance(link.map, Scale):
        return _times(windows, link.map.factor)
    assert isinstance(link.map, Weighted) and isinstance(link.map.operator, Convolution)
    reach = reach_of(link)
    assert reach is not None
    # A window carries no border of its own: its padding is what lies beside it in the image.
    operator = replace(link.map.operator, padding=(0, 0))
    size = [(n - 1) * s + e for n, s, e in zip(windows.shape, reach.stride, reach.extent, strict=True)]
    origin = windows.origin * torch.tensor(reach.stride) - torch.tensor(reach.padding)
    outside = torch.ones((), dtype=windows.data.dtype).expand(1, 1, *link.shape[-2:])
    total: Tensor | None = None
    for term in link.map.terms:
        seen = _times(windows, outside if term.after is None else term.after)
        like = seen.data.new_empty(()).expand(link.map.at.shape[-3], *size)
        part = Window(operator.transpose(seen.data, term.weight, like), origin)
        part = part if term.before is None else _times(part, term.before)
        total = part.data if total is None else total.add_(part.data)
    assert total is not None
    return Window(total, origin)


def _add(windows: Window, coordinate: Tensor, total: Tensor) -> None:
    """Add windows to the images (K, 1, C, H, W) they were cut for; what lies outside is dropped."""
    channels, height, width = total.shape[-3:]
    ys, xs = windows.places()
    inside = (_inside(ys, height)[:, :, None] & _inside(xs, width)[:, None, :])[:, None]
    image = coordinate[:, None] * channels + torch.arange(channels)
    place = (image[:, :, None, None] * height + ys[:, None, :, None]) * width + xs[:, None, None, :]
    inside = inside.expand(place.shape)
    total.view(-1).index_add_(0, place[inside], windows.data[inside])
