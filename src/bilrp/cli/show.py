"""`bilrp show`: an explanation that was saved as numbers, told and drawn again."""

from __future__ import annotations

from typing import Annotated

import typer

from bilrp.cli.options import AsJson, LinkPreset, OpenOutput, Output, Palette, SpecialTokens, Title, Top


def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `bilrp explain -o why.npz` wrote.")],
    output: Output = None,
    link_preset: LinkPreset = "auto",
    palette: Palette = "paper",
    title: Title = None,
    open_output: OpenOutput = False,
    top: Top = None,
    special_tokens: SpecialTokens = False,
    as_json: AsJson = False,
) -> None:
    """Tell and draw a saved explanation again: bilrp show why.npz -o why.html"""
    from bilrp.cli import terminal, texts
    from bilrp.cli.outputs import check_open, write_outputs
    from bilrp.explanation import Explanation
    from bilrp.render import styles

    outputs = terminal.check_outputs(output or [], inputs=(file,))
    check_open(outputs, open_output)
    styles.resolve_style(link_preset)  # refuse a slip before the work
    styles.resolve_palette(palette)
    found = Explanation.load(file)
    names = terminal.get_names(found)
    about = terminal.collect_summary(
        found,
        names=names or ("a", "b"),
        encoder=str(found.a.origin.get("encoder", "")),
        seconds=None,
        top=top,
        special_tokens=special_tokens,
    )
    told = texts.highlight_words(found, special_tokens=special_tokens)
    terminal.print_summary(about, outputs, as_json=as_json, header=told, show_pairs=bool(top))
    drawing = {
        "link_preset": link_preset,
        "palette": palette,
        "title": title,
        "special_tokens": special_tokens,
    }
    write_outputs(found, outputs, names=names, **drawing, open_output=open_output, quiet=as_json)
