"""The command line: explain, ops, study, bench. Thin: parse, call the library, print; errors are one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.errors import BilrpError, InputError

if TYPE_CHECKING:
    from bilrp.studies.common.report import Report

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
study = typer.Typer(
    help="Run one experiment of the paper, from data to table and figure.", no_args_is_help=True
)
app.add_typer(study, name="study")


def _version(wanted: bool) -> bool:
    if wanted:
        from bilrp import __version__

        print(f"bilrp {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which parts of these two inputs make the model call them similar?

    Start with: bilrp explain A.jpg B.jpg -o why.html
    """


def _encoders(incomplete: str) -> list[str]:
    known = (*(f"vgg16:{n}" for n in (5, 10, 17, 24, 31)), "bigram")
    return [name for name in known if name.startswith(incomplete)]


def _styles(incomplete: str) -> list[str]:
    from bilrp.render.links import STYLES

    return [name for name in ("auto", *STYLES) if name.startswith(incomplete)]


def _one_of(*words: str):
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


Encoder = Annotated[
    str,
    typer.Option(
        "--encoder",
        "-e",
        metavar="NAME",
        autocompletion=_encoders,
        help=(
            "vgg16:LAYER (1 … 31) for photographs; bigram (or bigram:WEIGHTS) for scanned tables of digits; or your "
            "own, package.module:function that returns a bilrp.Encoder or an nn.Module (a plain module gets RGB "
            "pixels with ImageNet's mean and standard deviation)."
        ),
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache."),
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help=".png .svg .pdf .html .npz .safetensors; may be repeated."
    ),
]

