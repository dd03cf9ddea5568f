"""A rule: a named pure function that freezes one step into a linear map at this input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bilrp.engine.maps import Gated, Map, Weighted
from bilrp.trace.tape import Step


@dataclass(frozen=True)
class Rule:
    """A named pure function step → linear map."""

    name: str
    freeze: Callable[[Step], Map]

    def __call__(self, step: Step) -> Map:
        made = self.freeze(step)
        # Rules for weighted steps take the ReLU behind them into account themselves; no other rule has to.
        return made if step.gate is None or isinstance(made, Weighted) else Gated(made, step.gate)
