"""Programs, and how to push and pull dense tangents through them.

push   s_out = J s_in    one tangent per region, starting from x ⊙ 1[i ∈ I]
pull   c_in  = Jᵀ c_out  one cotangent per coordinate of the embedding; relevance R = x ⊙ c
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
    """Kind of a tangent.

    That of a value; of the region's 0/1 mask, for first-layer rules (z^B, flat, w²); or of a value that a pass
    (`engine.passes`) permuted to channels first or pooled.
    """

    VALUE = "value"
    MASK = "mask"
    CHANNELS_FIRST = "channels_first"
    POOLED = "pooled"


class Key(NamedTuple):
    """Name of a tangent in a program: the number of the tape's value, and the kind."""

    value: int
    kind: TangentKind = TangentKind.VALUE


INPUT, INPUT_MASK = Key(0), Key(0, TangentKind.MASK)


@dataclass(frozen=True, eq=False)
class Link:
    """One frozen step of a program.

    Args:
        map: The linear map.
        sources: What the map reads, one key per slot.
        target: What the map writes.
        shapes: Shapes of sources and target.
        dtype: dtype of the target.
        name: Name of the step, for display.
        rule: Name of the rule, for display.
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
        """Shape of the target."""
        return self.shapes.target

    @cached_property
    def geometry(self) -> Geometry | None:
        return self.map.geometry(self.shapes)


@dataclass(frozen=True, eq=False)
class Program:
    """A frozen tape.

    Args:
        x: The input.
        links: The steps in topological order.
        output: Key of the embedding.
        result: The recorded embedding.
        weights: The model's own weights, which do not count as memory of the program.
    """

    x: Tensor
    links: tuple[Link, ...]
    output: Key
    result: Tensor
    weights: tuple[Tensor, ...] = ()


def push(
    program: Program, masks: Float[Tensor, "k 1 *features"], outputs: Iterable[Key] | None = None
) -> dict[Key, Tensor]:
    """Push regions to the output.

    Args:
        program: The frozen tape.
        masks: 0/1 masks of the regions, (K, *x.shape).
        outputs: Keys of the values to return; None for the program's output alone.
    """
    start: dict[Key, Tensor] = {INPUT: program.x * masks, INPUT_MASK: masks}
    return push_from(program.links, start, {program.output} if outputs is None else set(outputs))


def push_from(links: Sequence[Link], start: dict[Key, Tensor], outputs: set[Key]) -> dict[Key, Tensor]:
    """Push tangents through some links; each is dropped after its last use.

    Args:
        links: Links in topological order.
        start: Tangents that the links read.
        outputs: Keys of the tangents to return.
    """
    alive = dict(start)
    last = {source: i for i, link in enumerate(links) for source in link.sources}
    for i, link in enumerate(links):
        alive[link.target] = link.map.push(*(alive[s] for s in link.sources))
        for source in set(link.sources):
            if last[source] == i and source not in outputs:
                del alive[source]
    return {key: alive[key] for key in outputs if key in alive}


def pull(program: Program, cotangents: Float[Tensor, "k ..."]) -> Float[Tensor, "k 1 *features"]:
    """Pull cotangents (K, *embedding.shape) to the relevance of the input, R = x ⊙ c (+ c of the mask)."""
    back = pull_to(program, cotangents)
    zero = cotangents.new_zeros(len(cotangents), *program.x.shape)
    relevance = program.x * back.get(INPUT, zero)
    return relevance + back[INPUT_MASK] if INPUT_MASK in back else relevance


def pull_to(program: Program, cotangents: Tensor) -> dict[Key, Tensor]:
    """Pull cotangents of the output through all links; return the cotangents of the program's inputs."""
    alive: dict[Key, Tensor] = {program.output: cotangents}
    sums: set[Key] = set()  # allocated here, so they may be changed in place
    for link in reversed(program.links):
        cotangent = alive.pop(link.target, None)
        # Skip zero cotangents (another branch of a cat). Not on accelerators, where the synchronisation takes longer
        # than the product.
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
    """Yield consecutive slices of [0, total).

    Args:
        total: Number of items.
        size: Most items in a slice.
        advance: Called with the length of each slice after it is processed.
    """
    for start in range(0, total, size):
        stop = min(total, start + size)
        yield slice(start, stop)
        if advance:
            advance(stop - start)