RegionSide = Annotated[
    int | None,
    typer.Option(min=1, metavar="PIXELS", help="Side of a square region; else the encoder's own, mostly 8."),
]
Measure = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=_one_of("dot", "cosine", "squared_distance"),
        help="dot, cosine or squared_distance.",
    ),
]
Project = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Estimate with N random projections; default: exact."),
]
Size = Annotated[
    str | None,
    typer.Option(metavar="PIXELS", help="128, 192x128, or original (then both need one size). Default: 128."),
]
Fit = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        autocompletion=_one_of("crop", "pad", "stretch"),
        help="To that size: crop, pad or stretch.",
    ),
]
Style = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=_styles,
        help="l, h, p of: auto, pascal_voc, faces, ucf, illustrations, tables.",
    ),
]
Palette = Annotated[
    str,
    typer.Option(
        metavar="NAME", autocompletion=_one_of("paper", "safe"), help="paper or safe (colour-blind)."
    ),
]
Top = Annotated[int, typer.Option(min=0, metavar="N", help="Number of matches to list.")]
ShowPlan = Annotated[bool, typer.Option("--plan", help="Also print what ran where, and its cost.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


@app.command()
def explain(
    a: Annotated[str, typer.Argument(metavar="A", help="The first image file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The second image file.")],
    encoder: Encoder = "vgg16:31",
    regions: RegionSide = None,
    similarity: Measure = "dot",
    project: Project = None,
    size: Size = None,
    fit: Fit = "crop",
    weights: Weights = None,
    output: Output = None,
    style: Style = "auto",
    palette: Palette = "paper",
    top: Top = 5,
    plan: ShowPlan = False,
    json: AsJson = False,
) -> None:
    """Which parts of images A and B make the encoder call them similar?"""
    import time

    from bilrp import regions as region_specs
    from bilrp.cli import terminal
    from bilrp.explanation import explain as explained
    from bilrp.render import figure, links, page
    from bilrp.similarity import resolve

    outputs = terminal.checked_outputs(output or [], inputs=(a, b))
    for known, name in ((links.style, style), (figure.palette, palette), (resolve, similarity)):
        known(name)  # refuse a slip before the work
    chosen = terminal.encoder(encoder, weights=weights, size=size, fit=fit)
    assert chosen.read is not None
    left, right = chosen.read(a), chosen.read(b)  # both, before the first is explained
    wanted = chosen.regions if regions is None else region_specs.grid(regions)
    if any(path.suffix.lower() == ".html" for path in outputs):
        page.check_size(*(region_specs.resolve(wanted, x).count for x in (left, right)))
    start = time.perf_counter()
    found = explained(
        chosen,
        left,
        right,
        similarity=similarity,
        regions=wanted,
        project=project,
        progress=sys.stderr.isatty(),
    )
    names = os.path.basename(a), os.path.basename(b)
    about = terminal.record(
        found, names=(a, b), encoder=chosen.name, seconds=time.perf_counter() - start, top=top
    )
    for path in outputs:
        terminal.write(found, path, names=names, style=style, palette=palette)
    _say(about, outputs, as_json=json)
    if plan:
        print(found.a.plan, file=sys.stderr if json else sys.stdout)


def _say(about: dict, outputs: list, *, as_json: bool) -> None:
    from bilrp.cli import terminal

    if not as_json:
        print(terminal.summary(about, outputs))
        return
    import json

    from bilrp.studies.common.report import plain

    print(json.dumps(plain({**about, "outputs": [str(path) for path in outputs]}), ensure_ascii=False))


@app.command()
def ops(
    encoder: Annotated[str, typer.Argument(help="vgg16:31, or package.module:function that returns one")],
    size: Annotated[int, typer.Option(help="Side of the image tried.", min=1)] = 128,
    shape: Annotated[
        str | None, typer.Option(help="Shape of the input tried, if it is no image: 1,16,384")
    ] = None,
) -> None:
    """Every step of an encoder, its shapes and its rule; exit code 1 if a step has none."""
    from bilrp.encoders.families import load
    from bilrp.trace.listing import default_shape, random_input, show
    from bilrp.trace.listing import ops as rows_of

    # Rules don't depend on the weights: random ones spare a download.
    found = load(encoder, size=size, pretrained=False)
    x = random_input(found, shape or default_shape(found, size))
    try:
        rows = rows_of(found, x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        hint = "give the shape it takes with --shape, e.g. --shape 1,16,384"
        raise InputError(
            f"{found.name} does not run on an input of shape {tuple(x.shape)} ({first}): {hint}"
        ) from error
    show(rows, title=found.name)
    if any(row.problem for row in rows):
        raise typer.Exit(1)


@app.command()
def bench(
    image: Annotated[
        str | None, typer.Argument(metavar="IMAGE", help="A photograph; default: scikit-image's motorcycle.")
    ] = None,
    weights: Weights = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where bench.json and bench.png go.")] = Path(
        "out"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Each way is timed this often; the best counts.")] = 2,
    growth: Annotated[bool, typer.Option(help="Also time 64 … 256 px with 4² … 16² regions.")] = True,
) -> None:
    """What a decomposition costs, side by side with one LRP pass for each coordinate, as ratios."""
    from rich.console import Console

    from bilrp.cli import terminal
    from bilrp.judge import bench as benchmark
    from bilrp.studies.photos.study import stereo_pair

    chosen = terminal.encoder("vgg16:31", weights=weights)
    assert chosen.read is not None
    x = chosen.read(image) if image else chosen.read(stereo_pair()[0])
    console = Console()
    with console.status("timing") as status:
        report = benchmark.run(chosen, x, rounds=rounds, growth=growth, say=status.update)
    console.print(benchmark.table(report))
    if growth:
        console.print(benchmark.growth_table(report))
    for path in benchmark.write(report, out):
        console.print(f"wrote {path}")


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


def main() -> None:
    """Entry point: every expected failure becomes one line on stderr and exit code 2; a surprise exits with 1."""
    for stream in (sys.stdout, sys.stderr):
        # file names may hold bytes no terminal can show: print them escaped rather than fail
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
    except BilrpError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except SystemExit as stopped:
        if stopped.code == 130:  # typer turns Ctrl-C into this, without a word
            _fail("interrupted", 130)
        raise
    except BrokenPipeError:
        # the reader of our output went away (bilrp … | head): not an error, and nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("BILRP_DEBUG"):
            raise
        reason = " ".join(str(error).split()) or "no message"
        _fail(f"{type(error).__name__}: {reason[:400]} (BILRP_DEBUG=1 shows where)", 1)


def _fail(reason: str, code: int) -> None:
    print(f"bilrp: {' '.join(reason.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
