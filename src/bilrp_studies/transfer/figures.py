"""The transfer study's pictures: one pair at several layers, and both measures over the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bilrp.explanation import Explanation
from bilrp.render import figure as render
from bilrp.render import links
from bilrp_studies.common.drawing import blank
from bilrp_studies.transfer.svm import Accuracy
from bilrp_studies.transfer.train_test_pairs import effective_regions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def side_by_side(explained: Sequence[Explanation], titles: Sequence[str], *, style: str = "faces") -> Figure:
    """The paper's figure: one pair, its arcs at several layers beside each other, and how wide each spreads."""
    canvas = blank((5.2 * len(explained), 2.75))
    for place, (explanation, title) in enumerate(zip(explained, titles, strict=True)):
        axes = canvas.add_axes((place / len(explained) + 0.01, 0.02, 1 / len(explained) - 0.02, 0.84))
        made = links.links(explanation.relevance, style, faintest=render.FAINTEST)
        a, b = explanation.a, explanation.b
        assert a.picture is not None and b.picture is not None
        assert a.regions.boxes is not None and b.regions.boxes is not None
        boxes = a.regions.boxes, b.regions.boxes
        render.arcs(axes, (a.picture, b.picture), boxes, made, render.palette("paper"))
        text = f"{title}: {effective_regions(explanation.relevance):.0f} effective regions"
        axes.set_title(text, fontsize=11, color=render.INK)
    return canvas


def chart(
    accuracies: Mapping[int, Accuracy],
    spread: Mapping[int, Sequence[float]],
    total: int,
    paper: Mapping[int, float],
) -> Figure:
    """Accuracy and effective regions over the layers, beside the paper's accuracies."""
    canvas = blank((6.4, 4.6))
    above, below = canvas.subplots(2, 1, sharex=True)
    layers = list(accuracies)
    places = np.arange(len(layers))
    if all(layer in paper for layer in layers):
        above.plot(places, [paper[n] for n in layers], "o--", color="#a0a0a0", label="LFW in the paper")
    means, stds = [accuracies[n].mean for n in layers], [accuracies[n].std for n in layers]
    above.errorbar(places, means, yerr=stds, fmt="o-", color="#d7191c", capsize=3, label="these pictures")
    above.set(ylabel="accuracy", ylim=(0, 1.02))
    above.legend(frameon=False, fontsize=9, loc="lower left")
    for place, layer in zip(places, layers, strict=True):
        jitter = np.linspace(-0.08, 0.08, len(spread[layer])) if spread[layer] else []
        below.plot(place + np.asarray(jitter), spread[layer], "o", color="#2166d1", alpha=0.35, ms=4, mew=0)
    if all(spread.values()):
        below.plot(places, [np.mean(spread[n]) for n in layers], "o-", color="#2166d1")
    below.set(ylabel="effective regions", ylim=(0, max(1, total) * 1.02), xlabel="layer of VGG-16")
    below.set_xticks(places, [str(layer) for layer in layers])
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.tight_layout()
    return canvas
