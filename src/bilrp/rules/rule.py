"""Rule: a named pure function that freezes one step into a linear map at this input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bilrp.engine.maps import Gated, Map, Weighted
from bilrp.errors import RuleError
from bilrp.trace.tape import Step


@dataclass(frozen=True)
class Rule:
    """A named pure function step → linear map.

    The gate of a ReLU that was fused into the step is applied by `__call__`, to any map that `freeze` returns.

    Attributes:
        name: Stored in a decomposition's origin; decompositions can be paired only if their rules have equal names.
        freeze: Returns the linear map of a step, without the gate of a fused ReLU.
    """

    name: str
    freeze: Callable[[Step], Map]

    def __call__(self, step: Step) -> Map:
        linear_map = self.freeze(step)
        if not isinstance(linear_map, Map):
            raise RuleError(
                f"rule '{self.name}' gave {type(linear_map).__name__} for {step.describe()}, no map: return one of "
                "bilrp.engine.maps, such as Scale(factor), or one of your own that inherits bilrp.engine.maps.Map"
            )
        if step.gate is None:
            return linear_map
        return (
            linear_map.with_gate(step.gate)
            if isinstance(linear_map, Weighted)
            else Gated(linear_map, step.gate)
        )


def format_number(value: float) -> str:
    """Format a number as briefly as possible without loss, so that different numbers give different names.

    >>> format_number(0.25), format_number(0.1234567)
    ('0.25', '0.1234567')
    """
    short = f"{value:g}"
    return short if float(short) == float(value) else repr(float(value))
