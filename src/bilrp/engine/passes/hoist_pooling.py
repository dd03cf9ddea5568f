"""Hoist poolings: move a mean over positions, or a slice of them, before the maps that precede it.

Σ_t c_t (W g_t) = W Σ_t c_t g_t: a map that is the same at every position need not be computed at all of them if only
their mean is used. A pooling moves back through matrices, sums, centring of features, and scales that are a product of
a factor of positions and one of features. It stops at maps that differ between positions (the ratio of an activation),
at maps that mix positions, and at values with other uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import singledispatch

import torch
from torch import Tensor

from bilrp.engine.maps import (
    CenterAndScale,
    Gated,
    LazyGammaFactor,
    Map,
    Mean,
    Narrow,
    Pooling,
    Scale,
    Shapes,
    Sum,
    Term,
    Weighted,
)
from bilrp.engine.maps.gamma_factor import resolve_factor
from bilrp.engine.program import Key, Link, Program, TangentKind
from bilrp.trace.linear_operators import Convolution


def hoist_poolings(program: Program, keep: frozenset[Key] = frozenset()) -> Program:
    """Return an equivalent program with fewer products; besides the output, the values in `keep` stay unchanged."""
    links = program.links
    for link in reversed(program.links):
        if isinstance(link.map, Pooling) and link in links:
            links = _hoist_one(links, links.index(link), frozenset({program.output, *keep}))
    return program if links is program.links else replace(program, links=links)


def _hoist_one(links: tuple[Link, ...], position: int, keep: frozenset[Key]) -> tuple[Link, ...]:
    """Move the pooling at `position` back as far as possible; return the old links if this saves no products."""
    uses = Counter([*keep, *(source for link in links for source in link.sources)])
    hoister = _PoolingHoister(uses, next_value=1 + max(link.target.value for link in links))
    hoister.start(links[position])
    before = position
    while before and hoister.pending:
        before -= 1
        hoister.visit(links[before])
    inputs = [link for pending in hoister.pending.values() for link in pending]
    hoisted = (*links[:before], *inputs, *reversed(hoister.links), *links[position + 1 :])
    return hoisted if hoister.saved_macs > 0 else links


class _PoolingHoister:
    """State of the rewrite, which visits links from the last to the first.

    Args:
        uses: How often each value is read in the program.
        next_value: First free number for new values.
    """

    def __init__(self, uses: Mapping[Key, int], next_value: int) -> None:
        self.uses, self.next_value = uses, next_value
        self.links: list[Link] = []  # new links, from the last to the first
        self.pending: dict[Key, list[Link]] = {}  # poolings of a value that its own link has not absorbed yet
        self.pooled_uses: Counter[Key] = Counter()  # how many uses of a value read it pooled
        self.saved_macs = 0  # multiply-adds per vector

    def start(self, link: Link) -> None:
        """Replace a pooling by a request for its pooled source and, if needed, a squeeze."""
        assert isinstance(link.map, Pooling)
        shapes = Shapes((link.map.infer_pooled_shape(link.shapes.sources[0]),), link.shape)
        self.links.append(
            replace(
                link,
                map=link.map.squeeze_map(),
                sources=self.request_pooled(link, link.map.without_squeeze()),
                shapes=shapes,
            )
        )

    def visit(self, link: Link) -> None:
        """Move a requested pooling before a link, if all uses of its target share it and the map commutes with it."""
        requests = self.pending.pop(link.target, [])
        duplicate = isinstance(link.map, Pooling) and self.find_pending(
            link.sources[0], link.map.without_squeeze()
        )
        if duplicate and not requests:
            self.start(link)  # the same pooling of the same value
            return
        shared = len(requests) == 1 and self.pooled_uses[link.target] == self.uses[link.target]
        pooling = requests[0].map if shared and not link.map.on_mask else None
        commuted = commute(link.map, pooling, link.shapes) if isinstance(pooling, Pooling) else None
        if commuted is None:
            self.links.extend([*requests, link])
            return
        map_, earlier = commuted
        shapes = Shapes(tuple(earlier.infer_pooled_shape(s) for s in link.shapes.sources), requests[0].shape)
        self.saved_macs += link.cost().macs - map_.cost(shapes).macs
        sources = self.request_pooled(link, earlier)
        self.links.append(replace(link, map=map_, sources=sources, target=requests[0].target, shapes=shapes))

    def request_pooled(self, link: Link, pooling: Pooling) -> tuple[Key, ...]:
        """Return the keys of a link's pooled sources, after adding the poolings that are not pending yet."""
        keys = []
        for source, shape in zip(link.sources, link.shapes.sources, strict=True):
            request = self.find_pending(source, pooling)
            if request is None:
                request = replace(
                    link,
                    map=pooling,
                    sources=(source,),
                    target=Key(self.next_value, TangentKind.POOLED),
                    shapes=Shapes((shape,), pooling.infer_pooled_shape(shape)),
                    name="pool",
                    rule="linear",
                )
                self.pending.setdefault(source, []).append(request)
                self.next_value += 1
            self.pooled_uses[source] += 1
            keys.append(request.target)
        return tuple(keys)

    def find_pending(self, value: Key, pooling: Pooling) -> Link | None:
        """Return the pending link that applies this pooling to a value, if there is one."""
        for link in self.pending.get(value, ()):
            if isinstance(link.map, Pooling) and link.map.equals(pooling):
                return link
        return None


