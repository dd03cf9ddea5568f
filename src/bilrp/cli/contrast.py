"""`bilrp contrast`: why an input is closer to one input than to another."""

from __future__ import annotations

from typing import Annotated

import typer

from bilrp.cli.options import (
    AsJson,
    Encoder,
    LinkPreset,
    PageOutput,
    Palette,
    RegionOption,
    Resize,
    Similarity,
    Size,
    Title,
    Weights,
)


def contrast(
    a: Annotated[str, typer.Argument(metavar="A", help="The input to explain: a file or a text.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The input that it is closer to.")],
    c: Annotated[str, typer.Argument(metavar="C", help="The input to compare with.")],
    encoder: Encoder = "vgg16:31",
    regions: RegionOption = None,
    similarity: Similarity = None,
    size: Size = None,
    resize: Resize = None,
    weights: Weights = None,
    output: PageOutput = None,
    link_preset: LinkPreset = "auto",
    palette: Palette = "paper",
    title: Title = None,
    as_json: AsJson = False,
) -> None:
    """Why is A closer to B than to C? bilrp contrast query.jpg match.jpg other.jpg -o why.html"""
    from bilrp import groups
    from bilrp.cli import batch, terminal, texts
    from bilrp.cli.outputs import DrawOptions, check_outputs
    from bilrp.render.gallery import GalleryEntry

    outputs = check_outputs(output or [], inputs=(a, b, c), page_only=True)
    draw = DrawOptions(link_preset, palette, title)
    loaded = terminal.load_encoder(encoder, weights=weights, size=size, resize=resize)
    if texts.reads_text(loaded):
        a, b, c = (texts.read_text(argument) for argument in (a, b, c))
    sides = (batch.decompose_input(loaded, content, regions=regions) for content in (a, b, c))
    result = groups.contrast(*sides, similarity=similarity)
    pairs = ((result.toward, b), (result.against, c))
    entries = []
    for explanation, other in pairs:
        names = batch.display_names(explanation, a, other)
        entries.append(GalleryEntry(explanation, f"What makes it similar to {names[1]}", names))
    (name_a, name_b), (_, name_c) = (entry.names for entry in entries)
    closer, other = (name_b, name_c) if result.score >= 0 else (name_c, name_b)
    header = f"{name_a} is closer to {closer} than to {other}, by {abs(result.score):.4g} ({result.toward.similarity})."
    batch.print_summaries(entries, outputs, as_json=as_json, header=header)
    batch.write_page(
        entries, outputs, draw, title=f"Why closer to {closer}?", lead=header, columns=2, quiet=as_json
    )
