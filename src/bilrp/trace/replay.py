"""Run a tape once more, from its input: a step that now gives other numbers was not seen as it was."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.compare import equal
from bilrp.trace.tape import Slot, Step, Tape, mapped

SHARE = 16  # one in so many outputs of a product with weights is computed again
FEW = 64  # outputs that are all computed again
GROUPS = 6  # where a convolution is told its groups
HELD = (Tensor, Slot)  # what a step's arguments hold of tensors


def replay(tape: Tape) -> None:
    """Run the tape once more, from the input: a step that now gives other numbers was not seen as it was.

    Products with weights take nearly all of a run's time, and are run for some of their outputs. Nothing is lost by
    it where torch counts writes: what was written to since is run whole. A write that torch does not see (numpy's,
    into the memory of a weight) is found where it reaches those outputs.
    """
    with torch.no_grad():
        values = {tape.input: tape.x}
        last = {value: i for i, step in enumerate(tape.steps) for value in step.inputs}
        for i, step in enumerate(tape.steps):
            live = tuple(values[v] for v in step.inputs)
            try:
                again = step.result if _holds_in_part(step, live, i) else step.run(*live)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise TapeError(
                    f"{step.describe()} cannot be run again by itself ({reason}): compute it outside the model"
                ) from error
            if again is not step.result and not same_numbers(again, step.result):
                raise TapeError(
                    f"running {step.describe()} again gives other numbers: the model is random, or overwrites its "
                    "constants while it runs; make it write out of place"
                )
            values[step.output] = again
            for value in set(step.inputs):
                if last[value] == i:
                    del values[value]


def _holds_in_part(step: Step, live: tuple[Tensor, ...], turn: int) -> bool:
    """Does a product with weights give the same numbers again, where some of its outputs are asked? (No: ask for all.)"""
    at = step.operation.places
    weight = None if at is None else at.weight.of(step.args, step.kwargs)
    if at is None or at.columns or at.windows == "transposed" or not isinstance(weight, Tensor):
        return False
    if step.written != step.versions or weight.dim() < 2 or step.item is not None:
        return False
    count, bias = weight.shape[0], None if at.bias is None else at.bias.of(step.args, step.kwargs)
    usual = bias is None or (isinstance(bias, Tensor) and bias.shape == (count,))
    groups = step.argument(GROUPS, "groups", 1)
    # where each channel is convolved by itself, some outputs need the same channels of the input alone
    apart = bool(at.windows) and groups == count and weight.shape[1] == 1
    if count < FEW or not usual or not (groups == 1 or apart):
        return False
    length = -(-count // SHARE)
    start = turn * length % (count - length + 1)
    axis = 1 - weight.dim() if at.windows else -1

    def some(thing: Tensor | Slot) -> Tensor:
        if isinstance(thing, Slot):
            return live[thing.index].narrow(axis, start, length) if apart else live[thing.index]
        return thing.narrow(0, start, length) if thing is weight or thing is bias else thing

    try:
        args, kwargs = mapped(step.args, some, HELD), mapped(step.kwargs, some, HELD)
        if apart:
            args, kwargs = _in_groups(args, kwargs, length)
        part = step.call(*args, **kwargs)
        return same_numbers(part, step.result.narrow(axis, start, length))
    except (RuntimeError, IndexError, TypeError, ValueError):  # a call with its own ideas about shapes
        return False


def _in_groups(args: tuple[Any, ...], kwargs: dict[str, Any], groups: int) -> tuple[Any, dict[str, Any]]:
    """A convolution's arguments with another number of groups."""
    if len(args) > GROUPS:
        return (*args[:GROUPS], groups, *args[GROUPS + 1 :]), kwargs
    return args, {**kwargs, "groups": groups}


def same_numbers(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if equal(a, b):
        return True
    finite = torch.nan_to_num(b.detach(), nan=0.0, posinf=0.0, neginf=0.0)
    slack = 100 * max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps)
    slack = max(slack, 1e-9)
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(a.to(b.dtype), b, rtol=slack, atol=slack * largest, equal_nan=True)
