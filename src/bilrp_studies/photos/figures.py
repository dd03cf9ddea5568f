"""The figure of a pair: what several layers match, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bilrp.explanation import Explanation
from bilrp.findings.formatting import format_number
from bilrp.render.figure import draw_explanation_arcs
from bilrp.render.notebook_figure import make_figure
from bilrp.render.scene import TEXT_COLOR
from bilrp.render.styles import resolve_palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_INCHES = 10.0  # width


def plot_side_by_side(explanations: Sequence[Explanation], titles: Sequence[str]) -> Figure:
    """Draw the arcs of several explanations of one pair side by side.

    Args:
        explanations: Explanations of images.
        titles: A title for each.

    >>> plot_side_by_side([at_layer_17, at_layer_31], ["layer 17", "layer 31"])
    """
    colors, width, count = resolve_palette("paper"), FIGURE_INCHES, len(explanations)
    shapes = [(e.a.input_image.shape, e.b.input_image.shape) for e in explanations]  # type: ignore[union-attr]
    aspect = max(max(a[0], b[0]) / (a[1] + b[1] + 0.30 * max(a[0], b[0])) for a, b in shapes)
    margin, head, gap = 0.15, 0.38, 0.5
    column = (width - 2 * margin - gap * (count - 1)) / count
    height = head + 1.065 * aspect * column + margin
    figure = make_figure((width, height))
    figure.set_dpi(150)  # the default resolution of savefig
    for number, (explanation, title) in enumerate(zip(explanations, titles, strict=True)):
        x = (margin + number * (column + gap)) / width
        axes = figure.add_axes((x, margin / height, column / width, 1 - (head + margin) / height))
        draw_explanation_arcs(axes, explanation, "auto", colors, line_width=1.1)
        label = f"{title}:  {explanation.similarity} {format_number(explanation.score)}"
        figure.text(x, 1 - 0.10 / height, label, size=10.5, va="top", color=TEXT_COLOR)
    return figure
