"""Steps that are linear already, and the true derivative of any step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bilrp.engine.maps import Jacobian, Linear, Map, Move, Sum
from bilrp.errors import RuleError
from bilrp.rules.rule import Rule
from bilrp.trace.ops import LINEAR, MULTIPLYING, STRUCTURAL
from bilrp.trace.tape import Step


def linear() -> Rule:
    """Already linear: J is the step itself (add, cat, reshape, pad, mean, average pooling, interpolation …)."""
    return Rule("linear", lambda step: _any_linear(step))


def _any_linear(step: Step) -> Map:
    slots = tuple(range(len(step.inputs)))
    if not known_linear(step):
        _check_linear(step)
    if step.op in {
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
    }:
        return Move(lambda x: x, step.values)
    if _plain_sum(step):
        return Sum(slots)
    return (Move if step.op in STRUCTURAL else Linear)(step.run, step.values, slots)


def _plain_sum(step: Step) -> bool:
    """a + b (+ a constant) of one shape and type, as at the end of a residual block."""
    same = all(v.shape == step.result.shape and v.dtype == step.result.dtype for v in step.values)
    return step.op == "add" and "alpha" not in step.kwargs and same


def _check_linear(step: Step) -> None:
    """An operation we do not know: with g(a) = f(a) − f(0), g(a − 2r) must be g(a) − 2g(r), or it is not linear.

    r is random: |a|, max and sort pass for linear wherever they are only tried on multiples of a.
    """
    generator = torch.Generator().manual_seed(0)
    zero = step.run(*(torch.zeros_like(v) for v in step.values))
    for _ in range(4):  # one r can have the same winner as a
        other = [
            v.abs().mean() * torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v)
            for v in step.values
        ]
        mixed = step.run(*(v - 2 * r for v, r in zip(step.values, other, strict=True))) - zero
        apart = step.result - zero - 2 * (step.run(*other) - zero)
        largest = float(apart.abs().max())
        if not math.isfinite(largest) or not torch.allclose(mixed, apart, rtol=1e-4, atol=1e-4 * largest):
            raise RuleError(
                f"linear is a rule for linear steps, and {step.describe()} is not: use bilrp.rules.jacobian()"
            )


def jacobian() -> Rule:
    """The true derivative at this input, whatever the step: gradient × input."""
    return Rule("jacobian", lambda step: Jacobian(step.run, step.values, tuple(range(len(step.inputs)))))


def known_linear(step: Step) -> bool:
    """Linear in all its live operands together, by what the operation is; nothing has to be tried."""
    if step.op == "div":
        return len(step.inputs) == 1 and is_first(step) and step.kwargs.get("rounding_mode") is None
    return step.op in LINEAR and _is_linear(step)


def is_first(step: Step) -> bool:
    """The live tensor is the step's first argument."""
    return step.argument(0, "input") is step.values[0]


def _is_linear(step: Step) -> bool:
    """Several live operands are fine for sums and concatenations, not for products."""
    if step.op == "lerp":
        return not isinstance(step.argument(2, "weight"), Tensor) or all(
            step.argument(2, "weight") is not v for v in step.values
        )
    if step.op in {"grid_sample", "ldexp"}:
        return len(step.inputs) == 1 and is_first(step)  # the grid and the exponent are not linear
    if step.op in {"scatter", "index_add"} and step.kwargs.get("reduce", "add") != "add":
        return False
    return len(step.inputs) == 1 or step.op not in MULTIPLYING
