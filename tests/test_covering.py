"""Covering findings: the score is that of the model on the covered input, and the sentence says what it became."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import bilrp
from bilrp.covering import describe_covering, embed_without_regions
from bilrp.encoder import read_item
from bilrp.errors import InputError
from text_folders import ARCHITECTURES


class Bright(nn.Module):
    """Image → sums of the pixels of its left and right half, per channel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[..., :4].sum((2, 3)), x[..., 4:].sum((2, 3))], 1)


def make_images() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.zeros(2, 1, 3, 8, 8, dtype=torch.float64)
    a[..., :4, :4], b[..., 4:, :4] = 1.0, 1.0
    return a, b


def test_an_image_is_covered_by_its_mean() -> None:
    a, b = make_images()
    encoder = bilrp.Encoder(Bright(), similarity="dot")
    explanation = bilrp.explain(encoder, a, b, regions=4)
    (covered,) = explanation.cover_findings(1)
    filled = a.clone()
    filled[..., :4, :4] = 0.25
    expected = float((Bright()(filled) * Bright()(b)).sum())
    assert covered.without_a == pytest.approx(expected, abs=1e-12)
    assert covered.score == pytest.approx(explanation.score) and covered.fall > 0
    assert "without match 1 the score falls" in describe_covering([covered])


def test_a_finding_that_the_model_does_not_need_is_said() -> None:
    a, b = make_images()
    explanation = bilrp.explain(bilrp.Encoder(Bright(), similarity="dot"), a - 1, b - 1, regions=4)
    covered = explanation.cover_findings()
    assert covered and covered[0].fall != 0
    assert ("Careful" in describe_covering(covered)) == (covered[0].fall <= 0)


def test_words_are_deleted(tmp_path: Path) -> None:
    architecture = next(each for each in ARCHITECTURES if each.name == "bert")
    encoder = bilrp.encoders.sentence(architecture.save(tmp_path), dtype=torch.float64)
    item = read_item(encoder, "a cat sat")
    regions = bilrp.decompose(encoder, item).regions
    shorter = torch.cat([item.x[:, :2], item.x[:, 3:]], 1)
    number = int(regions.labels[2].flatten()[0])
    expected = encoder.module(shorter).flatten()
    assert torch.allclose(embed_without_regions(encoder, item, regions, [number]), expected, atol=1e-6)


def test_stored_explanations_have_no_model(tmp_path: Path) -> None:
    explanation = bilrp.explain(bilrp.Encoder(Bright(), similarity="dot"), *make_images(), regions=4)
    again = bilrp.Explanation.load(explanation.save(tmp_path / "pair.npz"))
    with pytest.raises(InputError, match="needs the model"):
        again.cover_findings()


def test_distances_and_projections_are_not_covered() -> None:
    encoder = bilrp.Encoder(Bright())
    assert bilrp.explain(encoder, *make_images(), similarity="squared_distance").cover_findings() == []
    assert bilrp.explain(encoder, *make_images(), similarity="dot", project=2).cover_findings() == []


def test_a_whole_text_is_filled_and_not_deleted(tmp_path: Path) -> None:
    architecture = next(each for each in ARCHITECTURES if each.name == "bert")
    encoder = bilrp.encoders.sentence(architecture.save(tmp_path), dtype=torch.float64)
    item = read_item(encoder, "a cat sat")
    regions = bilrp.decompose(encoder, item).regions
    mean = item.x.mean(1, keepdim=True).expand_as(item.x)
    expected = encoder.module(mean).flatten()
    assert torch.allclose(
        embed_without_regions(encoder, item, regions, range(regions.count)), expected, atol=1e-9
    )


def test_a_finding_that_is_the_whole_score_is_left_out() -> None:
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    explanation = bilrp.explain(nn.Identity(), x, x, similarity="cosine")
    assert explanation.findings() and explanation.cover_findings() == []