# ---------------------------------------------------------------- kinds of maps


@singledispatch
def commute(map_: Map, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
    """Return J' and Π' with Π J = J' Π', to pool before the map instead of after it; None if there are none.

    Args:
        map_: J.
        pooling: Π.
        shapes: Shapes of the sources and the target of J.
    """
    return None


@commute.register(Scale)
def _scale(map_: Scale, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
    if shapes.sources[0] != shapes.target:
        return None
    commuted = pooling.commute_factor(map_.factor, shapes.target)
    return None if commuted is None else (Scale(commuted[0]), commuted[1])


@commute.register(Sum)
def _sum(map_: Sum, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
    return map_, pooling


@commute.register(Gated)
def _gated(map_: Gated, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
    gate = pooling.commute_factor(map_.gate, shapes.target)
    inner = None if gate is None else commute(map_.inner, gate[1], shapes)
    return None if gate is None or inner is None else (Gated(inner[0], gate[0]), inner[1])


@commute.register(CenterAndScale)
def _centered(map_: CenterAndScale, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
    if map_.axis in pooling.axes:
        return None
    commuted = pooling.commute_factor(map_.factor, shapes.target)
    return None if commuted is None else (CenterAndScale(commuted[0], map_.axis), commuted[1])


@commute.register(Narrow)
def _narrow(map_: Narrow, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
    """Express the mean of a slice as a mean of all positions with zero weights."""
    if map_.squeeze or not isinstance(pooling, Mean) or not set(map_.axes) <= set(pooling.axes):
        return None
    return Sum((0,)), pooling.with_weights(map_.expand(pooling.weights))


@commute.register(Weighted)
def _weighted(map_: Weighted, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
    """Possible where Π commutes with the factors of every term, and all terms give the same Π'."""
    if not _is_pointwise_along(map_, pooling.axes):
        return None
    terms, poolings = [], []
    after = {id(t.after): _commute_factor(pooling, t.after, shapes.target) for t in map_.terms}
    # once per factor, so that terms continue to share it
    for term in map_.terms:
        outer = after[id(term.after)]
        inner = None if outer is None else _commute_factor(outer[1], term.before, shapes.sources[0])
        if outer is None or inner is None:
            return None
        terms.append(Term(term.weight, inner[0], outer[0]))
        poolings.append(inner[1])
    if not all(each.equals(poolings[0]) for each in poolings[1:]):
        return None
    at = map_.at.new_empty(()).expand(pooling.infer_pooled_shape(map_.at.shape))
    return replace(map_, terms=tuple(terms), at=at, slots=(0,)), poolings[0]


def _is_pointwise_along(map_: Weighted, axes: tuple[int, ...]) -> bool:
    """Return whether the map applies one matrix at each position along these axes."""
    operator = map_.operator
    if not isinstance(operator, Convolution):
        return -1 not in axes
    single = {*map_.terms[0].weight.shape[2:], *operator.stride} == {1} and not any(operator.padding)
    return single and not operator.transposed and min(axes) >= -operator.rank


def _commute_factor(
    pooling: Pooling, factor: Tensor | LazyGammaFactor | None, shape: torch.Size
) -> tuple[Tensor | None, Pooling] | None:
    if isinstance(factor, LazyGammaFactor) and not isinstance(pooling, Narrow):
        return None  # differs per position and feature; computing it just to check would not pay
    dense = resolve_factor(factor)
    return (None, pooling) if dense is None else pooling.commute_factor(dense, shape)
