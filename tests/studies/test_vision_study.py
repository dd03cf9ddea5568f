"""The vision study, small: random networks with batch norm on pictures drawn at random."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import bilrp
from bilrp import composites, encoders, evaluation
from bilrp.encoders import images
from bilrp.errors import InputError
from bilrp_studies.vision import model_agreement, study
from bilrp_studies.vision.composite_metrics import CANDIDATE_COMPOSITES, occlusion_effects
from bilrp_studies.vision.settings import VisionSettings


def small(name: str, *, size: int = 64) -> bilrp.Encoder:
    torch.manual_seed(len(name))
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU6(),
        nn.Conv2d(4, 4, 3, 2, 1, groups=4), nn.BatchNorm2d(4), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    with torch.no_grad():
        net.train()(torch.randn(8, 3, 32, 32))
    return bilrp.Encoder(
        net.eval().requires_grad_(False),
        read=lambda item: images.read_with_view(item, size=size),
        name=name,
    )


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(4):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        coarse.resize((80, 64)).save(tmp_path / f"{number}.png")
    return tmp_path


def test_the_whole_study(photographs: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(encoders, "mobilenet", lambda *, size, progress: small("mobilenet", size=size))
    monkeypatch.setattr(encoders, "efficientnet", lambda *, size, progress: small("efficient", size=size))
    monkeypatch.setattr(model_agreement, "load_pooled_vgg", lambda settings: small("vgg", size=settings.size))
    settings = VisionSettings(
        data=photographs, out=tmp_path / "out", pairs=2, size=64, regions=16, resamples=50
    )
    first = study.run(settings)
    page = first.write(settings.out)
    results = json.loads((settings.out / "results.json").read_text())
    for net in ("mobilenet", "efficient"):
        assert set(results["table"][net]) == set(CANDIDATE_COMPOSITES)
        for rules, result in results["table"][net].items():
            assert abs(result["planted"]["mean"]) <= 16, rules  # 4 of 16 regions on either side
            assert -1 <= result["occlusion"]["low"] <= result["occlusion"]["high"] <= 1, rules
    assert "secant to the blurred picture" in page.read_text()
    assert {"most-0.png", "least-1.png"} <= {file.name for file in settings.out.iterdir()}
    # what was kept is read, and gives the same
    monkeypatch.setattr(study, "measure_pair", None)
    assert study.run(settings).results["table"] == first.results["table"]


def test_occlusion_of_pairs_is_the_interaction_of_covering() -> None:
    """Against the definition, with four runs for each pair."""
    encoder, (a, b) = small("net"), torch.randn(2, 1, 3, 32, 32)
    regions = bilrp.regions.grid(16)(a)
    (pairs,), (single,) = occlusion_effects(encoder, a, b, regions, (torch.zeros_like,))

    def score(i: int | None, j: int | None) -> float:
        left, right = (
            x if k is None else x * (regions.labels != k) for x, k in ((a, i), (b, j))
        )  # fmt: skip
        return float((encoder.module(left) * encoder.module(right)).sum())

    for i in range(4):
        assert abs(float(single[0, i]) - (score(None, None) - score(i, None))) < 1e-5
        for j in range(4):
            expected = score(None, None) - score(i, None) - score(None, j) + score(i, j)
            assert abs(float(pairs[i, j]) - expected) < 1e-5


def test_too_few_photographs(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "one.png")
    with pytest.raises(InputError, match="at least 3"):
        study.run(VisionSettings(data=tmp_path))
    with pytest.raises(InputError, match="too small for regions"):
        VisionSettings(data=tmp_path, size=64, regions=24)


def test_where_biases_swallow_a_score_it_is_said_first() -> None:
    """γ on a network with batch norm leaves most to biases: the sentence begins with that, secants need none of it."""
    encoder, (a, b) = small("loud"), torch.randn(2, 1, 3, 64, 64)
    for layer in encoder.module.modules():  # type: ignore[union-attr]
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.constant_(layer.bias, 2.0)
    swallowed = bilrp.explain(encoder, a, b, regions=16, composite=composites.uniform(0.25), similarity="dot")
    assert evaluation.conservation(swallowed).unattributed_share > 0.5
    assert ". Warning: more than half of the score is unattributed" in swallowed.summary()
