"""Reliability of inputs: weights enter parts, pairs, sets and many inputs exactly, and findings are marked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bilrp
import table_pages
from bilrp import composites, regions, similarity
from bilrp.encoders import bigram, table_numbers
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.render.page import build_payload
from models import vgg_like

REGIONS = 16  # of `decompositions`


@pytest.fixture(scope="module")
def decompositions():
    """Three inputs of a network with biases in float64, on patches of 2 × 2 pixels."""
    torch.manual_seed(0)
    net = vgg_like().double().eval()
    draw = torch.Generator().manual_seed(3)
    inputs = [torch.rand(1, 3, 8, 8, generator=draw, dtype=torch.float64) for _ in range(3)]
    return [bilrp.decompose(net, x, regions=regions.grid(2)) for x in inputs]


def draw_weights(seed: int, count: int = REGIONS) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_weighted_parts_are_diag_w_times_parts_and_the_remainder_stays(decompositions):
    d, w = decompositions[0], draw_weights(0)
    weighted = d.weight(w)
    assert torch.equal(weighted.parts, torch.diag(w) @ d.parts)
    slow = d.embedding - sum((1 - w[i]) * d.parts[i] for i in range(REGIONS))
    assert torch.allclose(weighted.embedding, slow, atol=1e-13)
    assert torch.allclose(weighted.unattributed, d.unattributed, atol=1e-13)
    assert torch.equal(weighted.unweighted_embedding, d.embedding)
    assert torch.allclose(d.weight(torch.ones(REGIONS)).embedding, d.embedding, atol=1e-13)
    nothing = d.weight(torch.zeros(REGIONS))
    assert torch.allclose(nothing.embedding, d.unattributed, atol=1e-13) and not nothing.parts.any()
    twice = weighted.weight(draw_weights(1))
    assert torch.allclose(twice.parts, d.weight(w * draw_weights(1)).parts, atol=1e-15)
    assert torch.equal(twice.unweighted_embedding, d.embedding)
    assert torch.allclose(twice.reliability, w * draw_weights(1))


@pytest.mark.parametrize("name", ["dot", "cosine", "squared_distance", "bilinear"])
def test_weighted_pairs_conserve_and_have_the_factor_of_both_weights(decompositions, name):
    a, b, _ = decompositions
    w, v = draw_weights(0), draw_weights(1)
    chosen = (
        name
        if name != "bilinear"
        else similarity.bilinear(torch.randn(len(a.embedding), len(a.embedding)).double())
    )
    plain, weighted = (
        bilrp.pair(a, b, similarity=chosen),
        bilrp.pair(a.weight(w), b.weight(v), similarity=chosen),
    )
    norms = a.embedding.norm() * b.embedding.norm(), weighted.a.embedding.norm() * weighted.b.embedding.norm()
    scale = norms[0] / norms[1] if name == "cosine" else 1.0
    assert torch.allclose(
        weighted.relevance, scale * torch.diag(w) @ plain.relevance @ torch.diag(v), atol=1e-12
    )
    own = sum(float(t.sum()) for t in weighted.self_terms or ())
    assert float(weighted.relevance.sum()) + own + weighted.unattributed == pytest.approx(
        weighted.score, abs=1e-12
    )
    assert (
        weighted.unweighted_score == pytest.approx(plain.score, abs=1e-12) and plain.unweighted_score is None
    )
    assert bilrp.pair(a, b.weight(v), similarity=chosen).unweighted_score == pytest.approx(
        plain.score, abs=1e-12
    )


@pytest.mark.parametrize("name", ["dot", "cosine"])
def test_weights_enter_the_similarity_of_many_inputs(decompositions, name):
    weights = [draw_weights(seed) for seed in range(3)]
    plain = bilrp.explain_many(decompositions, similarity=name)
    joint = bilrp.explain_many(
        [d.weight(w) for d, w in zip(decompositions, weights, strict=True)], similarity=name
    )
    scale = 1.0
    if name == "cosine":
        for d, w in zip(decompositions, weights, strict=True):
            scale *= float(d.embedding.norm() / d.weight(w).embedding.norm())
    for chosen in ((0, 0, 0), (3, 11, 7)):
        factor = scale * np.prod([float(w[i]) for w, i in zip(weights, chosen, strict=True)])
        assert joint.relevance(*chosen) == pytest.approx(factor * plain.relevance(*chosen), rel=1e-10)
    assert joint.explained + joint.unattributed == pytest.approx(joint.score, abs=1e-12)
    assert sum(float(m.sum()) for m in joint.marginals()[:1]) == pytest.approx(joint.explained, abs=1e-12)
    assert joint.unweighted_score == pytest.approx(plain.score, rel=1e-12) and plain.unweighted_score is None


def test_sets_of_weighted_inputs_are_the_sum_over_pairs(decompositions):
    a, b, c = (d.weight(draw_weights(seed)) for seed, d in enumerate(decompositions))
    sets = bilrp.explain_sets([a, b], [c], similarity="cosine")
    first, second = (bilrp.pair(x, c, similarity="cosine").relevance for x in (a, b))
    assert torch.allclose(sets.relevance, first + second, atol=1e-12)


def test_masks_are_averaged_and_coarse_regions_too(decompositions):
    d = decompositions[0]
    mask = draw_weights(5, 64).reshape(8, 8)
    slow = [mask[2 * r : 2 * r + 2, 2 * c : 2 * c + 2].mean() for r in range(4) for c in range(4)]
    assert torch.allclose(d.weight(mask).reliability, torch.stack(slow), atol=1e-15)
    assert torch.allclose(d.weight(mask.expand(3, 8, 8)).reliability, torch.stack(slow), atol=1e-15)
    coarse = d.weight(mask).coarsen(regions.grid(4))
    assert float(coarse.reliability[0]) == pytest.approx(float(mask[:4, :4].mean()), abs=1e-15)
    # one region for each feature: the mask itself, exactly
    net = torch.nn.Linear(5, 4).double()
    x = torch.ones(1, 5, dtype=torch.float64)
    fine = bilrp.decompose(net, x, regions=regions.features(), composite=composites.uniform(0.0))
    w = draw_weights(2, 5)
    assert torch.allclose(fine.weight(w).embedding, net.weight @ w + net.bias, atol=1e-14)


@pytest.mark.parametrize(
    "wrong", [torch.ones(3), [1.5] * REGIONS, [-0.1] * REGIONS, [float("nan")] * REGIONS]
)
def test_other_weights_are_refused(decompositions, wrong):
    with pytest.raises(InputError, match="reliability"):
        decompositions[0].weight(wrong)


def test_weights_survive_files(decompositions, tmp_path):
    a, b, _ = decompositions
    explanation = bilrp.pair(a.weight(draw_weights(0)), b, similarity="cosine")
    for suffix in (".npz", ".safetensors"):
        loaded = Explanation.load(explanation.save(tmp_path / f"why{suffix}"))
        assert loaded.a.reliability is not None and loaded.b.reliability is None
        assert loaded.a.reliability.tolist() == draw_weights(0).tolist()
        assert loaded.unweighted_score == explanation.unweighted_score
        assert loaded.findings()[0].reliability == explanation.findings()[0].reliability


def test_a_finding_on_unreliable_input_is_marked_everywhere():
    net = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.eye_(net.weight)
    x = torch.tensor([[9.0, 3.0, 0.0, 0.0]])
    explanation = bilrp.explain(net, x, x, similarity="dot", reliability=([0.5, 1.0, 1.0, 1.0], None))
    strong, weak = explanation.findings()
    assert (strong.reliability, weak.reliability) == (0.5, 1.0) and not strong.is_unreliable
    explanation = bilrp.explain(net, x, x, similarity="dot", reliability=[0.6, 1.0, 1.0, 1.0])
    strong, weak = explanation.findings()
    assert strong.reliability == pytest.approx(0.36) and strong.is_unreliable and not weak.is_unreliable
    assert explanation.summary().count("unreliable input") == 1
    assert "without weights the score is 90" in explanation.summary()
    payload = build_payload(explanation)
    assert [f["unreliable"] for f in payload["findings"]] == [True, False]
    assert payload["findings"][0]["label"].endswith("(unreliable input)")
    assert explanation.cover_findings() == []  # the model knows no weights


def test_own_confidence_is_for_encoders_that_have_one():
    with pytest.raises(InputError, match="no confidence of its own"):
        bilrp.explain(torch.nn.Linear(2, 2), torch.ones(1, 2), torch.ones(1, 2), reliability="own")
    with pytest.raises(InputError, match="tuple of two"):
        bilrp.explain(torch.nn.Linear(2, 2), torch.ones(1, 2), torch.ones(1, 2), reliability=("own",) * 3)  # type: ignore[arg-type]


def test_unread_ink_lowers_the_confidence_of_a_number():
    page = table_pages.draw_page(rows=6, columns=4, seed=5)
    encoder = bigram.bigram()
    x = bilrp.encoder.read_item(encoder, page.image).x
    digits = table_numbers.detect_digits(encoder.module.digits(x))  # type: ignore[attr-defined]
    numbers = table_numbers.join_digits(digits)
    ink = x[0, 0].double().numpy()
    before = table_numbers.measure_confidence(ink, digits, numbers)
    number = max((n for n, of in enumerate(numbers) if len(of) == 4), key=lambda n: before[n])
    blind = table_numbers.DetectedDigits(
        *(values[np.arange(len(digits.x)) != numbers[number][-1]] for values in digits)
    )
    shorter = table_numbers.join_digits(blind)
    after = table_numbers.measure_confidence(ink, blind, shorter)
    first = numbers[number][0]
    starts = [np.hypot(blind.x[of[0]] - digits.x[first], blind.y[of[0]] - digits.y[first]) for of in shorter]
    left = int(np.argmin(starts))
    assert len(shorter[left]) == len(numbers[number]) - 1
    assert before[number] > 0.5 > after[left]
    assert ((before >= 0) & (before <= 1)).all()


@pytest.mark.slow
def test_weights_raise_the_precision_of_number_matches_on_smudged_pages(data):
    from bilrp_studies.tables.pages import find_pages, read_page
    from bilrp_studies.tables.smudged_numbers import measure_matches, read_numbers, smudge

    rng, encoder = np.random.default_rng(0), bigram.bigram()
    pages = [read_page(*paths) for paths in find_pages(data / "historic_tables")[3:18:5]]
    numbers = [read_numbers(encoder, page, smudge(page, rng)) for page in pages]
    measured = measure_matches(numbers)
    assert measured.matches > 100
    assert measured.weighted_precision > measured.precision + 0.02
    assert measured.reliable_precision > measured.precision + 0.03 and measured.reliable_recall > 0.4


@pytest.mark.parametrize("wrong", [["a", "b"], {}, object(), [1j, 1j], [float("nan"), 1.0]])
def test_weights_that_are_no_numbers_are_refused(wrong):
    side = bilrp.decompose(torch.nn.Linear(2, 3), torch.ones(1, 2))
    with pytest.raises(InputError, match="reliability must be"):
        side.weight(wrong)
