"""Covering findings: the score is that of the model on the covered input, and the sentence says what it became."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import bilrp
from bilrp.covering import (
    MAX_PROPOSED_REGIONS,
    count_needed_regions,
    describe_covering,
    embed_without_regions,
    find_needed_regions,
    order_by_findings,
)
from bilrp.encoder import read_item
from bilrp.errors import InputError
from bilrp.regions import tokens
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


def test_a_finding_that_the_model_does_not_need_is_reported() -> None:
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


def test_needed_regions_are_the_best_of_three_candidates() -> None:
    """Against every candidate covered by hand, with relevance that misleads on purpose."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 12, 2, 2), nn.Flatten())
    net = net.double().requires_grad_(False)
    encoder = bilrp.Encoder(net, similarity="cosine")
    a, b = torch.rand(2, 1, 3, 32, 32, dtype=torch.float64)
    explanation = bilrp.explain(encoder, a, b, regions=8)
    for relevance in (explanation.relevance, torch.randn(16, 16, dtype=torch.float64)):
        misled = replace(explanation, relevance=relevance)
        needed = misled.find_needed_regions()
        for side, (x, other, chosen, score) in enumerate(
            ((a, b, needed.a, needed.without_a), (b, a, needed.b, needed.without_b))
        ):

            def cover(numbers: list[int], x: torch.Tensor = x, other: torch.Tensor = other) -> float:
                inside = torch.isin(explanation.a.regions.labels, torch.tensor(numbers))
                covered = torch.where(inside, x.mean((2, 3), keepdim=True), x)
                return float(nn.functional.cosine_similarity(net(covered), net(other)))

            by_sum = relevance.sum(1 - side).argsort(descending=True).tolist()
            alone = sorted(by_sum[:8], key=lambda number: cover([number]))
            by_finding = order_by_findings(relevance, misled.findings(), side, range(16))
            candidates = [order[:3] for order in (by_sum, alone, by_finding)]
            assert sorted(chosen) in [sorted(each) for each in candidates]
            assert score == pytest.approx(min(cover(each) for each in candidates), abs=1e-9)


def test_needed_regions_are_words_and_no_special_tokens(tmp_path: Path) -> None:
    architecture = next(each for each in ARCHITECTURES if each.name == "bert")
    encoder = bilrp.encoders.sentence(architecture.save(tmp_path), dtype=torch.float64)
    explanation = bilrp.explain(encoder, "a cat sat", "a cat")
    needed = explanation.find_needed_regions(1)
    names = explanation.a.regions.names
    assert names is not None and names[needed.a[0]] in {"a", "cat", "sat"}
    everything = explanation.find_needed_regions(99)
    assert len(everything.a) == 3 and len(everything.b) == 2


def test_needed_regions_refuse_what_the_model_does_not_compute(tmp_path: Path) -> None:
    encoder = bilrp.Encoder(Bright())
    with pytest.raises(InputError, match="own score"):
        bilrp.explain(encoder, *make_images(), similarity="squared_distance").find_needed_regions()
    explanation = bilrp.explain(encoder, *make_images(), similarity="dot", regions=4)
    with pytest.raises(InputError, match="at least 1, got 0"):
        explanation.find_needed_regions(0)
    with pytest.raises(InputError, match="needs the model"):
        bilrp.Explanation.load(explanation.save(tmp_path / "pair.npz")).find_needed_regions()


@pytest.mark.parametrize("nothing", [math.nan, -math.inf])
def test_no_score_is_never_the_lowest(nothing: float) -> None:
    assert find_needed_regions(
        lambda numbers: nothing if 2 in numbers else -numbers[0], [2, 0, 1], [2, 1, 0], 1
    ) == ([1], -1)


@pytest.mark.parametrize("best", [[0, 1], [4, 5], [2, 3]])
def test_each_candidate_can_be_the_best(best: list[int]) -> None:
    """The first of the findings, those with the largest sums, and those that lower the score most alone."""
    alone = {2: 0.1, 3: 0.2}

    def score_without(numbers: Sequence[int]) -> float:
        if sorted(numbers) == best:
            return 0.0
        return alone.get(numbers[0], 0.5) if len(numbers) == 1 else 1.0

    by_finding, by_sum = [0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 2, 3, 1, 0, 6, 7]
    assert sorted(find_needed_regions(score_without, by_finding, by_sum, 2)[0]) == best


@pytest.mark.parametrize("regions", [49, 784])
def test_large_grids_are_covered_at_most_so_often(regions: int) -> None:
    runs: list[Sequence[int]] = []

    def score_without(numbers: Sequence[int]) -> float:
        runs.append(numbers)
        return 0.0

    find_needed_regions(score_without, range(regions), range(regions), count_needed_regions(regions))
    assert len(runs) <= min(regions, 2 * MAX_PROPOSED_REGIONS) / 2 + 4


def test_tokens_of_late_interaction_are_covered_by_their_mean() -> None:
    """MaxSim by its name knows the length of a token's vector only from the embeddings."""
    torch.manual_seed(0)
    net = nn.Linear(6, 4, bias=False).double().requires_grad_(False)
    a, b = torch.randn(1, 5, 6, dtype=torch.float64), torch.randn(1, 4, 6, dtype=torch.float64)
    regions = tokens(("1", "2", "3", "4", "5")), tokens(("1", "2", "3", "4"))
    explanation = bilrp.explain(net, a, b, similarity="maxsim", regions=regions)
    needed = explanation.find_needed_regions(2)
    assert len(needed.a) == len(needed.b) == 2 and math.isfinite(needed.fall)
    for covered in explanation.cover_findings():
        inside = torch.isin(explanation.a.regions.labels, torch.tensor(covered.finding.a))
        filled = torch.where(inside, a.mean((2,), keepdim=True), a)
        assert covered.without_a == pytest.approx(
            float((net(filled)[0] @ net(b)[0].T).amax(1).sum()), abs=1e-9
        )
