"""Figures of the tables study: detected digits, sums against counts, similarities, the two explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bilrp.encoders.bigram import DigitNet
from bilrp_studies.tables import bigram_agreement, digit_metrics, page_evaluation
from bilrp_studies.tables.page_evaluation import CopySearch, ExplainedBlockPair, PageScore, Similarities
from bilrp_studies.tables.pages import Page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from bilrp.render.links import Style

TEXT_COLOR, MUTED_COLOR, RED, BLUE, GREY = "#222222", "#6b6b6b", "#d7191c", "#2166d1", "#9a9a9a"
DIGIT_COLORS = (
    "#1b1b1b",
    "#e6194b",
    "#3cb44b",
    "#4363d8",
    "#f58231",
    "#911eb4",
    "#008b8b",
    "#c71585",
    "#808000",
    "#9a6324",
)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty white figure outside pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), facecolor="white", layout="constrained", dpi=150)
    FigureCanvasAgg(drawn)
    return drawn


def _style_axes(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=MUTED_COLOR, labelsize=8)


def plot_digits(net: DigitNet, page: Page, *, threshold: float) -> Figure:
    """Plot a corner of an unseen page with the detected class above every digit.

    Args:
        net: The digit network.
        page: A test page.
        threshold: Minimum blob height of a detection.
    """
    with torch.no_grad():
        ink = page.network_ink()
        result = digit_metrics.detect(net(torch.from_numpy(ink)[None, None]), threshold=threshold)
    d = page.digits
    x0, y0 = max(int(d.x.min()) - 40, 0), max(int(d.y.min()) - 70, 0)
    window = ink[y0 : y0 + 200, x0 : x0 + 400]
    drawn = new_figure(8, 4.2)
    axes = drawn.add_subplot()
    axes.imshow(1 - 0.6 * window, cmap="gray", vmin=0, vmax=1, interpolation="lanczos")
    for value, x, y in zip(result.value, result.x - x0, result.y - y0, strict=True):
        if 2 < x < window.shape[1] - 2 and 8 < y < window.shape[0] - 2:
            axes.text(
                x,
                y - 5.5,
                str(value),
                color=DIGIT_COLORS[value],
                size=6.5,
                weight="bold",
                ha="center",
                va="bottom",
            )
    axes.set_axis_off()
    axes.set_title(
        f"Digits found on page {page.name}, never trained on", size=10, loc="left", color=TEXT_COLOR
    )
    return drawn


def plot_bigram_sums(scores: Sequence[PageScore], correlation: float) -> Figure:
    """Plot the network's sum against the transcribed count, one dot per bigram and page."""
    drawn = new_figure(4.6, 4.0)
    axes = drawn.add_subplot()
    counts, sums = (
        np.array([s.bigram_counts for s in scores]).ravel(),
        np.array([s.bigram_sums for s in scores]).ravel(),
    )
    axes.plot(counts, sums, ".", color=BLUE, ms=3, alpha=0.35, mew=0)
    axes.set_xlabel("times transcribed", color=TEXT_COLOR, size=9)
    axes.set_ylabel("sum of the network's activations", color=TEXT_COLOR, size=9)
    axes.set_title(
        f"100 bigrams × {len(scores)} pages, r = {correlation:.3f}", size=10, loc="left", color=TEXT_COLOR
    )
    _style_axes(axes)
    return drawn


def plot_similarities(similarities: Similarities) -> Figure:
    """Plot true against predicted similarity of pairs of blocks, one panel per model."""
    drawn = new_figure(3.9 * len(similarities.predicted), 3.7)
    panels = drawn.subplots(1, len(similarities.predicted), squeeze=False)[0]
    titles = {"bigram": "bigram network", "vgg17": "VGG-16, layer 17"}
    for axes, (name, predicted) in zip(panels, similarities.predicted.items(), strict=True):
        axes.plot(
            similarities.true,
            predicted,
            ".",
            color=RED if name == "bigram" else GREY,
            ms=2.5,
            alpha=0.4,
            mew=0,
        )
        text = f"{titles.get(name, name)}: Spearman {similarities.spearman[name]:.2f}"
        axes.set_title(text, size=10, loc="left", color=TEXT_COLOR)
        axes.set_xlabel("cosine of transcribed bigram counts", color=TEXT_COLOR, size=9)
        axes.set_ylabel("cosine of embeddings", color=TEXT_COLOR, size=9)
        _style_axes(axes)
    return drawn


