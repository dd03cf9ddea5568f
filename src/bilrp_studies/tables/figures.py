"""The study's pictures: digits found on a page, sums against counts, similarities, the two explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bilrp.encoders.bigram import DigitNet
from bilrp_studies.tables import page_evaluation, bigram_agreement, digit_metrics
from bilrp_studies.tables.page_evaluation import PageScore, PairExplained, Search, Similarities
from bilrp_studies.tables.pages import Page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from bilrp.render.links import Style

INK, SOFT, RED, BLUE, GREY = "#222222", "#6b6b6b", "#d7191c", "#2166d1", "#9a9a9a"
DIGITS = (
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


def blank(width: float, height: float) -> Figure:
    """A white figure of its own, without pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), facecolor="white", layout="constrained", dpi=150)
    FigureCanvasAgg(drawn)
    return drawn


def _bare(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=SOFT, labelsize=8)


def digits_found(net: DigitNet, page: Page, *, threshold: float) -> Figure:
    """A corner of an unseen page with every digit the network finds written above it."""
    with torch.no_grad():
        ink = page.network_ink()
        found = digit_metrics.detect(net(torch.from_numpy(ink)[None, None]), threshold=threshold)
    d = page.digits
    x0, y0 = max(int(d.x.min()) - 40, 0), max(int(d.y.min()) - 70, 0)
    window = ink[y0 : y0 + 200, x0 : x0 + 400]
    drawn = blank(8, 4.2)
    axes = drawn.add_subplot()
    axes.imshow(1 - 0.6 * window, cmap="gray", vmin=0, vmax=1, interpolation="lanczos")
    for value, x, y in zip(found.value, found.x - x0, found.y - y0, strict=True):
        if 2 < x < window.shape[1] - 2 and 8 < y < window.shape[0] - 2:
            axes.text(
                x, y - 5.5, str(value), color=DIGITS[value], size=6.5, weight="bold", ha="center", va="bottom"
            )
    axes.set_axis_off()
    axes.set_title(f"Digits found on page {page.name}, never trained on", size=10, loc="left", color=INK)
    return drawn


def sums_and_counts(scores: Sequence[PageScore], correlation: float) -> Figure:
    """Each dot one bigram of one page: the network's sum against the transcription's count."""
    drawn = blank(4.6, 4.0)
    axes = drawn.add_subplot()
    counts, sums = np.array([s.counts for s in scores]).ravel(), np.array([s.sums for s in scores]).ravel()
    axes.plot(counts, sums, ".", color=BLUE, ms=3, alpha=0.35, mew=0)
    axes.set_xlabel("times transcribed", color=INK, size=9)
    axes.set_ylabel("sum of the network's activations", color=INK, size=9)
    axes.set_title(
        f"100 bigrams × {len(scores)} pages, r = {correlation:.3f}", size=10, loc="left", color=INK
    )
    _bare(axes)
    return drawn


def similarities(found: Similarities) -> Figure:
    """True against predicted similarity of pairs of blocks, one panel for each model."""
    drawn = blank(3.9 * len(found.predicted), 3.7)
    panels = drawn.subplots(1, len(found.predicted), squeeze=False)[0]
    titles = {"bigram": "bigram network", "vgg17": "VGG-16, layer 17"}
    for axes, (name, predicted) in zip(panels, found.predicted.items(), strict=True):
        axes.plot(
            found.true, predicted, ".", color=RED if name == "bigram" else GREY, ms=2.5, alpha=0.4, mew=0
        )
        text = f"{titles.get(name, name)}: Spearman {found.spearman[name]:.2f}"
        axes.set_title(text, size=10, loc="left", color=INK)
        axes.set_xlabel("cosine of transcribed bigram counts", color=INK, size=9)
        axes.set_ylabel("cosine of embeddings", color=INK, size=9)
        _bare(axes)
    return drawn


