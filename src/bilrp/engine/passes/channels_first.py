"""Channels first: stretches of a program whose images have their channels last, turned so that they are images again.

ConvNeXt permutes (1, C, H, W) to (1, H, W, C), normalises, multiplies by matrices, and permutes back. Each of these maps
looks at one position: with channels first it is a convolution of 1×1, or a centring of channels, and has a cone. The
permutations themselves fall away.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bilrp.engine.maps import Scale, Shapes
from bilrp.engine.maps.base import is_image, to_front
from bilrp.engine.maps.spatial import Turn
from bilrp.engine.program import Key, Kind, Link, Program


def channels_first(program: Program, keep: frozenset[Key] = frozenset()) -> Program:
    """The same program; `keep` are values that must be there as they were, besides the output."""
    if not any(isinstance(link.map, Turn) for link in program.links):
        return program
    turning = _Turning(frozenset({program.output, *keep}))
    for link in program.links:
        turning.add(link)
    return replace(program, links=tuple(turning.links))


class _Turning:
    """Links so far, which key holds each value, and which values are only there with their channels first."""

    def __init__(self, kept: frozenset[Key]) -> None:
        self.kept = kept
        self.links: list[Link] = []
        self.held: dict[Key, Key] = {}  # values that are another one, unchanged
        self.turned: dict[
            Key, Key
        ] = {}  # channels-last values, by the key that holds them with their channels first

    def add(self, link: Link) -> None:
        source = self.held.get(link.sources[0], link.sources[0])
        if isinstance(link.map, Turn) and link.target.kind is Kind.VALUE:
            if link.map.last and source not in self.turned and is_image(link.shapes.sources[0]):
                self.turned[link.target] = source
                return self.finish(link)
            if not link.map.last and source in self.turned:
                self.held[link.target] = self.turned[source]
                return self.finish(link)
        sources = tuple(self.held.get(s, s) for s in link.sources)
        made = link.map.channels_first(link.shapes) if all(s in self.turned for s in sources) else None
        if made is None:
            self.links.append(replace(link, sources=tuple(self.plain(s, link) for s in sources)))
            return None
        target = Key(link.target.value, Kind.TURNED)
        shapes = Shapes(tuple(_front(s) for s in link.shapes.sources), _front(link.shape))
        turned = tuple(self.turned[s] for s in sources)
        self.links.append(replace(link, map=made, sources=turned, target=target, shapes=shapes))
        self.turned[link.target] = target
        return self.finish(link)

    def finish(self, link: Link) -> None:
        """A value that must be there as it was."""
        if link.target in self.kept and link.target in self.turned:
            self.plain(link.target, link)
        elif link.target in self.kept:
            same, shapes = Scale(torch.ones((), dtype=link.dtype)), Shapes((link.shape,), link.shape)
            held = (self.held.pop(link.target),)
            self.links.append(replace(link, map=same, sources=held, shapes=shapes))

    def plain(self, key: Key, link: Link) -> Key:
        """The key of a value as it was: turned back where it is only there with its channels first."""
        if key not in self.turned:
            return key
        turned = self.turned.pop(key)
        shape = link.shape if key == link.target else link.shapes.sources[self.place(key, link)]
        made = {
            "map": Turn(last=True),
            "sources": (turned,),
            "target": key,
            "shapes": Shapes((_front(shape),), shape),
        }
        self.links.append(replace(link, **made, name="permute", rule="linear"))
        return key

    def place(self, key: Key, link: Link) -> int:
        return next(i for i, s in enumerate(link.sources) if self.held.get(s, s) == key)


def _front(shape: torch.Size) -> torch.Size:
    return to_front(torch.empty(()).expand(shape)).shape
