"""Rewrite channels-last segments of a program to channels first.

ConvNeXt permutes (1, C, H, W) to (1, H, W, C), normalises, multiplies by matrices, and permutes back. Each of these
maps acts on one position: with channels first it is a 1×1 convolution or a centring of channels, and has a receptive
field. The permutations themselves disappear.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

import torch

from bilrp.engine.maps import CenterAndScale, Gated, Map, Scale, Shapes, Sum, Term, Weighted
from bilrp.engine.maps.base import is_image, move_channels_first
from bilrp.engine.maps.spatial import PermuteChannels
from bilrp.engine.program import Key, Link, Program, TangentKind
from bilrp.trace.linear_operators import Convolution, Dense

POINTWISE = Convolution((1, 1), (0, 0), (1, 1))


def rewrite_channels_first(program: Program, keep: frozenset[Key] = frozenset()) -> Program:
    """Return an equivalent program; besides the output, the values in `keep` stay available unchanged."""
    if not any(isinstance(link.map, PermuteChannels) for link in program.links):
        return program
    rewriter = _ChannelsFirstRewriter(frozenset({program.output, *keep}))
    for link in program.links:
        rewriter.visit(link)
    return replace(program, links=tuple(rewriter.links))


class _ChannelsFirstRewriter:
    """State of the rewrite: the new links, and where each old value is now."""

    def __init__(self, keep: frozenset[Key]) -> None:
        self.keep = keep
        self.links: list[Link] = []
        self.aliases: dict[Key, Key] = {}  # values that equal another one
        self.rewritten: dict[Key, Key] = {}  # channels-last values, with the key of their channels-first form

    def visit(self, link: Link) -> None:
        """Append the channels-first form of a link, or the link itself if it has none."""
        source = self.aliases.get(link.sources[0], link.sources[0])
        if isinstance(link.map, PermuteChannels) and link.target.kind is TangentKind.VALUE:
            if link.map.channels_last and source not in self.rewritten and is_image(link.shapes.sources[0]):
                self.rewritten[link.target] = source
                return self.restore_kept(link)
            if not link.map.channels_last and source in self.rewritten:
                self.aliases[link.target] = self.rewritten[source]
                return self.restore_kept(link)
        sources = tuple(self.aliases.get(s, s) for s in link.sources)
        new_map = (
            to_channels_first(link.map, link.shapes) if all(s in self.rewritten for s in sources) else None
        )
        if new_map is None:
            self.links.append(replace(link, sources=tuple(self.restore(s, link) for s in sources)))
            return None
        target = Key(link.target.value, TangentKind.CHANNELS_FIRST)
        shapes = Shapes(
            tuple(_channels_first_shape(s) for s in link.shapes.sources), _channels_first_shape(link.shape)
        )
        new_sources = tuple(self.rewritten[s] for s in sources)
        self.links.append(replace(link, map=new_map, sources=new_sources, target=target, shapes=shapes))
        self.rewritten[link.target] = target
        return self.restore_kept(link)

    def restore_kept(self, link: Link) -> None:
        """Append a link that restores the target if it is in `keep`."""
        if link.target in self.keep and link.target in self.rewritten:
            self.restore(link.target, link)
        elif link.target in self.keep:
            identity, shapes = Scale(torch.ones((), dtype=link.dtype)), Shapes((link.shape,), link.shape)
            sources = (self.aliases.pop(link.target),)
            self.links.append(replace(link, map=identity, sources=sources, shapes=shapes))

    def restore(self, key: Key, link: Link) -> Key:
        """Return the key of a value in its original form, after permuting it back if necessary."""
        if key not in self.rewritten:
            return key
        source = self.rewritten.pop(key)
        shape = link.shape if key == link.target else link.shapes.sources[self.source_index(key, link)]
        permute = replace(
            link,
            map=PermuteChannels(channels_last=True),
            sources=(source,),
            target=key,
            shapes=Shapes((_channels_first_shape(shape),), shape),
            name="permute",
            rule="linear",
        )
        self.links.append(permute)
        return key

    def source_index(self, key: Key, link: Link) -> int:
        """Return which source of a link is `key`."""
        return next(i for i, s in enumerate(link.sources) if self.aliases.get(s, s) == key)


def _channels_first_shape(shape: torch.Size) -> torch.Size:
    return move_channels_first(torch.empty(()).expand(shape)).shape


# ---------------------------------------------------------------- kinds of maps


@singledispatch
def to_channels_first(map_: Map, shapes: Shapes) -> Map | None:
    """Return the equivalent of a map of (1, H, W, C) for (1, C, H, W); None if there is none."""
    return None


@to_channels_first.register(Scale)
def _scale(map_: Scale, shapes: Shapes) -> Map | None:
    if shapes.sources[0] != shapes.target or map_.on_mask:
        return None
    scalar = map_.factor.dim() == 0
    return Scale(
        map_.factor if scalar else move_channels_first(map_.factor.expand(shapes.target)), map_.slots
    )


@to_channels_first.register(Sum)
def _sum(map_: Sum, shapes: Shapes) -> Map | None:
    return None if map_.on_mask else map_


@to_channels_first.register(Gated)
def _gated(map_: Gated, shapes: Shapes) -> Map | None:
    inner = to_channels_first(map_.inner, shapes)
    return None if inner is None else Gated(inner, move_channels_first(map_.gate))


@to_channels_first.register(CenterAndScale)
def _centered(map_: CenterAndScale, shapes: Shapes) -> Map | None:
    return CenterAndScale(move_channels_first(map_.factor), -3, map_.slots) if map_.axis == -1 else None


@to_channels_first.register(Weighted)
def _weighted(map_: Weighted, shapes: Shapes) -> Map | None:
    """Return the equivalent 1×1 convolution of a matrix product at each position."""
    if map_.on_mask or not isinstance(map_.operator, Dense):
        return None
    return Weighted(
        POINTWISE, tuple(map(_term, map_.terms)), at=move_channels_first(map_.at), slots=map_.slots
    )


def _term(term: Term) -> Term:
    before, after = (None if f is None else move_channels_first(f) for f in (term.before, term.after))
    return Term(term.weight[:, :, None, None], before, after)
