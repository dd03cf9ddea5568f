"""The illustrations study: what is fixed and what rotates, and the whole study with a small network."""

from __future__ import annotations

import numpy as np
import pytest

from bilrp_studies.illustrations import study
from bilrp_studies.illustrations.diagrams import FIXED, ROTATING, SIDE_PIXELS, draw_diagram, label_parts
from bilrp_studies.illustrations.settings import IllustrationsSettings


def test_only_the_ring_changes_when_the_part_rotates():
    parts = label_parts(SIDE_PIXELS, SIDE_PIXELS)
    for seed in range(4):
        diagram = draw_diagram(seed)
        before, after = (np.asarray(diagram.draw(angle)) for angle in (0, 70))
        changed = np.any(before != after, axis=2)
        assert changed[parts == ROTATING].any() and not changed[parts == FIXED].any()
        blank, frame = (np.asarray(diagram.draw(frame=on, rotating=False)) for on in (False, True))
        assert not np.any(blank != frame, axis=2)[parts == ROTATING].any()


def test_a_network_that_sees_only_pixels_is_carried_by_the_frame(tmp_path, monkeypatch):
    (tmp_path / "pixels.py").write_text(
        "import torch\ndef ink():\n    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, padding=2, bias=False), "
        "torch.nn.ReLU(), torch.nn.AvgPool2d(4), torch.nn.Flatten())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    report = study.run(
        IllustrationsSettings(encoders="pixels:ink", diagrams=2, angles=(90,), size=48, out=tmp_path)
    )
    same, rotated = report.results["rows"]
    for row in (same, rotated):
        assert row["fixed"] + row["rotating"] + row["cross"] == pytest.approx(1)
    assert same["angle"] == 0 and same["cosine"] == pytest.approx(1, abs=1e-5)
    assert same["alone"] == pytest.approx(1, abs=1e-6) and same["invariance"] == pytest.approx(1, abs=1e-5)
    assert rotated["cosine"] < same["cosine"] and rotated["rotating"] < same["rotating"]
    assert study.describe_result(report.results["rows"]).startswith("pixels:ink: cosine")


@pytest.mark.slow
def test_fixed_elements_carry_the_score_of_vgg(data, tmp_path):
    weights = data / "vgg16" / "vgg16_features.safetensors"
    settings = IllustrationsSettings(
        encoders="vgg16:17", diagrams=3, angles=(45,), weights=weights, out=tmp_path
    )
    same, rotated = study.run(settings).results["rows"]
    assert rotated["cosine"] > 0.5 and rotated["fixed"] > 0.6
    assert rotated["rotating"] < 0.6 * same["rotating"] and rotated["invariance"] < 0.3
