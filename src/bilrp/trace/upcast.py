"""Tape → Tape: in a float64 run nothing is rounded on the way.

Models written for half precision compute their norms in float32, also where they run in float64. Rounding is no part of
a linear map: left on the tape, it would make push and pull differ in the eighth digit.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bilrp.trace.tape import Step, Tape, tree_map


def upcast_to_float64(tape: Tape) -> Tape:
    """Every value, constant and type of a float64 run in float64: casts between become identities.

    >>> from bilrp.trace.recorder import record
    >>> tape = record(lambda x: x.float().double() * 2, torch.ones(1, 2, dtype=torch.float64))
    >>> {step.result.dtype for step in upcast_to_float64(tape).steps}
    {torch.float64}
    """
    if tape.x.dtype != torch.float64 or not any(_is_narrow(step) for step in tape.steps):
        return tape
    return replace(
        tape, steps=tuple(_upcast_step(step) for step in tape.steps), result=_upcast_tensor(tape.result)
    )


def _upcast_step(step: Step) -> Step:
    return replace(
        step,
        args=_upcast_arguments(step.args),
        kwargs=_upcast_arguments(step.kwargs),
        values=tuple(_upcast_tensor(value) for value in step.values),
        result=_upcast_tensor(step.result),
    )


def _is_narrow(step: Step) -> bool:
    return any(value.dtype != torch.float64 for value in (*step.values, step.result))


def _upcast_arguments(tree):
    """Tensors and named types among nested arguments."""
    floats = tree_map(tree, lambda kind: torch.float64 if kind.is_floating_point else kind, torch.dtype)
    return tree_map(floats, _upcast_tensor)


def _upcast_tensor(t: Tensor) -> Tensor:
    return t.double() if t.dtype.is_floating_point else t
