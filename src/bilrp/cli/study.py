"""`bilrp study NAME`: one experiment of the paper, end to end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.cli.options import Weights

if TYPE_CHECKING:
    from bilrp.studies.common.report import Report

study = typer.Typer(
    help="Run one experiment of the paper, from data to table and figure.", no_args_is_help=True
)


@study.command()
def photos(
    data: Annotated[str, typer.Option(metavar="DIR", help="A folder of photographs.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the report goes.")],
    layers: Annotated[str, typer.Option(metavar="N,N", help="VGG-16 layers to compare.")] = "17,31",
    pairs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of nearest pairs to explain.")] = 4,
    size: Annotated[int, typer.Option(min=8, metavar="PIXELS", help="Side of the square images.")] = 128,
    weights: Weights = None,
) -> None:
    """Nearest neighbours among photographs, explained layer by layer, and correspondence on a stereo pair."""
    from bilrp.studies.photos import study as experiment

    numbers = experiment.parsed_layers(layers)
    show = sys.stderr.isatty()
    page = experiment.run(
        data, out, layers=numbers, pairs=pairs, size=size, weights=weights, progress=show, say=print
    )
    print(f"wrote {page}")


@study.command()
def transfer(
    data: Annotated[Path, typer.Option(help="Folder of pictures: DIR/<class>/*.jpg")],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out/transfer"),
    layers: Annotated[str, typer.Option(help="Layers of VGG-16, from 1.")] = "5,10,17,24,31",
    size: Annotated[int, typer.Option(help="Pictures are scaled to SIZE × SIZE pixels.", min=32)] = 64,
    crop: Annotated[
        float, typer.Option(help="Middle square to keep: a share of the short side (0.6), or pixels (80).")
    ] = 1.0,
    splits: Annotated[int, typer.Option(help="Random halves to try.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Same seed, same splits and pairs.", min=0)] = 0,
    pairs: Annotated[int, typer.Option(help="Pairs to explain; 0 for the accuracy table alone.", min=0)] = 6,
    regions: Annotated[int, typer.Option(help="Side of a region in pixels.", min=1)] = 4,
    project: Annotated[
        int | None, typer.Option(help="Random projection to this many coordinates; without it, exact.", min=1)
    ] = None,
    weights: Weights = None,
    cache: Annotated[
        Path | None, typer.Option(help="Where to keep features; OUT/cache if not given.")
    ] = None,
) -> None:
    """How transferable is the similarity model, layer by layer? (Table 1 of the paper.)"""
    from bilrp.studies.transfer import study as work

    settings = work.Settings(work.parse_layers(layers), size, crop, splits, seed, pairs, regions, project)
    report = work.run(
        data, out, settings=settings, weights=weights, cache=cache, progress=sys.stderr.isatty()
    )
    show_summary(report, out)


@study.command()
def invariance(
    data: Annotated[
        Path, typer.Option(help="Clips: DIR/<action>/<clip>/*.jpg, or video files; stills with --transform.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out/invariance"),
    layers: Annotated[str, typer.Option(help="Layers of VGG-16, from 1.")] = "5,10,17,24,31",
    size: Annotated[int, typer.Option(help="Frames are scaled to SIZE × SIZE pixels.", min=32)] = 128,
    crop: Annotated[
        float, typer.Option(help="Middle square to keep: a share of the short side (0.6), or pixels (80).")
    ] = 1.0,
    lag: Annotated[int, typer.Option(help="Local pairs are at most this many frames apart.", min=1)] = 5,
    pairs: Annotated[int, typer.Option(help="Pairs of each clip to explain; 0 for INV alone.", min=0)] = 1,
    regions: Annotated[int, typer.Option(help="Side of a region in pixels.", min=1)] = 8,
    frames: Annotated[int, typer.Option(help="At most this many frames of a clip.", min=2)] = 100,
    transform: Annotated[
        str | None, typer.Option(help="For still pictures: rotate:90, shift:8,0 (right, down) or flip.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same intervals.", min=0)] = 0,
    project: Annotated[
        int | None, typer.Option(help="Random projection to this many coordinates; without it, exact.", min=1)
    ] = None,
    weights: Weights = None,
    cache: Annotated[
        Path | None, typer.Option(help="Where to keep features; OUT/cache if not given.")
    ] = None,
) -> None:
    """How invariant is the similarity model, and does the background do it? (Table 2 of the paper.)"""
    from bilrp.studies.invariance import study as work
    from bilrp.studies.transfer.study import parse_layers

    settings = work.Settings(
        layers=parse_layers(layers), size=size, crop=crop, lag=lag, pairs=pairs, regions=regions,
        frames=frames, transform=transform, seed=seed, project=project,
    )  # fmt: skip
    report = work.run(
        data, out, settings=settings, weights=weights, cache=cache, progress=sys.stderr.isatty()
    )
    show_summary(report, out)


@study.command()
def toy(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out/toy"),
    seeds: Annotated[int, typer.Option(help="Networks to train and explain.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="The first seed; same seed, same numbers.", min=0)] = 0,
    pairs: Annotated[int, typer.Option(help="Test pairs for each network.", min=2)] = 1000,
    iterations: Annotated[int, typer.Option(help="Training iterations.", min=100)] = 10_000,
) -> None:
    """Explanations against a known truth: digits that match (section 4 of the paper)."""
    from bilrp.studies.toy import study as work

    report = work.toy(
        seeds=seeds, seed=seed, pairs=pairs, iterations=iterations, progress=sys.stderr.isatty()
    )
    report.write(out)
    show_summary(report, out)


@study.command()
def faithfulness(
    data: Annotated[Path, typer.Option(help="A folder of photographs.")],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out/faithfulness"),
    pairs: Annotated[int, typer.Option(help="Pairs of similar photographs.", min=1)] = 40,
    layers: Annotated[str, typer.Option(help="Layers of VGG-16, from 1.")] = "17,31",
    size: Annotated[int, typer.Option(help="Pictures are scaled to SIZE × SIZE pixels.", min=32)] = 96,
    regions: Annotated[int, typer.Option(help="Side of a region in pixels.", min=1)] = 8,
    project: Annotated[
        int | None, typer.Option(help="Random projection to this many coordinates; without it, exact.", min=1)
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of deletion and insertion.", min=2)] = 8,
    seed: Annotated[int, typer.Option(help="Same seed, same numbers.", min=0)] = 0,
    weights: Weights = None,
) -> None:
    """Are explanations of photographs true to VGG-16? Five methods under the whole evaluation suite."""
    from bilrp.studies.faithfulness import study as work
    from bilrp.studies.transfer.study import parse_layers

    settings = work.Settings(
        layers=parse_layers(layers), pairs=pairs, size=size, regions=regions, project=project, steps=steps,
        seed=seed,
    )  # fmt: skip
    report = work.run(data, out, settings=settings, weights=weights, progress=sys.stderr.isatty())
    show_summary(report, out)


def show_summary(report: Report, out: Path) -> None:
    """What a study ends with on the screen: its answer, what was skipped, where to read on."""
    print(report.summary)
    skipped = report.results.get("skipped", ())
    for item in list(skipped)[:10]:
        print(f"skipped {item['file']}: {item['reason']}", file=sys.stderr)
    if len(skipped) > 10:
        print(f"… and {len(skipped) - 10} more skipped, all listed in the report", file=sys.stderr)
    print(out / "report.html")


@study.command()
def tables(
    data: Annotated[str, typer.Option(metavar="DIR", help="images/NAME.jpg and data/NAME.csv.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the report and the weights go.")],
    weights: Annotated[
        str | None, typer.Option(metavar="FILE", help="Bigram weights; trained if not given.")
    ] = None,
    vgg: Weights = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Decides pages, patches and weights.")] = 0,
) -> None:
    """The bigram network on scanned tables: trained from few labels, checked against the transcription."""
    from bilrp.studies.tables import study as experiment

    show = sys.stderr.isatty()
    page = experiment.run(data, out, weights=weights, vgg=vgg, seed=seed, progress=show, say=print)
    print(f"wrote {page}")
