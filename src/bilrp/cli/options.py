"""Options that several commands share, and what the shell completes them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from bilrp.encoders.registry import HELP


def encoders(incomplete: str) -> list[str]:
    """Names of encoders that begin so."""
    from bilrp.encoders.registry import completions

    return completions(incomplete)


def styles(incomplete: str) -> list[str]:
    """Names of styles that begin so."""
    from bilrp.render.styles import STYLES

    return [name for name in ("auto", *STYLES) if name.startswith(incomplete)]


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Completion by a few fixed words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


Encoder = Annotated[
    str,
    typer.Option(
        "--encoder",
        "-e",
        metavar="NAME",
        autocompletion=encoders,
        help=f"{HELP} (a plain module gets RGB pixels with ImageNet's mean and standard deviation).",
    ),
]
Encoders = Annotated[
    list[str] | None,
    typer.Option(
        "--encoder",
        "-e",
        metavar="NAME",
        autocompletion=encoders,
        show_default="vgg16:31",
        help=f"{HELP} (a plain module gets RGB pixels with ImageNet's mean and standard deviation). Twice: side by side.",
    ),
]
OwnEncoder = Annotated[
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
OwnWeights = Annotated[
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

KINDS = ("words", "tokens", "sentences")


def _region(given: str | None) -> str | None:
    if given is not None and given not in KINDS and not (given.isascii() and given.isdigit() and int(given)):
        raise typer.BadParameter(f"{given!r} is neither a side in pixels nor {', '.join(KINDS)}.")
    return given


RegionSide = Annotated[
    str | None,
    typer.Option(
        metavar="PIXELS",
        callback=_region,
        autocompletion=one_of(*KINDS),
        help="Side of a square region, in pixels of what the encoder reads (128 × 128, see --size); default: 8, most"
        " often. Of a text: words, tokens or sentences.",
    ),
]
Measure = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=one_of("dot", "cosine", "squared_distance", "maxsim"),
        help="dot, cosine, squared_distance, or maxsim for token embeddings.",
    ),
]
Project = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Estimate with N random projections; default: exact."),
]
Refine = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="At most N regions a side: fine where it matters, coarse elsewhere."
    ),
]
Size = Annotated[
    str | None,
    typer.Option(metavar="PIXELS", help="128, 192x128, or original (then both need one size). Default: 128."),
]
Fit = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        autocompletion=one_of("crop", "pad", "stretch"),
        help="To that size: stretch (default), crop or pad.",
    ),
]
Style = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=styles,
        help="l, h, p of: auto, pascal_voc, faces, ucf, illustrations, tables.",
    ),
]
Palette = Annotated[
    str,
    typer.Option(
        metavar="NAME", autocompletion=one_of("paper", "safe"), help="paper or safe (colour-blind)."
    ),
]
Top = Annotated[int | None, typer.Option(min=0, metavar="N", help="Also list the N strongest single pairs.")]
Marks = Annotated[bool, typer.Option("--marks", help="Show what the tokenizer adds to a text too, as [CLS].")]
ShowPlan = Annotated[bool, typer.Option("--plan", help="Also print what ran where, and its cost.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Title = Annotated[str | None, typer.Option(metavar="TEXT", help="Title of pictures and pages.")]
Open = Annotated[bool, typer.Option("--open", help="Open the first page or picture that was written.")]
