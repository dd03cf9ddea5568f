"""What does each mechanism of the engine bring? OMP_NUM_THREADS=1 python benchmarks/ablation.py [NETWORK …]

Every mechanism is switched off by itself, on networks with real weights (random ones for ConvNeXt-T and ViT-B/16).
Printed are the CPU time of the process relative to everything on, the counted multiplications of the plan likewise, the
peak memory above the start, and the lines of code that only this mechanism needs. A shared machine changes CPU times by
5 to 10 %: runs with and without the mechanism alternate on one thread, and the best of each counts. Parts must not change
beyond rounding.
"""

from __future__ import annotations

import argparse
import ctypes
import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from PIL import Image

import bilrp
from bilrp import composites, native, pipeline
from bilrp.decomposition import Decomposition
from bilrp.encoder import read_item
from bilrp.engine import costs, executor, memory, passes, plan_context, tapped_parts
from bilrp.engine.executors import sparse, sparse_layout, sparse_native, tiles, windowed
from bilrp.engine.passes import channels_first, folding
from bilrp.rules import (
    affine,
    attention,
    freezing,
    norms,
    product_rules,
    secants,
    selection,
    verification,
)
from bilrp.trace import replay, weight_cache

DATA = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[2] / "shared" / "data"))
PHOTOGRAPH = sorted((DATA / "pascal_voc" / "images").glob("*.jpg"))[0] if DATA.is_dir() else None
SENTENCE = "Unbelievably, a kitten was sleeping on the neighbour's doormat all afternoon."
MAX_DIFFERENCE = 1e-3  # of the largest part, in float32


# ---------------------------------------------------------------- networks


Run = Callable[[], Decomposition]


def _cnn(make: Callable[[], bilrp.Encoder]) -> Run:
    encoder = make()
    item = read_item(encoder, PHOTOGRAPH)
    return lambda: pipeline.decompose_item(encoder, item, regions=16)[None]


def _vgg(layers: tuple[int, ...] | None) -> Run:
    encoder = bilrp.encoders.vgg16(31)
    item = read_item(encoder, PHOTOGRAPH)
    return lambda: pipeline.decompose_item(encoder, item, layers=layers)[layers[0] if layers else None]


def _random(name: str) -> Run:
    import transformers as t

    kinds = {"convnext": (t.ConvNextModel, t.ConvNextConfig()), "vit": (t.ViTModel, t.ViTConfig())}
    torch.manual_seed(0)
    model, config = kinds[name]
    module = model(config).eval()
    encoder = bilrp.Encoder(lambda x: module(x).pooler_output.flatten(1), name=name)
    x = bilrp.encoders.vision(DATA / "resnet50").read(PHOTOGRAPH).x  # type: ignore[misc]
    item = read_item(encoder, x)
    return lambda: pipeline.decompose_item(
        encoder, item, regions=16 if name == "vit" else 32, composite=composites.uniform(0.0)
    )[None]


def _text(source: str | Path) -> Run:
    encoder = bilrp.encoders.sentence(source)
    item = read_item(encoder, SENTENCE)
    return lambda: pipeline.decompose_item(encoder, item)[None]


def _page() -> Run:
    from bilrp.encoders.bigram import bigram

    encoder = bigram()
    page = Image.open(sorted((DATA / "historic_tables" / "images").glob("*.jpg"))[0])
    item = read_item(encoder, page.crop((200, 400, 900, 1000)))
    return lambda: pipeline.decompose_item(encoder, item)[None]


NETWORKS: dict[str, tuple[str, Callable[[], Run]]] = {
    "vgg": ("VGG-16, 128 px, 256 regions", lambda: _vgg(None)),
    "vgg-layers": ("VGG-16, five layers", lambda: _vgg((5, 10, 17, 24, 31))),
    "resnet": ("ResNet-50, 196 regions", lambda: _cnn(lambda: bilrp.encoders.vision(DATA / "resnet50"))),
    "mobilenet": ("MobileNetV2, 196 regions", lambda: _cnn(bilrp.encoders.mobilenet)),
    "efficientnet": ("EfficientNet-Lite0, 196 regions", lambda: _cnn(bilrp.encoders.efficientnet)),
    "convnext": ("ConvNeXt-T, 49 regions, random weights", lambda: _random("convnext")),
    "vit": ("ViT-B/16, 196 regions, random weights", lambda: _random("vit")),
    "minilm": ("MiniLM, 22 tokens", lambda: _text("minilm")),
    "gte": ("gte-small, 22 tokens", lambda: _text(DATA / "gte-small")),
    "page": ("bigrams of a part of a page", _page),
}


# ---------------------------------------------------------------- mechanisms


@dataclass(frozen=True)
class Mechanism:
    """A part of the engine that can be switched off.

    Args:
        title: Row of the table.
        replace: (owner, attribute, replacement) that switch it off.
        code: What only this mechanism needs: functions, classes, modules, or (class, names of methods).
    """

    title: str
    replace: tuple[tuple[Any, str, Any], ...]
    code: tuple[Any, ...] = field(default=())

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, replacement in self.replace:
                stack.enter_context(patch.object(owner, name, replacement))
            yield

    def count_lines(self) -> int:
        return sum(_count_lines(each) for each in self.code)


def _count_lines(code: Any) -> int:
    if isinstance(code, tuple):  # methods of classes that have them
        classes, names = code
        members = [vars(each).get(name) for each in classes for name in names]
        return sum(_count_lines(member) for member in members if member is not None)
    if isinstance(code, Path):
        return len(code.read_text().splitlines())
    return len(inspect.getsource(getattr(code, "func", code)).splitlines())


