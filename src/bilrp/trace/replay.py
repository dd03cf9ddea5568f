"""Run a tape once more, from its input: a step that now gives other numbers was not seen as it was."""

from __future__ import annotations

import torch
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.tape import Tape


def replay(tape: Tape) -> None:
    """Run the tape once more, from the input: a step that now gives other numbers was not seen as it was."""
    with torch.no_grad():
        values = {tape.input: tape.x}
        last = {value: i for i, step in enumerate(tape.steps) for value in step.inputs}
        for i, step in enumerate(tape.steps):
            try:
                values[step.output] = step.run(*(values[v] for v in step.inputs))
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise TapeError(
                    f"{step.describe()} cannot be run again by itself ({reason}): compute it outside the model"
                ) from error
            if not same_numbers(values[step.output], step.result):
                raise TapeError(
                    f"running {step.describe()} again gives other numbers: the model is random, or overwrites its "
                    "constants while it runs; make it write out of place"
                )
            for value in set(step.inputs):
                if last[value] == i:
                    del values[value]


def same_numbers(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if torch.equal(a, b):
        return True
    finite = torch.nan_to_num(b.detach(), nan=0.0, posinf=0.0, neginf=0.0)
    slack = 100 * max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps)
    slack = max(slack, 1e-9)
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(a.to(b.dtype), b, rtol=slack, atol=slack * largest, equal_nan=True)
