"""Origins say what made a decomposition: what differs in more than its name must not pair."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites, rules
from bilrp.errors import MismatchError

X = torch.randn(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).abs()
linear = nn.Linear(6, 3).double()
STRENGTH = 5.0


def assert_refused(a: bilrp.Decomposition, b: bilrp.Decomposition, words: str) -> None:
    with pytest.raises(MismatchError, match=words):
        bilrp.pair(a, b, similarity="dot")


def with_rules(composite) -> bilrp.Decomposition:
    return bilrp.decompose(linear, X, composite=composite)


def closed_over(gamma: float):
    return lambda step: rules.gamma(gamma)


def by_default(step, gamma=5.0):
    return rules.gamma(gamma)


class Chooser:
    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, step):
        return rules.gamma(self.gamma)

    def choose(self, step):
        return rules.gamma(self.gamma)


ZERO_AND_FIVE = {
    "constants": (lambda step: rules.gamma(0.0), lambda step: rules.gamma(5.0)),
    "closures": (closed_over(0.0), closed_over(5.0)),
    "partials": (functools.partial(by_default, gamma=0.0), functools.partial(by_default, gamma=5.0)),
    "callable objects": (Chooser(0.0), Chooser(5.0)),
    "methods": (Chooser(0.0).choose, Chooser(5.0).choose),
    "a global and a constant": (lambda step: rules.gamma(0.0), lambda step: rules.gamma(STRENGTH)),
    "another function inside": (
        lambda step: closed_over(0.0)(step),
        lambda step: closed_over(5.0)(step),
    ),
    "defaults": (lambda step, g=0.0: rules.gamma(g), lambda step, g=5.0: rules.gamma(g)),
    "conditions": (
        composites.first_match((lambda s: len(s.name) > 99, rules.zero()), otherwise=composites.uniform(5.0)),
        composites.first_match((lambda s: len(s.name) > 0, rules.zero()), otherwise=composites.uniform(5.0)),
    ),
    "many digits": (rules.gamma(0.1234567), rules.gamma(0.1234568)),
    "composites of many digits": (composites.uniform(0.1234567), composites.uniform(0.1234568)),
    "bounds of many digits": (rules.zbox(-9.0000001, 9.0), rules.zbox(-9.0, 9.0)),
    "large bounds": (
        rules.zbox(torch.full((1, 6), -9.0), torch.linspace(3, 4, 60)[None, :6]),
        rules.zbox(torch.full((1, 6), -9.0), torch.linspace(5, 6, 60)[None, :6]),
    ),
}


@pytest.mark.parametrize("kind", ZERO_AND_FIVE)
def test_composites_that_differ_do_not_pair(kind: str) -> None:
    one, other = ZERO_AND_FIVE[kind]
    assert_refused(with_rules(one), with_rules(other), "composite")
    bilrp.pair(with_rules(one), with_rules(one), similarity="dot")


def test_bounds_of_whole_images() -> None:
    conv, x = nn.Conv2d(3, 2, 3).double(), torch.rand(1, 3, 6, 6, dtype=torch.float64)
    low, high = torch.zeros(3, 6, 6), torch.ones(3, 6, 6)
    a, b, same = (
        bilrp.decompose(conv, x, composite=rules.zbox(low, bound))
        for bound in (high, high + torch.rand(3, 6, 6), high.clone())
    )
    assert_refused(a, b, "composite")
    bilrp.pair(a, same, similarity="dot")


def test_equal_composites_pair_wherever_they_were_defined() -> None:
    bilrp.pair(with_rules(closed_over(5.0)), with_rules(closed_over(5.0)), similarity="dot")
    bilrp.pair(
        with_rules(lambda step: rules.gamma(5.0)), with_rules(lambda step: rules.gamma(5.0)), similarity="dot"
    )
    bilrp.pair(with_rules(Chooser(5.0)), with_rules(Chooser(5.0)), similarity="dot")


def scaled(k: float):
    return lambda x: linear(x) * k


def test_encoder_functions_that_differ_do_not_pair() -> None:
    pairs = {
        "constants": (lambda x: x * 2, lambda x: x * 3),
        "closures": (scaled(2.0), scaled(3.0)),
        "methods called": (lambda x: x.sum(1), lambda x: x.mean(1)),
        "partials": (functools.partial(torch.mul, other=2.0), functools.partial(torch.mul, other=3.0)),
        "a module's method": (lambda x: linear.forward(x), lambda x: linear.forward(x + 1)),
    }
    for one, other in pairs.values():
        assert_refused(bilrp.decompose(one, X), bilrp.decompose(other, X), "encoder|code")
        bilrp.pair(bilrp.decompose(one, X), bilrp.decompose(one, 2 * X), similarity="dot")
    bilrp.pair(bilrp.decompose(scaled(2.0), X), bilrp.decompose(scaled(2.0), X), similarity="dot")


def test_classes_in_the_file_of_the_function_count() -> None:
    def encoder(k: float):
        class Scaled(nn.Module):
            forward = (lambda self, x: x * 2) if k == 2 else (lambda self, x: x * 3)

        return lambda x: Scaled()(x)

    assert_refused(bilrp.decompose(encoder(2), X), bilrp.decompose(encoder(3), X), "code")
    bilrp.pair(bilrp.decompose(encoder(2), X), bilrp.decompose(encoder(2), X), similarity="dot")


def test_a_name_given_by_hand_does_not_hide_other_code() -> None:
    one, other = (bilrp.Encoder(scaled(k), name="mine") for k in (2.0, 3.0))
    assert_refused(bilrp.decompose(one, X), bilrp.decompose(other, X), "code")


def test_tensors_of_an_item_do_not_count_as_code() -> None:
    """A mask belongs to the sentence, not to the encoder: a boolean one, and one of numbers that is added to scores."""

    def masked(mask: Tensor):
        return lambda x: linear(x.masked_fill(mask, 0.0))

    a, b = (masked(torch.arange(6) >= n) for n in (3, 5))
    bilrp.pair(bilrp.decompose(a, X), bilrp.decompose(b, X), similarity="dot")

    def attending(mask: Tensor):
        return lambda x: linear(F.scaled_dot_product_attention(x, x, x, attn_mask=mask)).mean(1)

    def of_length(n: int) -> bilrp.Decomposition:
        mask = torch.zeros(4, 4, dtype=torch.float64)
        mask[:, n:] = -1e9
        return bilrp.decompose(attending(mask), X.expand(1, 4, 6))

    explanation = bilrp.pair(of_length(2), of_length(3), similarity="dot")
    assert explanation.relevance.shape == (4, 4) and float(explanation.relevance[2:].abs().max()) < 1e-12
