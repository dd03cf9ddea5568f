"""Centered composites: what any two inputs share is separated, exactly, and everything adds up to the score."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bilrp
from bilrp import composites
from bilrp.errors import InputError, RuleError
from bilrp.mean_embedding import embed_typical_inputs


class Net(nn.Module):
    """Tokens (1, n, 6) → embedding (1, 5), with large biases: all embeddings point in one direction."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 5)
        nn.init.constant_(self.second.bias, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).mean(1)


@pytest.fixture
def encoder() -> bilrp.Encoder:
    torch.manual_seed(0)
    inputs = tuple(torch.randn(1, n, 6, dtype=torch.float64) for n in (3, 3, 4, 4, 4, 6))
    return bilrp.Encoder(
        Net().double(), name="net", regions=bilrp.regions.tokens(), typical_inputs=inputs, similarity="cosine"
    )


def make_inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(1, 4, 6, dtype=torch.float64), torch.randn(1, 5, 6, dtype=torch.float64)


def mean_of(encoder: bilrp.Encoder) -> Tensor:
    assert isinstance(encoder.module, nn.Module)
    rows = [encoder.module(x).flatten() for x in encoder.typical_inputs]
    return torch.stack([row / row.norm() for row in rows]).mean(0).detach()


def test_relevance_adds_up_to_what_is_specific_to_the_pair(encoder: bilrp.Encoder) -> None:
    explanation = bilrp.explain(encoder, *make_inputs())
    mu = mean_of(encoder)
    a, b = (side.embedding / side.embedding.norm() for side in (explanation.a, explanation.b))
    specific = float((a - mu) @ (b - mu))
    terms = explanation.breakdown
    assert float(explanation.relevance.sum()) == pytest.approx(specific, abs=1e-12)
    assert terms.specific == pytest.approx(specific, abs=1e-12)
    assert terms.shared == pytest.approx(float(a @ b) - specific, abs=1e-12)
    assert float(explanation.relevance.sum()) + explanation.unattributed == pytest.approx(explanation.score)
    assert explanation.a.origin["composite"] == "centered(uniform(0.25))"
    assert "shared by any pair" in str(terms)


def test_the_rest_is_distributed_evenly(encoder: bilrp.Encoder) -> None:
    x = make_inputs()[0]
    plain = bilrp.decompose(encoder, x, composite=composites.uniform(0.25))
    centered = bilrp.decompose(encoder, x)
    rest = plain.unattributed - mean_of(encoder) * plain.embedding.norm()
    assert torch.allclose(centered.parts, plain.parts + rest / 4, atol=1e-12)
    assert centered.reference is not None
    assert torch.allclose(centered.unattributed, centered.reference, atol=1e-12)


def leave_out_a_token(x: Tensor) -> bilrp.regions.Regions:
    labels = torch.tensor([0, 0, -1, 1])[:, None].expand(4, 6)
    return bilrp.regions.labels(labels.contiguous())(x)


@pytest.mark.parametrize("regions", [bilrp.regions.tokens(), leave_out_a_token])
def test_one_pull_gives_products_with_the_parts(
    encoder: bilrp.Encoder, regions: Callable[[Tensor], bilrp.regions.Regions]
) -> None:
    x, y = make_inputs()
    decomposition = bilrp.decompose(encoder, x, regions=regions)
    attribution = bilrp.attribute(encoder, x, y, regions=regions, similarity="dot")
    assert isinstance(encoder.module, nn.Module)
    target = encoder.module(y).flatten()
    assert torch.allclose(attribution.values, decomposition.parts @ target, atol=1e-12)


def test_features_in_no_region_are_not_given_to_others(encoder: bilrp.Encoder) -> None:
    x = make_inputs()[0]
    every, some = bilrp.decompose(encoder, x), bilrp.decompose(encoder, x, regions=leave_out_a_token)
    assert torch.allclose(some.parts[0], every.parts[:2].sum(0), atol=1e-12)
    assert torch.allclose(some.parts[1], every.parts[3], atol=1e-12)


