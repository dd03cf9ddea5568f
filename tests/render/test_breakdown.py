"""The account of a score: it closes, and its words are true also where the score is 0 or the rest negative."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import bilrp
from bilrp.explanation import Explanation, ScoreBreakdown
from bilrp.findings import formatting
from bilrp.render import page, score_line


@pytest.fixture
def found() -> Explanation:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5))
    return bilrp.explain(net, torch.randn(1, 6), torch.randn(1, 6), similarity="dot")


@pytest.mark.parametrize("similarity", ["dot", "cosine", "squared_distance"])
def test_it_closes_and_everybody_tells_the_same(found: Explanation, similarity: str) -> None:
    found = bilrp.pair(found.a, found.b, similarity=similarity)
    told = found.breakdown
    assert told.score == found.score and told.negative < 0 < told.positive
    assert (told.self_terms_a > 0) == (told.self_terms_b > 0) == (similarity == "squared_distance")
    parts = told.positive, told.negative, told.self_terms_a, told.self_terms_b, told.unattributed
    assert sum(parts) == pytest.approx(told.score, rel=1e-12)
    assert (found.explained, found.unattributed) == (told.explained, told.unattributed)
    shown = page.serialize_breakdown(found)
    renamed = {"marks": "special_tokens", "within_a": "self_terms_a", "within_b": "self_terms_b"}
    assert shown and all(shown[name] == getattr(told, renamed.get(name, name)) for name in shown)


def with_score(found: Explanation, score: float, *pairs: float) -> str:
    return score_line.format_score_line(
        replace(found, score=score, relevance=torch.tensor([pairs], dtype=torch.float64))
    )


def test_the_line_adds_up(found: Explanation) -> None:
    assert with_score(found, 10.0, 9.0, -1.0) == (
        "dot 10 = 8 explained by pairs of regions (80 %) + 2 unattributed (20 %)"
    )
    assert with_score(found, 10.0, 12.0, -1.0) == (
        "dot 10 = 11 explained by pairs of regions (110 %) − 1 unattributed (10 %)"
    )
    assert with_score(found, 10.0, 11.0, -1.0) == "dot 10, all of it explained by pairs of regions"


def test_a_score_of_zero_is_not_all_explained(found: Explanation) -> None:
    assert with_score(found, 0.0, 3.0, -3.0) == "dot 0, 3 for it and 3 against"
    assert with_score(found, 0.0, 0.0) == "dot 0, and no region counts"
    assert with_score(found, 0.0, 3.0, -1.0) == "dot 0 = 2 explained by pairs of regions − 2 unattributed"
    assert (
        not ScoreBreakdown(0.0, 0.0, 0.0).is_complete
        and ScoreBreakdown(0.0, 1.0, -1.0).compute_share(1.0) is None
    )


def test_what_rounds_to_nothing_has_no_sign() -> None:
    told = str(ScoreBreakdown(score=0.93, positive=0.90, negative=-1e-6))
    assert told == "score 0.9300: for 0.9000, against 0.0000, unattributed 0.0300"
    assert [formatting.format_number(value) for value in (-0.0, -2e-5, 0)] == ["0", "−2e−05", "0"]


def test_all_terms_are_told_where_there_are_any(found: Explanation) -> None:
    apart = bilrp.pair(found.a, found.b, similarity="squared_distance").breakdown
    told = str(replace(apart, special_tokens=-2.0))
    numbers = [float(each.replace("−", "-")) for each in re.findall(r"−?\d+\.\d+", told)]
    assert len(numbers) == 6 and "marks −2.0" in told and "each side with itself" in told
    assert numbers[0] == pytest.approx(sum(numbers[1:]), abs=0.01)


def test_shares_as_people_read_them() -> None:
    assert [score_line.format_percent(share) for share in (0.5, -0.004, -0.5, 12.3456, None)] == [
        "50 %", "0 %", "−50 %", "1,235 %", "",
    ]  # fmt: skip
