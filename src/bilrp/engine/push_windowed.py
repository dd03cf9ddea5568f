"""Windowed push: compute every value only on a window around the receptive field of each region.

The windows of a batch have one size, and each is inside the image, so that borders need no special case.
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
    """Push regions through spatial links; yield the values in `outputs` as they are computed.

    Args:
        program: The frozen tape.
        partition: Regions of the input.
        cones: Receptive field of every region in every value.
        index: Numbers of the regions to push.
        links: The leading links of the program.
        outputs: Keys of the values to yield.
    """
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
    """Return the origins (K, 2) and the common size of windows that contain each region's receptive field."""
    size = cone.max_extent()
    last_origin = torch.tensor(cone.size) - torch.tensor(size)
    return torch.minimum(cone.low, last_origin), size


def size_classes(
    cones: dict[Key, Cone], key: Key, index: Tensor, max_padding_ratio: float = 1.3
) -> list[Tensor]:
    """Group regions whose windows have about the same size.

    Args:
        cones: Receptive field of every region in every value.
        key: The value whose windows are grouped.
        index: Numbers of the regions to group.
        max_padding_ratio: Largest ratio of two window sizes in a group, per axis.
    """
    extent = (cones[key].high - cones[key].low)[index]
    classes = torch.stack([_quantize(extent[:, axis], max_padding_ratio) for axis in (0, 1)], 1)
    _, member = torch.unique(classes, dim=0, return_inverse=True)
    return [index[member == c] for c in range(int(member.max()) + 1)]


def _quantize(sizes: Tensor, max_padding_ratio: float) -> Tensor:
    """Replace each size by the largest of its class; a class spans at most a factor of `max_padding_ratio`."""
    out, top = sizes.clone(), None
    for size in torch.unique(sizes).flip(0).tolist():
        top = size if top is None or size * max_padding_ratio < top else top
        out[sizes == size] = top
    return out


def _input_windows(
    program: Program, partition: Regions, cones: dict[Key, Cone], index: Tensor, links: Sequence[Link]
) -> Iterator[tuple[Key, Window]]:
    """Yield the windows of the input: the masks of the regions, and x times these masks."""
    needed = {source for link in links for source in link.sources}
    origin, size = fit_windows(cones[INPUT].select(index))
    labels = crop_windows(partition.labels, origin, size)
    mask = (labels == index.reshape(-1, 1, 1, 1)).to(program.x.dtype)
    mask = mask.contiguous(memory_format=torch.channels_last)
    if INPUT_MASK in needed:
        yield INPUT_MASK, Window(mask, origin)
    if INPUT in needed:
        yield INPUT, Window(mask * crop_windows(program.x, origin, size), origin)
