"""Elementwise functions: gates, clamps, and activations with f(0) = 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bilrp.engine.maps import Map, Scale
from bilrp.errors import RuleError
from bilrp.rules.affine import is_first_argument
from bilrp.rules.rule import Rule
from bilrp.trace.devices import is_on_cpu, require
from bilrp.trace.layer_weights import extract_weights
from bilrp.trace.numerics import all_finite, compute_relu_gate
from bilrp.trace.tape import Step, collect_tensors


def gate() -> Rule:
    """Freeze ReLU and other gates to J = diag(1[a > 0])."""

    def freeze(step: Step) -> Map:
        elementwise = len(step.inputs) == 1 and step.values[0].shape == step.result.shape
        if not elementwise or extract_weights(step) is not None:
            raise RuleError(
                f"gate is a rule for elementwise functions of one tensor, not for {step.describe()}"
            )
        return Scale(compute_relu_gate(step.values[0]).to(step.result.dtype))

    return Rule("gate", freeze)


def clamp() -> Rule:
    """Freeze a clamp to diag(f(a)/a) if its range contains 0, else to the identity inside the range and 0 outside."""

    def freeze(step: Step) -> Map:
        if step.operation.rule != "clamp" or len(step.inputs) != 1 or not is_first_argument(step):
            raise RuleError(f"clamp is a rule for clamping to constants, not for {step.describe()}")
        plain = not collect_tensors((step.args, step.kwargs))
        zero = _scalar_zero(step.values[0]) if plain else torch.zeros_like(step.values[0])
        if bool((step.run(zero) == 0).all()):
            return freeze_activation(step)
        return Scale((step.values[0] == step.result).to(step.result.dtype))

    return Rule("clamp", freeze)


def freeze_activation(step: Step) -> Map:
    """Return diag(f(a)/a), with the limit f'(0) at a = 0."""
    a = step.values[0]
    if len(step.inputs) != 1 or a.shape != step.result.shape:
        raise RuleError(
            f"frozen is a rule for elementwise functions, norms and attention, not for {step.describe()}"
        )
    alone = step.operation.kind == "activation" and not step.operation.verify_derivative
    alone = alone and not collect_tensors((step.args, step.kwargs))
    zero = _scalar_zero(a) if alone else torch.zeros_like(a)
    require((step.run(zero) == 0).all(), lambda: _raise_nonzero_at_zero(step))
    if step.operation.kind == "activation" and step.operation.verify_derivative and not is_elementwise(step):
        raise RuleError(
            f"{step.describe()} is not an activation, as its row says: numbers in other places change its result, so that "
            "it is not elementwise; leave the row out and choose its rule, e.g. bilrp.rules.jacobian()"
        )
    factor = step.result / a
    if is_on_cpu(a) and all_finite(factor):
        return Scale(factor)
    slope = torch.func.vjp(step.run, zero)[1](torch.ones_like(zero))[0]
    # with finite a and f(a), only 0/0 is NaN
    if alone and is_on_cpu(a) and all_finite(a) and all_finite(step.result):
        # infinite for a root: the factor is then 0, like any ratio that is not finite
        at_zero = float(slope)
        return Scale(factor.nan_to_num_(at_zero if math.isfinite(at_zero) else 0.0, 0.0, 0.0))
    factor = torch.where(a == 0, slope.to(a), factor)
    return Scale(torch.where(factor.isfinite(), factor, 0))


def _scalar_zero(a: Tensor) -> Tensor:
    """Return a single zero on the CPU, to evaluate a known elementwise function at 0 without synchronisation.

    In float32 instead of an accelerator's narrow dtype, for which the CPU may lack the function.
    """
    dtype = a.dtype if is_on_cpu(a) or a.dtype == torch.float64 else torch.float32
    return torch.zeros((1,) * a.dim(), dtype=dtype)


def _raise_nonzero_at_zero(step: Step) -> None:
    raise RuleError(
        f"{step.describe()} does not send 0 to 0, so it cannot be frozen into a scale (it is 'elementwise_nonzero' in the "
        "table, no activation): choose its rule yourself, e.g. "
        f"bilrp.composites.first_match(('{step.name}', bilrp.rules.jacobian()), otherwise=bilrp.composites.uniform(0.25))"
    )


def is_elementwise(step: Step) -> bool:
    """Return whether each output stays the same when a random half of the other inputs is set to zero."""
    a = step.values[0]
    first_half = torch.rand(a.shape, generator=torch.Generator().manual_seed(0)).to(a.device) < 0.5
    slack = 1e-4 * float(step.result.abs().max())
    try:
        zero, *sums = (
            step.run(torch.where(half, a, 0))
            for half in (torch.zeros_like(first_half), first_half, ~first_half)
        )
    except RuntimeError:  # not defined at zero
        return False
    expected = (torch.where(half, step.result, zero) for half in (first_half, ~first_half))
    return all(
        torch.allclose(f, e, rtol=1e-4, atol=slack, equal_nan=True)
        for f, e in zip(sums, expected, strict=True)
    )
