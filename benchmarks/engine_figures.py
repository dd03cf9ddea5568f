"""All figures of the engine in one table: OMP_NUM_THREADS=1 python benchmarks/engine_figures.py [ROW …]

Each row is timed in alternation with one forward pass on the same input, and printed in units of it: process time and
wall-clock, the best of several rounds. Peak memory is that of a fresh run above the start, next to what its plan said. The
script uses only public names and `pipeline.prepare`, so PYTHONPATH chooses which tree is measured.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bilrp
from bilrp import composites
from bilrp.encoder import read_item

DATA = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[2] / "shared" / "data"))
SENTENCE = "A kitten slept on the old mat."  # ten tokens with special tokens
QUERY = "Which animals sleep on a mat in the afternoon?"  # nine words
PASSAGE = " ".join(
    ["A kitten slept on the old mat while the rain fell over quiet houses near the harbour."] * 13
)[:-1]
LAYERS = (5, 10, 17, 24, 31)


@dataclass(frozen=True)
class Row:
    """A piece of work, one forward pass on its input, and the goal in forward passes (None: only reported)."""

    work: Callable[[], Any]
    forward: Callable[[], Any]
    goal: str = ""


def _photograph() -> Path:
    return sorted((DATA / "pascal_voc" / "images").glob("*.jpg"))[0]


def _passes(encoder: Any, item: Any) -> Callable[[], Any]:
    return partial(encoder.forward_fn(item.model_input), item.x)


def _vgg(kind: str) -> Row:
    encoder = bilrp.encoders.vgg16(31)
    item = read_item(encoder, _photograph())
    works = {
        "exact": (lambda: bilrp.decompose(encoder, item.x), "7.5 on the wall"),
        "first": (lambda: next(bilrp.refine(encoder, item.x)), "4.5 on the wall"),
        "layers": (lambda: bilrp.decompose(encoder, item.x, layers=LAYERS)[31], "1.1 × exact"),
    }
    return Row(works[kind][0], _passes(encoder, item), works[kind][1])


def _cnn(name: str, goal: str, composite: Any = None) -> Row:
    makes = {
        "resnet": lambda: bilrp.encoders.vision(DATA / "resnet50"),
        "mobilenet": bilrp.encoders.mobilenet,
        "efficientnet": bilrp.encoders.efficientnet,
    }
    encoder = makes[name]()
    item = read_item(encoder, _photograph())
    work = partial(bilrp.decompose, encoder, item.x, regions=16, composite=composite)
    return Row(work, _passes(encoder, item), goal)


def _random(name: str, goal: str) -> Row:
    import transformers as t

    kinds = {"convnext": (t.ConvNextModel, t.ConvNextConfig()), "vit": (t.ViTModel, t.ViTConfig())}
    torch.manual_seed(0)
    model, config = kinds[name]
    module = model(config).eval()
    encoder = bilrp.Encoder(lambda x: module(x).pooler_output.flatten(1), name=name)
    x = bilrp.encoders.vision(DATA / "resnet50").read(_photograph()).x  # type: ignore[misc]
    regions = 16 if name == "vit" else 32
    item = read_item(encoder, x)
    return Row(
        lambda: bilrp.decompose(encoder, x, regions=regions, composite=composites.uniform(0.0)),
        _passes(encoder, item),
        goal,
    )


def _text(source: Any, text: str, goal: str) -> Row:
    encoder = bilrp.encoders.sentence(source)
    return Row(lambda: bilrp.decompose(encoder, text), _passes(encoder, read_item(encoder, text)), goal)


def _passage(kind: str) -> Row:
    encoder = bilrp.encoders.sentence("minilm")
    forward = _passes(encoder, read_item(encoder, PASSAGE))
    query = bilrp.attribute(encoder, PASSAGE, QUERY)  # warm
    assert len(query.spans()) > 150
    targets = torch.randn(32, 384)
    works = {
        "attribute": (lambda: bilrp.attribute(encoder, PASSAGE, QUERY), "4"),
        "explain": (lambda: bilrp.explain(encoder, QUERY, PASSAGE), "15"),
        "batch": (lambda: bilrp.attribute(encoder, PASSAGE, targets), "one pull"),
    }
    return Row(works[kind][0], forward, works[kind][1])


def _page() -> Row:
    from PIL import Image

    from bilrp.encoders.bigram import bigram

    encoder = bigram()
    page = Image.open(sorted((DATA / "historic_tables" / "images").glob("*.jpg"))[0])
    item = read_item(encoder, page.crop((200, 400, 900, 1000)))
    return Row(lambda: bilrp.decompose(encoder, item.x), _passes(encoder, item))


ROWS: dict[str, tuple[str, Callable[[], Row]]] = {
    "vgg": ("VGG-16 exact, 256 regions", lambda: _vgg("exact")),
    "vgg-first": ("VGG-16 first picture", lambda: _vgg("first")),
    "vgg-layers": ("VGG-16 five layers", lambda: _vgg("layers")),
    "resnet": ("ResNet-50, 196 regions", lambda: _cnn("resnet", "25")),
    "mobilenet": ("MobileNetV2, 196 regions", lambda: _cnn("mobilenet", "60")),
    "efficientnet": ("EfficientNet-Lite0, 196 regions", lambda: _cnn("efficientnet", "60")),
    "resnet-zero": ("ResNet-50, LRP-0", lambda: _cnn("resnet", "25", composites.uniform(0.0))),
    "mobilenet-zero": ("MobileNetV2, LRP-0", lambda: _cnn("mobilenet", "60", composites.uniform(0.0))),
    "efficientnet-zero": (
        "EfficientNet-Lite0, LRP-0",
        lambda: _cnn("efficientnet", "60", composites.uniform(0.0)),
    ),
    "convnext": ("ConvNeXt-T, 49 regions, random weights", lambda: _random("convnext", "")),
    "vit": ("ViT-B/16, 196 regions, random weights", lambda: _random("vit", "128")),
    "minilm": ("MiniLM, 10 tokens", lambda: _text("minilm", SENTENCE, "7")),
    "gte": ("gte-small, 10 tokens", lambda: _text(DATA / "gte-small", SENTENCE, "")),
    "page": ("bigrams of a part of a page", _page),
    "attribute": ("attribute, MiniLM, 200 words against a query", lambda: _passage("attribute")),
    "pair": ("explain, MiniLM, 9 words × 200 words", lambda: _passage("explain")),
    "batch": ("attribute, 200 words against 32 vectors", lambda: _passage("batch")),
}


def _read_memory(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def measure_memory(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the peak of a run above the start, and the working memory of its plan, in MB (0 without a plan)."""
    ctypes.CDLL(None).malloc_trim(0)  # return what earlier runs freed
    Path("/proc/self/clear_refs").write_text("5")  # restart the high-water mark
    before = _read_memory("VmRSS")
    result = work()
    peak = _read_memory("VmHWM") - before
    plan = getattr(result, "plan", None)
    return peak, 0.0 if plan is None else plan.peak_bytes / 2**20


