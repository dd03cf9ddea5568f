"""A rule from a user's file: whatever it returns, the ReLU fused behind its step is kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions, rules
from bilrp.engine.maps import Linear, Scale, Term, Weighted
from bilrp.pipeline import Mode
from bilrp.rules import Rule
from bilrp.trace.layer_weights import Weights, extract_weights

X = torch.randn(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def by_hand(step):
    """LRP-0 as a bare Weighted, without a word about gates."""
    w = extract_weights(step)
    assert w is not None
    return Weighted(w.operator, (Term(w.weight),), at=w.a)


def own_terms(w: Weights, gate: Tensor | None) -> list[Term]:
    return [Term(w.weight)]


OWN = {
    "a bare Weighted": Rule("own", by_hand),
    "terms": rules.by_terms("own", own_terms),
    "a torch function": Rule("own", lambda step: Linear(step.run, step.values)),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("mode", ["push", "pull", "auto"])
def test_the_relu_behind_a_users_rule_is_not_lost(name: str, mode: Mode) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    expected = bilrp.decompose(model, X, composite=composites.uniform(0.0), regions=regions.features()).parts
    parts = bilrp.decompose(model, X, composite=OWN[name], regions=regions.features(), mode=mode).parts
    torch.testing.assert_close(parts, expected)


def test_on_images_too() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.ReLU(), nn.MaxPool2d(2)
    ).double()
    x = torch.randn(1, 2, 8, 8, dtype=torch.float64)
    expected = bilrp.decompose(model, x, composite=composites.uniform(0.0), regions=2).parts
    for mode in ("push", "pull", "auto"):
        parts = bilrp.decompose(model, x, composite=OWN["a bare Weighted"], regions=2, mode=mode).parts
        torch.testing.assert_close(parts, expected)


def test_a_gate_taken_into_account_twice_is_the_same_gate() -> None:
    def careful(step):
        linear_map = by_hand(step)
        return linear_map if step.gate is None else linear_map.with_gate(step.gate)

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    expected = bilrp.decompose(model, X, composite=composites.uniform(0.0)).parts
    torch.testing.assert_close(bilrp.decompose(model, X, composite=Rule("careful", careful)).parts, expected)


def test_a_rule_for_anything_else() -> None:
    def leaky(slope: float) -> Rule:
        return Rule(
            f"leaky({slope:g})", lambda step: Scale(torch.where(step.values[0] > 0, 1.0, slope).to(X))
        )

    composite = composites.first_match(("relu", leaky(0.1)), otherwise=composites.uniform(0.0))
    decomposition = bilrp.decompose(torch.relu, X, composite=composite, regions=regions.features())
    torch.testing.assert_close(decomposition.parts.diagonal(), torch.where(X > 0, X, 0.1 * X)[0])
