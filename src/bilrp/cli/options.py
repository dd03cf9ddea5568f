"""Options that several commands share, with their shell completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from typer.models import OptionInfo

from bilrp.encoders.registry import DEFAULT_IMAGE_ENCODER, DEFAULT_TEXT_ENCODER, ENCODER_HELP


def complete_encoders(incomplete: str) -> list[str]:
    """Return the encoder names that start with `incomplete`."""
    from bilrp.encoders.registry import complete_name

    return complete_name(incomplete)


def complete_link_presets(incomplete: str) -> list[str]:
    """Return the link presets that start with `incomplete`."""
    from bilrp.render.styles import STYLES

    return [name for name in ("auto", *STYLES) if name.startswith(incomplete)]


def complete_from(*words: str) -> Callable[[str], list[str]]:
    """Return a completion function for a fixed list of words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def make_encoder_option(help: str, *, show_default: str | bool = True, complete: bool = True) -> OptionInfo:
    """Return the option --encoder, -e with this help.

    Args:
        help: Help text.
        show_default: The default in the help, if it depends on the inputs.
        complete: Complete names of encoders in the shell.
    """
    completion = complete_encoders if complete else None
    return typer.Option(
        "--encoder", "-e", metavar="NAME", autocompletion=completion, show_default=show_default, help=help
    )


_ANY_ENCODER = f"{ENCODER_HELP} (a plain module gets RGB pixels with ImageNet's mean and standard deviation)."
_BY_INPUT = f"{DEFAULT_IMAGE_ENCODER} for images, {DEFAULT_TEXT_ENCODER} for texts"
Encoder = Annotated[str, make_encoder_option(_ANY_ENCODER)]
OneEncoder = Annotated[str | None, make_encoder_option(_ANY_ENCODER, show_default=_BY_INPUT)]
Encoders = Annotated[
    list[str] | None,
    make_encoder_option(f"{_ANY_ENCODER} Repeat to compare encoders.", show_default=_BY_INPUT),
]
CollectionEncoder = Annotated[
    str | None,
    make_encoder_option(
        "The collection's encoder, if it is your own (package.module:function).", complete=False
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Weights of efficientnet, mobilenet or vgg16 (.safetensors, .pth, .tar.gz); default: downloaded and cached.",
    ),
]
CollectionWeights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="The collection's weights, if they came from a file: paths stored in the collection are not trusted.",
    ),
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help=".png .svg .pdf .html .npz .safetensors .json; of images also .jsonld (Web Annotations), "
        ".iiif.json (a IIIF manifest), .csv (region pairs for AIKON); may be repeated.",
    ),
]
SearchOutput = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="One .html page with all explanations; of images also .jsonld (Web Annotations), .iiif.json (a IIIF manifest), "
        ".csv (region pairs for AIKON); may be repeated.",
    ),
]

TEXT_REGIONS = ("words", "tokens", "sentences")


def _check_regions(value: str | None) -> str | None:
    if (
        value is not None
        and value not in TEXT_REGIONS
        and not (value.isascii() and value.isdigit() and int(value))
    ):
        raise typer.BadParameter(f"{value!r}: give a side in pixels, or one of {', '.join(TEXT_REGIONS)}.")
    return value


RegionOption = Annotated[
    str | None,
    typer.Option(
        metavar="PIXELS",
        callback=_check_regions,
        autocompletion=complete_from(*TEXT_REGIONS),
        help="Images: side of a square region in pixels of the resized image (see --size); the default depends on the"
        " encoder (efficientnet 32, vgg16 8). Texts: words, tokens or sentences.",
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
    typer.Option(
        min=1, metavar="N", help="Project embeddings randomly to N dimensions, an estimate; default: exact."
    ),
]
Reliability = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE|own",
        help="Weigh regions by their reliability: an image, white where the input is reliable and black where it is not, or "
        "own for the encoder's own confidence (bigram: the digits it read). Once for both inputs, or once for each.",
    ),
]
MaxRegions = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Split adaptively into at most N regions per input: fine where relevance is, coarse elsewhere.",
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        metavar="PIXELS",
        help="Resize images to 128, 192x128, or keep the original size (both must be equal). Default: the "
        "encoder's own (efficientnet 224, vgg16 128).",
    ),
]
Resize = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        autocompletion=complete_from("crop", "pad", "stretch"),
        help="How to resize: stretch (default), crop or pad.",
    ),
]
LinkPreset = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_link_presets,
        help="Draw pairs as links, with the threshold and opacity that the paper's Appendix F has for a data set: "
        "pascal_voc, faces, ucf, illustrations, tables. Default: auto, which draws findings.",
    ),
]
Palette = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_from("paper", "safe"),
        help="paper, or safe for colour-blind readers.",
    ),
]
Show = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        autocompletion=complete_from("matches", "differences"),
        help="What figures show, and pages show first: matches, or differences.",
    ),
]
Top = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Also list the N pairs of regions with the largest relevance."),
]
SpecialTokens = Annotated[
    bool, typer.Option("--special-tokens", help="Also show special tokens such as [CLS].")
]
ShowPlan = Annotated[bool, typer.Option("--plan", help="Also print the execution plan and its cost.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Title = Annotated[str | None, typer.Option(metavar="TEXT", help="Title of figures and pages.")]
OpenOutput = Annotated[bool, typer.Option("--open", help="Open the first page or figure that was written.")]
