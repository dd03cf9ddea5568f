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

from bilrp.engine.maps import Pooling, Shapes
from bilrp.engine.program import Key, Link, Program, TangentKind


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
        commuted = link.map.commute_pooling(pooling, link.shapes) if isinstance(pooling, Pooling) else None
        if commuted is None:
            self.links.extend([*requests, link])
            return
        map_, earlier = commuted
        shapes = Shapes(tuple(earlier.pooled_shape(s) for s in link.shapes.sources), requests[0].shape)
        self.saved_macs += link.map.macs(link.shapes) - map_.macs(shapes)
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
                    shapes=Shapes((shape,), pooling.pooled_shape(shape)),
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
