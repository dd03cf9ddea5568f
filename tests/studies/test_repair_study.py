"""The repair study, small: photographs drawn at random, a small network, and rivals with labels."""

from __future__ import annotations

import json
import shutil
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import bilrp
from bilrp.encoders import images
from bilrp.errors import InputError
from bilrp_studies.repair import study
from bilrp_studies.repair.planted_items import make_items
from bilrp_studies.repair.rivals import edit_pixels, erase_linearly, project_mean_difference
from bilrp_studies.repair.settings import TEXT_SHORTCUTS, RepairSettings

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


def make_encoder() -> bilrp.Encoder:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 24, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    )  # fmt: skip
    return bilrp.Encoder(net, read=partial(images.read_with_view, size=32), name="tiny")


def test_the_whole_study(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study.registry, "load", lambda *_, **__: make_encoder())
    shortcuts = "bar,tint"
    settings = RepairSettings(
        data=photographs, out=tmp_path / "out", items=60, methods=True, encoder="tiny", shortcut=shortcuts
    )
    report = study.run(settings)
    report.write(settings.out)
    results = json.loads((settings.out / "results.json").read_text())
    cases = {case["shortcut"]: case for case in results["cases"]}
    rows = cases["bar"]["rows"]
    assert rows["without the shortcut"]["restored"] == 1
    assert rows["with the shortcut"]["restored"] < rows["repair"]["restored"]
    assert rows["repair"]["attraction"] < rows["with the shortcut"]["attraction"]
    assert {"mean difference, with labels", "LEACE, with labels"} <= set(rows)
    # what the repair finds by itself is what the true pixels give
    ceiling = rows["true pixels filled in, encoded again"]["restored"]
    assert rows["repair"]["restored"] >= 0.9 * ceiling > 0.9 * rows["with the shortcut"]["restored"]
    count = int(make_items(settings, "bar").has_shortcut.sum())
    assert cases["bar"]["predicted"]["carriers"] == count
    # a tint has no place
    assert "repair" not in cases["tint"]["rows"] and "whole picture" in cases["tint"]["refused"]
    assert cases["tint"]["missed"] == ["refused"]


def test_a_shortcut_that_an_audit_finds(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crops of 12 photographs, a folder for each; every third has a bar, which no label names."""
    monkeypatch.setattr(study.registry, "load", lambda *_, **__: make_encoder())
    items = make_items(RepairSettings(data=photographs, out=tmp_path, items=72), "bar")
    for number, path in enumerate(items.planted):
        folder = tmp_path / "labelled" / f"{number % 12}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / f"{number}.png")
    settings = RepairSettings(data=tmp_path / "labelled", out=tmp_path / "out", shortcut="none", items=72)
    suspects = study.run(settings).results["suspects"]
    first = suspects[0]
    assert first["carriers"] == int(items.has_shortcut.sum()) and "bottom" in first["suspect"]
    assert first["after"]["attraction"] < first["before"]["attraction"]
    assert {"carriers_same", "others_same"} <= set(first["after"])


@pytest.mark.parametrize("shortcut", TEXT_SHORTCUTS)
def test_words_are_planted_in_some_sentences(tmp_path: Path, shortcut: str) -> None:
    lines = [f'"Sentence number {n} is about cats",Nothing of {n} is like it\n' for n in range(40)]
    (tmp_path / "pairs.csv").write_text("".join(lines))
    items = make_items(RepairSettings(data=tmp_path, shortcut=shortcut, items=60), shortcut)
    for clean, planted, has in zip(items.clean, items.planted, items.has_shortcut, strict=True):
        assert (items.words in planted) == has
        assert has or planted == clean
    assert 5 < int(items.has_shortcut.sum()) < 30


def test_crops_and_choice_are_the_same_for_every_shortcut(photographs: Path, tmp_path: Path) -> None:
    settings = RepairSettings(data=photographs, out=tmp_path, items=40, shortcut="bar,border")
    bar, border = make_items(settings, "bar"), make_items(settings, "border")
    assert bar.clean == border.clean and np.array_equal(bar.has_shortcut, border.has_shortcut)
    for number in list(bar.masks)[:2]:
        image = Image.open(bar.planted[number])
        filled = np.array(edit_pixels(image, bar.masks[number], "filled"))
        outside = ~bar.masks[number]
        assert np.array_equal(filled[outside], np.array(image)[outside])
        assert np.array_equal(filled[192:], filled[159:191][::-1])


@pytest.mark.parametrize("width", [8, 60])
def test_rivals_erase_the_label(width: int) -> None:
    """After LEACE no direction covaries with the label; after the mean difference the means agree."""
    torch.manual_seed(0)
    labels = torch.arange(40) % 3 == 0
    rows = torch.randn(40, width, dtype=torch.float64) @ torch.randn(width, width, dtype=torch.float64)
    rows[labels] += 3 * torch.randn(width, dtype=torch.float64)
    erased = erase_linearly(rows, labels)
    if width < len(rows):
        assert torch.allclose(erased[labels].mean(0), erased[~labels].mean(0), rtol=0, atol=1e-8)
    concept_erasure = pytest.importorskip("concept_erasure", reason="LEACE by its authors: bilrp[dev]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = concept_erasure.LeaceEraser.fit(rows, labels.double()[:, None])(rows)
    assert torch.allclose(erased, expected, rtol=0, atol=1e-6)
    projected = project_mean_difference(rows, labels)
    assert torch.allclose(projected[labels].mean(0), projected[~labels].mean(0), rtol=0, atol=1e-8)


def test_bad_settings_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--shortcut glow"):
        RepairSettings(data=tmp_path, shortcut="glow")
    with pytest.raises(InputError, match="those of photographs, those of texts, or none"):
        RepairSettings(data=tmp_path, shortcut="bar,heading")
    with pytest.raises(InputError, match="no images"):
        make_items(RepairSettings(data=tmp_path, out=tmp_path), "bar")
    with pytest.raises(InputError, match="0 sentences"):
        make_items(RepairSettings(data=tmp_path, out=tmp_path, shortcut="boilerplate"), "boilerplate")
