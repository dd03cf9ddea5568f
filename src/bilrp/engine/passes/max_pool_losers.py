"""Set to zero what a max-pooling discards: J_pool = J_pool diag(winners), so the map before need not compute the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from bilrp.engine.maps import MaxPool, Weighted
from bilrp.engine.program import Key, Program


def gate_losers(program: Program, keep: frozenset[Key] = frozenset()) -> Program:
    """Return an equivalent program in which weighted maps that only a max-pooling reads give its winners alone.

    Besides the output, the values in `keep` stay unchanged.
    """
    links = list(program.links)
    position = {link.target: i for i, link in enumerate(links)}
    uses = Counter([program.output, *keep, *(source for link in links for source in link.sources)])
    for pool in program.links:
        before = position.get(pool.sources[0])
        if not isinstance(pool.map, MaxPool) or before is None or uses[pool.sources[0]] > 1:
            continue
        map_ = links[before].map
        if isinstance(map_, Weighted):
            winners = pool.map.pull(program.x.new_ones(1, *pool.shape, dtype=pool.dtype))[0][0] != 0
            links[before] = replace(links[before], map=map_.with_gate(winners.to(pool.dtype)))
    return replace(program, links=tuple(links))
