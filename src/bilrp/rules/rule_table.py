"""Every step of a tape with the rule a rule book gives it, and what has none."""

from __future__ import annotations

from bilrp.engine.program import Key, Kind, Link
from bilrp.errors import RuleError
from bilrp.rules.composites import RuleBook
from bilrp.rules.freezing import frozen_link, mask_link
from bilrp.trace.step_summary import NO_RULE, NOT_NEEDED, Row
from bilrp.trace.tape import Step, Tape


def rows(tape: Tape, book: RuleBook) -> list[Row]:
    """The tape's steps in order, as `freeze` would treat them; it does not stop at the first step without a rule."""
    needed = {Key(tape.output)}
    return [_row(step, book, needed) for step in reversed(tape.steps)][::-1]


def _row(step: Step, book: RuleBook, needed: set[Key]) -> Row:
    """The step's row; what its maps read becomes needed."""
    found, problems, note = [], [], None
    for kind in Kind:
        if Key(step.output, kind) not in needed:
            continue
        try:
            link = frozen_link(step, book) if kind is Kind.VALUE else mask_link(step)
        except RuleError as error:
            found.append(NO_RULE)
            problems.append(str(error))
            needed.update(Key(value, kind) for value in step.inputs)  # look further: there may be more
        else:
            found.append(link.rule)
            note = note or _frozen(step, link)
            needed.update(link.sources)
    return Row(
        name=step.name,
        op=step.label,
        inputs=tuple(tuple(v.shape) for v in step.values),
        output=tuple(step.result.shape),
        rule=" + ".join(dict.fromkeys(found)) or NOT_NEEDED,
        problem="; ".join(problems) or None,
        note=note,
    )


def _frozen(step: Step, link: Link) -> str | None:
    """Of a product or a quotient, in words: which factor is frozen, and which stays live."""
    if step.operation.rule not in {"product", "quotient"} or (len(step.sources), len(link.map.slots)) != (
        2,
        1,
    ):
        return None
    live = link.map.slots[0]
    return f"{step.sources[1 - live].name} frozen, {step.sources[live].name} live"