def learning_curve(rows: Sequence[dict[str, Any]]) -> Figure:
    """Digit F1 and bigram correlation against the number of labelled patches."""
    drawn = blank(4.8, 3.4)
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
    axes.set_xlabel("labelled digit patches", color=INK, size=9)
    axes.set_title("Learned from few labels (pages never trained on)", size=10, loc="left", color=INK)
    axes.legend(frameon=False, fontsize=8, loc="center right")
    _bare(axes)
    return drawn


def copies(found: Search) -> Figure:
    """How often the true copy comes first, for each distortion."""
    drawn = blank(5.2, 2.8)
    axes = drawn.add_subplot()
    names = list(found.first)
    shares = [100 * found.first[n] for n in names]
    axes.barh(names[::-1], shares[::-1], color=BLUE, height=0.62)
    for i, share in enumerate(shares[::-1]):
        axes.text(share - 1.5, i, f"{share:.0f} %", va="center", ha="right", color="white", size=8)
    axes.set_xlim(0, 100)
    axes.set_xlabel("true copy comes first, % of queries", color=INK, size=9)
    title = f"{found.queries} re-photographed blocks among {found.blocks}"
    axes.set_title(title, size=10, loc="left", color=INK)
    _bare(axes)
    return drawn


def side_by_side(found: Sequence[PairExplained], pictures: Sequence[np.ndarray]) -> Figure:
    """The paper's figure: one pair of blocks, explained by each model; arcs join places, digits to digits."""
    drawn = blank(8.4, 3.15 * len(found))
    rows = drawn.subplots(len(found), 1, squeeze=False)[:, 0]
    titles = {"bigram": "Bigram network", "vgg17": "VGG-16 at layer 17"}
    for axes, item in zip(rows, found, strict=True):
        _pair(axes, item, pictures)
        a = item.agreement
        text = (
            f"{titles.get(item.name, item.name)}:  {a.bigram:.0%} of the positive relevance joins the same bigram, "
            f"{a.off:.0%} lies off the digits"
        )
        axes.set_title(text.replace("%", " %"), size=9.5, loc="left", color=INK)
    return drawn


def _pair(axes: Axes, item: PairExplained, pictures: Sequence[Any]) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    from bilrp.render.links import links

    spots = [bigram_agreement.places(block, size=page_evaluation.WINDOW) for block in item.blocks]
    height, width = page_evaluation.WINDOW
    gap = 44
    for i, picture in enumerate(pictures):
        x = i * (width + gap)
        extent = (x, x + width, height, 0)
        axes.imshow(
            0.25 + 0.75 * picture, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="lanczos"
        )
    made = links(item.explanation.relevance, "tables", faintest=1 / 255)
    middles = [_middles(s) for s in spots]
    start = middles[0][made.rows.numpy()]
    stop = middles[1][made.columns.numpy()] + [width + gap, 0]
    colours = np.where(made.value.numpy()[:, None] > 0, to_rgba(RED), to_rgba(BLUE))
    colours[:, 3] = made.opacity.numpy()
    axes.add_collection(
        LineCollection(np.stack([start, stop], axis=1).tolist(), colors=colours, linewidths=1.1)
    )
    for points in (start, stop):
        axes.scatter(*points.T, s=7, c=colours, linewidths=0, zorder=3)
    axes.set(xlim=(0, 2 * width + gap), ylim=(height, 0), aspect="equal")
    axes.set_axis_off()


def strongest(relevance: Tensor, count: int) -> Style:
    """A style that shows the `count` strongest links and nothing else: a block of 48 cells has thousands."""
    from bilrp.render.links import normalise, style

    ranked = normalise(relevance).abs().flatten().sort(descending=True).values
    if len(ranked) <= count or ranked[0] <= ranked[count]:
        return style("tables")
    return style("tables", low=float(ranked[count]), high=float(ranked[0]), power=1)


def _middles(spots: Any) -> np.ndarray:
    """The middle of each place; rules and the rest, being everywhere, are shown by their middle too."""
    y, x = np.indices(spots.labels.shape)
    size = np.bincount(spots.labels.ravel(), minlength=spots.count)
    return np.stack(
        [np.bincount(spots.labels.ravel(), weights=v.ravel(), minlength=spots.count) / size for v in (x, y)],
        axis=1,
    )
