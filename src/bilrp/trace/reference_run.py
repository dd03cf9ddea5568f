"""Run the steps of a tape at a reference input as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.tape import ReferenceValues, Step, Tape

REFERENCE_TOLERANCE = 1e-3  # relative to the embedding: rounding, also by folded weights
Name = TypeVar("Name")


def run_at_reference(tape: Tape, reference: Tensor) -> Tape:
    """Run every step at the reference x₀; return the tape with `step.reference` and `tape.reference` set.

    Constants of the run stay the same, so this is the model at x₀ only if it takes the same branches there.
    """
    values = {tape.input: reference}
    steps = tuple(_run_step_at_reference(step, values) for step in tape.steps)
    return replace(tape, steps=steps, reference=ReferenceValues((reference,), values[tape.output]))


def _run_step_at_reference(step: Step, values: dict[int, Tensor]) -> Step:
    """Return the step with its values at the reference; add its result to `values` for later steps."""
    assert step.gate is None, "a fused ReLU hides the value before it"
    inputs = tuple(values[number] for number in step.inputs)
    try:
        result = step.run(*inputs)
    except RuntimeError as error:
        raise TapeError(
            f"{step.describe()} cannot be run at the reference input: {str(error).splitlines()[0]}"
        ) from error
    values[step.output] = result
    return replace(step, reference=ReferenceValues(inputs, result))


def read_reference_values(
    tape: Tape, model: Callable[[Tensor], Tensor], value_numbers: Mapping[Name, int]
) -> dict[Name, Tensor]:
    """Return values of a tape at its reference, and check the reference embedding against the model's own.

    Args:
        tape: a tape, with or without a reference.
        model: the model that was recorded.
        value_numbers: the value number to return under each name.
    """
    if tape.reference is None:
        return {}
    result, expected = tape.reference.result, model(tape.reference.values[0])
    scale = max(float(expected.abs().max()), float(tape.result.abs().max()))
    if (
        expected.shape != result.shape
        or not float((expected - result).abs().max()) <= REFERENCE_TOLERANCE * scale
    ):
        raise TapeError(
            "the model takes other branches at the reference input than at the input (they depend on its values), so "
            "secants between the two do not exist: use another reference, or rules without one"
        )
    results = {step.output: step.reference.result for step in tape.steps if step.reference is not None}
    return {name: results.get(value, result) for name, value in value_numbers.items()}
