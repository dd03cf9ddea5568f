"""Algorithm 1 of Appendix F: from relevance on pairs of regions to links with opacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.errors import InputError
from bilrp.render.styles import STYLES, Style, resolve_style

__all__ = [
    "STYLES",
    "Links",
    "Style",
    "compute_links",
    "normalize",
    "opacity",
    "resolve_style",
    "sparsify",
    "threshold",
]


@dataclass(frozen=True)
class Links:
    """Links to draw, faintest first: link k joins region rows[k] of a to columns[k] of b, with value in [−1, 1]."""

    rows: Tensor
    columns: Tensor
    value: Tensor
    opacity: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[int, int, float, float]]:
        return zip(
            self.rows.tolist(), self.columns.tolist(), self.value.tolist(), self.opacity.tolist(), strict=True
        )


def normalize(relevance: Tensor) -> Tensor:
    """R ← R / E[R⁴]^(1/4); zeros stay zeros."""
    relevance = relevance.cpu().double()
    largest = relevance.abs().max() if relevance.numel() else relevance.new_tensor(0.0)
    if largest == 0:
        return relevance
    scaled = relevance / largest  # so that the fourth power neither overflows nor underflows
    return scaled / scaled.pow(4).mean().pow(0.25)


def sparsify(relevance: Tensor, *, low: float | int) -> Tensor:
    """R ← R − clip(R, [−l, l]): everything within ±l becomes exactly zero."""
    return relevance - relevance.clamp(-low, low)


def threshold(relevance: Tensor, *, low: float | int, high: float | int) -> Tensor:
    """R ← clip(R, [−Δ, Δ]) / Δ with Δ = h − l.

    Args:
        relevance: Relevance after `sparsify`.
        low: l.
        high: h; entries of this strength before `sparsify` become ±1.
    """
    delta = high - low
    return relevance.clamp(-delta, delta) / delta


def opacity(relevance: Tensor, *, power: float | int) -> Tensor:
    """α = |R|^p."""
    return relevance.abs().pow(power)


def compute_links(relevance: Tensor, style: str | Style = "auto", *, min_opacity: float = 0.0) -> Links:
    """Apply Algorithm 1 to relevance on pairs of regions; every non-zero entry becomes a link.

    Args:
        relevance: Relevance [regions of a, regions of b].
        style: Name of a style, or a style.
        min_opacity: Leave out fainter links, for example 1/255 for images of eight bits.
    """
    if relevance.ndim != 2:
        raise InputError(f"relevance must be a matrix, got shape {tuple(relevance.shape)}")
    if not torch.isfinite(relevance).all():
        raise InputError("cannot draw relevance with NaN or infinite values")
    style = resolve_style(style, pairs=relevance.numel())
    matrix = normalize(relevance.detach().cpu())
    matrix = threshold(sparsify(matrix, low=style.low), low=style.low, high=style.high)
    alpha = opacity(matrix, power=style.power)
    rows, columns = ((matrix != 0) & (alpha >= min_opacity)).nonzero(as_tuple=True)
    order = alpha[rows, columns].argsort(stable=True)
    rows, columns = rows[order], columns[order]
    return Links(rows, columns, matrix[rows, columns], alpha[rows, columns])
