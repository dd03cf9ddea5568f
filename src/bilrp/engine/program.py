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

from bilrp.engine.maps import Cost, Map, Shapes
from bilrp.engine.windows import Geometry
from bilrp.trace.devices import is_on_cpu


class TangentKind(StrEnum):
    """Kind of a tangent.

    That of a value; of the region's 0/1 mask, for first-layer rules (z^B, flat, w²); or of a value that a pass
    (`engine.passes`) permuted to channels first.
    """

    VALUE = "value"
    MASK = "mask"
    CHANNELS_FIRST = "channels_first"


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
        name, rule: Names of the step and its rule, for display.
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

    def cost(self, *, back: bool = False) -> Cost:
        """Return the cost to push (or pull) one vector."""
        return self.map.cost(self.shapes, back=back)

    @cached_property
    def geometry(self) -> Geometry | None:
        return self.map.geometry(self.shapes)


@dataclass(frozen=True, eq=False)
class Remainder:
    """What the maps leave unattributed at a feature map, see `engine.remainder`.

    Args:
        key: The feature map; all later links depend on it alone.
        value: F − J x, (1, C, h, w).
    """

    key: Key
    value: Tensor


@dataclass(frozen=True, eq=False)
class Program:
    """A frozen tape.

    Args:
        x: The input.
        links: The steps in topological order.
        output: Key of the embedding.
        result: The recorded embedding.
        weights: The model's own weights, which do not count as memory of the program.
        remainder: Unattributed part of a feature map that is attributed to regions by position.
    """

    x: Tensor
    links: tuple[Link, ...]
    output: Key
    result: Tensor
    weights: tuple[Tensor, ...] = ()
    remainder: Remainder | None = None


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
        links, start: Links in topological order, and tangents that they read.
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
    observed = None if program.remainder is None else program.remainder.key
    back = pull_to(program, cotangents, observed)
    zero = cotangents.new_zeros(len(cotangents), *program.x.shape)
    relevance = program.x * back.get(INPUT, zero)
    if INPUT_MASK in back:
        relevance = relevance + back[INPUT_MASK]
    if program.remainder is None or program.remainder.key not in back:
        return relevance
    value = program.remainder.value
    rows, columns = position_weights(program.x.shape, value.shape, value)
    by_position = (back[program.remainder.key] * value).sum(2, keepdim=True)
    return relevance + rows.T @ by_position @ columns / program.x.shape[1]


def position_weights(image: Sequence[int], feature_map: Sequence[int], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return A [h, H] and B [w, W] with A M Bᵀ = the mean of an image M over the pixels of each position.

    Args:
        image, feature_map: Shapes (1, C, H, W) of the image and (1, C', h, w) of the feature map.
        like: A tensor of the same dtype and device.
    """
    return _mean_matrix(feature_map[2], image[2], like), _mean_matrix(feature_map[3], image[3], like)


def _mean_matrix(positions: int, pixels: int, like: Tensor) -> Tensor:
    """Return [positions, pixels]: the weights of adaptive average pooling along one axis."""
    number = torch.arange(positions)
    start, stop = number * pixels // positions, -(-(number + 1) * pixels // positions)
    pixel = torch.arange(pixels)
    inside = (pixel >= start[:, None]) & (pixel < stop[:, None])
    return (inside / inside.sum(1, keepdim=True)).to(like)


def pull_to(program: Program, cotangents: Tensor, observed: Key | None = None) -> dict[Key, Tensor]:
    """Pull cotangents of the output through all links; return the cotangents of the program's inputs.

    Args:
        program: The frozen tape.
        cotangents: Cotangents of the output, (K, *embedding.shape).
        observed: Key of an intermediate value whose cotangent is returned too.
    """
    alive: dict[Key, Tensor] = {program.output: cotangents}
    sums: set[Key] = set()  # allocated here, so they may be changed in place
    kept: dict[Key, Tensor] = {}
    for link in reversed(program.links):
        cotangent = alive.pop(link.target, None)
        if cotangent is not None and link.target == observed:
            kept = {link.target: cotangent}
        # No products with zero cotangents (another branch of a cat). Not on accelerators, where the synchronisation takes
        # longer than the product.
        has_products = cotangent is not None and is_on_cpu(cotangent) and link.cost(back=True).macs > 0
        if cotangent is None or (has_products and _is_zero(cotangent)):
            continue
        for source, part in zip(link.sources, link.map.pull(cotangent), strict=True):
            if source in sums:
                alive[source].add_(part)
            elif source in alive:
                alive[source] = alive[source] + part
                sums.add(source)
            else:
                alive[source] = part
    return alive | kept


def _is_zero(t: Tensor) -> bool:
    """Return `not t.any()`, vectorized: `any` of floats takes as long as a small layer."""
    if not t.numel():
        return True
    low, high = t.aminmax()
    return float(low) == 0 == float(high)


def chunks(total: int, size: int, advance: Callable[[int], None] | None = None) -> Iterator[slice]:
    """Yield consecutive slices of [0, total).

    Args:
        total, size: Number of items, and most items in a slice.
        advance: Called with the length of each slice after it is processed.
    """
    for start in range(0, total, size):
        stop = min(total, start + size)
        yield slice(start, stop)
        if advance:
            advance(stop - start)
