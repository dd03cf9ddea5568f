"""The toy study: batched parts equal the engine's, the network learns, and the report says what was found."""

from __future__ import annotations

import json

import pytest
import torch

import bilrp
from bilrp import baselines, composites, regions
from bilrp.errors import InputError
from bilrp.evaluation import tuning
from bilrp_studies.toy import digit_task, methods, study, toy_results
from bilrp_studies.toy.settings import ToySettings

DIGITS = regions.labels(torch.arange(digit_task.SEQUENCE_LENGTH).repeat_interleave(digit_task.DIGIT_DIM))


@pytest.fixture(scope="module")
def setting():
    """A network of the study's shape in float32 and two pairs; it need not be trained to be explained."""
    vectors = digit_task.make_digit_vectors(7)
    net = digit_task.make_network(7).requires_grad_(False)
    return net, digit_task.draw_pairs(vectors, 2, torch.Generator().manual_seed(0), require_match=True)


def close(result, expected):
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gammas", [(0.0, 0.0, 0.0), (0.09, 0.09, 0.09), (0.25, 0.0, 1.0)])
def test_batched_parts_are_the_engines(setting, gammas):
    net, pairs = setting
    names = tuning.list_weighted_layers(net, pairs.a[:1])
    composite = tuning.build_composite(dict(zip(names, gammas, strict=True)))
    result = methods.compute_parts(net, pairs.a, gammas)
    for k in range(len(pairs.a)):
        expected = bilrp.decompose(net, pairs.a[k : k + 1], regions=DIGITS, composite=composite)
        close(result[k], expected.parts)


def test_batched_methods_are_the_librarys(setting):
    net, pairs = setting
    result = methods.explain_all(net, pairs)
    for k in range(len(pairs.a)):
        a, b = pairs.a[k : k + 1], pairs.b[k : k + 1]
        for name in ("saliency", "curvature", "hessian_product", "integrated_hessians"):
            own = bilrp.Encoder(net, similarity="dot")
            close(result[name][k], getattr(baselines, name)(own, a, b, regions=DIGITS).relevance)
        rules = composites.uniform(methods.GAMMA)
        close(
            result["bilrp"][k],
            bilrp.explain(net, a, b, regions=DIGITS, composite=rules, similarity="dot").relevance,
        )
        middle = torch.full((60,), 0.3)
        close(
            methods.integrated_hessians(net, pairs, baseline=middle, steps=8)[k],
            baselines.integrated_hessians(
                net, a, b, regions=DIGITS, baseline=middle, steps=8, similarity="dot"
            ).relevance,
        )


def test_relevance_conserves_and_integrated_hessians_from_zero_are_hessian_product(setting):
    net, pairs = setting
    result = methods.explain_all(net, pairs)
    for name in ("hessian_product", "integrated_hessians", "bilrp"):
        close(result[name].sum((1, 2)), digit_task.predict(net, pairs))
    close(result["integrated_hessians"], result["hessian_product"])


def test_the_truth_is_the_pattern_of_matches():
    pairs = digit_task.draw_pairs(
        digit_task.make_digit_vectors(0), 500, torch.Generator().manual_seed(0), require_match=True
    )
    assert len(pairs.a) == 500
    assert (pairs.truth.sum((1, 2)) > 0).all()
    for k in range(5):
        a, b = pairs.digits_a[k].tolist(), pairs.digits_b[k].tolist()
        assert pairs.truth[k].tolist() == [[float(i == j) for j in b] for i in a]
        assert torch.equal(pairs.a[k].reshape(6, 10), digit_task.make_digit_vectors(0)[a])
    assert pairs.truth.mean() == pytest.approx(0.1, abs=0.02)


def test_digit_vectors_are_non_negative_correlated_and_independent():
    for seed in range(20):
        vectors = digit_task.make_digit_vectors(seed)
        cosines = vectors @ vectors.T
        assert (vectors > 0).all()
        assert 0.6 < (cosines.sum() - 10) / 90 < 0.85
        assert torch.linalg.matrix_rank(vectors) == 10


