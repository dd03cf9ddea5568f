"""Receptive cones: where, in each value of a convolutional program, a region can have any influence at all.

A cone is one interval [low, high) on each image axis for each region. Convolution, pooling and elementwise maps turn
intervals into intervals, so cones are exact for chains and for residual blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from bilrp.engine.program import INPUT, INPUT_MASK, Key, Link, Program
from bilrp.engine.windows import Cone
from bilrp.regions import Regions


def spatial_prefix(links: Sequence[Link]) -> int:
    """How many links from the start on are spatial."""
    return next((i for i, link in enumerate(links) if link.geometry is None), len(links))


def compute_cones(program: Program, partition: Regions, stop: int) -> dict[Key, Cone]:
    """The cone of every value up to link number `stop`, starting from each region's bounding box."""
    low, high = bounding_boxes(partition)
    height, width = program.x.shape[-2:]
    start = Cone(low, high, (height, width))
    found: dict[Key, Cone] = {INPUT: start, INPUT_MASK: start}
    for link in program.links[:stop]:
        assert link.geometry is not None
        size = (link.shape[-2], link.shape[-1])
        reached = (found[source].propagate(link.geometry, size) for source in link.sources)
        found[link.target] = reduce(Cone.union, reached)
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


def compact_chunks(partition: Regions, size: int) -> list[Tensor]:
    """Split regions into chunks of at most `size` that lie close together, so that their cones overlap."""
    low, high = bounding_boxes(partition)
    return _bisect(torch.arange(partition.count), (low + high).double(), size)


def _bisect(index: Tensor, center: Tensor, size: int) -> list[Tensor]:
    if len(index) <= size:
        return [index]
    spread = center[index].amax(0) - center[index].amin(0)
    order = index[center[index][:, int(spread.argmax())].argsort(stable=True)]
    half = len(order) // 2
    return [
        *_bisect(order[:half].sort().values, center, size),
        *_bisect(order[half:].sort().values, center, size),
    ]
