"""`bilrp sets`: explain the similarity of two sets of images."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from bilrp.decomposition import Decomposition


def sets(
    a: Annotated[str, typer.Argument(metavar="A", help="A folder of images, or an image.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another folder or image.")],
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
    """Which regions make two sets of images similar, summed over all pairs? bilrp sets cats dogs -o why.png"""
    from pathlib import Path

    from bilrp import explain_sets
    from bilrp.cli import batch, terminal
    from bilrp.cli.outputs import DrawOptions, check_outputs, write_outputs
    from bilrp.encoders import images
    from bilrp.progress import progress_bar

    outputs = check_outputs(output or [], inputs=(a, b), open_output=open_output)
    draw = DrawOptions(link_preset, palette, title)
    loaded = terminal.load_encoder(encoder, weights=weights, size=size, resize=resize)
    files = [images.list_images(side) if Path(side).is_dir() else [Path(side)] for side in (a, b)]
    with progress_bar(sys.stderr.isatty()) as bar:
        bar.start("images", sum(map(len, files)))

        def decompose_all(paths: list[Path]) -> Iterator[Decomposition]:
            for path in paths:
                yield batch.decompose_input(loaded, str(path), regions=regions)
                bar.advance()

        explanation = explain_sets(decompose_all(files[0]), decompose_all(files[1]), similarity=similarity)
    names = (f"{a} ({len(files[0])})", f"{b} ({len(files[1])})")
    summary = terminal.collect_summary(explanation, names=names, encoder=loaded.name, seconds=None, top=top)
    terminal.print_summary(summary, outputs, as_json=as_json)
    write_outputs(explanation, outputs, draw, names=names, open_output=open_output, quiet=as_json)
