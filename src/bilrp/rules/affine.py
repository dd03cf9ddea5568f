"""Linear steps, and the true derivative of any step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bilrp.engine.maps import Jacobian, Linear, Map, Mean, Pad, PermuteChannels, Rearrange, Scale, Sum
from bilrp.errors import RuleError
from bilrp.rules.attention import make_unfused_attention
from bilrp.rules.norms import NORM_FREEZERS, freeze_norm, uses_input_statistics
from bilrp.rules.rule import Rule
from bilrp.rules.verification import verify_substitute
from bilrp.rules.writes import ACCUMULATE_MODES, OVERWRITE_MODES, freeze_overwrite, is_overwrite
from bilrp.trace.tape import Step


def linear() -> Rule:
    """Keep a step that is already linear (add, cat, reshape, pad, mean, average pooling, interpolation …)."""
    return Rule("linear", lambda step: _freeze_linear(step))


def _freeze_linear(step: Step) -> Map:
    slots = tuple(range(len(step.inputs)))
    if not is_known_linear(step):
        _check_linear(step)
    if step.operation.kind == "random":
        return Rearrange(lambda x: x, step.values)
    if _is_plain_sum(step):
        return Sum(slots)
    if is_overwrite(step):
        return freeze_overwrite(step)
    local = _local_map(step)
    if local is not None:
        verify_substitute(step, lambda a: local.push(a[None])[0] + step.run(torch.zeros_like(a)))
        return local
    return (Rearrange if step.operation.mask == "moves" else Linear)(step.run, step.values, slots)


def _is_plain_sum(step: Step) -> bool:
    """Return whether the step is a + b (+ a constant) of one shape and dtype, as at the end of a residual block."""
    same = all(v.shape == step.result.shape and v.dtype == step.result.dtype for v in step.values)
    return step.operation.is_sum and "alpha" not in step.kwargs and same


def _local_map(step: Step) -> Map | None:
    """Return a specialised map for constant factors, zero padding, channel permutations and poolings; else None."""
    value, op = step.values[0], step.operation
    if len(step.inputs) != 1 or value.dtype != step.result.dtype:
        return None
    if op.kind == "arithmetic" and value.shape == step.result.shape:
        if op.rule == "product" or (op.rule == "quotient" and is_first_argument(step)):
            return Scale(step.run(torch.ones_like(value)))
        return Sum((0,)) if op.name == "sub" and is_first_argument(step) else None
    if op.name == "pad" and value.dim() == 4 and step.argument(2, "mode", "constant") == "constant":
        left, right, top, bottom, *others = (*step.argument(1, "pad"), 0, 0)
        return None if any(others) else Pad((left, right, top, bottom))
    if op.name in {"permute", "transpose"} and value.dim() == 4:
        blank = torch.empty(value.shape)
        turned = step.run(blank)
        for last, (a, b) in ((True, (-3, -1)), (False, (-1, -3))):
            moved = blank.movedim(a, b)
            if (turned.shape, turned.stride()) == (moved.shape, moved.stride()):
                return PermuteChannels(last)
    return _pooling_map(step)


def _pooling_map(step: Step) -> Map | None:
    """Return mean and sum as a map with a receptive field; else None."""
    value, result, op = step.values[0], step.result, step.operation
    if op.name in {"mean", "sum"}:
        dims = step.argument(1, "dim")
        given = (dims,) if isinstance(dims, int) else dims if isinstance(dims, tuple | list) else ()
        axes = tuple(sorted(d % value.dim() - value.dim() for d in given)) if value.dim() else ()
        drop = result.dim() < value.dim()
        return _mean_map(value, axes, drop=drop, is_sum=op.name == "sum") if axes and value.numel() else None
    if op.name.startswith("adaptive_avg_pool"):
        axes = tuple(range(-int(op.name[-2]), 0))
        return _mean_map(value, axes) if all(result.shape[axis] == 1 for axis in axes) else None
    return None


def _mean_map(value: Tensor, axes: tuple[int, ...], *, drop: bool = False, is_sum: bool = False) -> Map:
    sizes = tuple(value.shape[axis] for axis in axes)
    return Mean(1.0 if is_sum else 1 / math.prod(sizes), axes, sizes, drop)


def _check_linear(step: Step) -> None:
    """Raise unless an unknown operation is linear: with g(a) = f(a) − f(0), g(a − 2r) = g(a) − 2g(r).

    r is random, because |a|, max and sort appear linear on multiples of a.
    """
    generator = torch.Generator().manual_seed(0)
    zero = step.run(*(torch.zeros_like(v) for v in step.values))
    for _ in range(4):  # a single r may have the same maximum as a
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
    """Use the true derivative of any step at this input: gradient × input."""
    return Rule("jacobian", _freeze_jacobian)


def _freeze_jacobian(step: Step) -> Map:
    """Return the derivative in closed form if there is one (diag(f'(a)), the scale of a batch norm), else torch's.

    Torch's backward pass of a batch norm is wrong for gradients in some memory formats (2.13).
    """
    elementwise = len(step.inputs) == 1 and step.values[0].shape == step.result.shape
    if (
        step.op in NORM_FREEZERS
        and step.operation.kind == "statistics"
        and elementwise
        and not uses_input_statistics(step)
    ):
        return freeze_norm(step)
    if (
        step.operation.kind in {"activation", "elementwise_nonzero"}
        and elementwise
        and not step.operation.verify_derivative
    ):
        slope = torch.func.vjp(step.run, *step.values)[1](torch.ones_like(step.result))[0]
        return Scale(slope)
    function = make_unfused_attention(step) if step.operation.kind == "attention" else step.run
    return Jacobian(function, step.values, tuple(range(len(step.inputs))))


def is_known_linear(step: Step) -> bool:
    """Return whether the step is jointly linear in its live operands, according to the table of operations."""
    op = step.operation
    if op.rule == "quotient":
        return len(step.inputs) == 1 and is_first_argument(step) and step.kwargs.get("rounding_mode") is None
    is_linear_rule = op.rule in {"linear", "product"} and (op.linear_in == "jointly" or len(step.inputs) == 1)
    fixed = [step.argument_value(argument) for argument in op.nonlinear_args]
    adding = None if op.accumulate_arg is None else step.argument_value(op.accumulate_arg)
    return (
        is_linear_rule
        and adding in OVERWRITE_MODES + ACCUMULATE_MODES
        and not any(f is v for f in fixed for v in step.values)
    )


def is_first_argument(step: Step) -> bool:
    """Return whether the live tensor is the step's first argument."""
    return step.argument(0, "input") is step.values[0]
