"""Coordinate descent finds known optima, and tunes real networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bilrp
from bilrp import composites, evaluation
from bilrp.errors import InputError
from bilrp.evaluation import tuning
from bilrp.rules.composites import paper_vgg


def test_search_finds_a_separable_optimum_in_one_round():
    target = (0.4, 0.0, 0.06)
    value = lambda gammas: -sum((g - t) ** 2 for g, t in zip(gammas, target, strict=True))  # noqa: E731
    best, reached, tried = tuning.search_gammas(value, 3, rounds=1)
    assert best == target
    assert reached == 0
    assert len(tried) == len({gammas for gammas, _ in tried}) <= len(tuning.GAMMA_GRID) * 4


def test_search_is_never_worse_than_uniform_and_stops_on_a_plateau():
    seen = []
    best, reached, _ = tuning.search_gammas(lambda g: seen.append(g) or 1.0, 2, grid=(0.0, 0.1), rounds=50)
    assert (best, reached) == ((0.0, 0.0), 1.0)
    assert len(seen) == len(set(seen)) <= 4
    coupled: dict[tuple[float, ...], float] = {
        (0.0, 0.0): 1.0,
        (0.1, 0.1): 2.0,
        (0.0, 0.1): 0.5,
        (0.1, 0.0): 0.0,
    }
    assert tuning.search_gammas(coupled.__getitem__, 2, grid=(0.0, 0.1))[0] == (0.1, 0.1)


def test_tune_recovers_the_rules_that_made_the_truth():
    torch.manual_seed(0)
    layers = [nn.Linear(8, 12, bias=False), nn.ReLU(), nn.Linear(12, 6, bias=False), nn.ReLU()]
    net = nn.Sequential(*layers).requires_grad_(False).double()
    pairs = [(a, b) for a, b in torch.rand(2, 2, 1, 8, dtype=torch.float64)]
    names = tuning.list_weighted_layers(net, pairs[0][0])
    expected = dict(zip(names, (0.4, 0.06), strict=True))
    truths = [
        bilrp.explain(net, *p, composite=tuning.build_composite(expected), similarity="dot").relevance
        for p in pairs
    ]
    grid = (0.0, 0.06, 0.4)
    result = evaluation.tune(net, pairs, lambda e, k: float(evaluation.cosine(e, truths[k])), grid=grid)
    assert result.gammas == expected
    assert result.score == pytest.approx(1)
    second = bilrp.explain(net, *pairs[0], composite=result.composite, similarity="dot")
    torch.testing.assert_close(second.relevance, truths[0])


def test_only_the_layers_asked_for_are_tuned():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6)).requires_grad_(False)
    x, y = torch.rand(2, 1, 8)
    last = tuning.list_weighted_layers(net, x)[-1]
    base = composites.uniform(0.3)
    result = evaluation.tune(
        net, [(x, y)], lambda e, k: -(e.unattributed**2), layers=[last], otherwise=base, grid=(0.0, 0.5)
    )
    assert list(result.gammas) == [last]
    assert "uniform(0.3)" in result.composite.name
    assert paper_vgg().name in tuning.build_composite({}, otherwise=paper_vgg()).name


def test_tuning_without_anything_to_tune_is_refused():
    with pytest.raises(InputError, match="at least one pair"):
        evaluation.tune(nn.Linear(2, 2), [], lambda e, k: 0.0)
    with pytest.raises(InputError, match="at least one layer"):
        tuning.search_gammas(lambda g: 0.0, 0)
