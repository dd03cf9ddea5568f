"""Benchmark of a decomposition, as ratios measured in one run.

All methods are timed in interleaved rounds on one machine, and the fastest round counts. Methods that would take minutes
(one LRP pass per coordinate) are timed on a few coordinates and extrapolated, as the table states.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilrp.encoder import Encoder, resolve_composite
from bilrp.engine import plan
from bilrp.engine.plan import PlanContext
from bilrp.engine.program import pull
from bilrp.io import files
from bilrp.pipeline import decompose
from bilrp.regions import grid
from bilrp.rules.composites import IMAGENET_HIGH, IMAGENET_LOW, paper_gamma
from bilrp.rules.freezing import freeze
from bilrp.similarity import random_projection
from bilrp.trace.rewrite import simplify
from bilrp_studies.bench import other_libraries
from bilrp_studies.bench.timing import Measurement, measure_cost

if TYPE_CHECKING:
    from rich.table import Table

PROJECTED_COORDINATES = 100  # dimensions of the paper's random projection
TIMED_LAYERS = (5, 10, 17, 24, 31)
MAX_TIMED_REGIONS = 1024  # beyond that only the plan is made: the parts alone would take gigabytes


@dataclass(frozen=True)
class Row:
    """One row of the table: seconds for one image, relative to 100 forward passes and to the loop, and peak memory."""

    name: str
    seconds: float
    of_100_forwards: float
    faster_than_loop: float
    peak_mb: float


@dataclass(frozen=True)
class Growth:
    """Cost at one image and region size: planned work, and measured seconds (None if only planned)."""

    size: int
    region: int
    regions: int
    gflop: float
    seconds: float | None
    peak_mb: float | None


@dataclass(frozen=True)
class BenchmarkReport:
    """All results of one run, with a description of the machine."""

    rows: tuple[Row, ...]
    growth: tuple[Growth, ...]
    forward_seconds: float
    machine: dict[str, Any]
    collection: tuple[Measurement, ...] = ()


def run(encoder: Encoder, x: Tensor, *, rounds: int = 2, growth: bool = True, log=print) -> BenchmarkReport:
    """Time all methods on one input of a VGG-16 encoder at layer 31.

    Args:
        encoder: VGG-16 up to layer 31.
        x: The input, with a batch axis of 1.
        rounds: Repetitions of each measurement; the fastest counts.
        growth: Also measure how cost grows with image and region size.
        log: Called with a line of text after each measurement.
    """
    module = encoder.module
    assert isinstance(module, nn.Module)
    ways = _methods(encoder, x)
    forward = min(_time_forward(module, x, 1), _time_forward(module, x, 10))
    best, peaks = {name: float("inf") for name in ways}, dict.fromkeys(ways, 0.0)
    for number in range(rounds):
        # Interleave the methods so that all see the same machine load; the forward pass is timed again in each round.
        forward = min(forward, _time_forward(module, x, 1), _time_forward(module, x, 10))
        for name, (measure, times) in ways.items():
            seconds, peak = measure()
            best[name], peaks[name] = min(best[name], seconds * times), max(peaks[name], peak)
            log(f"round {number + 1}/{rounds}  {name}: {seconds * times:.2f} s")
    loop = best[LOOP_NAME]
    rows = tuple(
        Row(name, best[name], best[name] / (100 * forward), loop / best[name], peaks[name]) for name in ways
    )
    grown = tuple(_measure_growth(encoder, log)) if growth else ()
    return BenchmarkReport(rows, grown, forward, describe_machine())


LOOP_NAME = "loop: forward and LRP pass for each of 100 coordinates (×25 of 4)"


Timer = Callable[[], tuple[float, float]]  # seconds, megabytes


def _methods(encoder: Encoder, x: Tensor) -> dict[str, tuple[Timer, float]]:
    """Return {name: (timer, factor to multiply its time by)}."""
    module = encoder.module
    assert isinstance(module, nn.Module)
    layers = list(next(module.children()).children())
    seeds = random_projection(PROJECTED_COORDINATES, module(x).numel(), like=x).reshape(-1, *module(x).shape)
    peak = torch.unravel_index(module(x).argmax(), module(x).shape)[1:]
    position = int(peak[0]), int(peak[1]), int(peak[2])
    works: dict[str, tuple[Callable[[], object], float]] = {
        LOOP_NAME: (lambda: [run_lrp_pass(layers, x, seeds[m]) for m in range(4)], PROJECTED_COORDINATES / 4),
        "pull: 100 coordinates on one stored run (×5 of 20)": (
            lambda: _pull_parts(encoder, x, seeds[:20]),
            PROJECTED_COORDINATES / 20,
        ),
        "bilrp, 100 projected coordinates": (lambda: decompose(encoder, x, project=PROJECTED_COORDINATES), 1),
        "bilrp, exact (all coordinates)": (lambda: decompose(encoder, x), 1),
        f"bilrp, exact, layers {', '.join(map(str, TIMED_LAYERS))} in one sweep": (
            lambda: decompose(encoder, x, layers=TIMED_LAYERS),
            1,
        ),
    }
    return {
        **{name: (partial(measure_cost, work), times) for name, (work, times) in works.items()},
        **{
            f"{name}: one pass for each of 100 coordinates (×100 of 1)": (
                partial(_time_other_library, name, layers, x, position),
                PROJECTED_COORDINATES,
            )
            for name in other_libraries.list_installed()
        },
    }


def _time_other_library(
    name: str, layers: list[nn.Module], x: Tensor, coordinate: other_libraries.Coordinate
) -> tuple[float, float]:
    result = other_libraries.time_pass(name, layers, x, coordinate)
    return result.seconds, result.peak_mb


def run_lrp_pass(layers: Iterable[nn.Module], x: Tensor, seed: Tensor) -> Tensor:
    """Run one LRP pass as the paper describes it: forward, then relevance layer by layer, for one (projected) coordinate.

    R_j = a_j Σ_k ρ(w_jk) R_k / Σ_j a_j ρ(w_jk), γ by layer, and z^B at the first.

    Args:
        layers: Convolutions, ReLUs and max-poolings of VGG-16, in order.
        x: The input, with a batch axis of 1.
        seed: Weights of the output's coordinates, shaped like the output; a one-hot tensor selects one coordinate.
    """
    layers, values = list(layers), [x]
    with torch.no_grad():
        for layer in layers:
            values.append(layer(values[-1]))
        relevance = values[-1] * seed
        for number in range(len(layers), 0, -1):
            relevance = _propagate_layer(
                layers[number - 1], number, values[number - 1], values[number], relevance
            )
    return relevance


def _propagate_layer(layer: nn.Module, number: int, a: Tensor, output: Tensor, relevance: Tensor) -> Tensor:
    if isinstance(layer, nn.ReLU):
        return relevance
    if isinstance(layer, nn.MaxPool2d):
        _, index = F.max_pool2d(a, 2, return_indices=True)
        return F.max_unpool2d(relevance, index, (2, 2), output_size=a.shape[-2:])
    assert isinstance(layer, nn.Conv2d) and layer.bias is not None
    if number == 1:
        return _propagate_pixel_layer(layer, a, relevance)
    gamma = paper_gamma(number)
    weight = layer.weight + gamma * layer.weight.clamp(min=0)
    z = F.conv2d(a, weight, layer.bias + gamma * layer.bias.clamp(min=0), padding=1)
    return a * F.conv_transpose2d(relevance / torch.where(z == 0, 1e-9, z), weight, padding=1)


def _propagate_pixel_layer(layer: nn.Conv2d, a: Tensor, relevance: Tensor) -> Tensor:
    low, high = (
        torch.tensor(b).to(a).reshape(1, -1, 1, 1).expand_as(a) for b in (IMAGENET_LOW, IMAGENET_HIGH)
    )
    sides = [(layer.weight, a), (-layer.weight.clamp(min=0), low), (-layer.weight.clamp(max=0), high)]
    z = sum(
        (F.conv2d(value, weight, padding=1) for weight, value in sides), start=torch.zeros_like(relevance)
    )
    share = relevance / torch.where(z == 0, 1e-9, z)
    parts = (value * F.conv_transpose2d(share, weight, padding=1) for weight, value in sides)
    return sum(parts, start=torch.zeros_like(a))


def _pull_parts(encoder: Encoder, x: Tensor, seeds: Tensor) -> Tensor:
    with torch.no_grad():
        tape = encoder.record(x)
        program = freeze(simplify(tape), resolve_composite(encoder, tape))
        return torch.cat([grid(8)(x).pool(pull(program, chunk)) for chunk in seeds.split(10)])


def _time_forward(module: nn.Module, x: Tensor, batch: int) -> float:
    """Return seconds per image of a forward pass with the given batch size."""
    stacked = x.expand(batch, *x.shape[1:]).contiguous()
    with torch.no_grad():
        module(stacked)
        start = time.perf_counter()
        for _ in range(3):
            module(stacked)
    return (time.perf_counter() - start) / (3 * batch)


def _measure_growth(encoder: Encoder, log) -> Iterable[Growth]:
    for size in (64, 128, 224, 256):
        x = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
        low, high = (torch.tensor(b).reshape(1, -1, 1, 1) for b in (IMAGENET_LOW, IMAGENET_HIGH))
        x = low + _smooth_noise(x) * (high - low)
        for region in (4, 8, 16):
            with torch.no_grad():
                tape = encoder.record(x)
                program = freeze(simplify(tape), resolve_composite(encoder, tape))
                setting = PlanContext(program, grid(region)(x), program.result.numel())
                built = Growth(
                    size, region, setting.partition.count, plan.make_plan(setting).flops / 1e9, None, None
                )
            if built.regions <= MAX_TIMED_REGIONS:
                seconds, peak = measure_cost(
                    lambda x=x, region=region: decompose(encoder, x, regions=grid(region))
                )
                built = replace(built, seconds=seconds, peak_mb=peak)
            log(f"{size} px, {region}×{region} regions: {built.gflop:.0f} GFLOP, {_format_seconds(built)}")
            yield built


def _format_seconds(growth: Growth) -> str:
    return "planned only" if growth.seconds is None else f"{growth.seconds:.2f} s"


def _smooth_noise(noise: Tensor) -> Tensor:
    """Return noise with structure at several scales, as a substitute for a photograph of any size."""
    layers = [F.interpolate(noise[..., ::s, ::s], size=noise.shape[-2:], mode="bilinear") for s in (1, 4, 16)]
    return torch.stack(layers).mean(0)


def describe_machine() -> dict[str, Any]:
    """Return processor, threads and versions, to put the ratios into context."""
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


# ---------------------------------------------------------------- output


def build_table(report: BenchmarkReport) -> Table:
    """Return the rows as a rich table."""
    from rich.table import Table

    result = Table(title=f"VGG-16 layer 31, one image; a forward pass takes {report.forward_seconds:.3f} s")
    for name in ("", "seconds", "of 100 forward passes", "faster than the loop", "peak MB"):
        result.add_column(name, justify="left" if not name else "right")
    for row in report.rows:
        result.add_row(
            row.name,
            f"{row.seconds:.2f}",
            f"{row.of_100_forwards:.2f}",
            f"{row.faster_than_loop:.1f}×",
            f"{row.peak_mb:.0f}",
        )
    return result


def build_growth_table(report: BenchmarkReport) -> Table:
    """Return the growth of cost with image and region size as a rich table."""
    from rich.table import Table

    result = Table(title="exact, by image and region size")
    for name in ("image", "region", "regions", "GFLOP", "seconds", "peak MB"):
        result.add_column(name, justify="right")
    for g in report.growth:
        result.add_row(
            f"{g.size} px",
            f"{g.region}²",
            str(g.regions),
            f"{g.gflop:.1f}",
            _format_seconds(g),
            "–" if g.peak_mb is None else f"{g.peak_mb:.0f}",
        )
    return result


def build_collection_table(ratios: Iterable[Measurement]) -> Table:
    """Return the measurements of a collection as a rich table."""
    from rich.table import Table

    result = Table(title="a collection")
    for name in ("", "measured", "goal"):
        result.add_column(name, justify="right" if name == "measured" else "left")
    for each in ratios:
        result.add_row(each.name, f"{each.value:.2f} {each.unit}", each.note)
    return result


def write_report(report: BenchmarkReport, folder: Path) -> list[Path]:
    """Write bench.json and bench.png to the folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(report), indent=1)
    with files.atomic_write(folder / "bench.png") as temporary:
        _plot(report).savefig(temporary, dpi=150)
    return [files.write_text(folder / "bench.json", text), folder / "bench.png"]


