"""push restricted to receptive cones: every value is computed only on a window around each region.

Windows of one batch have one size; each lies inside the image, so that borders need no care.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bilrp.engine.program import INPUT, INPUT_MASK, Key, Link, Program
from bilrp.engine.windows import Cone, Window, crop_windows
from bilrp.regions import Regions


def push_windows(
    program: Program,
    partition: Regions,
    cones: dict[Key, Cone],
    index: Tensor,
    links: Sequence[Link],
    outputs: set[Key],
) -> Iterator[tuple[Key, Window]]:
    """Push the regions `index` through spatial links; yield the values asked for as they are reached."""
    alive = dict(_input_windows(program, partition, cones, index, links))
    last = {source: i for i, link in enumerate(links) for source in link.sources}
    for i, link in enumerate(links):
        origin, size = fit_windows(cones[link.target].select(index))
        data = link.map.push_windows([alive[s] for s in link.sources], origin, size, link.shapes)
        alive[link.target] = Window(data, origin)
        for source in set(link.sources):
            if last[source] == i:
                del alive[source]
        if link.target in outputs:
            yield link.target, alive[link.target]


def fit_windows(cone: Cone) -> tuple[Tensor, tuple[int, int]]:
    """Where the windows of a batch stand: one size for all, each inside the image and around its cone."""
    size = cone.max_extent()
    room = torch.tensor(cone.size) - torch.tensor(size)
    return torch.minimum(cone.low, room), size


def size_classes(
    cones: dict[Key, Cone], key: Key, index: Tensor, max_padding_ratio: float = 1.3
) -> list[Tensor]:
    """Group regions whose windows at `key` have about the same size, so that none is padded by more than
    `max_padding_ratio`.
    """
    extent = (cones[key].high - cones[key].low)[index]
    classes = torch.stack([_quantize(extent[:, axis], max_padding_ratio) for axis in (0, 1)], 1)
    _, member = torch.unique(classes, dim=0, return_inverse=True)
    return [index[member == c] for c in range(int(member.max()) + 1)]


def _quantize(sizes: Tensor, max_padding_ratio: float) -> Tensor:
    """Replace each size by the largest in its class; a class spans at most a factor `max_padding_ratio`."""
    out, top = sizes.clone(), None
    for size in torch.unique(sizes).flip(0).tolist():
        top = size if top is None or size * max_padding_ratio < top else top
        out[sizes == size] = top
    return out


def _input_windows(
    program: Program, partition: Regions, cones: dict[Key, Cone], index: Tensor, links: Sequence[Link]
) -> Iterator[tuple[Key, Window]]:
    """The regions' own windows of the input: masks, and x where it is theirs."""
    needed = {source for link in links for source in link.sources}
    origin, size = fit_windows(cones[INPUT].select(index))
    labels = crop_windows(partition.labels, origin, size)
    mask = (labels == index.reshape(-1, 1, 1, 1)).to(program.x.dtype)
    mask = mask.contiguous(memory_format=torch.channels_last)
    if INPUT_MASK in needed:
        yield INPUT_MASK, Window(mask, origin)
    if INPUT in needed:
        yield INPUT, Window(mask * crop_windows(program.x, origin, size), origin)
