"""Tape → Tape: the same steps once more at a reference input, each result beside the one at the input itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.tape import ReferenceValues, Step, Tape

REFERENCE_TOLERANCE = 1e-3  # of an embedding: rounding, also of weights that were folded
Name = TypeVar("Name")


def run_at_reference(tape: Tape, reference: Tensor) -> Tape:
    """The tape with every step's values at the reference x₀ as well: `step.reference`, and `tape.reference` for the whole.

    What was a constant of the run stays one, so this is the model at x₀ only as far as it goes the same way there.

    >>> import torch
    >>> from bilrp.trace.recorder import record
    >>> tape = run_at_reference(record(torch.nn.ReLU(), torch.ones(1, 2)), -torch.ones(1, 2))
    >>> tape.result, tape.reference.result
    (tensor([[1., 1.]]), tensor([[0., 0.]]))
    """
    values = {tape.input: reference}
    steps = tuple(_run_step_at_reference(step, values) for step in tape.steps)
    return replace(tape, steps=steps, reference=ReferenceValues((reference,), values[tape.output]))


def _run_step_at_reference(step: Step, values: dict[int, Tensor]) -> Step:
    """The step with what it saw and made at the reference, which `values` keeps for those after it."""
    assert step.gate is None, "a fused ReLU hides the value before it"
    seen = tuple(values[number] for number in step.inputs)
    try:
        made = step.run(*seen)
    except RuntimeError as error:
        raise TapeError(
            f"{step.describe()} cannot be run at the reference input: {str(error).splitlines()[0]}"
        ) from error
    values[step.output] = made
    return replace(step, reference=ReferenceValues(seen, made))


def read_reference_values(
    tape: Tape, model: Callable[[Tensor], Tensor], value_numbers: Mapping[Name, int]
) -> dict[Name, Tensor]:
    """Values of a tape at its reference by name, none where it has none; the model itself must give the same there."""
    if tape.reference is None:
        return {}
    found, true = tape.reference.result, model(tape.reference.values[0])
    size = max(float(true.abs().max()), float(tape.result.abs().max()))
    if true.shape != found.shape or not float((true - found).abs().max()) <= REFERENCE_TOLERANCE * size:
        raise TapeError(
            "the model does something else at the reference input than at the input itself (it decides by its numbers), so "
            "there are no secants between the two: use another reference, or rules without one"
        )
    made = {step.output: step.reference.result for step in tape.steps if step.reference is not None}
    return {name: made.get(value, found) for name, value in value_numbers.items()}
