"""push restricted to receptive cones: every value is computed only on a window around each region.

Windows of one batch have one size; each lies inside the image, so that borders need no care: what a convolution pads
with zeros is zero here too. Tangents are (K, channels, height, width) in channels-last memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.cones import Cone, Reach, reach_of
from bilrp.engine.maps import Pool, Scale, Term, Weighted
from bilrp.engine.program import INPUT, INPUT_MASK, Key, Link, Program
from bilrp.regions import Regions
from bilrp.trace.operators import Convolution


@dataclass(frozen=True, eq=False)
class Window:
    """Tangents or cotangents on windows: data (K, C, h, w), each with its own upper left corner (K, 2)."""

    data: Tensor
    origin: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[-2], self.data.shape[-1]

    def places(self) -> tuple[Tensor, Tensor]:
        """Rows (K, h) and columns (K, w) of the image that the windows show; some may lie outside of it."""
        height, width = self.shape
        return self.origin[:, :1] + torch.arange(height), self.origin[:, 1:] + torch.arange(width)


def push_windows(
    program: Program,
    partition: Regions,
    found: dict[Key, Cone],
    index: Tensor,
    links: Sequence[Link],
    wanted: set[Key],
) -> Iterator[tuple[Key, Window]]:
    """Push the regions `index` through spatial links; yield the values asked for as they are reached."""
    alive = dict(_seeds(program, partition, found, index, links))
    last = {source: i for i, link in enumerate(links) for source in link.sources}
    for i, link in enumerate(links):
        origin, size = frame(found[link.target].at(index))
        alive[link.target] = _push(link, [alive[s] for s in link.sources], origin, size)
        for source in set(link.sources):
            if last[source] == i:
                del alive[source]
        if link.target in wanted:
            yield link.target, alive[link.target]


def frame(cone: Cone) -> tuple[Tensor, tuple[int, int]]:
    """Where the windows of a batch stand: one size for all, each inside the image and around its cone."""
    size = cone.extent()
    room = torch.tensor(cone.size) - torch.tensor(size)
    return torch.minimum(cone.low, room), size


def size_classes(found: dict[Key, Cone], key: Key, index: Tensor, waste: float = 1.3) -> list[Tensor]:
    """Group regions whose windows at `key` have about the same size, so that none is padded by more than `waste`."""
    extent = (found[key].high - found[key].low)[index]
    classes = torch.stack([_quantised(extent[:, axis], waste) for axis in (0, 1)], 1)
    _, member = torch.unique(classes, dim=0, return_inverse=True)
    return [index[member == c] for c in range(int(member.max()) + 1)]


def _quantised(sizes: Tensor, waste: float) -> Tensor:
    """Replace each size by the largest in its class; a class spans at most a factor `waste`."""
    out, top = sizes.clone(), None
    for size in torch.unique(sizes).flip(0).tolist():
        top = size if top is None or size * waste < top else top
        out[sizes == size] = top
    return out


def window_of(full: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut windows out of one image-shaped constant (…, C, H, W): (K, C, h, w), or (1, C, h, w) if all coincide."""
    image = full.reshape(full.shape[-3:])
    if bool((origin == origin[0]).all()):
        top, left = origin[0].tolist()
        return image[None, :, top : top + size[0], left : left + size[1]]
    rows = origin[:, :1] + torch.arange(size[0])
    columns = origin[:, 1:] + torch.arange(size[1])
    last = image.permute(1, 2, 0).contiguous()
    return last[rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def place(window: Window, origin: Tensor, size: tuple[int, int]) -> Tensor:
    """The same tangents in windows that stand elsewhere: zeros where they reach beyond, cut where they end short."""
    shift = window.origin - origin
    if bool((shift == shift[0]).all()):
        top, left = shift[0].tolist()
        height, width = window.shape
        pads = (left, size[1] - left - width, top, size[0] - top - height)
        return F.pad(window.data, pads) if any(pads) else window.data
    out = window.data.new_zeros(len(shift), size[0], size[1], window.data.shape[1]).permute(0, 3, 1, 2)
    for step in torch.unique(shift, dim=0):
        member = (shift == step).all(1).nonzero()[:, 0]
        (into_y, from_y), (into_x, from_x) = (
            _overlap(int(step[axis]), window.shape[axis], size[axis]) for axis in (0, 1)
        )
        out[member, :, into_y, into_x] = window.data[member, :, from_y, from_x]
    return out


def _overlap(shift: int, have: int, want: int) -> tuple[slice, slice]:
    start, stop = max(0, shift), max(max(0, shift), min(want, shift + have))
    return slice(start, stop), slice(start - shift, stop - shift)


def _seeds(
    program: Program, partition: Regions, found: dict[Key, Cone], index: Tensor, links: Sequence[Link]
) -> Iterator[tuple[Key, Window]]:
    """The regions' own windows of the input: masks, and x where it is theirs."""
    needed = {source for link in links for source in link.sources}
    origin, size = frame(found[INPUT].at(index))
    labels = window_of(partition.labels, origin, size)
    mask = (labels == index.reshape(-1, 1, 1, 1)).to(program.x.dtype)
    mask = mask.contiguous(memory_format=torch.channels_last)
    if INPUT_MASK in needed:
        yield INPUT_MASK, Window(mask, origin)
    if INPUT in needed:
        yield INPUT, Window(mask * window_of(program.x, origin, size), origin)


def _push(link: Link, sources: list[Window], origin: Tensor, size: tuple[int, int]) -> Window:
    reach = reach_of(link)
    assert reach is not None
    if isinstance(link.map, Weighted):
        return Window(_convolve(link.map, reach, sources[0], origin, size), origin)
    if isinstance(link.map, Pool):
        return Window(_pool(link.map, reach, sources[0], origin, size), origin)
    if isinstance(link.map, Scale):
        moved = place(sources[0], origin, size)
        factor = link.map.factor
        return Window(moved * (factor if factor.dim() == 0 else window_of(factor, origin, size)), origin)
    total = place(sources[0], origin, size)
    for other in sources[1:]:
        total = total + place(other, origin, size)
    return Window(total, origin)


def _field(reach: Reach, origin: Tensor, size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """The window of the input that a window of the output looks at (it may reach over the border)."""
    stride, padding = torch.tensor(reach.stride), torch.tensor(reach.padding)
    height, width = ((n - 1) * s + e for n, s, e in zip(size, reach.stride, reach.extent, strict=True))
    return origin * stride - padding, (height, width)


def _convolve(
    weighted: Weighted, reach: Reach, source: Window, origin: Tensor, size: tuple[int, int]
) -> Tensor:
    operator = weighted.operator
    assert isinstance(operator, Convolution)
    field_origin, field_size = _field(reach, origin, size)
    out: Tensor | None = None
    for group in weighted.by_after():
        part: Tensor | None = None
        for term in group:
            convolved = _term(term, operator, source, field_origin, field_size)
            part = convolved if part is None else part.add_(convolved)
        assert part is not None
        if group[0].after is not None:
            part.mul_(window_of(group[0].after, origin, size))
        out = part if out is None else out.add_(part)
    assert out is not None
    return out


def _term(term: Term, operator: Convolution, source: Window, origin: Tensor, size: tuple[int, int]) -> Tensor:
    data = source.data
    if term.before is not None:
        data = data * window_of(term.before, source.origin, source.shape)
    pads = _symmetric(source, origin, size)
    if pads is None:  # zeros on one side only, or not the same for all: lay them out first
        data, pads = place(Window(data, source.origin), origin, size), (0, 0)
    weight = term.weight.contiguous(memory_format=torch.channels_last)
    return F.conv2d(data, weight, None, operator.stride, pads, operator.dilation, operator.groups)


def _symmetric(source: Window, origin: Tensor, size: tuple[int, int]) -> tuple[int, int] | None:
    """Zeros needed around the window, where they are the same on both sides: convolution can pad them itself."""
    shift = source.origin - origin
    if not bool((shift == shift[0]).all()):
        return None
    before = shift[0].tolist()
    after = [n - b - have for n, b, have in zip(size, before, source.shape, strict=True)]
    return (before[0], before[1]) if before == after and min(before) >= 0 else None


def _pool(pool: Pool, reach: Reach, source: Window, origin: Tensor, size: tuple[int, int]) -> Tensor:
    data = place(source, *_field(reach, origin, size))
    out: Tensor | None = None
    for offset, share in zip(pool.offsets, pool.shares, strict=True):
        cut = tuple(
            slice(start, start + (n - 1) * step + 1, step)
            for start, n, step in zip(offset, size, pool.stride, strict=True)
        )
        part = data[(..., *cut)] * window_of(share, origin, size)
        out = part if out is None else out.add_(part)
    assert out is not None
    return out