def test_training_learns_and_is_reproducible():
    vectors = [digit_task.make_digit_vectors(seed) for seed in (0, 1)]
    pairs = digit_task.draw_pairs(vectors[0], 2000, torch.Generator().manual_seed(9))
    error = lambda net: float((digit_task.predict(net, pairs) - pairs.truth.sum((1, 2))).square().mean())  # noqa: E731
    first, second = (digit_task.train(vectors, [0, 1], iterations=800)[0] for _ in range(2))
    assert error(first) < 0.7 * float(pairs.truth.sum((1, 2)).var())
    assert all(
        torch.equal(p, q)
        for p, q in zip(digit_task.weight_matrices(first), digit_task.weight_matrices(second), strict=True)
    )
    assert not any(p.requires_grad for p in first.parameters())


def test_the_report_of_a_short_run(tmp_path):
    report = study.run(ToySettings(seeds=2, pairs=20, iterations=100))
    report.write(tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["acs"]) == set(results["acs_std"]) == set(methods.METHODS)
    assert [gamma for gamma, _ in results["gamma_curve"]] == list(methods.GAMMAS)
    assert results["gamma_curve"][0][1] == pytest.approx(results["acs"]["hessian_product"])
    assert results["gamma_curve"][methods.GAMMAS.index(0.09)][1] == pytest.approx(results["acs"]["bilrp"])
    assert results["seeds"] == 2
    assert results["mse"] <= results["mse_worst"]
    likeness = [row["cosine"] for row in results["by_likeness"]]
    assert likeness == sorted(likeness) and len(likeness) == 1 + len(study.OTHER_OVERLAPS)
    for name in ("patterns.png", "gamma.png", "report.md", "report.html"):
        assert (tmp_path / name).stat().st_size > 1000
    # 100 iterations are far too few: the study must say so, not pretend.
    assert "does NOT hold in every seed" in report.summary
    assert study.run(ToySettings(seeds=2, pairs=20, iterations=100)).results == report.results


@pytest.mark.parametrize("given", [{"seeds": 0}, {"pairs": 1}, {"iterations": 10}])
def test_too_little_is_refused(given):
    with pytest.raises(InputError, match="give at least"):
        ToySettings(**given)


@pytest.mark.parametrize(
    ("acs", "expected"),
    [
        ((0.31, 0.32, 0.5, 0.6), True),
        ((0.31, 0.32, 0.6, 0.5), False),
        ((0.31, 0.45, 0.6, 0.7), False),
        ((0.58, 0.58, 0.6, 0.7), False),
    ],
)
def test_order(acs, expected):
    named: dict[str, float] = dict(
        zip(("saliency", "curvature", "hessian_product", "bilrp"), acs, strict=True)
    )
    assert toy_results.has_paper_order(named) is expected


@pytest.mark.slow
def test_the_papers_findings_on_a_seed_never_looked_at():
    results = study.run(ToySettings(seeds=1, seed=31)).results
    assert results["mse"] <= 2e-3
    assert results["ordered_in_every_seed"]
    assert results["acs"]["bilrp"] > results["acs"]["hessian_product"] + 0.03
    assert 0 < results["best_gamma"] < 0.5
    assert results["conservation_error"] < 1e-4


@pytest.mark.slow
def test_the_first_finding_is_the_match():
    """Two sequences with one digit in common: what a trained network matches most holds that pair."""
    vectors = digit_task.make_digit_vectors(0)
    net = digit_task.train([vectors], [0], iterations=2500)[0]
    pairs = digit_task.draw_pairs(vectors, 120, torch.Generator().manual_seed(1), require_match=True)
    single = [k for k in range(len(pairs.a)) if pairs.truth[k].sum() == 1]
    held = 0
    for k in single:
        explanation = bilrp.explain(
            net,
            pairs.a[k : k + 1],
            pairs.b[k : k + 1],
            regions=DIGITS,
            composite=composites.uniform(methods.GAMMA),
            similarity="dot",
        )
        i, j = pairs.truth[k].nonzero()[0].tolist()
        first = explanation.findings()[0]
        held += i in first.a and j in first.b
        assert first.relevance == pytest.approx(
            float(explanation.relevance[first.a][:, first.b].double().sum())
        )
    assert len(single) >= 3 and held >= 0.7 * len(single)
