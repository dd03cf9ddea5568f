"""`bilrp show`: an explanation that was saved as numbers, told and drawn again."""

from __future__ import annotations

from typing import Annotated

import typer

from bilrp.cli.options import AsJson, Marks, Open, Output, Palette, Style, Title, Top


def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `bilrp explain -o why.npz` wrote.")],
    output: Output = None,
    style: Style = "auto",
    palette: Palette = "paper",
    title: Title = None,
    browse: Open = False,
    top: Top = None,
    marks: Marks = False,
    json: AsJson = False,
) -> None:
    """Tell and draw a saved explanation again: bilrp show why.npz -o why.html"""
    from bilrp.cli import terminal, texts
    from bilrp.cli.outputs import check_open, deliver
    from bilrp.explanation import Explanation
    from bilrp.render import styles

    outputs = terminal.checked_outputs(output or [], inputs=(file,))
    check_open(outputs, browse)
    styles.style(style)  # refuse a slip before the work
    styles.palette(palette)
    found = Explanation.load(file)
    names = terminal.names_of(found)
    about = terminal.record(
        found,
        names=names or ("a", "b"),
        encoder=str(found.a.origin.get("encoder", "")),
        seconds=None,
        top=top,
        marks=marks,
    )
    told = texts.sentences(found, marks=marks)
    terminal.tell(about, outputs, as_json=json, above=told, pairs=bool(top))
    drawing = {"style": style, "palette": palette, "title": title, "marks": marks}
    deliver(found, outputs, names=names, **drawing, show=browse, quiet=json)
