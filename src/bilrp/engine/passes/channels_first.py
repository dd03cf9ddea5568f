"""Channels first: stretches of a program whose images have their channels last, turned so that they are images again.

ConvNeXt permutes (1, C, H, W) to (1, H, W, C), normalises, multiplies by matrices, and permutes back. Each of these maps
looks at one position: with channels first it is a convolution of 1×1, or a centring of channels, and has a cone. The
permutations themselves fall away.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bilrp.engine.maps import Scale, Shapes
from bilrp.engine.maps.base import is_image, move_channels_first
from bilrp.engine.maps.spatial import PermuteChannels
from bilrp.engine.program import Key, Link, Program, TangentKind


def rewrite_channels_first(program: Program, keep: frozenset[Key] = frozenset()) -> Program:
    """The same program; `keep` are values that must be there as they were, besides the output."""
    if not any(isinstance(link.map, PermuteChannels) for link in program.links):
        return program
    turning = _ChannelsFirstRewriter(frozenset({program.output, *keep}))
    for link in program.links:
        turning.visit(link)
    return replace(program, links=tuple(turning.links))


class _ChannelsFirstRewriter:
    """Links so far, which key holds each value, and which values are only there with their channels first."""

    def __init__(self, keep: frozenset[Key]) -> None:
        self.keep = keep
        self.links: list[Link] = []
        self.aliases: dict[Key, Key] = {}  # values that are another one, unchanged
        self.rewritten: dict[
            Key, Key
        ] = {}  # channels-last values, by the key that holds them with their channels first

    def visit(self, link: Link) -> None:
        source = self.aliases.get(link.sources[0], link.sources[0])
        if isinstance(link.map, PermuteChannels) and link.target.kind is TangentKind.VALUE:
            if link.map.channels_last and source not in self.rewritten and is_image(link.shapes.sources[0]):
                self.rewritten[link.target] = source
                return self.restore_kept(link)
            if not link.map.channels_last and source in self.rewritten:
                self.aliases[link.target] = self.rewritten[source]
                return self.restore_kept(link)
        sources = tuple(self.aliases.get(s, s) for s in link.sources)
        made = link.map.to_channels_first(link.shapes) if all(s in self.rewritten for s in sources) else None
        if made is None:
            self.links.append(replace(link, sources=tuple(self.restore(s, link) for s in sources)))
            return None
        target = Key(link.target.value, TangentKind.CHANNELS_FIRST)
        shapes = Shapes(
            tuple(_channels_first_shape(s) for s in link.shapes.sources), _channels_first_shape(link.shape)
        )
        turned = tuple(self.rewritten[s] for s in sources)
        self.links.append(replace(link, map=made, sources=turned, target=target, shapes=shapes))
        self.rewritten[link.target] = target
        return self.restore_kept(link)

    def restore_kept(self, link: Link) -> None:
        """A value that must be there as it was."""
        if link.target in self.keep and link.target in self.rewritten:
            self.restore(link.target, link)
        elif link.target in self.keep:
            same, shapes = Scale(torch.ones((), dtype=link.dtype)), Shapes((link.shape,), link.shape)
            held = (self.aliases.pop(link.target),)
            self.links.append(replace(link, map=same, sources=held, shapes=shapes))

    def restore(self, key: Key, link: Link) -> Key:
        """The key of a value as it was: turned back where it is only there with its channels first."""
        if key not in self.rewritten:
            return key
        turned = self.rewritten.pop(key)
        shape = link.shape if key == link.target else link.shapes.sources[self.source_index(key, link)]
        made = {
            "map": PermuteChannels(channels_last=True),
            "sources": (turned,),
            "target": key,
            "shapes": Shapes((_channels_first_shape(shape),), shape),
        }
        self.links.append(replace(link, **made, name="permute", rule="linear"))
        return key

    def source_index(self, key: Key, link: Link) -> int:
        return next(i for i, s in enumerate(link.sources) if self.aliases.get(s, s) == key)


def _channels_first_shape(shape: torch.Size) -> torch.Size:
    return move_channels_first(torch.empty(()).expand(shape)).shape
