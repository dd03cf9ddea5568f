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
from bilrp.engine.program import Key, Link, Program, TangentKind


def hoist_poolings(program: Program, keep: frozenset[Key] = frozenset()) -> Program:
    """The same program with fewer products; `keep` are values that must be there as they were, besides the output."""
    links = program.links
    for link in reversed(program.links):
        if isinstance(link.map, Pooling) and link in links:
            links = _hoist_one(links, links.index(link), frozenset({program.output, *keep}))
    return program if links is program.links else replace(program, links=links)


def _hoist_one(links: tuple[Link, ...], position: int, keep: frozenset[Key]) -> tuple[Link, ...]:
    """With the pooling at that place moved back as far as it goes, if this saves products."""
    uses = Counter([*keep, *(source for link in links for source in link.sources)])
    moving = _PoolingHoister(uses, next_value=1 + max(link.target.value for link in links))
    moving.start(links[position])
    before = position
    while before and moving.pending:
        before -= 1
        moving.visit(links[before])
    inputs = [link for waiting in moving.pending.values() for link in waiting]
    found = (*links[:before], *inputs, *reversed(moving.links), *links[position + 1 :])
    return found if moving.saved_macs > 0 else links


class _PoolingHoister:
    """Links so far, from the last to the first; the links that will pool a value, once it is there; what all this saves."""

    def __init__(self, uses: Mapping[Key, int], next_value: int) -> None:
        self.uses, self.next_value = uses, next_value
        self.links: list[Link] = []
        self.pending: dict[Key, list[Link]] = {}
        self.pooled_uses: Counter[Key] = Counter()  # how many of a value's uses want it pooled
        self.saved_macs = 0  # multiply-adds for one vector

    def start(self, link: Link) -> None:
        """The pooling itself: what it pooled is wanted, and axes of length one may be left to fall away."""
        assert isinstance(link.map, Pooling)
        shapes = Shapes((link.map.pooled_shape(link.shapes.sources[0]),), link.shape)
        self.links.append(
            replace(
                link,
                map=link.map.squeeze_map(),
                sources=self.request_pooled(link, link.map.without_squeeze()),
                shapes=shapes,
            )
        )

    def visit(self, link: Link) -> None:
        """The link before: of values pooled before it, where all uses want one pooling and the map knows how."""
        wanted = self.pending.pop(link.target, [])
        alike = isinstance(link.map, Pooling) and self.find_pending(
            link.sources[0], link.map.without_squeeze()
        )
        if alike and not wanted:
            self.start(link)  # the same pooling of the same value, once more
            return
        shared = len(wanted) == 1 and self.pooled_uses[link.target] == self.uses[link.target]
        pooling = wanted[0].map if shared and not link.map.on_mask else None
        made = link.map.commute_pooling(pooling, link.shapes) if isinstance(pooling, Pooling) else None
        if made is None:
            self.links.extend([*wanted, link])
            return
        map_, earlier = made
        shapes = Shapes(tuple(earlier.pooled_shape(s) for s in link.shapes.sources), wanted[0].shape)
        self.saved_macs += link.map.macs(link.shapes) - map_.macs(shapes)
        sources = self.request_pooled(link, earlier)
        self.links.append(replace(link, map=map_, sources=sources, target=wanted[0].target, shapes=shapes))

    def request_pooled(self, link: Link, pooling: Pooling) -> tuple[Key, ...]:
        """The keys of a link's sources, pooled."""
        keys = []
        for source, shape in zip(link.sources, link.shapes.sources, strict=True):
            found = self.find_pending(source, pooling)
            if found is None:
                target, shapes = (
                    Key(self.next_value, TangentKind.POOLED),
                    Shapes((shape,), pooling.pooled_shape(shape)),
                )
                made = {"map": pooling, "sources": (source,), "target": target, "shapes": shapes}
                found = replace(link, **made, name="pool", rule="linear")
                self.pending.setdefault(source, []).append(found)
                self.next_value += 1
            self.pooled_uses[source] += 1
            keys.append(found.target)
        return tuple(keys)

    def find_pending(self, value: Key, pooling: Pooling) -> Link | None:
        """The link that will do so, if somebody asked for it already."""
        for link in self.pending.get(value, ()):
            if isinstance(link.map, Pooling) and link.map.equals(pooling):
                return link
        return None
