"""`bilrp contrast`: why an input is closer to one input than to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import (
    AsJson,
    LinkPreset,
    OneEncoder,
    OpenOutput,
    Output,
    Palette,
    RegionOption,
    Resize,
    Similarity,
    Size,
    Title,
    Weights,
)
from bilrp.errors import to_printable

if TYPE_CHECKING:
    from bilrp.groups import Contrast

MAX_LISTED = 6


def contrast(
    a: Annotated[str, typer.Argument(metavar="A", help="The input to explain: a file or a text.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The input that it is closer to.")],
    c: Annotated[str, typer.Argument(metavar="C", help="The input to compare with.")],
    encoder: OneEncoder = None,
    regions: RegionOption = None,
    similarity: Similarity = None,
    size: Size = None,
    resize: Resize = None,
    weights: Weights = None,
    output: Output = None,
    link_preset: LinkPreset = "auto",
    palette: Palette = "paper",
    title: Title = None,
    open_output: OpenOutput = False,
    as_json: AsJson = False,
) -> None:
    """Why is A closer to B than to C? bilrp contrast query.jpg match.jpg other.jpg -o why.html"""
    from bilrp.cli.input_hints import check_inputs, choose_encoders

    (name,) = choose_encoders((a, b, c), encoder and [encoder])
    check_inputs((a, b, c), [name])  # before torch is imported

    from bilrp import groups
    from bilrp.cli import batch, terminal, texts
    from bilrp.cli.outputs import DrawOptions, check_outputs, write_each
    from bilrp.similarity import resolve_similarity

    outputs = check_outputs(
        output or [], formats=groups.GROUP_SUFFIXES, inputs=(a, b, c), open_output=open_output
    )
    draw = DrawOptions(link_preset, palette, title)
    resolve_similarity(similarity)  # rejects an unknown name before the work
    loaded = terminal.load_encoder(name, weights=weights, size=size, resize=resize)
    if texts.reads_text(loaded):
        a, b, c = (texts.read_text(argument) for argument in (a, b, c))
    sides = [batch.decompose_input(loaded, content, regions=regions) for content in (a, b, c)]
    names = [side.name or texts.shorten(content) for side, content in zip(sides, (a, b, c), strict=True)]
    result = groups.contrast(*sides, similarity=similarity)
    if as_json:
        from bilrp.answers.explanations import build_contrast

        terminal.print_json(build_contrast(result, names, outputs=[str(path) for path in outputs]))
    else:
        _print_text(result, names)
    write_each(
        lambda path: result.save(
            path, names=names, title=draw.title, palette=draw.palette, style=draw.link_preset
        ),
        outputs,
        open_output=open_output,
        quiet=as_json,
    )


def _print_text(result: Contrast, names: Sequence[str]) -> None:
    """Print which is closer, what counts for each in units of the score, and the summary of both pairs."""
    from bilrp.cli import terminal
    from bilrp.findings.formatting import format_column
    from bilrp.findings.summary import label_finding

    print_safe(terminal.wrap(result.summary(names), indent=""))
    pairs = ((result.toward, names[1], 1), (result.against, names[2], -1))
    rows = [
        (sign * finding.relevance, label_finding(explanation, finding), other)
        for explanation, other, sign in pairs
        for finding in explanation.findings()
    ]
    rows = sorted(rows, key=lambda row: -abs(row[0]))[:MAX_LISTED]
    print_safe(f"\n  what counts, in units of the score: positive for {names[1]}, negative for {names[2]}")
    for number, (_, label, other) in zip(format_column([row[0] for row in rows]), rows, strict=True):
        print_safe(to_printable(f"  {number:>10}   {label}  (with {other})"))
    for explanation, other, _ in pairs:
        print_safe(
            f"\nWhat makes it similar to {to_printable(other)}\n{terminal.wrap(explanation.summary())}"
        )
