"""Count and time explanations of several models: python benchmarks/models.py [NAME …]

A photograph of a cat, regions of 16 pixels at 224 × 224 (196 regions), γ = 0, every coordinate of the embedding; in units of
one forward pass on that input. VGG-16, MiniLM and EfficientNet have pretrained weights, the others random ones, on which the
counts depend little. The first picture of a refinement has about 16 regions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from PIL import Image
from torch import nn

import bilrp
from bilrp.encoder import read_item
from bilrp.encoders import images
from bilrp.engine import plan
from bilrp.engine.plan import PlanContext
from bilrp.pipeline import prepare
from bilrp_studies.bench.sentence import count_flops, time_cpu

SENTENCE = "A kitten slept on the old mat."  # ten tokens with special tokens
GAMMA, TIMING_SECONDS = 0.25, 4.0


class Pooled(nn.Module):
    """Return only the pooled output of a transformers model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).pooler_output.flatten(1)


def build_architecture(name: str) -> bilrp.Encoder:
    """Build ResNet-50, ConvNeXt-T or ViT-B/16 with random weights."""
    import transformers as t

    kinds = {
        "ResNet-50": (t.ResNetModel, t.ResNetConfig()),
        "ConvNeXt-T": (t.ConvNextModel, t.ConvNextConfig()),
        "ViT-B/16": (t.ViTModel, t.ViTConfig()),
    }
    torch.manual_seed(0)
    model, config = kinds[name]
    return bilrp.Encoder(Pooled(model(config)).eval(), name=name)


Work = Callable[[], object]
Row = tuple[str, Work, Work]  # name, work, one forward pass


def photographs(name: str) -> Iterator[Row]:
    """Yield the benchmarks of an image model at 224 pixels."""
    encoder = bilrp.encoders.efficientnet() if name == "EfficientNet-lite0" else build_architecture(name)
    x = images.read(load_photograph(), size=224)
    options = {"regions": 16, "composite": bilrp.composites.uniform(0.0)}
    run = partial(encoder.forward_fn(()), x)
    yield f"{name}, exact", lambda: bilrp.decompose(encoder, x, **options), run
    yield f"{name}, first picture", lambda: next(bilrp.refine(encoder, x, **options)), run
    yield f"{name}, recorded and verified", lambda: encoder.record(x), run
    yield (
        f"{name}, recorded, verified, frozen and planned",
        lambda: prepare_and_plan(encoder, x, **options),
        run,
    )


def load_photograph() -> Image.Image:
    """Load a photograph from scikit-image."""
    from skimage import data

    return Image.fromarray(data.chelsea())


def prepare_and_plan(encoder: bilrp.Encoder, raw_input: object, **options: object) -> object:
    """Run everything that comes before the first push."""
    ready = prepare(encoder, read_item(encoder, raw_input), **options)
    return plan.make_plan(PlanContext(ready.program, ready.regions, ready.program.result.numel()))


def vgg() -> Iterator[Row]:
    """Yield the benchmarks of VGG-16 at 128 pixels and 256 regions, with the paper's composite."""
    encoder = bilrp.encoders.vgg16(31)
    x = read_item(encoder, load_photograph()).x
    run = partial(encoder.forward_fn(()), x)
    layers = (5, 10, 17, 24, 31)
    yield "VGG-16, exact", lambda: bilrp.decompose(encoder, x), run
    yield "VGG-16, first picture", lambda: next(bilrp.refine(encoder, x)), run
    yield "VGG-16, five layers in one pass", lambda: bilrp.decompose(encoder, x, layers=layers), run
    yield "VGG-16, recorded and verified", lambda: encoder.record(x), run
    yield "VGG-16, recorded, verified, frozen and planned", lambda: prepare_and_plan(encoder, x), run


def minilm() -> Iterator[Row]:
    """Yield the benchmarks of a sentence of ten tokens."""
    encoder = bilrp.encoders.sentence("minilm")
    item = read_item(encoder, SENTENCE)
    run = partial(encoder.forward_fn(item.model_input), item.x)
    tokens = f"MiniLM, {item.x.shape[1]} tokens"
    gamma = bilrp.composites.uniform(GAMMA)
    yield f"{tokens}, exact", lambda: bilrp.decompose(encoder, SENTENCE, regions="tokens"), run
    yield (
        f"{tokens}, γ = {GAMMA}",
        lambda: bilrp.decompose(encoder, SENTENCE, regions="tokens", composite=gamma),
        run,
    )
    yield f"{tokens}, recorded and verified", lambda: encoder.record(item.x, item.model_input), run
    yield (
        f"{tokens}, recorded, verified, frozen and planned",
        lambda: prepare_and_plan(encoder, SENTENCE),
        run,
    )


MODELS: dict[str, Callable[[], Iterator[Row]]] = {
    "vgg": vgg,
    "resnet": partial(photographs, "ResNet-50"),
    "convnext": partial(photographs, "ConvNeXt-T"),
    "efficientnet": partial(photographs, "EfficientNet-lite0"),
    "vit": partial(photographs, "ViT-B/16"),
    "minilm": minilm,
}


def main(*names: str) -> None:
    print("| | multiplications, in forward passes | CPU time, in forward passes |\n|---|---|---|")
    with torch.no_grad():
        for name in names or MODELS:
            for row, work, once in MODELS[name]():
                passes = count_flops(work) / count_flops(once)
                print(f"| {row} | {passes:.1f} | {best_seconds(work) / best_seconds(once):.1f} |", flush=True)


def best_seconds(work: Work) -> float:
    """Return the CPU seconds of the best of at least three rounds, within a few seconds in total."""
    return time_cpu(work, max(3, min(50, round(TIMING_SECONDS / time_cpu(work, 1)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
