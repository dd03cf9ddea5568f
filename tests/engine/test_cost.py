"""Budgets that are counted, not timed: floating-point operations of a pull, and what importing adds to torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bilrp
from bilrp import composites, rules
from models import Inception, Residual, randomize_norms, transformer


def count_flops(call) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        call()
    return counter.get_total_flops()


def vgg() -> nn.Module:
    """VGG's proportions: the first layer, where z^B needs three products, is a small part of the whole."""
    widths, layers, inside = (16, 32), [], 3
    for width in widths:
        for _ in range(2):
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU()]
            inside = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten())


first = composites.first_match(("0", rules.zbox(-5.0, 5.0)), otherwise=composites.uniform(0.25))
BUDGET = {
    "vgg, z^B and γ": (vgg, (3, 16, 16), first),
    "vgg, LRP-0": (vgg, (3, 16, 16), composites.uniform(0.0)),
    "residual, LRP-0": (Residual, (3, 16, 16), composites.uniform(0.0)),
    "inception, LRP-0": (Inception, (3, 16, 16), composites.uniform(0.0)),
    "transformer, detached attention": (lambda: transformer(True, False), (5, 8), composites.transformer()),
}


@pytest.mark.parametrize("name", BUDGET)
def test_pulling_h_coordinates_costs_h_forward_passes(name: str, record_property) -> None:
    """At most 1.15 forward passes for each coordinate, plus a constant."""
    build, shape, composite = BUDGET[name]
    model = randomize_norms(build())
    x = torch.randn(1, *shape, dtype=torch.float64)
    forward = count_flops(
        lambda: model(x)
    )  # with gradients on: nn.TransformerEncoder's fused path counts as nothing
    few, many = (
        count_flops(lambda d=d: bilrp.decompose(model, x, composite=composite, mode="pull", project=d))
        for d in (8, 40)
    )
    slope, constant = (many - few) / 32 / forward, (few - 8 * (many - few) / 32) / forward
    record_property("forward passes for each coordinate", slope)
    assert 0.3 < slope <= 1.15, f"{slope:.3f} forward passes for each coordinate"
    assert constant <= 12, f"{constant:.1f} forward passes besides"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_importing_adds_little_to_torch() -> None:
    """`import bilrp` costs at most 0.3 s more than `import torch`: processor time, in one process each, best of five."""
    code = "import time; import torch; begin = time.process_time(); import bilrp; print(time.process_time() - begin)"
    best = min(float(run(code)) for _ in range(5))
    assert best < 0.3, f"{best:.3f} s"


def test_importing_brings_in_no_heavy_library() -> None:
    heavy = (
        "matplotlib",
        "PIL",
        "scipy",
        "sklearn",
        "skimage",
        "transformers",
        "torchvision",
        "beartype",
        "typer",
    )
    loaded = run(f"import sys, bilrp; print([name for name in {heavy!r} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_pythons_generator_is_left_alone() -> None:
    code = (
        "import random, torch, bilrp; before = random.getstate();"
        "bilrp.decompose(torch.nn.Linear(3, 2), torch.ones(1, 3)); print(before == random.getstate())"
    )
    assert run(code).strip() == "True"
