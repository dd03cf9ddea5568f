"""Windowed push: compute every value only on a window around the receptive field of each region.

The windows of a batch have one size, and each is inside the image, so that borders need no special case. `push_map` has a
form for each kind of map that has a geometry; other maps are pushed on whole images, and the windows are cut out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps import (
    CenterAndScale,
    Gated,
    Map,
    MaxPool,
    Mean,
    Pad,
    Scale,
    Shapes,
    Sum,
    Term,
    Weighted,
)
from bilrp.engine.maps.base import sum_in_place
from bilrp.engine.program import INPUT, INPUT_MASK, Key, Link, Program
from bilrp.engine.windows import Cone, Window, crop_each, crop_windows, reframe_window
from bilrp.regions import Regions
from bilrp.trace.linear_operators import Convolution


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
        program, partition: The frozen tape, and the regions of the input.
        cones: Receptive field of every region in every value.
        index: Numbers of the regions to push.
        links: The leading links of the program.
        outputs: Keys of the values to yield.
    """
    alive = dict(_input_windows(program, partition, cones, index, links))
    last = {source: i for i, link in enumerate(links) for source in link.sources}
    for i, link in enumerate(links):
        origin, size = fit_windows(cones[link.target].select(index))
        data = push_map(link.map, WindowPush([alive[s] for s in link.sources], origin, size, link.shapes))
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


# ---------------------------------------------------------------- kinds of maps


class WindowPush(NamedTuple):
    """What is pushed, and which windows of the target are computed.

    Args:
        sources: Tangents of each source, zero outside their windows.
        origin, size: Upper left corner (K, 2) of each window of the target, and the height and width of all.
        shapes: Shapes of sources and target.
    """

    sources: Sequence[Window]
    origin: Tensor
    size: tuple[int, int]
    shapes: Shapes

    def crop(self, full: Tensor) -> Tensor:
        """Crop an image-shaped constant to the windows of the target."""
        return crop_windows(full, self.origin, self.size)

    def reframe(self, source: Window) -> Tensor:
        """Return the source on the windows of the target."""
        return reframe_window(source, self.origin, self.size)


@singledispatch
def push_map(map_: Map, job: WindowPush) -> Tensor:
    """Return J s on windows of the target, for a map with a geometry."""
    sources = zip(job.sources, job.shapes.sources, strict=True)
    dense = map_.push(*(window.to_images(shape) for window, shape in sources))
    return crop_each(dense, job.origin, job.size)


@push_map.register(Scale)
def _push_scale(map_: Scale, job: WindowPush) -> Tensor:
    factor = map_.factor if map_.factor.dim() == 0 else job.crop(map_.factor)
    return job.reframe(job.sources[0]) * factor


@push_map.register(Sum)
def _push_sum(map_: Sum, job: WindowPush) -> Tensor:
    windows = [job.reframe(source) for source in job.sources]
    return sum(windows[1:], start=windows[0])


@push_map.register(Gated)
def _push_gated(map_: Gated, job: WindowPush) -> Tensor:
    return push_map(map_.inner, job) * job.crop(map_.gate)


@push_map.register(Pad)
def _push_pad(map_: Pad, job: WindowPush) -> Tensor:
    return reframe_window(job.sources[0], job.origin - torch.tensor((map_.pads[2], map_.pads[0])), job.size)


@push_map.register(CenterAndScale)
def _push_centered(map_: CenterAndScale, job: WindowPush) -> Tensor:
    data = job.reframe(job.sources[0])
    return (data - data.mean(1, keepdim=True)).mul_(job.crop(map_.factor))


@push_map.register(MaxPool)
def _push_max_pool(map_: MaxPool, job: WindowPush) -> Tensor:
    geometry = map_.geometry(job.shapes)
    assert geometry is not None
    data = reframe_window(job.sources[0], geometry.input_origin(job.origin), geometry.input_size(job.size))
    return sum_in_place(
        data[(..., *map_.offset_slices(o, job.size))] * job.crop(share) for o, share in enumerate(map_.shares)
    )


@push_map.register(Mean)
def _push_mean(map_: Mean, job: WindowPush) -> Tensor:
    return job.sources[0].data.sum(map_.axes, keepdim=True).mul_(map_.weight)


@push_map.register(Weighted)
def _push_weighted(map_: Weighted, job: WindowPush) -> Tensor:
    operator, geometry = map_.operator, map_.geometry(job.shapes)
    assert isinstance(operator, Convolution) and geometry is not None
    start, field = geometry.input_origin(job.origin), geometry.input_size(job.size)
    parts = []
    for group in map_.group_by_after():
        part = sum_in_place(_convolve(term, operator, job.sources[0], start, field) for term in group)
        after = group[0].after
        parts.append(part if after is None else part.mul_(job.crop(after)))
    return sum_in_place(parts)


def _convolve(
    term: Term, operator: Convolution, source: Window, origin: Tensor, size: tuple[int, int]
) -> Tensor:
    """Return W * (before ⊙ s) for input fields of one size at `origin`."""
    data = source.data
    if term.before is not None:
        data = data * crop_windows(term.before, source.origin, source.shape)
    pads = _symmetric_padding(source, origin, size)
    if pads is None:  # not symmetric, or not the same for all windows: pad explicitly
        data, pads = reframe_window(Window(data, source.origin), origin, size), (0, 0)
    return F.conv2d(data, term.weight, None, operator.stride, pads, operator.dilation, operator.groups)


def _symmetric_padding(source: Window, origin: Tensor, size: tuple[int, int]) -> tuple[int, int] | None:
    """Return the padding around the windows if it is equal on both sides, so that the convolution can apply it."""
    shift = source.origin - origin
    if not bool((shift == shift[0]).all()):
        return None
    before = shift[0].tolist()
    after = [n - b - length for n, b, length in zip(size, before, source.shape, strict=True)]
    return (before[0], before[1]) if before == after and min(before) >= 0 else None


def count_macs(map_: Map, size: tuple[int, int], shapes: Shapes) -> int:
    """Return the multiply-adds to push one window of the target.

    Args:
        map_: A map with a geometry.
        size: Height and width of the window.
        shapes: Shapes of sources and target.
    """
    inner = map_.inner if isinstance(map_, Gated) else map_
    return inner.weight_numel * size[0] * size[1] if isinstance(inner, Weighted) else inner.cost(shapes).macs
