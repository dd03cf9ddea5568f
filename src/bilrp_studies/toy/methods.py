"""Five methods, batched over thousands of small inputs; tested to give the same results as the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp import evaluation
from bilrp.evaluation.tuning import search_gammas
from bilrp_studies.toy.digit_task import DIGIT_DIM, LAYER_SIZES, SEQUENCE_LENGTH, Pairs, weight_matrices

GAMMA = 0.09  # the paper's choice
GAMMAS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.09, 0.12, 0.18, 0.25, 0.4, 0.6, 1.0, 2.0)
METHODS = ("saliency", "curvature", "hessian_product", "integrated_hessians", "bilrp")
TITLES = {
    "saliency": "Saliency",
    "curvature": "Curvature",
    "hessian_product": "Hessian×Product",
    "integrated_hessians": "Integrated Hessians",
    "bilrp": f"BiLRP (γ = {GAMMA})",
}


def compute_parts(
    net: nn.Sequential, x: Tensor, gammas: Sequence[float], *, tangent: Tensor | None = None
) -> Tensor:
    """Parts [n, 6, 50] of many inputs [n, 60]: digits pushed through LRP-γ, one γ per linear layer.

    J = diag(a'/z) ρ(W) with ρ(W) = W + γ W⁺ and z = ρ(W)a, frozen at x.

    Args:
        net: The network.
        x: Inputs at which the rules are frozen.
        gammas: γ of each linear layer.
        tangent: The vectors that are pushed; x if None.
    """
    member = torch.eye(SEQUENCE_LENGTH).repeat_interleave(DIGIT_DIM, dim=1)
    pushed = (x if tangent is None else tangent)[:, None] * member
    a = x
    for weight, gamma in zip(weight_matrices(net), gammas, strict=True):
        raised = weight + gamma * weight.clamp(min=0)
        out, z = torch.relu(a @ weight.T), a @ raised.T
        scale = torch.where(out > 0, out / torch.where(out > 0, z, 1.0), 0.0)
        pushed, a = (pushed @ raised.T) * scale[:, None], out
    return pushed


def bilrp_relevance(net: nn.Sequential, pairs: Pairs, gammas: Sequence[float] | float = GAMMA) -> Tensor:
    """BiLRP, [n, 6, 6]: R = P P'ᵀ. γ = 0 is Hessian×Product (Prop. 2).

    Args:
        net: The network.
        pairs: Pairs to explain.
        gammas: γ of each linear layer, or one for all.
    """
    given = [gammas] * 3 if isinstance(gammas, (int, float)) else gammas
    return compute_parts(net, pairs.a, given) @ compute_parts(net, pairs.b, given).mT


def saliency(pairs: Pairs) -> Tensor:
    """Saliency, [n, 6, 6]: (x_i x'_i')² summed over the features of two digits."""
    left, right = (x.square().unflatten(1, (SEQUENCE_LENGTH, DIGIT_DIM)).sum(2) for x in (pairs.a, pairs.b))
    return left[:, :, None] * right[:, None, :]


def curvature(net: nn.Sequential, pairs: Pairs, chunk: int = 250) -> Tensor:
    """Curvature, [n, 6, 6]: the squared Hessian, H = Jᵀ J', summed over the features of two digits.

    Args:
        net: The network.
        pairs: Pairs to explain.
        chunk: Pairs per batch.
    """
    items = []
    for a, b in zip(pairs.a.split(chunk), pairs.b.split(chunk), strict=True):
        hessian = jacobian(net, a).mT @ jacobian(net, b)
        items.append(
            hessian.square().reshape(-1, SEQUENCE_LENGTH, DIGIT_DIM, SEQUENCE_LENGTH, DIGIT_DIM).sum((2, 4))
        )
    return torch.cat(items)


def jacobian(net: nn.Sequential, x: Tensor) -> Tensor:
    """J [n, 50, 60]: the product of the weights, masked by the ReLUs."""
    result, a = torch.eye(x.shape[1]), x
    for weight in weight_matrices(net):
        a = torch.relu(a @ weight.T)
        result = (a > 0).float()[:, :, None] * (weight @ result)
    return result


def integrated_hessians(net: nn.Sequential, pairs: Pairs, *, baseline: Tensor, steps: int = 16) -> Tensor:
    """Integrated Hessians along the product path, [n, 6, 6], by Gauss-Legendre quadrature.

    Args:
        net: The network.
        pairs: Pairs to explain.
        baseline: Start of the path, [60].
        steps: Points of the quadrature.
    """
    nodes, shares = np.polynomial.legendre.leggauss(steps)
    sides = []
    for x in (pairs.a, pairs.b):
        way = x - baseline
        along = [
            share / 2 * compute_parts(net, baseline + (node + 1) / 2 * way, [0.0] * 3, tangent=way)
            for node, share in zip(nodes.tolist(), shares.tolist(), strict=True)
        ]
        sides.append(torch.stack(along).sum(0))
    return sides[0] @ sides[1].mT


def explain_all(net: nn.Sequential, pairs: Pairs) -> dict[str, Tensor]:
    """Return the relevance of every method, [n, 6, 6] each."""
    return {
        "saliency": saliency(pairs),
        "curvature": curvature(net, pairs),
        "hessian_product": bilrp_relevance(net, pairs, 0.0),
        "integrated_hessians": integrated_hessians(net, pairs, baseline=torch.zeros(LAYER_SIZES[0])),
        "bilrp": bilrp_relevance(net, pairs, GAMMA),
    }


def tune_gammas(net: nn.Sequential, tuning_pairs: Pairs, test_pairs: Pairs) -> dict[str, Any]:
    """Search γ by layer and the best uniform γ; evaluate both on other pairs.

    Args:
        net: The network.
        tuning_pairs: Pairs on which γ is chosen.
        test_pairs: Pairs on which both choices are evaluated.
    """
    best, reached, tried = search_gammas(
        lambda gammas: evaluation.acs(bilrp_relevance(net, tuning_pairs, gammas), tuning_pairs.truth),
        3,
        grid=GAMMAS,
    )
    uniform = max((gammas for gammas, _ in tried if len(set(gammas)) == 1), key=dict(tried).__getitem__)
    by_layer, by_one = (
        evaluation.cosine(bilrp_relevance(net, test_pairs, g), test_pairs.truth).double()
        for g in (best, uniform)
    )
    gain = by_layer - by_one
    return {
        "gammas": list(best),
        "acs_tuning": reached,
        "acs": float(by_layer.mean()),
        "uniform_gamma": uniform[0],
        "uniform_acs": float(by_one.mean()),
        "gain": float(gain.mean()),
        "gain_error": float(gain.std() / math.sqrt(len(gain))),
    }
