"""The table of steps that `bilrp ops` prints, and a random input to run a model on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilrp.errors import InputError

NOT_NEEDED = "not needed"
NO_RULE = "none"


@dataclass(frozen=True)
class StepSummary:
    """One step of a tape and its rule.

    Args:
        name, op: name and operation of the step.
        inputs, output: shapes.
        rule: name of the rule, `NOT_NEEDED` or `NO_RULE`.
        problem: why there is no rule, and what to do.
        note: which factor of a product is detached, by the operation that produced it.
    """

    name: str
    op: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    rule: str
    problem: str | None = None
    note: str | None = None


def make_random_input(module: Callable[[Tensor], Tensor], shape: str) -> Tensor:
    """Return seeded random values in [0, 1) of a shape like '1,3,128,128', in the model's dtype and on its device."""
    try:
        sizes = [int(n) for n in shape.replace("x", ",").split(",")]
    except ValueError:
        raise InputError(f"a shape needs integers with commas, e.g. 1,3,224,224, got {shape!r}") from None
    if len(sizes) < 2 or sizes[0] != 1 or min(sizes) < 1:
        raise InputError(f"the shape needs a leading batch axis of 1, e.g. 1,3,224,224, got {shape!r}")
    x = torch.rand(sizes, generator=torch.Generator().manual_seed(0))
    parameters = module.parameters() if isinstance(module, nn.Module) else iter(())
    like = next((p for p in parameters if p.dtype.is_floating_point), x)
    return x.to(like)


def guess_input_shape(module: Callable[[Tensor], Tensor], size: int) -> str:
    """Return the shape of a square image with the channels of the model's first convolution, else three."""
    modules = module.modules() if isinstance(module, nn.Module) else iter(())
    first = next((m for m in modules if isinstance(m, nn.Conv2d)), None)
    return f"1,{3 if first is None else first.in_channels},{size},{size}"


def print_summary(rows: list[StepSummary], *, title: str = "") -> None:
    """Print the steps as a table, those without a rule in red and with advice below."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("#", "step", "operation", "input", "output", "rule"):
        table.add_column(column, justify="right" if column == "#" else "left", overflow="fold")
    for number, row in enumerate(rows, 1):
        style = "bold red" if row.problem else "dim" if row.rule == NOT_NEEDED else None
        shapes = ", ".join(_format_shape(shape) for shape in row.inputs)
        rule = row.rule if row.note is None else f"{row.rule}: {row.note}"
        table.add_row(str(number), row.name, row.op, shapes, _format_shape(row.output), rule, style=style)
    console.print(table)
    missing = [row for row in rows if row.problem]
    steps = "1 step" if len(rows) == 1 else f"{len(rows)} steps"
    rest = f"[bold red]{len(missing)} without a rule[/]" if missing else "all with a rule"
    console.print(f"\n{steps}, {'with a rule' if steps == '1 step' and not missing else rest}")
    for row in missing:
        console.print(f"  {row.problem}", style="red", markup=False, highlight=False, soft_wrap=True)


def _format_shape(shape: tuple[int, ...]) -> str:
    return "×".join(str(n) for n in shape) or "()"