def time_once(work: Callable[[], Any]) -> tuple[float, float]:
    """Return process time and wall-clock of one call, in seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def measure(row: Row, seconds: float) -> tuple[float, float, float, float, float]:
    """Return the work in forward passes by process time and by wall-clock, seconds of a pass, peak and planned MB."""
    row.forward()
    row.work()
    work, passes, started = [], [], time.perf_counter()
    while not work or (time.perf_counter() - started < seconds and len(work) < 30):
        passes += [time_once(row.forward) for _ in range(3)]
        work.append(time_once(row.work))
    (cpu, wall), (cpu_pass, wall_pass) = (map(min, zip(*each, strict=True)) for each in (work, passes))
    return (cpu / cpu_pass, wall / wall_pass, cpu_pass, *measure_memory(row.work))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds for each row, roughly")
    options = parser.parse_args()
    print("| | passes, CPU time | passes, wall-clock | goal | CPU seconds of a pass | peak MB | planned MB |")
    print("|---|---|---|---|---|---|---|")
    with torch.no_grad():
        for name in options.rows or ROWS:
            title, make = ROWS[name]
            row = make()
            cpu, wall, seconds, peak, planned = measure(row, options.seconds)
            print(
                f"| {title} | {cpu:.2f} | {wall:.2f} | {row.goal} | {seconds:.4f} | {peak:.0f} | {planned:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
