"""`bilrp contrast`: why this and not that."""

from __future__ import annotations

from typing import Annotated

import typer

from bilrp.cli.options import (
    AsJson,
    Encoder,
    Fit,
    Measure,
    PageOutput,
    Palette,
    RegionSide,
    Size,
    Style,
    Title,
    Weights,
)


def contrast(
    a: Annotated[str, typer.Argument(metavar="A", help="The one in question: a file or a text.")],
    b: Annotated[str, typer.Argument(metavar="B", help="This …")],
    c: Annotated[str, typer.Argument(metavar="C", help="… and not that.")],
    encoder: Encoder = "vgg16:31",
    regions: RegionSide = None,
    similarity: Measure = "cosine",
    size: Size = None,
    fit: Fit = None,
    weights: Weights = None,
    output: PageOutput = None,
    style: Style = "auto",
    palette: Palette = "paper",
    title: Title = None,
    json: AsJson = False,
) -> None:
    """Why is A closer to B than to C? bilrp contrast query.jpg match.jpg other.jpg -o why.html"""
    from bilrp import contrast as contrasted
    from bilrp.cli import batch, terminal, texts
    from bilrp.render.gallery import Chapter

    outputs = terminal.checked_outputs(output or [], inputs=(a, b, c))
    batch.pages_only(outputs)
    wanted = batch.Wanted(similarity, regions, None, style, palette, title)
    chosen = terminal.encoder(encoder, weights=weights, size=size, fit=fit)
    if texts.reads_text(chosen):
        a, b, c = (texts.text_of(thing) for thing in (a, b, c))
    found = contrasted(
        *(batch.taken_apart(chosen, thing, wanted) for thing in (a, b, c)), similarity=similarity
    )
    sides = [batch.named(side, a, other) for side, other in ((found.toward, b), (found.against, c))]
    nearer, other = (sides[0][1], sides[1][1]) if found.score >= 0 else (sides[1][1], sides[0][1])
    said = f"{sides[0][0]} is closer to {nearer} than to {other}, by {abs(found.score):.4g} ({similarity})."
    chapters = [
        Chapter(side, f"What speaks for {names[1]}", names)
        for side, names in zip((found.toward, found.against), sides, strict=True)
    ]
    batch.tell(chapters, outputs, as_json=json, above=said)
    batch.write(
        chapters,
        outputs,
        title=title or "Why this and not that?",
        lead=said,
        columns=2,
        wanted=wanted,
        quiet=json,
    )
