"""Tape → Tape: in a float64 run nothing is rounded on the way.

Models written for half precision compute their norms in float32, also where they run in float64. Rounding is no part of
a linear map: left on the tape, it would make push and pull differ in the eighth digit.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bilrp.trace.tape import Step, Tape, mapped


def widen(tape: Tape) -> Tape:
    """Every value, constant and type of a float64 run in float64: casts between become identities.

    >>> from bilrp.trace.recorder import record
    >>> tape = record(lambda x: x.float().double() * 2, torch.ones(1, 2, dtype=torch.float64))
    >>> {step.result.dtype for step in widen(tape).steps}
    {torch.float64}
    """
    if tape.x.dtype != torch.float64 or not any(_narrow(step) for step in tape.steps):
        return tape
    return replace(tape, steps=tuple(_widened(step) for step in tape.steps), result=_wide(tape.result))


def _widened(step: Step) -> Step:
    return replace(
        step,
        args=_everywhere(step.args),
        kwargs=_everywhere(step.kwargs),
        values=tuple(_wide(value) for value in step.values),
        result=_wide(step.result),
    )


def _narrow(step: Step) -> bool:
    return any(value.dtype != torch.float64 for value in (*step.values, step.result))


def _everywhere(tree):
    """Tensors and named types among nested arguments."""
    floats = mapped(tree, lambda kind: torch.float64 if kind.is_floating_point else kind, torch.dtype)
    return mapped(floats, _wide)


def _wide(t: Tensor) -> Tensor:
    return t.double() if t.dtype.is_floating_point else t
