"""freeze: apply a rule book to a tape. What comes out is a program of maps, and no longer knows what a step was called."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from bilrp.engine.maps import Map, Move, Scale, Shapes
from bilrp.engine.maps.affine_constants import with_constants_known
from bilrp.engine.program import Key, Kind, Link, Program
from bilrp.errors import RuleError
from bilrp.rules.activations import looks_elementwise
from bilrp.rules.affine import jacobian
from bilrp.rules.composites import RuleBook, book_name, call_of, reference_of
from bilrp.rules.rule import Rule
from bilrp.rules.verification import fitting, tried
from bilrp.trace.reference_run import beside
from bilrp.trace.devices import Ranges, on_host
from bilrp.trace.rewrite import simplify
from bilrp.trace.tape import Step, Tape
from bilrp.trace.layer_weights import weights_of


def readied(tape: Tape, book: RuleBook, keep: frozenset[int] = frozenset()) -> Tape:
    """The tape as the book's rules want it: simplified, and beside its run at a reference where they ask for one."""
    reference = reference_of(book)
    if reference is None:
        return simplify(tape, keep)
    return beside(simplify(tape, keep, fuse=False), reference(tape.x))


def freeze(tape: Tape, book: RuleBook, output: int | None = None) -> Program:
    """Apply the rule book to every step that the output still depends on once the rules have frozen what they freeze.

    A step that is only reached through frozen factors (the queries of an attention, the inside of a norm) needs no rule.
    """
    output = tape.output if output is None else output
    needed = {Key(output)}
    links: list[Link] = []
    result = tape.result if output == tape.output else None
    for step in reversed(tape.steps if on_host(tape.x) else _measured(tape.steps)):
        if step.output == output and result is None:
            result = step.result if step.gate is None else step.result * step.gate
        for kind in (Kind.VALUE, Kind.MASK):
            if Key(step.output, kind) in needed:
                link = frozen_link(step, book) if kind is Kind.VALUE else mask_link(step)
                links.append(link)
                needed.update(link.sources)
    assert result is not None
    if not on_host(tape.x):
        maps = with_constants_known([link.map for link in links])
        links = [replace(link, map=each) for link, each in zip(links, maps, strict=True)]
    # with secants it is the difference from the reference that is taken apart
    x = tape.x if tape.reference is None else tape.x - tape.reference.values[0]
    return Program(x=x, links=tuple(reversed(links)), output=Key(output), result=result, weights=tape.weights)


def _measured(steps: tuple[Step, ...]) -> list[Step]:
    """The steps, with weighted ones knowing the signs of all their values: an accelerator is asked for them once."""
    weighted = [step for step in steps if step.operation.places is not None]
    ranges = Ranges(t for step in weighted for t in (*step.values, step.result))
    return [step if step.operation.places is None else replace(step, ranges=ranges) for step in steps]


def frozen_link(step: Step, book: RuleBook) -> Link:
    rule = book(step)
    if rule is None:
        raise RuleError(missing_rule(step, book))
    if not isinstance(rule, Rule):
        raise RuleError(f"{book_name(book)} gave {type(rule).__name__} for {step.describe()}, not a rule")
    frozen = tried(fitting(rule(step), step, rule.name), step)
    return _link(step, frozen, Kind.MASK if frozen.on_mask else Kind.VALUE, Kind.VALUE, rule.name)


def _link(step: Step, frozen: Map, source: Kind, target: Kind, rule: str) -> Link:
    """The map in its place: the engine sees shapes and names, not the step."""
    return Link(
        map=frozen,
        sources=tuple(Key(step.inputs[slot], source) for slot in frozen.slots),
        target=Key(step.output, target),
        shapes=Shapes(tuple(step.values[slot].shape for slot in frozen.slots), step.result.shape),
        dtype=step.result.dtype,
        name=step.name,
        rule=rule,
    )


def mask_link(step: Step) -> Link:
    """How a region's mask passes a step on its way to a first-layer rule."""
    same_shape = len(step.inputs) == 1 and step.values[0].shape == step.result.shape
    if step.operation.mask == "keeps" and same_shape:
        same = Scale(step.result.new_ones(()))
        return _link(step, same, Kind.MASK, Kind.MASK, "mask")
    if step.operation.mask == "moves":
        slots = tuple(range(len(step.inputs)))
        return _link(step, Move(step.run, step.values, slots), Kind.MASK, Kind.MASK, "mask")
    raise RuleError(
        f"z^B, flat and w² are rules for the first layer, on the input itself, but {step.describe()} comes before: "
        "use gamma, epsilon or zero there"
    )


def missing_rule(step: Step, book: RuleBook) -> str:
    """One line: which step, which shapes, and the call that fixes it."""
    made_by = " and ".join(source.name for source in step.sources)
    reason, rule, mode = "", "jacobian()", ""
    if len(step.inputs) == 2 and step.operation.rule == "product":
        reason, rule = (
            f"the two live factors come from {made_by}; say which one to freeze: ",
            "product(freeze=1)",
        )
    elif weights_of(step) is not None:
        rule = "gamma(0.25)"
    else:  # advice that has been tried
        derivatives = derivatives_of(step)
        if derivatives == "none":
            return f"no rule in {book_name(book)} for {step.describe()}, and {_without_derivative(step)}"
        mode = ", mode='pull'" if derivatives == "pull" else ""
    fix = f"rules=bilrp.composites.first_match(('{step.name}', bilrp.rules.{rule}), otherwise={call_of(book)}){mode}"
    return f"no rule in {book_name(book)} for {step.describe()}: {reason}{fix}{_row_for(step)}"


def derivatives_of(step: Step) -> Literal["both", "pull", "none"]:
    """Which derivatives of a step torch has, tried: those that go forward, too, or only backward ones, or none."""
    doubtful = replace(step, operation=replace(step.operation, checked=True))
    try:
        made = tried(jacobian()(doubtful), doubtful)
    except RuleError:
        return "none"
    try:
        made.push(*(torch.zeros_like(value)[None] for value in step.values))
    except RuleError:
        return "pull"
    return "both"


def _without_derivative(step: Step) -> str:
    if step.op.startswith("quantized::"):
        return (
            "torch has no derivative of quantized steps: explain the model as it was before it was quantized"
        )
    return "torch has no derivative of it: write it out in the model with torch's own calls, or explain the layer before it"


def _row_for(step: Step) -> str:
    """The row that would do for an operation which is not in the table, where it looks as if it were elementwise."""
    alike = len(step.inputs) == 1 and step.values[0].shape == step.result.shape
    if step.operation.kind != "unknown" or not alike or not looks_elementwise(step):
        return ""
    if bool((step.run(torch.zeros_like(step.values[0])) != 0).any()):
        row = f"curve('{step.op}', factor='scale')"
        return (
            f"; or, if it makes a scale of other features, Encoder(operations=(bilrp.trace.operation.{row},))"
        )
    row = f"activation('{step.op}')"
    return f"; or, if it is elementwise with f(0) = 0, Encoder(operations=(bilrp.trace.operation.{row},))"
