"""Agreement of explanations with the ground truth, for one network and over all seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp import evaluation
from bilrp_studies.toy.digit_task import SEQUENCE_LENGTH, Pairs, draw_pairs, mean_cosine, predict
from bilrp_studies.toy.methods import (
    GAMMAS,
    METHODS,
    bilrp_relevance,
    explain_all,
    integrated_hessians,
    tune_gammas,
)


@dataclass(frozen=True, eq=False)
class SeedResult:
    """Results of one seed."""

    seed: int
    digit_cosine: float
    mse: float
    acs: dict[str, float]
    gamma_curve: list[float]
    acs_from_mean: float
    conservation_error: float
    tuning: dict[str, Any]
    example_pairs: Pairs
    example_relevance: dict[str, Tensor]


def measure_network(net: nn.Sequential, vectors: Tensor, seed: int, *, pairs: int = 1000) -> SeedResult:
    """Explain test pairs of a trained network with every method and compare with the ground truth.

    Args:
        net: The trained network.
        vectors: Vectors of the ten digits.
        seed: Seed of the test pairs.
        pairs: Number of test pairs.
    """
    test, tuning = (
        draw_pairs(vectors, pairs, torch.Generator().manual_seed(seed + k), require_match=True)
        for k in (3, 4)
    )
    full = draw_pairs(vectors, 5000, torch.Generator().manual_seed(seed + 5))
    relevance = explain_all(net, test)
    middle = vectors.mean(0).repeat(SEQUENCE_LENGTH)
    shown = select_typical_pairs(relevance, test.truth)
    return SeedResult(
        seed=seed,
        digit_cosine=mean_cosine(vectors),
        mse=float((predict(net, full) - full.truth.sum((1, 2))).square().mean()),
        acs={name: evaluation.acs(result, test.truth) for name, result in relevance.items()},
        gamma_curve=[evaluation.acs(bilrp_relevance(net, test, gamma), test.truth) for gamma in GAMMAS],
        acs_from_mean=evaluation.acs(integrated_hessians(net, test, baseline=middle), test.truth),
        conservation_error=float((relevance["bilrp"].sum((1, 2)) - predict(net, test)).abs().max()),
        tuning=tune_gammas(net, tuning, test),
        example_pairs=Pairs(*(t[shown] for t in (test.digits_a, test.digits_b, test.a, test.b))),
        example_relevance={name: result[shown] for name, result in relevance.items()},
    )


def select_typical_pairs(relevance: dict[str, Tensor], truth: Tensor, count: int = 2) -> Tensor:
    """Return the indices of the pairs whose cosines, over all methods, are nearest to the averages.

    Args:
        relevance: Relevance [n, 6, 6] of each method.
        truth: Ground truth, [n, 6, 6].
        count: Number of pairs.
    """
    cosines = torch.stack([evaluation.cosine(result, truth) for result in relevance.values()])
    return (cosines - cosines.mean(1, keepdim=True)).square().sum(0).argsort()[:count]


def cosine_row(run: SeedResult) -> dict[str, Any]:
    """Return one row of the table over the correlation of digits."""
    best = int(np.argmax(run.gamma_curve))
    return {
        "cosine": run.digit_cosine,
        "mse": run.mse,
        "acs": run.acs,
        "best_gamma": GAMMAS[best],
        "best_acs": run.gamma_curve[best],
    }


def collect_results(runs: Sequence[SeedResult]) -> dict[str, Any]:
    """Return the content of results.json: mean and spread over seeds, the γ curve, tuning, and every seed."""
    curve = np.array([r.gamma_curve for r in runs]).mean(0)
    tuned_acs, uniform_acs = ([r.tuning[key] for r in runs] for key in ("acs", "uniform_acs"))
    return {
        "acs": {name: mean([r.acs[name] for r in runs]) for name in METHODS},
        "acs_std": {name: sample_std([r.acs[name] for r in runs]) for name in METHODS},
        "gamma_curve": [[gamma, float(value)] for gamma, value in zip(GAMMAS, curve, strict=True)],
        "mse": mean([r.mse for r in runs]),
        "seeds": len(runs),
        "mse_worst": max(r.mse for r in runs),
        "best_gamma": GAMMAS[int(curve.argmax())],
        "ordered_in_every_seed": all(has_paper_order(r.acs) for r in runs),
        "tuned": {
            "acs": mean(tuned_acs),
            "acs_std": sample_std(tuned_acs),
            "uniform_acs": mean(uniform_acs),
            "uniform_acs_std": sample_std(uniform_acs),
            "gain": mean([r.tuning["gain"] for r in runs]),
            # Seeds are independent, so their variances add.
            "gain_error": math.sqrt(sum(r.tuning["gain_error"] ** 2 for r in runs)) / len(runs),
            "better_in": sum(r.tuning["gain"] > 0 for r in runs),
        },
        "integrated_hessians_from_mean": mean([r.acs_from_mean for r in runs]),
        "conservation_error": max(r.conservation_error for r in runs),
        "per_seed": [
            {
                "seed": r.seed // 10,
                "mse": r.mse,
                "acs": r.acs,
                "gamma_curve": r.gamma_curve,
                "tuned": r.tuning,
            }
            for r in runs
        ],
    }


def has_paper_order(acs: dict[str, float], tolerance: float = 0.05) -> bool:
    """Return whether the paper's order holds: saliency ≈ curvature < Hessian×Product < BiLRP."""
    low = max(acs["saliency"], acs["curvature"])
    close = abs(acs["saliency"] - acs["curvature"]) < tolerance
    return close and low + tolerance < acs["hessian_product"] < acs["bilrp"]


def mean(values: Sequence[float]) -> float:
    """Mean over seeds."""
    return float(np.mean(values))


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation over seeds; 0 for a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
