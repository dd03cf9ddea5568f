"""Options that several commands share, and what the shell completes them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from bilrp.encoders.registry import ENCODER_HELP


def complete_encoders(incomplete: str) -> list[str]:
    """Names of encoders that begin so."""
    from bilrp.encoders.registry import complete_name

    return complete_name(incomplete)


def complete_link_presets(incomplete: str) -> list[str]:
    """Names of link presets that begin so."""
    from bilrp.render.styles import STYLES

    return [name for name in ("auto", *STYLES) if name.startswith(incomplete)]


def complete_from(*words: str) -> Callable[[str], list[str]]:
    """Completion by a few fixed words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


Encoder = Annotated[
    str,
    typer.Option(
        "--encoder",
        "-e",
        metavar="NAME",
        autocompletion=complete_encoders,
        help=f"{ENCODER_HELP} (a plain module gets RGB pixels with ImageNet's mean and standard deviation).",
    ),
]
Encoders = Annotated[
    list[str] | None,
    typer.Option(
        "--encoder",
        "-e",
        metavar="NAME",
        autocompletion=complete_encoders,
        show_default="vgg16:31",
        help=(
            f"{ENCODER_HELP} (a plain module gets RGB pixels with ImageNet's mean and standard deviation). "
            f"Twice: side by side."
        ),
    ),
]
CollectionEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        "-e",
        metavar="NAME",
        help="The encoder that made the collection, where it is your own (package.module:function).",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache."),
]
CollectionWeights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="The weights that the collection was made with, where they are from a file: its own paths are not followed.",
    ),
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help=".png .svg .pdf .html .npz .safetensors; may be repeated."
    ),
]
PageOutput = Annotated[
    list[str] | None,
    typer.Option("--output", "-o", metavar="FILE", help="One page for all of them, .html; may be repeated."),
]

TEXT_REGIONS = ("words", "tokens", "sentences")


def _check_regions(value: str | None) -> str | None:
    if (
        value is not None
        and value not in TEXT_REGIONS
        and not (value.isascii() and value.isdigit() and int(value))
    ):
        raise typer.BadParameter(f"{value!r} is neither a side in pixels nor {', '.join(TEXT_REGIONS)}.")
    return value


RegionOption = Annotated[
    str | None,
    typer.Option(
        metavar="PIXELS",
        callback=_check_regions,
        autocompletion=complete_from(*TEXT_REGIONS),
        help="Side of a square region, in pixels of what the encoder reads (128 × 128, see --size); default: 8, most"
        " often. Of a text: words, tokens or sentences.",
    ),
]
Similarity = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_from("dot", "cosine", "squared_distance", "maxsim"),
        help="dot, cosine, squared_distance, or maxsim for token embeddings. Default: the encoder's own.",
    ),
]
Project = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Estimate with N random projections; default: exact."),
]
MaxRegions = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="At most N regions a side: fine where it matters, coarse elsewhere."
    ),
]
Size = Annotated[
    str | None,
    typer.Option(metavar="PIXELS", help="128, 192x128, or original (then both need one size). Default: 128."),
]
Resize = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        autocompletion=complete_from("crop", "pad", "stretch"),
        help="To that size: stretch (default), crop or pad.",
    ),
]
LinkPreset = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_link_presets,
        help="l, h, p of: auto, pascal_voc, faces, ucf, illustrations, tables.",
    ),
]
Palette = Annotated[
    str,
    typer.Option(
        metavar="NAME", autocompletion=complete_from("paper", "safe"), help="paper or safe (colour-blind)."
    ),
]
Top = Annotated[int | None, typer.Option(min=0, metavar="N", help="Also list the N strongest single pairs.")]
SpecialTokens = Annotated[
    bool, typer.Option("--special-tokens", help="Show what the tokenizer adds to a text too, as [CLS].")
]
ShowPlan = Annotated[bool, typer.Option("--plan", help="Also print what ran where, and its cost.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Title = Annotated[str | None, typer.Option(metavar="TEXT", help="Title of pictures and pages.")]
OpenOutput = Annotated[bool, typer.Option("--open", help="Open the first page or picture that was written.")]
