"""Figures of the invariance study: INV by layer, the similarity matrix, and pairs tinted by motion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bilrp.render import figure as render
from bilrp.render import links
from bilrp_studies.common.drawing import new_figure
from bilrp_studies.invariance.explained_frames import LINK_KINDS, ExplainedFrames
from bilrp_studies.invariance.inv_results import InvResults
from bilrp_studies.invariance.inv_score import Band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# colour-blind-safe palette (Okabe and Ito)
LINK_COLORS = {"moving": "#0072b2", "static": "#e69f00", "rest": "#b0b0b0", "unattributed": "#e4e4e4"}


def plot_inv(inv_results: InvResults) -> Figure:
    """Plot INV by layer, stacked by kind of link."""
    canvas = new_figure((7.4, 3.4))
    axes = canvas.add_subplot()
    layers = list(inv_results.inv)
    places = np.arange(len(layers))
    if inv_results.clip_shares:
        bottom, below = np.zeros(len(layers)), np.zeros(len(layers))
        for kind in LINK_KINDS:
            values = np.array([inv_results.inv_by_kind[n][kind] for n in layers])
            base = np.where(values >= 0, bottom, below)
            axes.bar(places, values, 0.62, bottom=base, color=LINK_COLORS[kind], label=kind)
            bottom, below = bottom + np.maximum(values, 0), below + np.minimum(values, 0)
    else:
        axes.bar(places, [inv_results.inv[n] for n in layers], 0.62, color=LINK_COLORS["rest"])
    middle = np.array([inv_results.inv[n] for n in layers])
    axes.plot(places, middle, "_", color="#222222", ms=16, mew=1.6)
    for position, n in zip(places, layers, strict=True):
        ends = inv_results.inv_interval[n]
        if ends is not None:
            axes.plot([position, position], ends, color="#222222", lw=1.2)
    axes.axhline(1, color="#888888", lw=0.8, ls=":")
    axes.set_xticks(places, [str(n) for n in layers])
    axes.set(xlabel="layer of VGG-16", ylabel="INV")
    axes.spines[["top", "right"]].set_visible(False)
    if inv_results.clip_shares:
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)
    canvas.tight_layout()
    return canvas


def plot_similarity(kernel: np.ndarray, band: Band, names: Sequence[str], clips: np.ndarray) -> Figure:
    """Plot the similarity matrix of some clips, with the diagonal band of local pairs outlined.

    Args:
        kernel: Similarity of all frames, [frames, frames].
        band: Clip and time of each frame.
        names: Names of all clips.
        clips: Indices of the clips to show.
    """
    canvas = new_figure((8.0, 6.6))
    canvas.set_layout_engine("compressed")
    axes = canvas.add_subplot()
    frames = np.concatenate([np.flatnonzero(band.clip == c) for c in clips])
    values = kernel[np.ix_(frames, frames)] / kernel.mean()
    axes.imshow(
        values, cmap="YlOrRd", vmin=0, vmax=float(np.quantile(values, 0.985)), interpolation="nearest"
    )
    edges, ticks = [0], []
    for c in clips:
        length = int((band.clip == c).sum())
        _outline(axes, edges[-1], length, band.lag)
        ticks.append(edges[-1] + length / 2 - 0.5)
        edges.append(edges[-1] + length)
    for edge in edges[1:-1]:
        axes.axhline(edge - 0.5, color="white", lw=0.5)
        axes.axvline(edge - 0.5, color="white", lw=0.5)
    small = 7 if len(clips) > 14 else 8.5
    axes.set_yticks(ticks, [_shorten(names[int(c)]) for c in clips], fontsize=small)
    axes.set_xticks([])
    axes.tick_params(length=0)
    bar = canvas.colorbar(axes.images[0], ax=axes, fraction=0.04, pad=0.02)
    bar.set_label("similarity / mean similarity", fontsize=9)
    bar.outline.set_visible(False)  # type: ignore[operator]
    for spine in axes.spines.values():
        spine.set_visible(False)
    return canvas


def _outline(axes: Axes, start: int, length: int, lag: int) -> None:
    """Draw the border of |i − j| ≤ lag within one clip's block, as a staircase around whole cells."""
    reach = min(lag, length - 1)
    upper, lower = [], []
    for i in range(length):
        right, left = min(i + reach, length - 1) + 0.5, max(i - reach, 0) - 0.5
        upper += [(right, i - 0.5), (right, i + 0.5)]
        lower += [(left, i - 0.5), (left, i + 0.5)]
    points = np.array(upper + lower[::-1] + upper[:1]) + start
    axes.plot(points[:, 0], points[:, 1], color="black", lw=0.9, solid_joinstyle="miter")


