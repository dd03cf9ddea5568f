"""The report of the toy study."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bilrp.render.report import Picture, Report, Table
from bilrp_studies.common.study_report import Block, build_study_report
from bilrp_studies.toy import figures
from bilrp_studies.toy.digit_task import DIGIT_OVERLAP, LAYER_SIZES
from bilrp_studies.toy.methods import GAMMA, GAMMAS, METHODS, TITLES
from bilrp_studies.toy.settings import ToySettings
from bilrp_studies.toy.toy_results import SeedResult, mean, sample_std


def build_report(runs: Sequence[SeedResult], results: dict[str, Any], settings: ToySettings) -> Report:
    """Build the report of a finished study.

    Args:
        runs: Results of each seed.
        results: Content of results.json.
        settings: The settings of the study.
    """
    return build_study_report(
        "Is the explanation true? Digits with a known answer",
        describe_results(results),
        _sections(runs, results, settings),
        settings=settings,
        results=results,
        protocol=[_protocol(results, settings)],
    )


def describe_results(results: dict[str, Any]) -> str:
    """Return a paragraph that summarises the results, favourable or not."""
    acs = results["acs"]
    gain = acs["bilrp"] - acs["hessian_product"]
    holds = "holds in every seed" if results["ordered_in_every_seed"] else "does NOT hold in every seed"
    best = results["best_gamma"]
    size = "small but not zero" if 0 < best < 0.5 else "zero" if best == 0 else "not small"
    return (
        f"BiLRP (γ = {GAMMA}) reaches an average cosine similarity of {acs['bilrp']:.3f} to the ground truth, "
        f"Hessian×Product {acs['hessian_product']:.3f} ({gain:+.3f}), curvature {acs['curvature']:.3f}, saliency "
        f"{acs['saliency']:.3f}. The paper's order (saliency ≈ curvature < Hessian×Product < BiLRP) {holds} "
        f"({results['seeds']}). The best uniform γ is {best:g}: {size}. {_describe_tuning(results)} Mean squared error of "
        f"the networks: {results['mse']:.1e} on average, {results['mse_worst']:.1e} at worst. "
        f"{_describe_digit_cosine(results)}"
    )


def _describe_tuning(results: dict[str, Any]) -> str:
    tuning = results["tuned"]
    gain, error = tuning["gain"], tuning["gain_error"]
    outcome = "beats" if gain > 2 * error else "does NOT beat" if gain <= 0 else "does NOT clearly beat"
    return (
        f"γ tuned by layer {outcome} the best uniform γ on fresh pairs ({tuning['acs']:.4f} against "
        f"{tuning['uniform_acs']:.4f}, {gain:+.4f} with a standard error of {error:.4f} over pairs; better in "
        f"{tuning['better_in']} of {results['seeds']} seeds)."
    )


def _describe_digit_cosine(results: dict[str, Any]) -> str:
    """Say whether BiLRP is better than Hessian×Product for more and less correlated digits too."""
    rows = results["by_likeness"]
    lost = " and ".join(
        f"{r['cosine']:.2f}" for r in rows if r["acs"]["bilrp"] <= r["acs"]["hessian_product"]
    )
    fixed = f"does NOT beat Hessian×Product at {lost}" if lost else "beats Hessian×Product at all of them"
    always = all(r["best_acs"] > r["acs"]["hessian_product"] for r in rows)
    return (
        f"How alike the digits are matters (mean cosines from {rows[0]['cosine']:.2f} to {rows[-1]['cosine']:.2f} were "
        f"tried): γ = {GAMMA} {fixed}, the best γ {'does at all of them' if always else 'does NOT do so everywhere'}."
    )


def _sections(
    runs: Sequence[SeedResult], results: dict[str, Any], settings: ToySettings
) -> dict[str, list[Block]]:
    curve = Picture(
        "gamma.png",
        figures.plot_gamma_curve(GAMMAS, [r.gamma_curve for r in runs], GAMMA),
        "ACS over one γ for all layers; thin lines are seeds. γ = 0 is Hessian×Product.",
    )
    patterns = Picture(
        "patterns.png",
        figures.plot_patterns(runs[0]),
        "Two typical test pairs of the first network: those whose cosines are closest to the averages in the table. "
        "Lines join the digits of the two sequences: red for positive, blue for negative relevance, each panel scaled "
        "to its strongest line.",
    )
    baseline = (
        "These networks have no biases, so they are positively homogeneous: gradients are constant on the way from zero "
        "to the input, and integrated Hessians from zero are Hessian×Product, exactly. The last row integrates from the "
        "mean digit instead, which leaves out what all digits have in common: it is told what a neutral input is, and no "
        "other method here is."
    )
    return {
        "Against the ground truth": [patterns, _acs_table(runs, settings.pairs), baseline],
        "The effect of γ": [curve],
        "γ by layer": [_tuning_table(runs)],
        "Digits more or less alike": [_digit_cosine_table(results)],
    }


def _acs_table(runs: Sequence[SeedResult], pairs: int) -> Table:
    by_seed = {TITLES[name]: [r.acs[name] for r in runs] for name in METHODS}
    by_seed["Integrated Hessians from the mean digit"] = [r.acs_from_mean for r in runs]
    return Table(
        ["method", "ACS", "spread", *(f"seed {r.seed // 10}" for r in runs)],
        [(title, *(f"{v:.3f}" for v in (mean(v), sample_std(v), *v))) for title, v in by_seed.items()],
        f"Average cosine similarity to the ground truth over {pairs} test pairs for each seed; the spread is the "
        "standard deviation over seeds.",
    )


def _tuning_table(runs: Sequence[SeedResult]) -> Table:
    keys = ("acs", "uniform_gamma", "uniform_acs", "gain")
    gammas = [f"γ {i}–{o}" for i, o in pairwise(LAYER_SIZES)]
    return Table(
        ["seed", *gammas, "tuned ACS", "best uniform γ", "its ACS", "gain"],
        [(r.seed // 10, *r.tuning["gammas"], *(r.tuning[key] for key in keys)) for r in runs],
        "Coordinate descent on other pairs than these; both numbers are of fresh test pairs.",
    )


def _digit_cosine_table(results: dict[str, Any]) -> Table:
    shown = ("saliency", "hessian_product", "bilrp")
    return Table(
        ["mean cosine of digits", "error", *(TITLES[name] for name in shown), "best γ", "its ACS"],
        [
            (
                f"{r['cosine']:.2f}",
                f"{r['mse']:.1e}",
                *(f"{r['acs'][name]:.3f}" for name in shown),
                r["best_gamma"],
                f"{r['best_acs']:.3f}",
            )
            for r in results["by_likeness"]
        ],
        "ACS of one network each, trained on digits that have less or more in common. The paper does not say how "
        "correlated its digits are.",
    )


def _protocol(results: dict[str, Any], settings: ToySettings) -> str:
    return (
        f"Two sequences of six digits, each digit a unit vector along e_k + {DIGIT_OVERLAP} u_k in R¹⁰ with u_k uniform in "
        "[0.6, 1.4]¹⁰ (cosines around 0.75). Network 60-100-100-50, ReLU after each layer, no biases; "
        f"{settings.iterations} iterations of Adam on all pairs of 64 and 64 fresh sequences, to the number of matching "
        "digits (all 36 combinations of places count). Relevance is pooled over the ten dimensions of each digit. "
        f"{settings.pairs} test pairs with at least one match for each network (about 4 % have none, and no cosine). "
        "Thousands of small inputs are explained at once by a plain batched twin of the engine, tested to equal it. The "
        f"largest error of conservation, |Σ R − y| over all test pairs, is {results['conservation_error']:.1e}."
    )
