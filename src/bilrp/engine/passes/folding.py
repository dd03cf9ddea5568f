"""Fold into a linear or convolution step what follows it alone: the factor of an activation, or a max-pooling's winners.

diag(f) J is one map with output factors, and J_pool = J_pool diag(winners), so that the step need not compute the rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from bilrp.engine.maps import MaxPool, Scale, Weighted
from bilrp.engine.program import Key, Link, Program


def fold_factors(program: Program, keep: frozenset[Key] = frozenset()) -> Program:
    """Return an equivalent program in which weighted maps include the factors of a `Scale`, and the winners of a `MaxPool`.

    Besides the output, the values in `keep` stay unchanged.
    """
    made: dict[Key, Link] = {}  # in order
    uses = Counter([program.output, *keep, *(source for link in program.links for source in link.sources)])
    for link in program.links:
        before = made.get(link.sources[0])
        if before is not None and isinstance(before.map, Weighted) and uses[before.target] == 1:
            if isinstance(link.map, MaxPool):
                winners = link.map.pull(program.x.new_ones(1, *link.shape, dtype=link.dtype))[0][0] != 0
                made[before.target] = replace(before, map=before.map.with_gate(winners.to(link.dtype)))
            elif isinstance(link.map, Scale) and before.shape == link.shape and before.dtype == link.dtype:
                del made[before.target]
                factor = link.map.factor.expand(link.shape)
                link = replace(before, map=before.map.with_factor(factor), target=link.target)
        made[link.target] = link
    return replace(program, links=tuple(made.values()))
