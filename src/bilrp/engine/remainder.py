"""Attribute what a feature map leaves unattributed to regions by their position.

LRP-0 leaves the biases of a layer unattributed. At a feature map F they add up to U = F − J x, one vector U(p) for each
position p. The region that covers position p receives U(p): P_I += T (share_I ⊙ U), where share_I(p) is the fraction of
the pixels of position p that belong to region I, and T is the linear map from F to the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bilrp.engine.maps.base import is_image
from bilrp.engine.program import (
    INPUT,
    INPUT_MASK,
    Key,
    Link,
    Program,
    Remainder,
    chunks,
    position_weights,
    push_from,
)
from bilrp.regions import Regions

MAX_PUSHED_REGIONS = 64  # regions whose remainder is pushed at once


def locate_remainder(program: Program, read_value: Callable[[int], Tensor]) -> Program:
    """Return the program with the remainder at its last feature map, which is then attributed by position.

    Args:
        program: A frozen tape. It is returned unchanged if its input is not an image, or if it has no feature map.
        read_value: Number of a value -> the recorded tensor.
    """
    key = last_feature_map(program)
    if key is None or not is_image(program.x.shape):
        return program
    ones = torch.ones_like(program.x)[None]
    start = {INPUT: program.x[None], INPUT_MASK: ones}
    explained = push_from(_links_until(program, key), start, {key})[key]
    return replace(program, remainder=Remainder(key, read_value(key.value) - explained[0]))


def last_feature_map(program: Program) -> Key | None:
    """Return the last image of more than one pixel on which all later links depend and nothing else."""
    written = [link.target for link in program.links]
    for index in range(len(written) - 1, -1, -1):
        shape = program.links[index].shape
        later = written[index:]
        if is_image(shape) and shape[2] * shape[3] > 1:
            reads = {source for link in program.links[index + 1 :] for source in link.sources}
            if reads <= set(later):
                return written[index]
    return None


def _links_until(program: Program, key: Key) -> tuple[Link, ...]:
    index = next(i for i, link in enumerate(program.links) if link.target == key)
    return program.links[: index + 1]


def remainder_parts(program: Program, partition: Regions, weights: Tensor | None = None) -> Tensor:
    """Return what the remainder adds to the parts, [regions, coordinates].

    Args:
        program, partition: A program with a remainder, and the regions of the input.
        weights: Projection [coordinates, h] of the embedding; None for its own coordinates.
    """
    assert program.remainder is not None
    key, value = program.remainder.key, program.remainder.value
    tail = program.links[len(_links_until(program, key)) :]
    rows, columns = position_weights(program.x.shape, value.shape, value)
    labels = partition.labels.to(value.device)
    parts = []
    for chunk in chunks(partition.count, MAX_PUSHED_REGIONS):
        numbers = torch.arange(chunk.start, chunk.stop, device=labels.device)
        masks = (labels == numbers[:, None, None, None]).to(value.dtype).mean(1)
        share = rows @ masks @ columns.T
        pushed = push_from(tail, {key: share[:, None, None] * value}, {program.output})[program.output]
        flat = pushed.flatten(1)
        parts.append(flat if weights is None else flat @ weights.T.to(flat))
    return torch.cat(parts)
