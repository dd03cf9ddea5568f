"""The two figures of section 4: relevance patterns next to the ground truth, and ACS over γ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bilrp import evaluation
from bilrp_studies.toy.methods import METHODS, TITLES
from bilrp_studies.toy.toy_results import SeedResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RED, BLUE, TEXT_COLOR, MUTED_COLOR = "#b2182b", "#2166ac", "#222222", "#777777"


def plot_patterns(run: SeedResult) -> Figure:
    """Plot the links of each method between the digits of two sequences, next to the true matches."""
    from matplotlib.figure import Figure

    columns = ["truth", *METHODS]
    rows = len(run.example_pairs.a)
    figure = Figure(figsize=(1.75 * len(columns), 2.1 * rows + 0.35), dpi=160, layout="constrained")
    axes = figure.subplots(rows, len(columns), squeeze=False)
    for k in range(rows):
        truth = run.example_pairs.truth[k]
        for column, name in enumerate(columns):
            relevance = truth if name == "truth" else run.example_relevance[name][k]
            score = float(evaluation.cosine(relevance, truth))
            digits = (run.example_pairs.digits_a[k].tolist(), run.example_pairs.digits_b[k].tolist())
            _draw_connections(axes[k, column], relevance, *digits)
            axes[k, column].set_xlabel(
                "" if name == "truth" else f"cosine {score:.2f}", fontsize=9, color=TEXT_COLOR
            )
            if k == 0:
                title = "Ground truth" if name == "truth" else TITLES[name]
                axes[k, column].set_title(title, fontsize=10, color=TEXT_COLOR)
    return figure


def plot_gamma_curve(
    gammas: Sequence[float], curves: Sequence[Sequence[float]], paper_gamma: float
) -> Figure:
    """Plot ACS over γ: the mean, and each seed.

    Args:
        gammas: Values of γ.
        curves: ACS at each γ, for each seed.
        paper_gamma: The paper's γ, marked by a line.
    """
    from matplotlib.figure import Figure

    values = np.array(curves)
    mean = values.mean(0)
    figure = Figure(figsize=(6.4, 3.6), dpi=160, layout="constrained")
    axes = figure.subplots()
    for one in values:
        axes.plot(gammas, one, color=RED, alpha=0.25, linewidth=1)
    axes.plot(gammas, mean, color=RED, linewidth=2.2, marker="o", markersize=4, label="mean over seeds")
    best = int(mean.argmax())
    # Beyond the best γ the curves of all seeds fall, so the upper right corner is free for the annotation.
    axes.annotate(
        f"best uniform γ = {gammas[best]:g}: ACS {mean[best]:.3f}",
        (gammas[best], mean[best]),
        xytext=(0.63, 0.9),
        textcoords="axes fraction",
        fontsize=9,
        arrowprops={"arrowstyle": "-", "color": TEXT_COLOR, "linewidth": 0.8, "shrinkB": 3},
    )
    axes.annotate(
        f"γ = 0: Hessian×Product, ACS {mean[0]:.3f}",
        (gammas[0], mean[0]),
        xytext=(0.06, 0.2),
        textcoords="axes fraction",
        fontsize=9,
        arrowprops={
            "arrowstyle": "-",
            "color": TEXT_COLOR,
            "linewidth": 0.8,
            "shrinkB": 3,
            "relpos": (0.02, 1),
        },
    )
    axes.axvline(paper_gamma, color=MUTED_COLOR, linewidth=1, linestyle=":")
    axes.text(
        paper_gamma, 0.02, f" the paper's γ = {paper_gamma:g}", color=MUTED_COLOR, fontsize=9,
        transform=axes.get_xaxis_transform(),
    )  # fmt: skip
    axes.set_xscale("symlog", linthresh=0.01, linscale=0.6)
    ticks = [0, 0.01, 0.03, 0.1, 0.3, 1, 2]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("γ")
    axes.set_ylabel("average cosine similarity")
    axes.set_xlim(-0.0015, max(gammas) * 1.08)
    axes.margins(y=0.14)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_connections(axes: Any, relevance: Tensor, above: Sequence[int], below: Sequence[int]) -> None:
    """Draw two rows of digits, and a line for each pair with opacity and width by relevance."""
    strength = (relevance / relevance.abs().max().clamp(min=1e-12)).double()
    order = torch.argsort(strength.abs().flatten())  # weak lines first: strong ones stay visible
    for flat in order.tolist():
        i, j = divmod(flat, relevance.shape[1])
        value = float(strength[i, j])
        color = RED if value > 0 else BLUE
        axes.plot([i, j], [1, 0], color=color, alpha=min(1.0, abs(value)), linewidth=0.4 + 2.2 * abs(value))
    for y, digits, shift in ((1, above, 0.13), (0, below, -0.13)):
        for x, digit in enumerate(digits):
            axes.text(x, y + shift, str(digit), ha="center", va="center", fontsize=11, color=TEXT_COLOR)
    axes.set_xlim(-0.5, len(above) - 0.5)
    axes.set_ylim(-0.28, 1.28)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
