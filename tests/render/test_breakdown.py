"""The score breakdown: it adds up, also where the score is 0 or the unattributed part negative."""

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
def explanation() -> Explanation:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5))
    return bilrp.explain(net, torch.randn(1, 6), torch.randn(1, 6), similarity="dot")


@pytest.mark.parametrize("similarity", ["dot", "cosine", "squared_distance"])
def test_the_terms_add_up_and_the_page_has_the_same(explanation: Explanation, similarity: str) -> None:
    explanation = bilrp.pair(explanation.a, explanation.b, similarity=similarity)
    breakdown = explanation.breakdown
    assert breakdown.score == explanation.score and breakdown.negative < 0 < breakdown.positive
    assert (breakdown.self_terms_a > 0) == (breakdown.self_terms_b > 0) == (similarity == "squared_distance")
    parts = (
        breakdown.positive,
        breakdown.negative,
        breakdown.self_terms_a,
        breakdown.self_terms_b,
        breakdown.unattributed,
    )
    assert sum(parts) == pytest.approx(breakdown.score, rel=1e-12)
    assert (explanation.explained, explanation.unattributed) == (breakdown.explained, breakdown.unattributed)
    terms = page.serialize_breakdown(explanation)
    assert terms and all(terms[name] == getattr(breakdown, name) for name in terms)


def with_score(explanation: Explanation, score: float, *pairs: float) -> str:
    return score_line.format_score_line(
        replace(explanation, score=score, relevance=torch.tensor([pairs], dtype=torch.float64))
    )


def test_the_line_adds_up(explanation: Explanation) -> None:
    assert with_score(explanation, 10.0, 9.0, -1.0) == (
        "dot 10 = 8 explained by pairs of regions (80 %) + 2 unattributed (20 %)"
    )
    assert with_score(explanation, 10.0, 12.0, -1.0) == (
        "dot 10 = 11 explained by pairs of regions (110 %) − 1 unattributed (10 %)"
    )
    assert with_score(explanation, 10.0, 11.0, -1.0) == "dot 10, all of it explained by pairs of regions"


def test_a_score_of_zero_is_not_all_explained(explanation: Explanation) -> None:
    assert with_score(explanation, 0.0, 3.0, -3.0) == "dot 0, 3 for it and 3 against"
    assert with_score(explanation, 0.0, 0.0) == "dot 0, no region has relevance"
    assert (
        with_score(explanation, 0.0, 3.0, -1.0) == "dot 0 = 2 explained by pairs of regions − 2 unattributed"
    )
    assert (
        not ScoreBreakdown(0.0, 0.0, 0.0).is_complete
        and ScoreBreakdown(0.0, 1.0, -1.0).compute_share(1.0) is None
    )


def test_values_that_round_to_zero_have_no_sign() -> None:
    text = str(ScoreBreakdown(score=0.93, positive=0.90, negative=-1e-6))
    assert text == "score 0.9300: for 0.9000, against 0.0000, unattributed 0.0300"
    assert [formatting.format_number(value) for value in (-0.0, -2e-5, 0)] == ["0", "−2e−05", "0"]


def test_all_terms_are_printed(explanation: Explanation) -> None:
    apart = bilrp.pair(explanation.a, explanation.b, similarity="squared_distance").breakdown
    text = str(replace(apart, special_tokens=-2.0))
    numbers = [float(each.replace("−", "-")) for each in re.findall(r"−?\d+\.\d+", text)]
    assert len(numbers) == 6 and "special tokens −2.0" in text and "each side with itself" in text
    assert numbers[0] == pytest.approx(sum(numbers[1:]), abs=0.01)


def test_percentages() -> None:
    assert [formatting.format_percent(share) for share in (0.5, -0.004, -0.5, 12.3456, None)] == [
        "50 %", "0 %", "−50 %", "1,235 %", "",
    ]  # fmt: skip
