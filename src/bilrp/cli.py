"""The command line: explain, ops, study, bench. Thin: parse, call the library, print; errors are one line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bilrp.errors import BilrpError, InputError

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
study = typer.Typer(
    help="Run one experiment of the paper, from data to table and figure.", no_args_is_help=True
)
app.add_typer(study, name="study")


@app.callback()
def root() -> None:
    """Which parts of these two inputs make the model call them similar?"""


@app.command()
def ops(
    encoder: Annotated[str, typer.Argument(help="vgg16:31, or package.module:function that returns one")],
    size: Annotated[int, typer.Option(help="Side of the image tried.", min=1)] = 128,
    shape: Annotated[
        str | None, typer.Option(help="Shape of the input tried, if it is no image: 1,16,384")
    ] = None,
) -> None:
    """Every step of an encoder, its shapes and its rule; exit code 1 if a step has none."""
    from bilrp.encoders.load import load
    from bilrp.ops import ops as rows_of
    from bilrp.ops import random_input, show

    # Rules don't depend on the weights: random ones spare a download.
    found = load(encoder, size=size, pretrained=False)
    x = random_input(found, shape or f"1,3,{size},{size}")
    try:
        rows = rows_of(found, x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        hint = "give the shape it takes with --shape, e.g. --shape 1,16,384"
        raise InputError(
            f"{found.name} does not run on an input of shape {tuple(x.shape)} ({first}): {hint}"
        ) from error
    show(rows, title=found.name)
    if any(row.problem for row in rows):
        raise typer.Exit(1)


def main() -> None:
    """Entry point: every expected failure becomes one line on stderr and exit code 2."""
    try:
        app()
    except BilrpError as error:
        print(f"bilrp: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("bilrp: interrupted", file=sys.stderr)
        sys.exit(130)
