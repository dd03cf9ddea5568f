"""Checks of a frozen step: torch's derivatives, and functions that a rule uses instead of the step's own call.

Torch's batching rules and forward-mode derivatives are written per operation, and some are wrong (`cdist` in torch 2.13
loses its gradient under vmap). The tests compare the operations of the table with autograd; those with
`verify_derivative`, which include unknown operations, are checked here in every run, on two random vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from bilrp.engine.maps import Gated, Jacobian, Linear, Map, Rearrange, Scale
from bilrp.errors import RuleError
from bilrp.trace.devices import is_on_cpu, require
from bilrp.trace.numerics import all_close, equal
from bilrp.trace.tape import Step

ADJOINT_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}  # relative; 0.1 for narrower dtypes
# Relative; 0.1 for narrower dtypes. That of float64 also allows for steps that a float64 model runs in float32.
SUBSTITUTE_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
MAX_VERIFIED_ROWS = 8  # positions at which the stand-in for a norm or an attention is compared


def verify_adjoint(frozen_map: Map, step: Step) -> Map:
    """Return the map; raise `RuleError` if torch's derivatives contradict each other.

    Checks ⟨c, J s⟩ = ⟨Jᵀ c, s⟩ for two random c and s, and that Jᵀ c is the same in a batch and alone.
    """
    inner = frozen_map.inner if isinstance(frozen_map, Gated) else frozen_map
    doubtful = step.operation.verify_derivative or step.operation.accumulate_arg is not None
    if not doubtful or isinstance(inner, Rearrange) or not isinstance(inner, Linear | Jacobian):
        return frozen_map
    generator = torch.Generator().manual_seed(0)

    def drawn(like: Tensor) -> Tensor:
        return torch.randn(2, *like.shape, generator=generator, dtype=torch.float64).to(like)

    tangents, cotangents = [drawn(t) for t in inner.at], drawn(step.result)
    try:
        pulled = inner.pull(cotangents)
        alone = torch.func.vjp(inner.function, *inner.at)[1](cotangents[1])
    except RuntimeError as error:
        raise RuleError(format_missing_derivative(step, step.describe())) from error
    if not any(bool(a.any()) for a in alone) and _changes_output(inner, tangents):
        raise RuleError(format_missing_derivative(step, step.describe()))
    off = max(_relative_difference(p[1], a) for p, a in zip(pulled, alone, strict=True))
    pushed = _try_push(inner, tangents)
    if pushed is not None:
        there = cotangents.reshape(2, -1) @ pushed.reshape(2, -1).T
        back = sum(p.reshape(2, -1) @ t.reshape(2, -1).T for p, t in zip(pulled, tangents, strict=True))
        assert isinstance(back, Tensor)
        scale = cotangents.reshape(2, -1).norm(dim=1)[:, None] * pushed.reshape(2, -1).norm(dim=1)
        off = max(off, float(((there - back).abs() / scale.clamp(min=1e-30)).max()))
    if not off <= ADJOINT_TOLERANCE.get(step.result.dtype, 0.1):
        raise RuleError(
            f"torch's derivatives of {step.describe()} contradict each other (by {_percent(off)}), so none can be "
            "trusted: write the operation out, or explain the layer before it"
        )
    return frozen_map


def verify_substitute(
    step: Step, function: Callable[..., Tensor], expected: Tensor | None = None
) -> Callable[..., Tensor]:
    """Return `function`; raise unless it reproduces the step's result at the recorded values.

    A rule that computes a step in another way (another kernel, a norm's statistics) is right only if the result is the
    same. The parts would not show a difference: it would count as unattributed.

    Args:
        step: The step.
        function: What the rule uses instead of the call.
        expected: What `function` must return; the step's whole result by default, or a sample of it (`sample_rows`).
    """
    expected = step.result if expected is None else expected
    with torch.no_grad():
        output = function(*step.values)
    if output.shape == expected.shape:
        output, slack = output.to(expected.dtype), SUBSTITUTE_TOLERANCE.get(expected.dtype, 0.1)
        if not is_on_cpu(expected):
            require(all_close(output, expected, slack), lambda: _raise_wrong_substitute(step))
            return function
        if _is_near(output, expected, slack) or equal(output, expected):
            return function
        largest = float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max())
        if torch.allclose(output, expected, rtol=slack, atol=slack * largest, equal_nan=True):
            return function
    return _raise_wrong_substitute(step)


def _is_near(output: Tensor, expected: Tensor, slack: float) -> bool:
    """Return whether max |output − expected| ≤ slack · max |expected| < ∞: three passes, and usually true."""
    if not expected.numel():
        return True
    (low, high), (least, most) = (output - expected).aminmax(), expected.aminmax()
    limit = slack * max(-float(least), float(most))
    return -float(low) <= limit and float(high) <= limit < math.inf


def sample_rows(t: Tensor) -> Tensor:
    """Return every k-th row (axis −2), about MAX_VERIFIED_ROWS of them: a stand-in computes all rows in one way."""
    return t[..., :: max(1, t.shape[-2] // MAX_VERIFIED_ROWS), :]


def _raise_wrong_substitute(step: Step) -> NoReturn:
    raise RuleError(
        f"a rule computes {step.describe()} in a form of its own, which here gives another result than the call: write "
        "the operation out in the model, or explain the layer before it"
    )


def check_shapes(frozen_map: Map, step: Step, rule: str) -> Map:
    """Return the map; raise unless it maps the step's values to its result. User-defined maps are tested on zeros.

    Args:
        frozen_map: The map that the rule returned.
        step: The step.
        rule: Name of the rule, for the error message.
    """
    inner = frozen_map.inner if isinstance(frozen_map, Gated) else frozen_map
    wrong = _describe_mismatch(inner, step)
    if wrong is None:
        return frozen_map
    raise RuleError(f"the map of rule '{rule}' does not fit {step.describe()}: {wrong}")


def _describe_mismatch(frozen_map: Map, step: Step) -> str | None:
    if not set(frozen_map.slots) <= set(range(len(step.inputs))):
        return f"its slots are {frozen_map.slots}, and the step has {len(step.inputs)} live inputs, counted from 0"
    target = step.result.shape
    if isinstance(frozen_map, Scale):
        shape = frozen_map.factor.shape
        fits = len(shape) <= len(target) and all(
            n in (1, m) for n, m in zip(reversed(shape), reversed(target), strict=False)
        )
        return None if fits else f"a Scale of shape {tuple(shape)} cannot be spread over {tuple(target)}"
    if type(frozen_map).__module__.startswith("bilrp."):
        return None
    try:
        pushed = frozen_map.push(*(torch.zeros_like(step.values[slot])[None] for slot in frozen_map.slots))
        pulled = frozen_map.pull(torch.zeros_like(step.result)[None])
    except Exception:  # raised again by the run if it matters: some maps are only ever pushed
        return None
    if not isinstance(pushed, Tensor) or pushed.shape[1:] != target:
        return (
            f"push gives {_describe_shape(pushed)}, not a tensor of shape (K, {', '.join(map(str, target))})"
        )
    if not isinstance(pulled, tuple | list) or len(pulled) != len(frozen_map.slots):
        return (
            f"pull gives {_describe_shape(pulled)}, not a tuple of {len(frozen_map.slots)}, one for each slot: "
            f"return (…,)"
        )
    return None


def _describe_shape(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def format_missing_derivative(step: Step, name: str) -> str:
    """Return why a step cannot be differentiated and what to do, with the step under this name."""
    if step.op.startswith("quantized::"):
        return (
            "torch has no derivative of quantized steps: explain the model as it was before it was quantized"
        )
    advice = "write it out in the model with torch's own calls, or explain the layer before it"
    return f"torch has no derivative of {name}: {advice}"


def _changes_output(frozen_map: Linear | Jacobian, tangents: list[Tensor]) -> bool:
    """Return whether a small step changes the result. If not (a count, a sign), a derivative of zero is correct."""
    step = [
        torch.finfo(a.dtype).eps ** 0.5 * a.abs().mean() * t[0]
        for a, t in zip(frozen_map.at, tangents, strict=True)
    ]
    before = frozen_map.function(*frozen_map.at)
    return not torch.equal(
        before, frozen_map.function(*(a + s for a, s in zip(frozen_map.at, step, strict=True)))
    )


def _try_push(frozen_map: Linear | Jacobian, tangents: list[Tensor]) -> Tensor | None:
    """Return J s; None if torch has no forward-mode derivative, an error only if the run pushes."""
    try:
        return frozen_map.push(*tangents)
    except RuleError:
        return None


def _relative_difference(a: Tensor, b: Tensor) -> float:
    largest = max(float(a.abs().max()), float(b.abs().max()))
    return float((a - b).abs().max()) / largest if largest else 0.0


def _percent(difference: float) -> str:
    return f"{difference:.0%}" if math.isfinite(difference) else "all bounds"
