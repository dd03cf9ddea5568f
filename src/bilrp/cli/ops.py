"""`bilrp ops`: what an encoder is made of, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.encoders.registry import ENCODER_HELP
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.encoder import Encoder


def ops(
    encoder: Annotated[
        str,
        typer.Argument(help=f"{ENCODER_HELP}."),
    ],
    size: Annotated[int, typer.Option(help="Side of the image tried.", min=1)] = 128,
    shape: Annotated[
        str | None, typer.Option(help="Shape of the input tried, if it is no image: 1,16,384")
    ] = None,
) -> None:
    """Every step of an encoder, its shapes and its rule; exit code 1 if a step has none."""
    from bilrp.encoder import DualEncoder
    from bilrp.encoders.registry import load_encoder_or_pair

    # Rules don't depend on the weights: random ones spare a download.
    found = load_encoder_or_pair(encoder, pretrained=False)
    towers = (found.image, found.text) if isinstance(found, DualEncoder) else (found,)
    lacking = [
        _print_steps(tower, size, shape) for tower in towers
    ]  # all are shown, whatever the first lacks
    if any(lacking):
        raise typer.Exit(1)


def _print_steps(encoder: Encoder, size: int, shape: str | None) -> bool:
    """Show every step of one encoder; is there one without a rule?"""
    import numpy as np
    from PIL import Image

    from bilrp.cli.texts import reads_text
    from bilrp.encoder import ops as rows_of
    from bilrp.encoder import read_item
    from bilrp.encoders.image_processor import ImageProcessor
    from bilrp.trace.step_summary import guess_input_shape, make_random_input, print_summary

    if shape is None and reads_text(encoder):
        x = read_item(encoder, "A cat sat on the mat.").x
    elif shape is None and isinstance(encoder.read, ImageProcessor):  # a model with a size of its own
        x = read_item(
            encoder, Image.fromarray(np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8))
        ).x
    else:
        x = make_random_input(encoder.module, shape or guess_input_shape(encoder.module, size))
    try:
        rows = rows_of(encoder, x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        hint = "give the shape it takes with --shape, e.g. --shape 1,16,384"
        raise InputError(
            f"{encoder.name} does not run on an input of shape {tuple(x.shape)} ({first}): {hint}"
        ) from error
    print_summary(rows, title=encoder.name)
    return any(row.problem for row in rows)
