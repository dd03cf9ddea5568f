"""Poolings done early: a mean over positions, or one position alone, is taken before the matrices behind which it stood.

Σ_t c_t (W g_t) = W Σ_t c_t g_t: what does the same at every position need not be done at all of them where only a mean
of them is asked for. A pooling moves back through matrices, sums, centrings of features, and scales that are one of
positions times one of features. It stops at what is not the same everywhere (an activation's ratio), at what mixes
positions, and at values that others need as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from bilrp.engine.maps import Pooling, Shapes
from bilrp.engine.program import Key, Kind, Link, Program


def pool_early(program: Program, keep: frozenset[Key] = frozenset()) -> Program:
    """The same program with fewer products; `keep` are values that must be there as they were, besides the output."""
    links = program.links
    for link in reversed(program.links):
        if isinstance(link.map, Pooling) and link in links:
            links = _moved(links, links.index(link), frozenset({program.output, *keep}))
    return program if links is program.links else replace(program, links=links)


def _moved(links: tuple[Link, ...], place: int, kept: frozenset[Key]) -> tuple[Link, ...]:
    """With the pooling at that place moved back as far as it goes, if this saves products."""
    uses = Counter([*kept, *(source for link in links for source in link.sources)])
    moving = _Moving(uses, fresh=1 + max(link.target.value for link in links))
    moving.begin(links[place])
    before = place
    while before and moving.wanted:
        before -= 1
        moving.add(links[before])
    inputs = [link for waiting in moving.wanted.values() for link in waiting]
    found = (*links[:before], *inputs, *reversed(moving.links), *links[place + 1 :])
    return found if moving.saved > 0 else links


class _Moving:
    """Links so far, from the last to the first; the links that will pool a value, once it is there; what all this saves."""

    def __init__(self, uses: Mapping[Key, int], fresh: int) -> None:
        self.uses, self.fresh = uses, fresh
        self.links: list[Link] = []
        self.wanted: dict[Key, list[Link]] = {}
        self.served: Counter[Key] = Counter()  # how many of a value's uses want it pooled
        self.saved = 0  # multiply-adds for one vector

    def begin(self, link: Link) -> None:
        """The pooling itself: what it pooled is wanted, and axes of length one may be left to fall away."""
        assert isinstance(link.map, Pooling)
        shapes = Shapes((link.map.shortened(link.shapes.sources[0]),), link.shape)
        self.links.append(
            replace(link, map=link.map.rest(), sources=self.want(link, link.map.whole()), shapes=shapes)
        )

    def add(self, link: Link) -> None:
        """The link before: of values pooled before it, where all uses want one pooling and the map knows how."""
        wanted = self.wanted.pop(link.target, [])
        alike = isinstance(link.map, Pooling) and self.waiting(link.sources[0], link.map.whole())
        if alike and not wanted:
            self.begin(link)  # the same pooling of the same value, once more
            return
        shared = len(wanted) == 1 and self.served[link.target] == self.uses[link.target]
        pooling = wanted[0].map if shared and not link.map.on_mask else None
        made = link.map.pooled(pooling, link.shapes) if isinstance(pooling, Pooling) else None
        if made is None:
            self.links.extend([*wanted, link])
            return
        map_, earlier = made
        shapes = Shapes(tuple(earlier.shortened(s) for s in link.shapes.sources), wanted[0].shape)
        self.saved += link.map.macs(link.shapes) - map_.macs(shapes)
        sources = self.want(link, earlier)
        self.links.append(replace(link, map=map_, sources=sources, target=wanted[0].target, shapes=shapes))

    def want(self, link: Link, pooling: Pooling) -> tuple[Key, ...]:
        """The keys of a link's sources, pooled."""
        keys = []
        for source, shape in zip(link.sources, link.shapes.sources, strict=True):
            found = self.waiting(source, pooling)
            if found is None:
                target, shapes = Key(self.fresh, Kind.POOLED), Shapes((shape,), pooling.shortened(shape))
                made = {"map": pooling, "sources": (source,), "target": target, "shapes": shapes}
                found = replace(link, **made, name="pool", rule="linear")
                self.wanted.setdefault(source, []).append(found)
                self.fresh += 1
            self.served[source] += 1
            keys.append(found.target)
        return tuple(keys)

    def waiting(self, value: Key, pooling: Pooling) -> Link | None:
        """The link that will do so, if somebody asked for it already."""
        for link in self.wanted.get(value, ()):
            if isinstance(link.map, Pooling) and link.map.equals(pooling):
                return link
        return None
