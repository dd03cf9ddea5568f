"""`bilrp sets`: what two folders have in common."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bilrp.cli.options import (
    AsJson,
    Encoder,
    LinkPreset,
    OpenOutput,
    Output,
    Palette,
    RegionOption,
    Resize,
    Similarity,
    Size,
    Title,
    Top,
    Weights,
)


def sets(
    a: Annotated[str, typer.Argument(metavar="A", help="A folder of pictures, or a picture.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    encoder: Encoder = "vgg16:31",
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
    top: Top = 5,
    as_json: AsJson = False,
) -> None:
    """Which regions make two sets of pictures similar? The sum over all pairs: bilrp sets cats dogs -o why.png"""
    from pathlib import Path

    from bilrp import explain_sets
    from bilrp.cli import batch, terminal
    from bilrp.cli.outputs import check_open, write_outputs
    from bilrp.encoders import images
    from bilrp.progress import progress_bar

    outputs = terminal.check_outputs(output or [], inputs=(a, b))
    check_open(outputs, open_output)
    chosen = terminal.load_encoder(encoder, weights=weights, size=size, resize=resize)
    wanted = batch.BatchOptions(similarity, regions, None, link_preset, palette, title)
    files = [images.list_images(side) if Path(side).is_dir() else [Path(side)] for side in (a, b)]
    with progress_bar(sys.stderr.isatty()) as bar:
        bar.start("pictures", sum(map(len, files)))

        def taken(paths: list[Path]):
            for path in paths:
                yield batch.decompose_input(chosen, str(path), wanted)
                bar.advance()

        found = explain_sets(taken(files[0]), taken(files[1]), similarity=similarity)
    names = tuple(f"{side} ({len(listed)})" for side, listed in zip((a, b), files, strict=True))
    about = terminal.collect_summary(
        found, names=(names[0], names[1]), encoder=chosen.name, seconds=None, top=top
    )
    terminal.print_summary(about, outputs, as_json=as_json)
    write_outputs(
        found,
        outputs,
        names=(names[0], names[1]),
        link_preset=link_preset,
        palette=palette,
        title=title,
        open_output=open_output,
        quiet=as_json,
    )
