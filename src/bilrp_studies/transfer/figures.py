"""Figures of the transfer study: one pair at several layers, and accuracy and effective regions over layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bilrp.explanation import Explanation
from bilrp.render import figure as render
from bilrp.render import links
from bilrp_studies.common.drawing import new_figure
from bilrp_studies.transfer.svm import Accuracy
from bilrp_studies.transfer.train_test_pairs import count_effective_regions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_layers(
    explanations: Sequence[Explanation], titles: Sequence[str], *, style: str = "faces"
) -> Figure:
    """Plot the links of one pair at several layers side by side, with the number of effective regions, as in the paper.

    Args:
        explanations: Explanations of the same pair.
        titles: Title of each panel.
        style: Preset for the links.
    """
    canvas = new_figure((5.2 * len(explanations), 2.75))
    for position, (explanation, title) in enumerate(zip(explanations, titles, strict=True)):
        axes = canvas.add_axes(
            (position / len(explanations) + 0.01, 0.02, 1 / len(explanations) - 0.02, 0.84)
        )
        relevance = links.compute_links(explanation.relevance, style, min_opacity=render.MIN_OPACITY)
        a, b = explanation.a, explanation.b
        assert a.input_image is not None and b.input_image is not None
        assert a.regions.boxes is not None and b.regions.boxes is not None
        boxes = a.regions.boxes, b.regions.boxes
        render.draw_arcs(
            axes, (a.input_image, b.input_image), boxes, relevance, render.resolve_palette("paper")
        )
        text = f"{title}: {count_effective_regions(explanation.relevance):.0f} effective regions"
        axes.set_title(text, fontsize=11, color=render.TEXT_COLOR)
    return canvas


def plot_accuracies(
    accuracies: Mapping[int, Accuracy],
    effective_regions: Mapping[int, Sequence[float]],
    region_count: int,
    paper_accuracies: Mapping[int, float],
) -> Figure:
    """Plot accuracy and effective regions over the layers, with the paper's accuracies.

    Args:
        accuracies: Accuracy by layer.
        effective_regions: Effective regions of each explained pair, by layer.
        region_count: Number of regions of an image, the upper limit of the axis.
        paper_accuracies: The paper's accuracies by layer.
    """
    canvas = new_figure((6.4, 4.6))
    above, below = canvas.subplots(2, 1, sharex=True)
    layers = list(accuracies)
    places = np.arange(len(layers))
    if all(layer in paper_accuracies for layer in layers):
        above.plot(
            places, [paper_accuracies[n] for n in layers], "o--", color="#a0a0a0", label="LFW in the paper"
        )
    means, stds = [accuracies[n].mean for n in layers], [accuracies[n].std for n in layers]
    above.errorbar(places, means, yerr=stds, fmt="o-", color="#d7191c", capsize=3, label="these pictures")
    above.set(ylabel="accuracy", ylim=(0, 1.02))
    above.legend(frameon=False, fontsize=9, loc="lower left")
    for position, layer in zip(places, layers, strict=True):
        jitter = np.linspace(-0.08, 0.08, len(effective_regions[layer])) if effective_regions[layer] else []
        below.plot(
            position + np.asarray(jitter),
            effective_regions[layer],
            "o",
            color="#2166d1",
            alpha=0.35,
            ms=4,
            mew=0,
        )
    if all(effective_regions.values()):
        below.plot(places, [np.mean(effective_regions[n]) for n in layers], "o-", color="#2166d1")
    below.set(ylabel="effective regions", ylim=(0, max(1, region_count) * 1.02), xlabel="layer of VGG-16")
    below.set_xticks(places, [str(layer) for layer in layers])
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.tight_layout()
    return canvas