def _plot(report: BenchmarkReport) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    names = [
        row.name.split(" (×")[0].replace(" for each of 100 coordinates", " × 100") for row in report.rows
    ]
    values = [row.of_100_forwards for row in report.rows]
    colours = ["#b8b8b8" if not name.startswith("bilrp") else "#c23b3b" for name in names]
    bars = left.barh(names, values, color=colours)
    left.bar_label(bars, [f"{value:.2f}" for value in values], padding=4)
    left.invert_yaxis()
    left.set(xlabel="cost of one image, in units of 100 forward passes", xlim=(0, 1.15 * max(values)))
    for region in sorted({g.region for g in report.growth}):
        chosen = [(g.size, g.seconds) for g in report.growth if g.region == region and g.seconds is not None]
        right.plot(*zip(*chosen, strict=True), "o-", label=f"{region}×{region} px regions")
    right.set(xlabel="image side, px", ylabel="seconds, exact", xscale="log", yscale="log")
    if report.growth:
        sizes = sorted({g.size for g in report.growth})
        right.set_xticks(sizes, [str(s) for s in sizes], rotation=45)  # the labels 224 and 256 would overlap
        right.minorticks_off()
        seconds = [g.seconds for g in report.growth if g.seconds] or [1.0]
        halvings = [2.0**n for n in range(-8, 12) if min(seconds) / 1.5 <= 2.0**n <= 1.5 * max(seconds)]
        right.set_yticks(halvings, [f"{tick:g}" for tick in halvings])
        right.legend(frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    return figure
