"""`bilrp contrast`: why this and not that."""

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
    a: Annotated[str, typer.Argument(metavar="A", help="The one in question: a file or a text.")],
    b: Annotated[str, typer.Argument(metavar="B", help="This …")],
    c: Annotated[str, typer.Argument(metavar="C", help="… and not that.")],
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
    from bilrp import contrast as contrasted
    from bilrp.cli import batch, terminal, texts
    from bilrp.render.gallery import GalleryEntry

    outputs = terminal.check_outputs(output or [], inputs=(a, b, c))
    batch.require_html_outputs(outputs)
    wanted = batch.BatchOptions(similarity, regions, None, link_preset, palette, title)
    chosen = terminal.load_encoder(encoder, weights=weights, size=size, resize=resize)
    if texts.reads_text(chosen):
        a, b, c = (texts.read_text(thing) for thing in (a, b, c))
    found = contrasted(
        *(batch.decompose_input(chosen, thing, wanted) for thing in (a, b, c)), similarity=similarity
    )
    sides = [batch.display_names(side, a, other) for side, other in ((found.toward, b), (found.against, c))]
    nearer, other = (sides[0][1], sides[1][1]) if found.score >= 0 else (sides[1][1], sides[0][1])
    said = f"{sides[0][0]} is closer to {nearer} than to {other}, by {abs(found.score):.4g} ({found.toward.similarity})."
    chapters = [
        GalleryEntry(side, f"What speaks for {names[1]}", names)
        for side, names in zip((found.toward, found.against), sides, strict=True)
    ]
    batch.print_summaries(chapters, outputs, as_json=as_json, header=said)
    batch.write_page(
        chapters,
        outputs,
        title=title or "Why this and not that?",
        lead=said,
        columns=2,
        options=wanted,
        quiet=as_json,
    )
