"""Repairs that know which items have the shortcut: mean difference and LEACE (Belrose et al. 2023)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def project_mean_difference(rows: Float[Tensor, "n h"], labels: Bool[Tensor, " n"]) -> Float[Tensor, "n h"]:
    """Remove the direction between the means of the two classes."""
    direction = rows[labels].mean(0) - rows[~labels].mean(0)
    direction = direction / direction.norm()
    return rows - (rows @ direction)[:, None] * direction


def erase_linearly(rows: Float[Tensor, "n h"], labels: Bool[Tensor, " n"]) -> Float[Tensor, "n h"]:
    """Erase a label linearly with the least change: x − W⁺ P W (x − μ), W = Σ^(−1/2), P projects on W·Cov(x, z)."""
    centred = (rows - rows.mean(0)).double()
    concept = labels.double() - labels.double().mean()
    _, scales, right = torch.linalg.svd(centred, full_matrices=False)
    mask = scales > scales[0] * 1e-6
    scales, right = scales[mask] / len(rows) ** 0.5, right[mask]
    covariance = right @ (centred.T @ concept) / len(rows)
    direction = covariance / scales
    direction = direction / direction.norm()
    values = (centred @ right.T / scales) @ direction
    return (rows.double() - values[:, None] * (right.T @ (scales * direction))).to(rows)
