"""ops(encoder, x): every step of a run with the rule it gets, and what has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.encoder import Encoder, as_encoder, read_input
from bilrp.engine.program import Key
from bilrp.errors import InputError, RuleError
from bilrp.rules.books import RuleBook, as_book
from bilrp.rules.choose import default_book
from bilrp.rules.freeze import frozen_link, mask_link
from bilrp.trace.rewrite import simplify
from bilrp.trace.tape import Step, record

NOT_NEEDED = "not needed"
NO_RULE = "none"


@dataclass(frozen=True)
class Row:
    """One step: its name, operation, shapes and rule; `problem` says why it has none and what to do."""

    name: str
    op: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    rule: str
    problem: str | None = None


def ops(encoder: Any, x: Any, *, rules: Any = None) -> list[Row]:
    """Every step of the encoder's run at x, in order, as `decompose` would treat it: the rule, or what has none.

    Batch norm is folded and ReLUs are fused by then. A step that is only reached through frozen factors (the queries
    of an attention) is 'not needed'. Unlike `decompose`, this doesn't stop at the first step without a rule.

    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Softmax(dim=1))
    >>> [(row.op, row.rule) for row in ops(net, torch.ones(1, 4))]
    [('linear+relu', 'gamma(0.25)'), ('softmax', 'none')]
    """
    encoder = as_encoder(encoder)
    inputs = read_input(encoder, x)
    chosen = encoder.rules if rules is None else rules
    with torch.no_grad():
        tape = simplify(record(encoder.module, inputs))
        book = default_book(tape) if chosen is None else as_book(chosen)
        needed: set[Key] = {(tape.output, "value")}
        rows = [_row(step, book, needed) for step in reversed(tape.steps)]
    return rows[::-1]


def _row(step: Step, book: RuleBook, needed: set[Key]) -> Row:
    """The step's row; what its maps read becomes needed."""
    found, problems = [], []
    for kind in ("value", "mask"):
        if (step.output, kind) not in needed:
            continue
        try:
            link = frozen_link(step, book) if kind == "value" else mask_link(step)
        except RuleError as error:
            found.append(NO_RULE)
            problems.append(str(error))
            needed.update((value, kind) for value in step.inputs)  # look further: there may be more
        else:
            found.append(link.rule)
            needed.update(link.sources)
    return Row(
        name=step.name,
        op=step.label,
        inputs=tuple(tuple(v.shape) for v in step.values),
        output=tuple(step.result.shape),
        rule=" + ".join(dict.fromkeys(found)) or NOT_NEEDED,
        problem="; ".join(problems) or None,
    )


def random_input(encoder: Encoder, shape: str) -> Tensor:
    """Numbers from 0 to 1 of that shape ('1,3,128,128'), seeded, in the type and on the device of the model.

    >>> random_input(Encoder(torch.nn.Identity()), "1,3").shape
    torch.Size([1, 3])
    """
    try:
        sizes = [int(n) for n in shape.replace("x", ",").split(",")]
    except ValueError:
        raise InputError(f"a shape is numbers with commas, e.g. 1,3,224,224, got {shape!r}") from None
    if len(sizes) < 2 or sizes[0] != 1 or min(sizes) < 1:
        raise InputError(f"the shape needs a leading batch axis of 1, e.g. 1,3,224,224, got {shape!r}")
    x = torch.rand(sizes, generator=torch.Generator().manual_seed(0))
    parameters = encoder.module.parameters() if isinstance(encoder.module, nn.Module) else iter(())
    like = next((p for p in parameters if p.dtype.is_floating_point), x)
    return x.to(like)


def default_shape(encoder: Encoder, size: int) -> str:
    """The shape of an image as the encoder takes it: as many channels as its first convolution, else three."""
    modules = encoder.module.modules() if isinstance(encoder.module, nn.Module) else iter(())
    first = next((m for m in modules if isinstance(m, nn.Conv2d)), None)
    return f"1,{3 if first is None else first.in_channels},{size},{size}"


def show(rows: list[Row], *, title: str = "") -> None:
    """Print the rows as a table; steps without a rule in red, with what to do about each below."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("#", "step", "operation", "input", "output", "rule"):
        table.add_column(column, justify="right" if column == "#" else "left", overflow="fold")
    for number, row in enumerate(rows, 1):
        style = "bold red" if row.problem else "dim" if row.rule == NOT_NEEDED else None
        shapes = ", ".join(_times(shape) for shape in row.inputs)
        table.add_row(str(number), row.name, row.op, shapes, _times(row.output), row.rule, style=style)
    console.print(table)
    missing = [row for row in rows if row.problem]
    console.print(
        f"\n{len(rows)} steps, [bold red]{len(missing)} without a rule[/]"
        if missing
        else f"\n{len(rows)} steps, all with a rule"
    )
    for row in missing:
        console.print(f"  {row.problem}", style="red", markup=False, highlight=False, soft_wrap=True)


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(str(n) for n in shape) or "()"