def test_refined_and_projected_parts_are_centered_too(encoder: bilrp.Encoder) -> None:
    x = make_inputs()[0]
    full = bilrp.decompose(encoder, x)
    refined = bilrp.decompose(encoder, x, max_regions=4)
    assert torch.allclose(refined.parts.sum(0), full.parts.sum(0), atol=1e-12)
    projected = bilrp.decompose(encoder, x, project=3)
    assert projected.reference is not None
    assert torch.allclose(projected.unattributed, projected.reference, atol=1e-12)


def test_the_mean_follows_the_weights(encoder: bilrp.Encoder) -> None:
    x = make_inputs()[0]
    bilrp.decompose(encoder, x)
    assert isinstance(encoder.module, Net)
    with torch.no_grad():
        encoder.module.second.bias.mul_(-1)
    decomposition = bilrp.decompose(encoder, x)
    expected = mean_of(encoder) * decomposition.embedding.norm()
    assert decomposition.reference is not None and torch.allclose(decomposition.reference, expected)


def test_typical_inputs_of_one_shape_are_embedded_together(encoder: bilrp.Encoder) -> None:
    rows = embed_typical_inputs(encoder)
    assert isinstance(encoder.module, nn.Module)
    one_by_one = torch.cat([encoder.module(x) for x in encoder.typical_inputs])
    assert torch.allclose(rows, one_by_one, atol=1e-12)


def test_what_cannot_be_centered_is_refused(encoder: bilrp.Encoder) -> None:
    with pytest.raises(RuleError, match="has a reference input"):
        composites.centered(composites.secant())
    with pytest.raises(InputError, match="typical_inputs"):
        bilrp.decompose(Net().double(), make_inputs()[0], composite=composites.centered(composites.uniform()))


def test_a_composite_with_another_rule_in_front_is_still_centered(encoder: bilrp.Encoder) -> None:
    plain = composites.first_match(("second", bilrp.rules.zero()), otherwise=composites.graded())
    wrapped = composites.first_match(
        ("second", bilrp.rules.zero()), otherwise=composites.centered(composites.graded())
    )
    explanation = bilrp.explain(encoder, *make_inputs(), composite=wrapped)
    assert explanation.breakdown.is_centered and explanation.breakdown.shared != 0
    assert wrapped.name == f"centered({plain.name})"
    rules = bilrp.decompose(encoder, make_inputs()[0], composite=plain)
    rest = rules.unattributed - mean_of(encoder) * rules.embedding.norm()
    assert torch.allclose(explanation.a.parts, rules.parts + rest / 4, atol=1e-12)


def test_a_saved_explanation_keeps_its_shares(encoder: bilrp.Encoder, tmp_path) -> None:
    explanation = bilrp.explain(encoder, *make_inputs())
    loaded = bilrp.Explanation.load(explanation.save(tmp_path / "e.safetensors"))
    assert loaded.breakdown == explanation.breakdown
    assert loaded.breakdown.is_centered


def test_a_known_mean_embedding_needs_no_typical_inputs(encoder: bilrp.Encoder) -> None:
    known = replace(encoder, typical_inputs=(), mean_embedding=mean_of(encoder))
    plain, same = (bilrp.explain(each, *make_inputs()) for each in (encoder, known))
    assert same.a.origin["composite"] == plain.a.origin["composite"]
    assert torch.allclose(same.relevance, plain.relevance, atol=1e-12)
    assert same.breakdown.shared == pytest.approx(plain.breakdown.shared, abs=1e-12)


def test_the_numbers_of_the_sentence_add_up(encoder: bilrp.Encoder) -> None:
    explanation = bilrp.explain(encoder, *make_inputs())
    summary = explanation.summary()
    assert "share" in summary and "specific to these two" in summary
    score, shared, specific = (
        float(re.search(pattern, summary)[1].replace("−", "-"))  # type: ignore[index]
        for pattern in (
            r"Of the score of (\S+),",
            r"share (\S+), and",
            r"and (\S+) (?:\(near zero\) )?is specific",
        )
    )
    added = float(re.search(r"add (\S+), ", summary)[1])  # type: ignore[index]
    taken = re.search(r"others take away (\S+),", summary)
    assert shared + specific == pytest.approx(score, abs=2e-3)
    assert added - (float(taken[1]) if taken else 0.0) == pytest.approx(specific, abs=2e-2)
