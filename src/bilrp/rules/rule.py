"""A rule: a named pure function that freezes one step into a linear map at this input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from bilrp.engine.maps import Gated, Map, Weighted
from bilrp.errors import RuleError
from bilrp.trace.compare import shut
from bilrp.trace.tape import Step


@dataclass(frozen=True)
class Rule:
    """A named pure function step → linear map. The name travels in a decomposition's origin: only equal names pair.

    The gate of a ReLU that was fused into the step is applied here, whatever map the function returns.
    """

    name: str
    freeze: Callable[[Step], Map]

    def __call__(self, step: Step) -> Map:
        made = self.freeze(step)
        if not isinstance(made, Map):
            raise RuleError(
                f"rule '{self.name}' gave {type(made).__name__} for {step.describe()}, no map: return one of "
                "bilrp.engine.maps, such as Scale(factor), or one of your own that inherits bilrp.engine.maps.Map"
            )
        if step.gate is None:
            return made
        return gated(made, step.gate) if isinstance(made, Weighted) else Gated(made, step.gate)


def gated(made: Weighted, gate: Tensor) -> Weighted:
    """The same map followed by a 0/1 gate."""
    factors = {id(t.after): t.after for t in made.terms}
    # each once: terms that share their factor behind go on sharing it
    behind = {key: gate if f is None else shut(f, gate) for key, f in factors.items()}
    return replace(made, terms=tuple(replace(t, after=behind[id(t.after)]) for t in made.terms))


def exact(value: float) -> str:
    """The shortest way to write a number that still gives it back: two that differ never have one name.

    >>> exact(0.25), exact(0.1234567)
    ('0.25', '0.1234567')
    """
    short = f"{value:g}"
    return short if float(short) == float(value) else repr(float(value))
