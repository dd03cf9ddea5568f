"""Other repairs: those that know which items have the shortcut, and those that edit its true pixels and encode again.

LEACE (Belrose et al. 2023) is in closed form here: the package concept-erasure forms a matrix h × h, which takes minutes for
VGG-16's 8,192 coordinates; a test compares both.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageFilter
from torch import Tensor

from bilrp.collection.shortcut_part import mirror_sources

BLUR_RADIUS_PIXELS = 16
DROPPED_FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2)  # of the coordinates
Edit = Literal["filled", "masked", "blurred"]


def project_mean_difference(rows: Float[Tensor, "n h"], labels: Bool[Tensor, " n"]) -> Float[Tensor, "n h"]:
    """Remove the direction between the means of the two classes."""
    direction = rows[labels].mean(0) - rows[~labels].mean(0)
    direction = direction / direction.norm()
    return rows - (rows @ direction)[:, None] * direction


def erase_linearly(rows: Float[Tensor, "n h"], labels: Bool[Tensor, " n"]) -> Float[Tensor, "n h"]:
    """Erase a label linearly with the least change: x − W⁺ P W (x − μ), W = Σ^(−1/2), P projects on W·Cov(x, z).

    Σ is shrunk towards its mean eigenvalue as in the package: α Σ + (1 − α) tr(Σ)/h, 1 − α = (tr²/n) / (‖Σ‖² − tr²/h).
    """
    centred = (rows - rows.mean(0)).double()
    concept = labels.double() - labels.double().mean()
    count, width = rows.shape
    _, scales, right = torch.linalg.svd(centred, full_matrices=False)
    mask = scales > scales[0] * 1e-6
    variances, right = scales[mask] ** 2 / count, right[mask]
    trace = variances.sum()
    shrinkage = trace**2 / count / ((variances**2).sum() - trace**2 / width)
    scales = ((1 - shrinkage) * variances + shrinkage * trace / width).sqrt()
    direction = right @ (centred.T @ concept) / scales
    direction = direction / direction.norm()
    values = (centred @ right.T / scales) @ direction
    return (rows.double() - values[:, None] * (right.T @ (scales * direction))).to(rows)


def drop_coordinates(
    rows: Float[Tensor, "n h"], labels: Bool[Tensor, " n"], fraction: float
) -> Float[Tensor, "n h"]:
    """Set to zero the coordinates whose means differ most between the two classes, in standard deviations.

    Args:
        rows: embeddings.
        labels: which items have the shortcut.
        fraction: of the coordinates.
    """
    difference = (rows[labels].mean(0) - rows[~labels].mean(0)).abs()
    spread = (rows[labels].var(0) + rows[~labels].var(0)).sqrt()
    order = (difference / spread.clamp(min=1e-12)).argsort(descending=True)
    kept = torch.ones(rows.shape[1])
    kept[order[: max(1, round(fraction * len(order)))]] = 0
    return rows * kept.to(rows)


def edit_pixels(image: Image.Image, mask: Bool[np.ndarray, "height width"], edit: Edit) -> Image.Image:
    """Return an image whose pixels inside a mask are mirrored from outside, grey, or blurred.

    Args:
        image: the image.
        mask: the true pixels of the shortcut.
        edit: what to do with them.
    """
    pixels = np.array(image.convert("RGB"))
    if edit == "filled":
        sources = mirror_sources(torch.from_numpy(mask)).numpy()
        pixels[mask] = pixels.reshape(-1, 3)[sources]
    elif edit == "masked":
        pixels[mask] = 128
    else:
        blurred = np.array(image.convert("RGB").filter(ImageFilter.GaussianBlur(BLUR_RADIUS_PIXELS)))
        pixels[mask] = blurred[mask]
    return Image.fromarray(pixels)
