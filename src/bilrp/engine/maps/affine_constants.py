"""Which affine functions add a constant: asked once for all maps of a program, not at every push."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from bilrp.engine.maps.base import Map
from bilrp.engine.maps.elementwise import Gated
from bilrp.engine.maps.linear import Linear
from bilrp.trace.devices import read


def with_constants_known(maps: Sequence[Map]) -> list[Map]:
    """The maps, each `Linear` among them (also behind a gate) knowing whether its function adds one."""
    asked = [linear for each in maps for linear in _linears(each)]
    with torch.no_grad():
        adds = [each.function(*map(torch.zeros_like, each.at)).any() for each in asked]
    known = {id(each): answer > 0 for each, answer in zip(asked, read(adds), strict=True)}
    return [_answered(each, known) for each in maps]


def _linears(each: Map) -> Iterator[Linear]:
    if isinstance(each, Linear):
        yield each
    elif isinstance(each, Gated):
        yield from _linears(each.inner)


def _answered(each: Map, known: dict[int, bool]) -> Map:
    if isinstance(each, Linear):
        return replace(each, adds=known[id(each)])
    if isinstance(each, Gated):
        return Gated(_answered(each.inner, known), each.gate)
    return each
