"""Detect which affine functions add a constant, once for all maps of a program instead of at every push."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from bilrp.engine.maps.base import Map
from bilrp.engine.maps.elementwise import Gated
from bilrp.engine.maps.linear import Linear
from bilrp.trace.devices import read_scalars


def detect_constants(maps: Sequence[Map]) -> list[Map]:
    """Return the maps with `adds_constant` set on every `Linear`, also inside `Gated`."""
    linears = [linear for each in maps for linear in _linears(each)]
    with torch.no_grad():
        adds = [each.function(*map(torch.zeros_like, each.at)).any() for each in linears]
    adds_constant = {id(each): value > 0 for each, value in zip(linears, read_scalars(adds), strict=True)}
    return [_with_constant(each, adds_constant) for each in maps]


def _linears(map_: Map) -> Iterator[Linear]:
    if isinstance(map_, Linear):
        yield map_
    elif isinstance(map_, Gated):
        yield from _linears(map_.inner)


def _with_constant(map_: Map, adds_constant: dict[int, bool]) -> Map:
    if isinstance(map_, Linear):
        return replace(map_, adds_constant=adds_constant[id(map_)])
    if isinstance(map_, Gated):
        return Gated(_with_constant(map_.inner, adds_constant), map_.gate)
    return map_
