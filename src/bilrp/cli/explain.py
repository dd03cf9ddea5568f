"""`bilrp explain`: two files in; a summary, a picture, a page or numbers out."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bilrp.cli.options import (
    AsJson,
    Encoder,
    Fit,
    Measure,
    Open,
    Output,
    Palette,
    Project,
    RegionSide,
    ShowPlan,
    Size,
    Style,
    Title,
    Top,
    Weights,
)
from bilrp.cli.say import say


def explain(
    a: Annotated[str, typer.Argument(metavar="A", help="The first image file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The second image file.")],
    encoder: Encoder = "vgg16:31",
    regions: RegionSide = None,
    similarity: Measure = "dot",
    project: Project = None,
    size: Size = None,
    fit: Fit = None,
    weights: Weights = None,
    output: Output = None,
    style: Style = "auto",
    palette: Palette = "paper",
    title: Title = None,
    show: Open = False,
    top: Top = 5,
    plan: ShowPlan = False,
    json: AsJson = False,
) -> None:
    """Which parts of images A and B make the encoder call them similar?"""
    import time

    from bilrp import regions as region_specs
    from bilrp.cli import terminal
    from bilrp.cli.outputs import check_open, deliver
    from bilrp.encoder import read_item, regions_of
    from bilrp.explanation import explain_items
    from bilrp.render import figure, links, page
    from bilrp.similarity import resolve

    outputs = terminal.checked_outputs(output or [], inputs=(a, b))
    check_open(outputs, show)
    for known, name in ((links.style, style), (figure.palette, palette), (resolve, similarity)):
        known(name)  # refuse a slip before the work
    chosen = terminal.encoder(encoder, weights=weights, size=size, fit=fit)
    items = [read_item(chosen, thing) for thing in (a, b)]  # both, before the first is explained
    wanted = None if regions is None else region_specs.grid(regions)
    if any(path.suffix.lower() == ".html" for path in outputs):
        page.check_size(*(regions_of(chosen, item, wanted).count for item in items))
    start = time.perf_counter()
    try:
        found = explain_items(
            chosen,
            items[0],
            items[1],
            similarity=similarity,
            regions=wanted,
            project=project,
            progress=sys.stderr.isatty(),
        )
    except Exception as error:
        raise terminal.blamed(chosen, items[0].x, error) from error
    names = found.a.name, found.b.name
    about = terminal.record(
        found, names=(a, b), encoder=chosen.name, seconds=time.perf_counter() - start, top=top
    )
    terminal.tell(about, outputs, as_json=json)
    if plan:
        print(found.a.plan, file=sys.stderr if json else sys.stdout)
    for doubt in terminal.doubts(chosen, found, names):
        say(f"bilrp: {doubt}", file=sys.stderr)
    deliver(found, outputs, names=names, style=style, palette=palette, title=title, show=show, quiet=json)