def plot_frames(case: ExplainedFrames, layer: int) -> Figure:
    """Plot one pair: its links, and both frames tinted by relevance on moving and static regions."""
    explanation = case.explanations[layer]
    a, b = explanation.a, explanation.b
    assert a.input_image is not None and b.input_image is not None
    assert a.regions.boxes is not None and b.regions.boxes is not None
    canvas = new_figure((10.4, 2.6))
    left, right = (canvas.add_axes((x, 0.02, 0.48, 0.86)) for x in (0.01, 0.51))
    built = links.compute_links(explanation.relevance, "ucf", min_opacity=render.MIN_OPACITY)
    boxes = a.regions.boxes, b.regions.boxes
    render.draw_arcs(left, (a.input_image, b.input_image), boxes, built, render.resolve_palette("paper"))
    left.set_title(f"what matches, layer {layer}", fontsize=10, color=render.TEXT_COLOR)
    moving, static = case.weights
    relevance = explanation.relevance.double().numpy()
    sides = []
    for picture, box, axis in ((a.input_image, boxes[0], 1), (b.input_image, boxes[1], 0)):
        kinds = [np.maximum((relevance * w).sum(axis), 0) for w in (moving, static)]
        sides.append((picture, box, kinds))
    top = max(float(values.max()) for _, _, kinds in sides for values in kinds) or 1.0
    shift = a.input_image.shape[1] * 1.3
    for position, (picture, box, kinds) in enumerate(sides):
        x = position * shift
        extent = (x, x + picture.shape[1], picture.shape[0], 0)
        right.imshow(_tint_regions(picture, box.numpy(), [k / top for k in kinds]), extent=extent)
    right.set(
        xlim=(-0.5, shift + b.input_image.shape[1] + 0.5),
        ylim=(a.input_image.shape[0] + 0.5, -0.06 * a.input_image.shape[0]),
        aspect="equal",
    )
    right.set_axis_off()
    right.set_title("follows what moved (blue), stood still (orange)", fontsize=10, color=render.TEXT_COLOR)
    return canvas


def _tint_regions(picture: np.ndarray, boxes: np.ndarray, kinds: Sequence[np.ndarray]) -> np.ndarray:
    """Return the image in grey, each region tinted with the colours of its kinds of link."""
    from matplotlib.colors import to_rgb

    grey = picture.astype(float) @ [0.299, 0.587, 0.114] / 255
    result = np.repeat((0.35 + 0.65 * grey)[..., None], 3, axis=2)
    for region, (up, left, down, right) in enumerate(boxes):
        strengths = [0.85 * min(1.0, float(values[region])) ** 0.6 for values in kinds]
        total = max(1.0, sum(strengths) / 0.85)
        for kind, strength in zip(("moving", "static"), strengths, strict=True):
            patch = result[up:down, left:right]
            weight = strength / total
            result[up:down, left:right] = patch * (1 - weight) + np.array(to_rgb(LINK_COLORS[kind])) * weight
    return result


def _shorten(name: str, max_chars: int = 26) -> str:
    return name if len(name) <= max_chars else f"…{name[-max_chars + 1 :]}"