def _rewrite_without(unused: passes.Pass) -> Any:
    rest = tuple(each for each in passes.PASSES if each is not unused)
    return lambda program, keep: passes.rewrite(program, keep, rest)


ZERO = property(lambda self: 0)
NATIVE_FILES = tuple(native.NATIVE_FOLDER.glob("rows.c"))

MECHANISMS: dict[str, Mechanism] = {
    "windows": Mechanism(
        "windows (push_windowed)",
        ((costs, "WINDOWED_PUSH_SLOWDOWN", 1e6),),
        (windowed,),
    ),
    "rows": Mechanism(
        "active rows (push_sparse)",
        ((costs, "sparse_segments", lambda context: []),),
        (sparse, sparse_layout, sparse_native, *NATIVE_FILES),
    ),
    "windows+rows": Mechanism(
        "windows and rows",
        ((plan_context.PlanContext, "spatial_count", ZERO),),
    ),
    "native": Mechanism(
        "native rows (torch instead)",
        ((native, "is_supported", lambda like: False),),
        (sparse_native, *NATIVE_FILES),
    ),
    "torch-rows": Mechanism(
        "rows in torch, where there is no native code (windows and dense instead)",
        ((costs, "sparse_segments", lambda context: []), (native, "is_supported", lambda like: False)),
        (sparse_layout.TorchSparseTangent,),
    ),
    "tiles": Mechanism("tiles (pull_tiled)", ((plan_context.PlanContext, "chain_length", ZERO),), (tiles,)),
    "factors": Mechanism(
        "factors folded into the step before",
        ((pipeline, "rewrite", _rewrite_without(folding.fold_factors)),),
        (folding,),
    ),
    "channels-first": Mechanism(
        "channels first",
        ((pipeline, "rewrite", _rewrite_without(channels_first.rewrite_channels_first)),),
        (channels_first,),
    ),
    "weights": Mechanism(
        "kept weights", ((pipeline, "use_weight_cache", lambda *a: nullcontext()),), (weight_cache,)
    ),
    "replay": Mechanism(
        "sampled replay",
        ((replay, "_sample_matches", lambda *a: False),),
        (
            replay._sample_matches,
            replay._pooling_matches,
            replay._product_matches,
            replay._sample_range,
            replay._random_sums_match,
            replay._with_groups,
        ),
    ),
    "constants": Mechanism(
        "constants of affine functions found once",
        ((freezing, "detect_constants", list),),
    ),
    "substitutes": Mechanism(
        "check of a rule's own form of a call (off is faster, not allowed)",
        tuple(
            (module, "verify_substitute", lambda step, function, expected=None: function)
            for module in (affine, attention, norms, product_rules, secants, selection)
        ),
        (verification.verify_substitute,),
    ),
    "sparse-taps": Mechanism(
        "sparse parts",
        ((executor, "choose_sparse_taps", lambda *a: {}), (memory, "choose_sparse_taps", lambda *a: {})),
        (tapped_parts,),
    ),
}


# ---------------------------------------------------------------- measuring


@dataclass
class Figures:
    """The best of several runs."""

    seconds: float = float("inf")
    peak_mb: float = 0.0
    flops: float = 0.0

    def add(self, run: Run) -> torch.Tensor:
        ctypes.CDLL(None).malloc_trim(0)  # return what earlier runs freed
        Path("/proc/self/clear_refs").write_text("5")  # restart the high-water mark
        before, start = _read_memory("VmRSS"), time.process_time()
        decomposition = run()
        self.seconds = min(self.seconds, time.process_time() - start)
        self.peak_mb = max(self.peak_mb, _read_memory("VmHWM") - before)
        assert decomposition.plan is not None
        self.flops = decomposition.plan.flops
        return decomposition.parts


def _read_memory(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def measure(run: Run, names: Sequence[str], max_rounds: int, max_seconds: float) -> Iterator[tuple[str, str]]:
    """Yield a row of the table for each mechanism."""
    expected = run()
    reference = expected.parts.clone()
    everything = Figures()
    everything.add(run)
    for name in names:
        mechanism, on, off = MECHANISMS[name], Figures(), Figures()
        started = time.process_time()
        for number in range(max_rounds):
            on.add(run)
            with mechanism.switched_off():
                if number == 0 and name in ("weights", "native"):
                    run()
                parts = off.add(run)
            error = float((parts - reference).abs().max() / reference.abs().max())
            assert error <= MAX_DIFFERENCE, (name, error)
            if time.process_time() - started > max_seconds:
                break
        yield (
            name,
            f"{off.seconds / on.seconds:.2f} | {off.flops / max(on.flops, 1):.2f} | "
            f"{on.seconds:.3f} → {off.seconds:.3f} s | {on.peak_mb:.0f} → {off.peak_mb:.0f} MB",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--without", nargs="*", choices=MECHANISMS, help="mechanisms; all by default")
    parser.add_argument("--rounds", type=int, default=5, help="at most so many runs with and without each")
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU seconds for each mechanism, roughly")
    options = parser.parse_args()
    with torch.no_grad():
        for name in options.networks or NETWORKS:
            title, make = NETWORKS[name]
            print(
                f"\n{title}\n\n| without | CPU time | multiplications | CPU seconds | peak memory | lines |"
            )
            print("|---|---|---|---|---|---|")
            for key, row in measure(
                make(), options.without or list(MECHANISMS), options.rounds, options.seconds
            ):
                print(f"| {MECHANISMS[key].title} | {row} | {MECHANISMS[key].count_lines()} |", flush=True)


if __name__ == "__main__":
    main()
