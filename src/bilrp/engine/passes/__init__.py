"""Rewrite passes: pure functions (program, keep) -> program that leave the output and the values in `keep` unchanged.

May import maps and program of the engine, and `trace.linear_operators`.
"""

from __future__ import annotations

from collections.abc import Callable

from bilrp.engine.passes.channels_first import rewrite_channels_first
from bilrp.engine.passes.folding import fold_factors
from bilrp.engine.program import Key, Program

Pass = Callable[[Program, frozenset[Key]], Program]

PASSES: tuple[Pass, ...] = (rewrite_channels_first, fold_factors)


def rewrite(program: Program, keep: frozenset[Key], passes: tuple[Pass, ...] = PASSES) -> Program:
    """Return an equivalent program after all passes.

    Args:
        program: The frozen tape.
        keep: Values that later stages read, besides the output.
        passes: The passes, in order.
    """
    for each in passes:
        program = each(program, keep)
    return program
