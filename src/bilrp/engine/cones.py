"""Receptive cones: where, in each value of a convolutional program, a region can have any influence at all.

A cone is one interval [low, high) on each image axis for each region. Convolution, pooling and elementwise maps turn
intervals into intervals, so cones are exact for chains and for residual blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.engine.maps import Pool, Scale, Sum, Weighted
from bilrp.engine.program import INPUT, INPUT_MASK, Key, Link, Program
from bilrp.regions import Regions
from bilrp.trace.operators import Convolution


@dataclass(frozen=True, eq=False)
class Cone:
    """[low, high) on both image axes, each of shape (regions, 2), inside an image of `size`."""

    low: Tensor
    high: Tensor
    size: tuple[int, int]

    def at(self, index: Tensor) -> Cone:
        return Cone(self.low[index], self.high[index], self.size)

    def extent(self) -> tuple[int, int]:
        """The largest interval on each axis: the window that holds every region of a batch."""
        height, width = (self.high - self.low).amax(0).tolist()
        return height, width


@dataclass(frozen=True)
class Reach:
    """How far a spatial map looks: kernel extent, stride and padding on each axis."""

    extent: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


def reach_of(link: Link) -> Reach | None:
    """The reach of a link whose map is spatial (convolution, pooling, elementwise, residual add); None otherwise."""
    if any(not is_image(shape) for shape in (*link.shapes, link.shape)):
        return None
    kind = link.map
    if isinstance(kind, Weighted):
        return _convolution_reach(kind)
    if isinstance(kind, Pool) and len(kind.stride) == 2:
        extent = tuple(max(o[axis] for o in kind.offsets) + 1 for axis in (0, 1))
        return Reach(extent, kind.stride, tuple(p[0] for p in kind.padding))  # type: ignore[arg-type]
    if isinstance(kind, Scale) and link.shapes[0] == link.shape:
        return Reach()
    return Reach() if isinstance(kind, Sum) else None


def is_image(shape: torch.Size) -> bool:
    return len(shape) == 4 and shape[0] == 1


def _convolution_reach(kind: Weighted) -> Reach | None:
    operator = kind.operator
    if not isinstance(operator, Convolution) or operator.transposed or operator.rank != 2:
        return None
    kernel = kind.terms[0].weight.shape[2:]
    extent = tuple(d * (k - 1) + 1 for d, k in zip(operator.dilation, kernel, strict=True))
    return Reach(extent, operator.stride, operator.padding)  # type: ignore[arg-type]


def spatial_prefix(links: Sequence[Link]) -> int:
    """How many links from the start on are spatial."""
    return next((i for i, link in enumerate(links) if reach_of(link) is None), len(links))


def cones(program: Program, partition: Regions, stop: int) -> dict[Key, Cone]:
    """The cone of every value up to link number `stop`, starting from each region's bounding box."""
    low, high = bounding_boxes(partition)
    height, width = program.x.shape[-2:]
    start = Cone(low, high, (height, width))
    found: dict[Key, Cone] = {INPUT: start, INPUT_MASK: start}
    for link in program.links[:stop]:
        reach = reach_of(link)
        assert reach is not None
        reached = [_spread(found[source], reach, link.shape) for source in link.sources]
        low = torch.stack([c.low for c in reached]).amin(0)
        high = torch.stack([c.high for c in reached]).amax(0)
        found[link.target] = Cone(low, high, reached[0].size)
    return found


def bounding_boxes(partition: Regions) -> tuple[Tensor, Tensor]:
    """The smallest rectangle around each region of an image, as (low, high), each (regions, 2)."""
    if partition.boxes is not None:
        return partition.boxes[:, :2].cpu(), partition.boxes[:, 2:].cpu()
    labels = partition.labels.cpu()
    bounds = []
    for axis in (1, 2):
        place = (
            torch.arange(labels.shape[axis]).reshape(-1, 1) if axis == 1 else torch.arange(labels.shape[axis])
        )
        place = place.expand(labels.shape).flatten()
        inside = labels.flatten() >= 0
        owner, where = labels.flatten()[inside], place[inside]
        lowest = torch.full((partition.count,), labels.shape[axis]).scatter_reduce_(0, owner, where, "amin")
        highest = torch.zeros(partition.count, dtype=torch.long).scatter_reduce_(0, owner, where + 1, "amax")
        bounds.append((lowest, highest))
    return torch.stack([b[0] for b in bounds], 1), torch.stack([b[1] for b in bounds], 1)


def _spread(cone: Cone, reach: Reach, shape: torch.Size) -> Cone:
    """Outputs o with o·stride − padding … + extent touching the interval; a region that reaches none keeps one cell."""
    size = torch.tensor(shape[-2:])
    extent, stride, padding = (torch.tensor(v) for v in (reach.extent, reach.stride, reach.padding))
    low = -((extent - 1 - padding - cone.low) // stride)  # ceil((low + padding - extent + 1) / stride)
    high = (cone.high - 1 + padding) // stride + 1
    low = torch.minimum(low.clamp(min=0), size - 1)
    high = torch.maximum(torch.minimum(high, size), low + 1)
    return Cone(low, high, (int(size[0]), int(size[1])))


def compact_chunks(partition: Regions, size: int) -> list[Tensor]:
    """Split regions into chunks of at most `size` that lie close together, so that their cones overlap."""
    low, high = bounding_boxes(partition)
    return _bisect(torch.arange(partition.count), (low + high).double(), size)


def _bisect(index: Tensor, centre: Tensor, size: int) -> list[Tensor]:
    if len(index) <= size:
        return [index]
    spread = centre[index].amax(0) - centre[index].amin(0)
    order = index[centre[index][:, int(spread.argmax())].argsort(stable=True)]
    half = len(order) // 2
    return [
        *_bisect(order[:half].sort().values, centre, size),
        *_bisect(order[half:].sort().values, centre, size),
    ]
