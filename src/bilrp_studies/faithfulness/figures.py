"""The figure of the faithfulness study: every measure and method with its intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bilrp_studies.faithfulness.aggregation import MEASURES, Measure
from bilrp_studies.faithfulness.methods import METHODS
from bilrp_studies.faithfulness.settings import FaithfulnessSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {
    "bilrp": "#b2182b",
    "hessian_product": "#2166ac",
    "uniform": "#e08214",
    "saliency": "#5aae61",
    "random": "#878787",
}


def method_titles(settings: FaithfulnessSettings) -> dict[str, str]:
    """Return the display names of the methods."""
    return {
        "bilrp": "BiLRP, paper rules",
        "hessian_product": "Hessian×Product",
        "uniform": f"BiLRP, γ = {settings.gamma:g}",
        "saliency": "saliency",
        "random": "random",
    }


def measure_label(measure: Measure) -> str:
    """Return a measure's title with an arrow in the better direction."""
    return f"{measure.title} {'↑' if measure.direction > 0 else '↓' if measure.direction < 0 else ''}".strip()


def plot_results(results: Mapping[str, Any], settings: FaithfulnessSettings) -> Figure:
    """Plot one panel per measure, one row per method, one marker with interval per layer."""
    from matplotlib.figure import Figure

    names = method_titles(settings)
    built = Figure(figsize=(9, 10.5), dpi=150, layout="constrained")
    built.get_layout_engine().set(hspace=0.06, wspace=0.04)  # type: ignore[union-attr]
    axes = built.subplots(-(-len(MEASURES) // 2), 2, sharey=True)
    for panel, measure in zip(axes.flat, MEASURES, strict=True):
        for row, method in enumerate(METHODS):
            _plot_intervals(panel, results, settings, measure, method, len(METHODS) - row)
        key = measure.key.split("_")[0]
        if measure.key.endswith("positive"):
            panel.axvline(results["chance"][key], color="#555555", linestyle=":", linewidth=1)
        if measure.key.endswith("signed"):
            panel.axvline(0, color="#555555", linestyle=":", linewidth=1)
        panel.set_title(measure_label(measure), fontsize=11)
        panel.set_xlim(left=min(-0.01, panel.get_xlim()[0]))
        panel.tick_params(labelsize=9)
        panel.tick_params(axis="y", length=0, labelsize=10)
        panel.locator_params(axis="x", nbins=6)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.grid(axis="x", color="#e6e6e6", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.set_ylim(0.4, len(METHODS) + 0.6)
    axes[0, 0].set_yticks(range(len(METHODS), 0, -1), [names[m] for m in METHODS])
    built.legend(
        handles=_legend(settings), loc="outside lower center", ncols=len(settings.layers), frameon=False
    )
    return built


def _legend(settings: FaithfulnessSettings) -> list[Any]:
    from matplotlib.lines import Line2D

    last = max(settings.layers)
    return [
        Line2D(
            [], [], color="#444444", marker="o", linestyle="", markerfacecolor="#444444" if n == last else "white",
            markeredgewidth=1.5, label=f"layer {n}",
        )
        for n in sorted(settings.layers)
    ]  # fmt: skip


def _plot_intervals(
    panel: Any,
    results: Mapping[str, Any],
    settings: FaithfulnessSettings,
    measure: Measure,
    method: str,
    height: float,
) -> None:
    last = max(settings.layers)
    spread = dict(zip(sorted(settings.layers), _offsets(len(settings.layers)), strict=True))
    for layer in settings.layers:
        cell = results["table"][str(layer)][method][measure.key]
        if cell is None:
            continue
        y, color = height + spread[layer], COLORS[method]
        panel.plot([cell["low"], cell["high"]], [y, y], color=color, linewidth=2, solid_capstyle="round")
        face = color if layer == last else "white"
        panel.plot(
            [cell["mean"]], [y], "o", color=color, markerfacecolor=face, markersize=5.5, markeredgewidth=1.5
        )


def _offsets(count: int) -> list[float]:
    """Vertical offsets of the layers within a method's row, lower layers on top."""
    return [0.0] if count == 1 else [0.17 - 0.34 * k / (count - 1) for k in range(count)]
