"""`bilrp bench`: time and memory of decompositions and collections."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import Weights


def bench(
    image: Annotated[
        str | None,
        typer.Argument(
            metavar="IMAGE", help="A photograph, scikit-image's motorcycle by itself; with --text a sentence."
        ),
    ] = None,
    weights: Weights = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where bench.json and bench.png go.")] = Path(
        "out"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Each way is timed this often; the best counts.")] = 2,
    growth: Annotated[bool, typer.Option(help="Also time 64 … 256 px with 4² … 16² regions.")] = True,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="decomposition or collection; default: both, where Lance is installed."
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A sentence by this encoder (minilm, sentence:FOLDER) instead."),
    ] = None,
) -> None:
    """What a decomposition and a collection cost, side by side with the plain ways, as ratios."""
    from dataclasses import replace
    from importlib.util import find_spec

    from rich.console import Console

    from bilrp.encoder import read_tensor
    from bilrp.encoders.image_files import open_image
    from bilrp.encoders.registry import load
    from bilrp.errors import InputError
    from bilrp_studies.bench import decomposition as benchmark
    from bilrp_studies.bench import sentence
    from bilrp_studies.common.stereo_images import load_stereo_pair

    if only not in (None, "decomposition", "collection"):
        raise InputError(f"--only {only}: decomposition or collection")
    if text is not None:
        sentences = image or sentence.DEFAULT_TEXT
        Console().print(sentence.build_table(sentence.run(load(text), sentences, rounds=rounds), sentences))
        return
    chosen = load("vgg16:31", weights=weights, progress=sys.stderr.isatty())
    photograph = image or load_stereo_pair()[0]
    console = Console()
    ratios = ()
    with console.status("timing") as status:
        if only != "decomposition" and (only or find_spec("lance")):
            from bilrp_studies.bench import collection as collections

            ratios = collections.run(chosen, open_image(photograph), rounds=rounds, say=status.update)
            console.print(benchmark.build_collection_table(ratios))
        if only == "collection":
            return
        x = read_tensor(chosen, photograph)
        report = benchmark.run(chosen, x, rounds=rounds, growth=growth, log=status.update)
    console.print(benchmark.build_table(report))
    if growth:
        console.print(benchmark.build_growth_table(report))
    for path in benchmark.write_report(replace(report, collection=ratios), out):
        print_safe(f"wrote {path}")
