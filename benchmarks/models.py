"""What explaining costs on the models of today, counted and timed side by side: python benchmarks/models.py [NAME …]

A photograph of a cat, regions of 16 pixels at 224 (196 of them), γ = 0, every coordinate of the embedding; in units of
running the model once on that input. The architectures have random weights but for VGG-16, MiniLM and EfficientNet, which
are fetched: what is counted depends little on them. The first picture of a refinement has about 16 regions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from PIL import Image
from torch import nn

import bilrp
from bilrp.decomposition import prepare
from bilrp.encoder import read_item
from bilrp.encoders import images
from bilrp.engine import plan
from bilrp.engine.plan import PlanContext
from bilrp_studies.bench.sentence import count_flops, time_cpu

SENTENCE = "A kitten slept on the old mat."  # ten tokens with the marks
GAMMA, SECONDS = 0.25, 4.0


class Pooled(nn.Module):
    """A model of transformers, giving its pooled output alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).pooler_output.flatten(1)


def architecture(name: str) -> bilrp.Encoder:
    """ResNet-50, ConvNeXt-T or ViT-B/16 as their authors size them, with random weights."""
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
Row = tuple[str, Work, Work]  # name, the work, running the model once


def photographs(name: str) -> Iterator[Row]:
    """Exact, first picture, and what comes before any region is pushed, on one picture of 224 pixels."""
    encoder = bilrp.encoders.efficientnet() if name == "EfficientNet-lite0" else architecture(name)
    x = images.read(photograph(), size=224)
    how = {"regions": 16, "composite": bilrp.composites.uniform(0.0)}
    run = partial(encoder.forward_fn(()), x)
    yield f"{name}, exact", lambda: bilrp.decompose(encoder, x, **how), run
    yield f"{name}, first picture", lambda: next(bilrp.refine(encoder, x, **how)), run
    yield f"{name}, run and checked", lambda: encoder.record(x), run
    yield f"{name}, run, checked, frozen and planned", lambda: planned(encoder, x, **how), run


def photograph() -> Image.Image:
    """A photograph that comes with scikit-image."""
    from skimage import data

    return Image.fromarray(data.chelsea())


def planned(encoder: bilrp.Encoder, thing: object, **how: object) -> object:
    """Everything that comes before a region is pushed."""
    ready = prepare(encoder, read_item(encoder, thing), **how)
    return plan.make_plan(PlanContext(ready.program, ready.partition, ready.program.result.numel()))


def vgg() -> Iterator[Row]:
    """VGG-16 at 128 pixels and 256 regions, with the paper's rules."""
    encoder = bilrp.encoders.vgg16(31)
    x = read_item(encoder, photograph()).x
    run = partial(encoder.forward_fn(()), x)
    layers = (5, 10, 17, 24, 31)
    yield "VGG-16, exact", lambda: bilrp.decompose(encoder, x), run
    yield "VGG-16, first picture", lambda: next(bilrp.refine(encoder, x)), run
    yield "VGG-16, five layers in one sweep", lambda: bilrp.decompose(encoder, x, layers=layers), run
    yield "VGG-16, run and checked", lambda: encoder.record(x), run
    yield "VGG-16, run, checked, frozen and planned", lambda: planned(encoder, x), run


def minilm() -> Iterator[Row]:
    """A sentence of ten tokens."""
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
    yield f"{tokens}, run and checked", lambda: encoder.record(item.x, item.model_input), run
    yield f"{tokens}, run, checked, frozen and planned", lambda: planned(encoder, SENTENCE), run


MODELS: dict[str, Callable[[], Iterator[Row]]] = {
    "vgg": vgg,
    "resnet": partial(photographs, "ResNet-50"),
    "convnext": partial(photographs, "ConvNeXt-T"),
    "efficientnet": partial(photographs, "EfficientNet-lite0"),
    "vit": partial(photographs, "ViT-B/16"),
    "minilm": minilm,
}


def main(*names: str) -> None:
    print("| | multiplications, in forward passes | processor time, in forward passes |\n|---|---|---|")
    with torch.no_grad():
        for name in names or MODELS:
            for row, work, once in MODELS[name]():
                passes = count_flops(work) / count_flops(once)
                print(f"| {row} | {passes:.1f} | {best(work) / best(once):.1f} |", flush=True)


def best(work: Work) -> float:
    """Processor seconds, the best of as many rounds as take a few seconds, but of three at least."""
    return time_cpu(work, max(3, min(50, round(SECONDS / time_cpu(work, 1)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
