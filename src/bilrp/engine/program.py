"""push and pull: send many vectors through a frozen tape, forward or backward, in chunks under a memory budget.

push   s_out = J s_in    one vector for each region, starting from x ⊙ 1[i ∈ I]
pull   c_in  = Jᵀ c_out  one vector for each coordinate of the embedding; relevance R = x ⊙ c
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.engine.maps import Map, Shapes
from bilrp.engine.windows import Geometry
from bilrp.trace.devices import is_on_cpu


class TangentKind(StrEnum):
    """What travels: the tangent of a value's numbers, with their channels first where they were last
    (`engine.passes.channels_first`) or pooled (`engine.passes.hoist_pooling`) or, for rules of the first layer (z^B, flat,
    w²), the 0/1 mask of the region itself."""

    VALUE = "value"
    MASK = "mask"
    CHANNELS_FIRST = "channels_first"
    POOLED = "pooled"


class Key(NamedTuple):
    """One thing that travels through a program: which value of the tape, and as what."""

    value: int
    kind: TangentKind = TangentKind.VALUE


INPUT, INPUT_MASK = Key(0), Key(0, TangentKind.MASK)


@dataclass(frozen=True, eq=False)
class Link:
    """One frozen step in its place: from which values, through which map, to which value.

    `dtype` is the target's; `name` and `rule` are for people.
    """

    map: Map
    sources: tuple[Key, ...]
    target: Key
    shapes: Shapes
    dtype: torch.dtype
    name: str = ""
    rule: str = ""

    @property
    def shape(self) -> torch.Size:
        """The target's."""
        return self.shapes.target

    @cached_property
    def geometry(self) -> Geometry | None:
        return self.map.geometry(self.shapes)


@dataclass(frozen=True, eq=False)
class Program:
    """A frozen tape: links in order, from the input's keys to the output's. `weights` are the model's own."""

    x: Tensor
    links: tuple[Link, ...]
    output: Key
    result: Tensor
    weights: tuple[Tensor, ...] = ()


def push(
    program: Program, masks: Float[Tensor, "k 1 *features"], outputs: Iterable[Key] | None = None
) -> dict[Key, Tensor]:
    """Push regions, given as 0/1 masks (K, *x.shape), to the output (and to other values asked for)."""
    wanted = {program.output} if outputs is None else set(outputs)
    start: dict[Key, Tensor] = {INPUT: program.x * masks, INPUT_MASK: masks}
    return push_from(program.links, start, wanted)


def push_from(links: Sequence[Link], start: dict[Key, Tensor], outputs: set[Key]) -> dict[Key, Tensor]:
    """Push from the values at hand through some links; each value is dropped after its last use."""
    alive = dict(start)
    last = {source: i for i, link in enumerate(links) for source in link.sources}
    for i, link in enumerate(links):
        alive[link.target] = link.map.push(*(alive[s] for s in link.sources))
        for source in set(link.sources):
            if last[source] == i and source not in outputs:
                del alive[source]
    return {key: alive[key] for key in outputs if key in alive}


def pull(program: Program, cotangents: Float[Tensor, "k ..."]) -> Float[Tensor, "k 1 *features"]:
    """Pull coordinates, given as (K, *embedding.shape), back to the input's relevance R = x ⊙ c (+ what masks own)."""
    back = pull_to(program, cotangents)
    zero = cotangents.new_zeros(len(cotangents), *program.x.shape)
    relevance = program.x * back.get(INPUT, zero)
    return relevance + back[INPUT_MASK] if INPUT_MASK in back else relevance


def pull_to(program: Program, cotangents: Tensor) -> dict[Key, Tensor]:
    """Pull coordinates back through all links; what is left are the cotangents of the program's inputs."""
    alive: dict[Key, Tensor] = {program.output: cotangents}
    sums: set[Key] = set()  # made here by adding, so nobody else sees them change
    for link in reversed(program.links):
        cotangent = alive.pop(link.target, None)
        # Coordinates that never came this way (another branch of a cat) cost nothing further down. An accelerator is
        # not asked: waiting for its answer takes longer than the product.
        if cotangent is None or (is_on_cpu(cotangent) and not bool(cotangent.any())):
            continue
        for source, part in zip(link.sources, link.map.pull(cotangent), strict=True):
            if source in sums:
                alive[source].add_(part)
            elif source in alive:
                alive[source] = alive[source] + part
                sums.add(source)
            else:
                alive[source] = part
    return alive


def chunks(total: int, size: int, advance: Callable[[int], None] | None = None) -> Iterator[slice]:
    """Slices of at most `size`, reporting progress after each."""
    for start in range(0, total, size):
        stop = min(total, start + size)
        yield slice(start, stop)
        if advance:
            advance(stop - start)