def plot_learning_curve(rows: Sequence[dict[str, Any]]) -> Figure:
    """Plot digit F1 and bigram correlation against the number of labelled patches."""
    drawn = new_figure(4.8, 3.4)
    axes = drawn.add_subplot()
    labels = [row["labels"] for row in rows]
    for key, colour, word in (
        ("digit_f1", RED, "digit F1"),
        ("bigram_correlation", BLUE, "bigram correlation"),
    ):
        axes.plot(labels, [row[key] for row in rows], "o-", color=colour, lw=1.6, ms=4, label=word)
    axes.axhline(0.9, color=GREY, lw=0.8, ls=(0, (4, 3)))
    axes.set_xscale("log")
    axes.set_xticks(labels, [str(n) for n in labels])
    axes.minorticks_off()
    axes.set_xlabel("labelled digit patches", color=TEXT_COLOR, size=9)
    axes.set_title("Learned from few labels (pages never trained on)", size=10, loc="left", color=TEXT_COLOR)
    axes.legend(frameon=False, fontsize=8, loc="center right")
    _style_axes(axes)
    return drawn


def plot_copies(search: CopySearch) -> Figure:
    """Plot how often the true copy is retrieved first, for each distortion."""
    drawn = new_figure(5.2, 2.8)
    axes = drawn.add_subplot()
    names = list(search.top1_rate)
    shares = [100 * search.top1_rate[n] for n in names]
    axes.barh(names[::-1], shares[::-1], color=BLUE, height=0.62)
    for i, share in enumerate(shares[::-1]):
        axes.text(share - 1.5, i, f"{share:.0f} %", va="center", ha="right", color="white", size=8)
    axes.set_xlim(0, 100)
    axes.set_xlabel("true copy comes first, % of queries", color=TEXT_COLOR, size=9)
    title = f"{search.queries} re-photographed blocks among {search.blocks}"
    axes.set_title(title, size=10, loc="left", color=TEXT_COLOR)
    _style_axes(axes)
    return drawn


def plot_explanations(explained: Sequence[ExplainedBlockPair], images: Sequence[np.ndarray]) -> Figure:
    """Plot one pair of blocks explained by each model, as in the paper; arcs link regions."""
    drawn = new_figure(8.4, 3.15 * len(explained))
    rows = drawn.subplots(len(explained), 1, squeeze=False)[:, 0]
    titles = {"bigram": "Bigram network", "vgg17": "VGG-16 at layer 17"}
    for axes, item in zip(rows, explained, strict=True):
        _draw_pair(axes, item, images)
        a = item.agreement
        text = (
            f"{titles.get(item.name, item.name)}:  {a.bigram:.0%} of the positive relevance joins the same bigram, "
            f"{a.off:.0%} is not on digits"
        )
        axes.set_title(text.replace("%", " %"), size=9.5, loc="left", color=TEXT_COLOR)
    return drawn


def _draw_pair(axes: Axes, explained: ExplainedBlockPair, images: Sequence[Any]) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    from bilrp.render.links import compute_links

    spots = [
        bigram_agreement.segment_block(block, size=page_evaluation.SMALL_WINDOW_PIXELS)
        for block in explained.blocks
    ]
    height, width = page_evaluation.SMALL_WINDOW_PIXELS
    gap = 44
    for i, picture in enumerate(images):
        x = i * (width + gap)
        extent = (x, x + width, height, 0)
        axes.imshow(
            0.25 + 0.75 * picture, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="lanczos"
        )
    relevance = compute_links(explained.explanation.relevance, "tables", min_opacity=1 / 255)
    middles = [_region_centers(s) for s in spots]
    start = middles[0][relevance.rows.numpy()]
    stop = middles[1][relevance.columns.numpy()] + [width + gap, 0]
    colours = np.where(relevance.value.numpy()[:, None] > 0, to_rgba(RED), to_rgba(BLUE))
    colours[:, 3] = relevance.opacity.numpy()
    axes.add_collection(
        LineCollection(np.stack([start, stop], axis=1).tolist(), colors=colours, linewidths=1.1)
    )
    for points in (start, stop):
        axes.scatter(*points.T, s=7, c=colours, linewidths=0, zorder=3)
    axes.set(xlim=(0, 2 * width + gap), ylim=(height, 0), aspect="equal")
    axes.set_axis_off()


def strongest_links_style(relevance: Tensor, count: int) -> Style:
    """Return a style that shows only the `count` strongest links; a block of 48 cells has thousands."""
    from bilrp.render.links import normalize, resolve_style

    ranked = normalize(relevance).abs().flatten().sort(descending=True).values
    if len(ranked) <= count or ranked[0] <= ranked[count]:
        return resolve_style("tables")
    return resolve_style("tables", low=float(ranked[count]), high=float(ranked[0]), power=1)


def _region_centers(regions: Any) -> np.ndarray:
    """Return the centre of mass of each region, also of the ruled lines and the rest."""
    y, x = np.indices(regions.labels.shape)
    size = np.bincount(regions.labels.ravel(), minlength=regions.count)
    return np.stack(
        [
            np.bincount(regions.labels.ravel(), weights=v.ravel(), minlength=regions.count) / size
            for v in (x, y)
        ],
        axis=1,
    )
