"""Receptive fields: where, in each value of a convolutional program, a region can have any influence.

A `Cone` holds the receptive field of each region in one value as an interval [low, high) on each image axis.
Convolution, pooling and elementwise maps turn intervals into intervals, so cones are exact for chains and residual
blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from torch import Tensor

from bilrp.engine.program import INPUT, INPUT_MASK, Key, Link, Program
from bilrp.engine.windows import Cone
from bilrp.regions import Regions, bounding_boxes


def spatial_prefix(links: Sequence[Link]) -> int:
    """Return how many leading links are spatial."""
    return next((i for i, link in enumerate(links) if link.geometry is None), len(links))


def compute_cones(program: Program, partition: Regions, stop: int) -> dict[Key, Cone]:
    """Return the receptive fields of the regions in every value of links[:stop], starting from their bounding boxes.

    Args:
        program, partition: The frozen tape, and the regions of the input.
        stop: Number of leading links, all of them spatial.
    """
    boxes = _bounding_boxes(partition)
    height, width = program.x.shape[-2:]
    start = Cone(boxes[:, :2], boxes[:, 2:], (height, width))
    cones: dict[Key, Cone] = {INPUT: start, INPUT_MASK: start}
    for link in program.links[:stop]:
        assert link.geometry is not None
        size = (link.shape[-2], link.shape[-1])
        reached = (cones[source].propagate(link.geometry, size) for source in link.sources)
        cones[link.target] = reduce(Cone.union, reached)
    return cones


def _bounding_boxes(partition: Regions) -> Tensor:
    """Return (top, left, bottom, right) of each region, also where regions differ between channels."""
    boxes = partition.boxes
    return (bounding_boxes(partition.labels, partition.count) if boxes is None else boxes).cpu()
