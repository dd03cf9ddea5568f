"""Algorithm 1 of Appendix F, step by step: from relevance on pairs of regions to links with opacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bilrp.errors import InputError


@dataclass(frozen=True)
class Style:
    """How relevance is drawn: below `low` (l) nothing, at `high` (h) in full, `power` (p) fades the weak.

    `size` and `pool` are the input size and the region size the paper used with it.
    """

    name: str
    size: int
    pool: int
    low: float | int
    high: float | int
    power: float | int

    def __post_init__(self) -> None:
        if not (0 <= self.low < self.high and self.power > 0):
            raise InputError(f"a style needs 0 ≤ l < h and p > 0, got {self.low}, {self.high}, {self.power}")


# Table "Parameters used on each dataset for rendering" of Appendix F
STYLES = {
    style.name: style
    for style in (
        Style("pascal_voc", size=128, pool=8, low=0.25, high=13, power=2),
        Style("faces", size=64, pool=4, low=0.3, high=60, power=1),
        Style("ucf", size=128, pool=8, low=0.25, high=20, power=1),
        Style("illustrations", size=96, pool=6, low=0.25, high=15, power=2),
        Style("tables", size=140, pool=20, low=0.01, high=4, power=2),
    )
}


@dataclass(frozen=True)
class Links:
    """The links to draw, faintest first: rows[k] of a is joined to columns[k] of b with value in [−1, 1]."""

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


def style(
    name: str | Style = "auto",
    *,
    pairs: int | None = None,
    low: float | int | None = None,
    high: float | int | None = None,
    power: float | int | None = None,
) -> Style:
    """A style by name, with any of its three parameters replaced.

    "auto" is pascal_voc at 256 × 256 pairs. For other counts h is scaled by the fourth root of the number of
    pairs, for a lone link among n pairs is n^(1/4) after normalisation: few regions stay readable.

    >>> style("faces", power=2).high
    60
    """
    if isinstance(name, Style):
        chosen = name
    elif name == "auto":
        paper = STYLES["pascal_voc"]
        scale = 1.0 if pairs is None else (pairs / 256**2) ** 0.25
        chosen = replace(paper, name="auto", high=max(paper.high * scale, 2 * paper.low))
    elif name in STYLES:
        chosen = STYLES[name]
    else:
        raise InputError(f"no style {name!r}; there are auto, {', '.join(STYLES)}")
    changes = {"low": low, "high": high, "power": power}
    return replace(chosen, **{key: value for key, value in changes.items() if value is not None})


def coarsen(relevance: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """R_II' = Σ_{i∈I} Σ_{i'∈I'} R_ii' for groups given as one label per row and per column.

    >>> coarsen(torch.ones(4, 2), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0]))
    tensor([[4.], [4.]])
    """
    tall = relevance.new_zeros(int(rows.max()) + 1, relevance.shape[1]).index_add_(0, rows, relevance)
    wide = tall.new_zeros(tall.shape[0], int(columns.max()) + 1)
    return wide.index_add_(1, columns, tall)


def normalise(relevance: Tensor) -> Tensor:
    """R ← R / E[R⁴]^(1/4); all zero stays all zero."""
    relevance = relevance.to(torch.float64)
    largest = relevance.abs().max() if relevance.numel() else relevance.new_tensor(0.0)
    if largest == 0:
        return relevance
    scaled = relevance / largest  # so that the fourth power neither overflows nor vanishes
    return scaled / scaled.pow(4).mean().pow(0.25)


def sparsify(relevance: Tensor, *, low: float | int) -> Tensor:
    """R ← R − clip(R, [−l, l]): everything within ±l becomes exactly zero."""
    return relevance - relevance.clamp(-low, low)


def threshold(relevance: Tensor, *, low: float | int, high: float | int) -> Tensor:
    """R ← clip(R, [−Δ, Δ]) / Δ with Δ = h − l."""
    delta = high - low
    return relevance.clamp(-delta, delta) / delta


def opacity(relevance: Tensor, *, power: float | int) -> Tensor:
    """α = |R|^p: the sign is kept apart, so negative links survive every p."""
    return relevance.abs().pow(power)


def links(relevance: Tensor, how: str | Style = "auto", *, faintest: float = 0.0) -> Links:
    """Algorithm 1 on a matrix of relevance that is already on regions.

    Every non-zero entry becomes a link; `faintest` leaves out those a picture could not show anyway
    (1/255 for eight bits).

    >>> [(i, j) for i, j, value, alpha in links(explanation.relevance, "pascal_voc")]
    """
    if relevance.ndim != 2:
        raise InputError(f"relevance on pairs is a matrix, got shape {tuple(relevance.shape)}")
    if not torch.isfinite(relevance).all():
        raise InputError("relevance holds NaN or infinite values: nothing to draw")
    chosen = style(how, pairs=relevance.numel())
    matrix = normalise(relevance.detach().cpu())
    matrix = threshold(sparsify(matrix, low=chosen.low), low=chosen.low, high=chosen.high)
    alpha = opacity(matrix, power=chosen.power)
    rows, columns = ((matrix != 0) & (alpha >= faintest)).nonzero(as_tuple=True)
    order = alpha[rows, columns].argsort(stable=True)
    rows, columns = rows[order], columns[order]
    return Links(rows, columns, matrix[rows, columns], alpha[rows, columns])
