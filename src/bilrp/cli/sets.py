"""`bilrp sets`: what two folders have in common."""

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
    RegionSide,
    Size,
    Style,
    Title,
    Top,
    Weights,
)


def sets(
    a: Annotated[str, typer.Argument(metavar="A", help="A folder of pictures, or a picture.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    encoder: Encoder = "vgg16:31",
    regions: RegionSide = None,
    similarity: Measure = "cosine",
    size: Size = None,
    fit: Fit = None,
    weights: Weights = None,
    output: Output = None,
    style: Style = "auto",
    palette: Palette = "paper",
    title: Title = None,
    browse: Open = False,
    top: Top = 5,
    json: AsJson = False,
) -> None:
    """Which regions make two sets of pictures similar? The sum over all pairs: bilrp sets cats dogs -o why.png"""
    from pathlib import Path

    from bilrp import explain_sets
    from bilrp.cli import batch, terminal
    from bilrp.cli.outputs import check_open, deliver
    from bilrp.encoders import images
    from bilrp.progress import tracking

    outputs = terminal.checked_outputs(output or [], inputs=(a, b))
    check_open(outputs, browse)
    chosen = terminal.encoder(encoder, weights=weights, size=size, fit=fit)
    wanted = batch.Wanted(similarity, regions, None, style, palette, title)
    files = [images.listed(side) if Path(side).is_dir() else [Path(side)] for side in (a, b)]
    with tracking(sys.stderr.isatty()) as bar:
        bar.start("pictures", sum(map(len, files)))

        def taken(paths: list[Path]):
            for path in paths:
                yield batch.taken_apart(chosen, str(path), wanted)
                bar.advance()

        found = explain_sets(taken(files[0]), taken(files[1]), similarity=similarity)
    names = tuple(f"{side} ({len(listed)})" for side, listed in zip((a, b), files, strict=True))
    about = terminal.record(found, names=(names[0], names[1]), encoder=chosen.name, seconds=None, top=top)
    terminal.tell(about, outputs, as_json=json)
    deliver(
        found,
        outputs,
        names=(names[0], names[1]),
        style=style,
        palette=palette,
        title=title,
        show=browse,
        quiet=json,
    )
