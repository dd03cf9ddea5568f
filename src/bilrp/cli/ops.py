"""`bilrp ops`: what an encoder is made of, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.encoders.registry import HELP
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.encoder import Encoder


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
    from bilrp.encoder import Towers
    from bilrp.encoders.registry import named

    # Rules don't depend on the weights: random ones spare a download.
    found = named(encoder, pretrained=False)
    towers = (found.image, found.text) if isinstance(found, Towers) else (found,)
    lacking = [_listed(tower, size, shape) for tower in towers]  # all are shown, whatever the first lacks
    if any(lacking):
        raise typer.Exit(1)


def _listed(found: Encoder, size: int, shape: str | None) -> bool:
    """Show every step of one encoder; is there one without a rule?"""
    import numpy as np
    from PIL import Image

    from bilrp.cli.texts import reads_text
    from bilrp.encoder import ops as rows_of
    from bilrp.encoder import read_item
    from bilrp.encoders.image_processor import Preparation
    from bilrp.trace.step_summary import default_shape, random_input, show

    if shape is None and reads_text(found):
        x = read_item(found, "A cat sat on the mat.").x
    elif shape is None and isinstance(found.read, Preparation):  # a model with a size of its own
        x = read_item(
            found, Image.fromarray(np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8))
        ).x
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
    return any(row.problem for row in rows)
