"""`bilrp explain`: two files in; a summary, a picture, a page or numbers out."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bilrp.cli.options import (
    AsJson,
    Encoders,
    Fit,
    Marks,
    Measure,
    Open,
    Output,
    Palette,
    Project,
    Refine,
    RegionSide,
    ShowPlan,
    Size,
    Style,
    Title,
    Top,
    Weights,
)
from bilrp.cli.console import say
from bilrp.errors import InputError


def explain(
    things: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C …]",
            help="Image files; or texts, @FILE with a text, - for standard input. All pairs of more.",
        ),
    ],
    encoders: Encoders = None,
    regions: RegionSide = None,
    similarity: Measure = "dot",
    project: Project = None,
    refine: Refine = None,
    size: Size = None,
    fit: Fit = None,
    weights: Weights = None,
    output: Output = None,
    style: Style = "auto",
    palette: Palette = "paper",
    title: Title = None,
    show: Open = False,
    top: Top = None,
    marks: Marks = False,
    plan: ShowPlan = False,
    first: Annotated[bool, typer.Option(help="Of several, only the first against each other one.")] = False,
    json: AsJson = False,
) -> None:
    """Which parts of A and B make the encoder call them similar? Two images, texts, or one of each."""
    import time

    from bilrp.cli import terminal, texts
    from bilrp.cli.outputs import check_open, deliver
    from bilrp.encoder import placed, read_item, sides_of
    from bilrp.explanation import explain_items
    from bilrp.render import styles
    from bilrp.similarity import resolve

    if len(things) < 2:
        raise InputError("explain compares two or more: bilrp explain A B")
    outputs = terminal.checked_outputs(output or [], inputs=things)
    check_open(outputs, show)
    for known, name in ((styles.style, style), (styles.palette, palette), (resolve, similarity)):
        known(name)  # refuse a slip before the work
    named = encoders or ["vgg16:31"]
    if len(things) > 2 or len(named) > 1:
        from bilrp.cli.batch import Wanted, explain_all, pages_only

        if plan or refine is not None:
            raise InputError(f"--{'plan' if plan else 'refine'} is for two inputs and one encoder")
        pages_only(outputs)
        loaded = [terminal.encoder(name, weights=weights, size=size, fit=fit) for name in named]
        wish = Wanted(similarity, regions, project, style, palette, title, marks)
        explain_all(loaded, things, outputs, wish, first=first, show=show, as_json=json)
        return
    a, b = things
    chosen = terminal.reader(named[0], weights=weights, size=size, fit=fit)
    readers = sides_of(chosen, a, b)
    reading = [texts.reads_text(reader) for reader in readers]
    contents = [texts.text_of(thing) if text else thing for thing, text in zip(things, reading, strict=True)]
    # both are read before the first is explained
    items = [read_item(reader, thing) for reader, thing in zip(readers, contents, strict=True)]
    wanted = texts.region_kinds(regions, reading)
    if any(path.suffix.lower() == ".html" for path in outputs):
        from bilrp.render import page

        sides = zip(readers, items, wanted, strict=True)
        page.check_size(*(placed(reader, item, kind)[0].count for reader, item, kind in sides))
    start = time.perf_counter()
    try:
        found = explain_items(
            readers,
            items[0],
            items[1],
            similarity=similarity,
            regions=wanted,
            project=project,
            refine=refine,
            progress=sys.stderr.isatty(),
        )
    except Exception as error:
        raise terminal.blamed(readers[0], items[0].x, error) from error
    left, right = (
        texts.called(thing) if text else thing for thing, text in zip(contents, reading, strict=True)
    )
    shown = (left, right)
    names = (left if reading[0] else found.a.name, right if reading[1] else found.b.name)
    about = terminal.record(
        found, names=shown, encoder=chosen.name, seconds=time.perf_counter() - start, top=top, marks=marks
    )
    told = texts.sentences(found, marks=marks)
    terminal.tell(about, outputs, as_json=json, above=told, pairs=bool(top))
    if plan:
        print(found.a.plan, file=sys.stderr if json else sys.stdout)
    for doubt in terminal.doubts(readers[0], found, names, things):
        say(f"bilrp: {doubt}", file=sys.stderr)
    drawing = {"style": style, "palette": palette, "title": title, "marks": marks}
    deliver(found, outputs, names=names, **drawing, show=show, quiet=json)
