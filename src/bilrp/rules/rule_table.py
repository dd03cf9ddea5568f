"""Table of the steps of a tape with the rule that a composite assigns to each."""

from __future__ import annotations

from bilrp.engine.program import Key, Link, TangentKind
from bilrp.errors import RuleError
from bilrp.rules.composites import CompositeFunction, bind_to_tape
from bilrp.rules.freezing import freeze_mask, freeze_step
from bilrp.trace.step_summary import NO_RULE, NOT_NEEDED, StepSummary
from bilrp.trace.tape import Step, Tape


def tabulate_rules(tape: Tape, composite: CompositeFunction) -> list[StepSummary]:
    """Return a row for each step, as `freeze` would treat it, without stopping at the first step that has no rule."""
    composite, needed = bind_to_tape(composite, tape), {Key(tape.output)}
    return [_tabulate_step(step, composite, needed) for step in reversed(tape.steps)][::-1]


def _tabulate_step(step: Step, composite: CompositeFunction, needed: set[Key]) -> StepSummary:
    """Return the row of a step, and add the values that its maps read to `needed`."""
    names, problems, note = [], [], None
    for kind in TangentKind:
        if Key(step.output, kind) not in needed:
            continue
        try:
            link = freeze_step(step, composite) if kind is TangentKind.VALUE else freeze_mask(step)
        except RuleError as error:
            names.append(NO_RULE)
            problems.append(str(error))
            needed.update(Key(value, kind) for value in step.inputs)  # continue, to report further problems
        else:
            names.append(link.rule)
            note = note or _describe_detached_factor(step, link)
            needed.update(link.sources)
    return StepSummary(
        name=step.name,
        op=step.label,
        inputs=tuple(tuple(v.shape) for v in step.values),
        output=tuple(step.result.shape),
        rule=" + ".join(dict.fromkeys(names)) or NOT_NEEDED,
        problem="; ".join(problems) or None,
        note=note,
    )


def _describe_detached_factor(step: Step, link: Link) -> str | None:
    """Return which factor of a product or quotient is detached and which stays live; None for other steps."""
    if step.operation.rule not in {"product", "quotient"} or (len(step.sources), len(link.map.slots)) != (
        2,
        1,
    ):
        return None
    live = link.map.slots[0]
    return f"{step.sources[1 - live].name} detached, {step.sources[live].name} live"
