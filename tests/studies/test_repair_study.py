"""The repair study, small: photographs drawn at random, a small network, and rivals with labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bilrp.errors import InputError
from bilrp_studies.repair import study
from bilrp_studies.repair.planted_items import make_items
from bilrp_studies.repair.rivals import erase_linearly, project_mean_difference
from bilrp_studies.repair.settings import RepairSettings

pytest.importorskip("lance", reason="collections need bilrp[collection]")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number in range(12):
        coarse = Image.fromarray(rng.integers(40, 216, (12, 12, 3), dtype=np.uint8))
        coarse.resize((300, 240), Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    return folder


def test_the_whole_study(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from torch import nn

    import bilrp
    from bilrp.encoders import images

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 24, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    )  # fmt: skip
    encoder = bilrp.Encoder(net, read=partial(images.read_with_view, size=32), name="tiny")
    monkeypatch.setattr(study.registry, "load", lambda *_, **__: encoder)
    settings = RepairSettings(data=photographs, out=tmp_path / "out", items=60, methods=True)
    report = study.run(settings)
    report.write(settings.out)
    results = json.loads((settings.out / "results.json").read_text())
    rows = results["rows"]
    assert rows["without the shortcut"]["restored"] == 1
    assert rows["with the shortcut"]["restored"] < rows["repair"]["restored"]
    assert rows["repair"]["attraction"] < rows["with the shortcut"]["attraction"]
    assert {"mean difference, with labels", "LEACE, with labels"} <= set(rows)
    assert results["predicted"]["carriers"] == int(make_items(settings).has_shortcut.sum())


def test_rivals_erase_the_label() -> None:
    """After LEACE no direction covaries with the label; after the mean difference the means agree."""
    labels = torch.arange(40) % 3 == 0
    rows = torch.randn(40, 8, dtype=torch.float64) @ torch.randn(8, 8, dtype=torch.float64)
    rows[labels] += torch.randn(8, dtype=torch.float64)
    erased = erase_linearly(rows, labels)
    assert torch.allclose(erased[labels].mean(0), erased[~labels].mean(0), rtol=0, atol=1e-8)
    projected = project_mean_difference(rows, labels)
    assert torch.allclose(projected[labels].mean(0), projected[~labels].mean(0), rtol=0, atol=1e-8)


def test_slips_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--shortcut tint"):
        RepairSettings(data=tmp_path, shortcut="tint")
    with pytest.raises(InputError, match="no images"):
        make_items(RepairSettings(data=tmp_path, out=tmp_path))
    with pytest.raises(InputError, match="0 sentences"):
        make_items(RepairSettings(data=tmp_path, out=tmp_path, shortcut="boilerplate"))
