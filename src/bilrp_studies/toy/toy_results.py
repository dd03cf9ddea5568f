"""What one network's explanations have to do with the truth, and what all of them say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp.evaluation import evaluate
from bilrp_studies.toy.methods import GAMMAS, METHODS, bilrp, explained, integrated_hessians, tuned
from bilrp_studies.toy.digit_task import LENGTH, Pairs, draw, likeness, predicted


@dataclass(frozen=True, eq=False)
class Run:
    """What one seed gave."""

    seed: int
    likeness: float
    mse: float
    acs: dict[str, float]
    curve: list[float]
    mean_baseline: float
    conserved: float
    tuned: dict[str, Any]
    example: Pairs
    patterns: dict[str, Tensor]


def measured(net: nn.Sequential, vectors: Tensor, seed: int, *, pairs: int = 1000) -> Run:
    """Explain `pairs` test pairs with every method, by a network that is trained already."""
    test, tuning = (
        draw(vectors, pairs, torch.Generator().manual_seed(seed + k), matching=True) for k in (3, 4)
    )
    whole = draw(vectors, 5000, torch.Generator().manual_seed(seed + 5))
    relevance = explained(net, test)
    middle = vectors.mean(0).repeat(LENGTH)
    shown = typical(relevance, test.truth)
    return Run(
        seed=seed,
        likeness=likeness(vectors),
        mse=float((predicted(net, whole) - whole.truth.sum((1, 2))).square().mean()),
        acs={name: evaluate.acs(found, test.truth) for name, found in relevance.items()},
        curve=[evaluate.acs(bilrp(net, test, gamma), test.truth) for gamma in GAMMAS],
        mean_baseline=evaluate.acs(integrated_hessians(net, test, baseline=middle), test.truth),
        conserved=float((relevance["bilrp"].sum((1, 2)) - predicted(net, test)).abs().max()),
        tuned=tuned(net, tuning, test),
        example=Pairs(*(t[shown] for t in (test.digits_a, test.digits_b, test.a, test.b))),
        patterns={name: found[shown] for name, found in relevance.items()},
    )


def typical(relevance: dict[str, Tensor], truth: Tensor, count: int = 2) -> Tensor:
    """The pairs to show: those where the cosines of all methods lie nearest to their averages, neither best nor worst."""
    cosines = torch.stack([evaluate.cosine(found, truth) for found in relevance.values()])
    return (cosines - cosines.mean(1, keepdim=True)).square().sum(0).argsort()[:count]


def by_likeness(run: Run) -> dict[str, Any]:
    """One row of the table over digits more or less alike."""
    best = int(np.argmax(run.curve))
    return {
        "cosine": run.likeness,
        "mse": run.mse,
        "acs": run.acs,
        "best_gamma": GAMMAS[best],
        "best_acs": run.curve[best],
    }


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """results.json: mean and spread over seeds, the γ curve, tuning, and every seed by itself."""
    curve = np.array([r.curve for r in runs]).mean(0)
    tuned_acs, uniform_acs = ([r.tuned[key] for r in runs] for key in ("acs", "uniform_acs"))
    return {
        "acs": {name: mean([r.acs[name] for r in runs]) for name in METHODS},
        "acs_std": {name: spread([r.acs[name] for r in runs]) for name in METHODS},
        "gamma_curve": [[gamma, float(value)] for gamma, value in zip(GAMMAS, curve, strict=True)],
        "mse": mean([r.mse for r in runs]),
        "seeds": len(runs),
        "mse_worst": max(r.mse for r in runs),
        "best_gamma": GAMMAS[int(curve.argmax())],
        "ordered_in_every_seed": all(ordered(r.acs) for r in runs),
        "tuned": {
            "acs": mean(tuned_acs),
            "acs_std": spread(tuned_acs),
            "uniform_acs": mean(uniform_acs),
            "uniform_acs_std": spread(uniform_acs),
            "gain": mean([r.tuned["gain"] for r in runs]),
            # Seeds are independent: the error of their mean is that of a sum of independent parts.
            "gain_error": math.sqrt(sum(r.tuned["gain_error"] ** 2 for r in runs)) / len(runs),
            "better_in": sum(r.tuned["gain"] > 0 for r in runs),
        },
        "integrated_hessians_from_mean": mean([r.mean_baseline for r in runs]),
        "conservation_error": max(r.conserved for r in runs),
        "per_seed": [
            {"seed": r.seed // 10, "mse": r.mse, "acs": r.acs, "gamma_curve": r.curve, "tuned": r.tuned}
            for r in runs
        ],
    }


def ordered(acs: dict[str, float], near: float = 0.05) -> bool:
    """The paper's order: saliency ≈ curvature < Hessian×Product < BiLRP."""
    low = max(acs["saliency"], acs["curvature"])
    close = abs(acs["saliency"] - acs["curvature"]) < near
    return close and low + near < acs["hessian_product"] < acs["bilrp"]


def mean(values: Sequence[float]) -> float:
    """Mean over seeds."""
    return float(np.mean(values))


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds; 0 for a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
