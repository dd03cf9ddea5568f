"""`bilrp ops`: list the steps of an encoder with their shapes and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.encoders.registry import ENCODER_HELP
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.encoder import Encoder


def ops(
    encoder: Annotated[str, typer.Argument(help=f"{ENCODER_HELP}.")],
    size: Annotated[int, typer.Option(help="Side of the image that the encoder is run on.", min=1)] = 128,
    shape: Annotated[
        str | None, typer.Option(help="Shape of the input that it is run on, if it is not an image: 1,16,384")
    ] = None,
) -> None:
    """List every step of an encoder with its shapes and its rule; exit code 1 if a step has no rule."""
    from bilrp.encoder import DualEncoder
    from bilrp.encoders.registry import load_encoder_or_pair

    # Rules do not depend on the weights: random ones avoid a download.
    loaded = load_encoder_or_pair(encoder, pretrained=False)
    encoders = (loaded.image, loaded.text) if isinstance(loaded, DualEncoder) else (loaded,)
    problems = [_print_steps(each, size, shape) for each in encoders]  # prints all of them before it exits
    if any(problems):
        raise typer.Exit(1)


def _print_steps(encoder: Encoder, size: int, shape: str | None) -> bool:
    """Print the steps of one encoder; return whether a step has no rule."""
    import numpy as np
    from PIL import Image

    from bilrp.cli.texts import reads_text
    from bilrp.encoder import ops as list_steps
    from bilrp.encoder import read_item
    from bilrp.encoders.image_processor import ImageProcessor
    from bilrp.trace.step_summary import guess_input_shape, make_random_input, print_summary

    if shape is None and reads_text(encoder):
        x = read_item(encoder, "A cat sat on the mat.").x
    elif shape is None and isinstance(encoder.read, ImageProcessor):  # it resizes images itself
        x = read_item(
            encoder, Image.fromarray(np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8))
        ).x
    else:
        x = make_random_input(encoder.module, shape or guess_input_shape(encoder.module, size))
    try:
        rows = list_steps(encoder, x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        hint = "give its input shape, e.g. --shape 1,16,384"
        raise InputError(
            f"{encoder.name} does not run on an input of shape {tuple(x.shape)} ({first}): {hint}"
        ) from error
    print_summary(rows, title=encoder.name)
    return any(row.problem for row in rows)
