"""Freeze a tape: apply a composite to its steps, which gives a program of linear maps without torch calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from bilrp.engine.maps import Map, Rearrange, Scale, Shapes
from bilrp.engine.maps.affine_constants import detect_constants
from bilrp.engine.program import Key, Link, Program, TangentKind
from bilrp.errors import RuleError
from bilrp.rules.activations import is_elementwise
from bilrp.rules.affine import jacobian
from bilrp.rules.composites import (
    CompositeFunction,
    bind_to_tape,
    composite_name,
    composite_reference,
    format_call,
)
from bilrp.rules.rule import Rule
from bilrp.rules.verification import check_shapes, format_missing_derivative, verify_adjoint
from bilrp.trace.devices import ValueRanges, is_on_cpu
from bilrp.trace.layer_weights import extract_weights
from bilrp.trace.reference_run import run_at_reference
from bilrp.trace.rewrite import simplify
from bilrp.trace.tape import Step, Tape


def prepare_tape(tape: Tape, composite: CompositeFunction, keep: frozenset[int] = frozenset()) -> Tape:
    """Simplify the tape, and run it at the reference input if the composite has one.

    Args:
        tape: The recorded run.
        composite: The composite that will be applied.
        keep: Numbers of values that must remain outputs of a step, such as requested layers.
    """
    reference = composite_reference(composite)
    if reference is None:
        return simplify(tape, keep)
    return run_at_reference(simplify(tape, keep, fuse=False), reference(tape.x))


def freeze(tape: Tape, composite: CompositeFunction, output: int | None = None) -> Program:
    """Apply the composite to every step on which the output depends, and return the program of linear maps.

    A step that is reached only through detached factors (the queries of an attention, the inside of a norm) needs no rule.

    Args:
        tape: The recorded run, prepared by `prepare_tape`.
        composite: Assigns a rule to each step.
        output: Number of the value to decompose; by default the embedding.
    """
    composite = bind_to_tape(composite, tape)
    output = tape.output if output is None else output
    needed = {Key(output)}
    links: list[Link] = []
    result = tape.result if output == tape.output else None
    for step in reversed(tape.steps if is_on_cpu(tape.x) else _with_ranges(tape.steps)):
        if step.output == output and result is None:
            result = step.result if step.gate is None else step.result * step.gate
        for kind in (TangentKind.VALUE, TangentKind.MASK):
            if Key(step.output, kind) in needed:
                link = freeze_step(step, composite) if kind is TangentKind.VALUE else freeze_mask(step)
                links.append(link)
                needed.update(link.sources)
    assert result is not None
    if not is_on_cpu(tape.x):
        maps = detect_constants([link.map for link in links])
        links = [replace(link, map=each) for link, each in zip(links, maps, strict=True)]
    # with secants the difference from the reference is decomposed
    x = tape.x if tape.reference is None else tape.x - tape.reference.values[0]
    return Program(x=x, links=tuple(reversed(links)), output=Key(output), result=result, weights=tape.weights)


def _with_ranges(steps: tuple[Step, ...]) -> list[Step]:
    """Return the steps, weighted ones with the value ranges of their tensors, which are read in one transfer."""
    weighted = [step for step in steps if step.operation.arg_positions is not None]
    ranges = ValueRanges(t for step in weighted for t in (*step.values, step.result))
    return [step if step.operation.arg_positions is None else replace(step, ranges=ranges) for step in steps]


def freeze_step(step: Step, composite: CompositeFunction) -> Link:
    """Freeze a step by the composite's rule, and verify the map."""
    rule = composite(step)
    if rule is None:
        raise RuleError(describe_missing_rule(step, composite))
    if not isinstance(rule, Rule):
        raise RuleError(
            f"{composite_name(composite)} gave {type(rule).__name__} for {step.describe()}, not a rule"
        )
    frozen = verify_adjoint(check_shapes(rule(step), step, rule.name), step)
    return _make_link(
        step, frozen, TangentKind.MASK if frozen.on_mask else TangentKind.VALUE, TangentKind.VALUE, rule.name
    )


