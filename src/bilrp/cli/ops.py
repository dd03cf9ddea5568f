"""`bilrp ops`: what an encoder is made of, step by step."""

from __future__ import annotations

from typing import Annotated

import typer

from bilrp.encoders.families import HELP
from bilrp.errors import InputError


def ops(
    encoder: Annotated[
        str,
        typer.Argument(help=f"{HELP}."),
    ],
    size: Annotated[int, typer.Option(help="Side of the image tried.", min=1)] = 128,
    shape: Annotated[
        str | None, typer.Option(help="Shape of the input tried, if it is no image: 1,16,384")
    ] = None,
) -> None:
    """Every step of an encoder, its shapes and its rule; exit code 1 if a step has none."""
    from bilrp.cli.texts import reads_text
    from bilrp.encoder import ops as rows_of
    from bilrp.encoder import read_item
    from bilrp.encoders.families import load
    from bilrp.trace.listing import default_shape, random_input, show

    # Rules don't depend on the weights: random ones spare a download.
    found = load(encoder, pretrained=False)
    if reads_text(found) and shape is None:
        x = read_item(found, "A cat sat on the mat.").x
    else:
        x = random_input(found.module, shape or default_shape(found.module, size))
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
