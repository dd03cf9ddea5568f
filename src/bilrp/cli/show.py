"""`bilrp show`: print and draw an explanation that was saved as .npz or .safetensors."""

from __future__ import annotations

from typing import Annotated

import typer

from bilrp.cli.options import AsJson, LinkPreset, OpenOutput, Output, Palette, Show, SpecialTokens, Title, Top


def show(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file written by `bilrp explain -o why.npz`.")
    ],
    output: Output = None,
    link_preset: LinkPreset = "auto",
    palette: Palette = "paper",
    title: Title = None,
    open_output: OpenOutput = False,
    top: Top = None,
    special_tokens: SpecialTokens = False,
    show: Show = "matches",
    as_json: AsJson = False,
) -> None:
    """Print and draw a saved explanation: bilrp show why.npz -o why.html"""
    from bilrp.answers.explanations import build_explain
    from bilrp.cli import terminal, texts
    from bilrp.cli.outputs import DrawOptions, check_outputs, write_outputs
    from bilrp.explanation import FORMATS, Explanation

    outputs = check_outputs(output or [], formats=FORMATS, inputs=(file,), open_output=open_output)
    draw = DrawOptions(link_preset, palette, title, special_tokens, show)
    explanation = Explanation.load(file)
    names = (explanation.a.name, explanation.b.name)
    summary = build_explain(
        explanation,
        names=names if all(names) else ("a", "b"),
        encoder=str(explanation.a.origin.get("encoder", "")),
        seconds=None,
        top=top,
        special_tokens=special_tokens,
    )
    header = texts.highlight_words(explanation, special_tokens=special_tokens)
    terminal.print_summary(summary, outputs, as_json=as_json, header=header, show_pairs=bool(top))
    shown_names = names if all(names) else None
    write_outputs(explanation, outputs, draw, names=shown_names, open_output=open_output, quiet=as_json)