def _make_link(step: Step, frozen_map: Map, source: TangentKind, target: TangentKind, rule: str) -> Link:
    """Return the link of a map in the program; it has the shapes and names of the step, but no reference to it."""
    return Link(
        map=frozen_map,
        sources=tuple(Key(step.inputs[slot], source) for slot in frozen_map.slots),
        target=Key(step.output, target),
        shapes=Shapes(tuple(step.values[slot].shape for slot in frozen_map.slots), step.result.shape),
        dtype=step.result.dtype,
        name=step.name,
        rule=rule,
    )


def freeze_mask(step: Step) -> Link:
    """Return the map of a region's mask through a step before a first-layer rule; raise if there is none."""
    same_shape = len(step.inputs) == 1 and step.values[0].shape == step.result.shape
    if step.operation.mask == "keeps" and same_shape:
        same = Scale(step.result.new_ones(()))
        return _make_link(step, same, TangentKind.MASK, TangentKind.MASK, "mask")
    if step.operation.mask == "moves":
        slots = tuple(range(len(step.inputs)))
        return _make_link(
            step, Rearrange(step.run, step.values, slots), TangentKind.MASK, TangentKind.MASK, "mask"
        )
    raise RuleError(
        f"z^B, flat and w² are rules for the first layer, on the input itself, but {step.describe()} comes before: "
        "use gamma, epsilon or zero there"
    )


def describe_missing_rule(step: Step, composite: CompositeFunction) -> str:
    """Return a one-line message: the step, its shapes, and the call that fixes it."""
    made_by = " and ".join(source.name for source in step.sources)
    reason, rule, mode = "", "jacobian()", ""
    if len(step.inputs) == 2 and step.operation.rule == "product":
        reason, rule = (
            f"the two live factors come from {made_by}; say which one to detach: ",
            "product(freeze=1)",
        )
    elif extract_weights(step) is not None:
        rule = "gamma(0.25)"
    else:  # suggest only what works
        derivatives = available_derivatives(step)
        if derivatives == "none":
            reason = format_missing_derivative(step, "it")
            return f"no rule in {composite_name(composite)} for {step.describe()}, and {reason}"
        mode = ", mode='pull'" if derivatives == "pull" else ""
    fix = (
        f"composite=bilrp.composites.first_match(('{step.name}', bilrp.rules.{rule}), "
        f"otherwise={format_call(composite)}){mode}"
    )
    return f"no rule in {composite_name(composite)} for {step.describe()}: {reason}{fix}{_suggest_operation(step)}"


def available_derivatives(step: Step) -> Literal["both", "pull", "none"]:
    """Try which derivatives of a step torch has: forward and backward ("both"), only backward ("pull"), or none."""
    doubtful = replace(step, operation=replace(step.operation, verify_derivative=True))
    try:
        checked_map = verify_adjoint(jacobian()(doubtful), doubtful)
    except RuleError:
        return "none"
    try:
        checked_map.push(*(torch.zeros_like(value)[None] for value in step.values))
    except RuleError:
        return "pull"
    return "both"


def _suggest_operation(step: Step) -> str:
    """Return advice to add an unknown operation to the table if it appears to be elementwise, else an empty string."""
    alike = len(step.inputs) == 1 and step.values[0].shape == step.result.shape
    if step.operation.kind != "unknown" or not alike or not is_elementwise(step):
        return ""
    if bool((step.run(torch.zeros_like(step.values[0])) != 0).any()):
        row = f"elementwise_nonzero('{step.op}', factor='scale')"
        return (
            f"; or, if it makes a scale of other features, Encoder(operations=(bilrp.trace.operation.{row},))"
        )
    row = f"activation('{step.op}')"
    return f"; or, if it is elementwise with f(0) = 0, Encoder(operations=(bilrp.trace.operation.{row},))"
