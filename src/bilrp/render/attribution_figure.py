"""Draw an attribution: a heat map on an image, coloured words of a text, or bars."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from bilrp.findings.formatting import format_number
from bilrp.inputs import Image, Text
from bilrp.render.figure import tint_pixels
from bilrp.render.notebook_figure import NOTEBOOK_DPI, make_figure
from bilrp.render.scene import MUTED_COLOR, TEXT_COLOR
from bilrp.render.styles import Palette, resolve_palette
from bilrp.render.typesetting import layout_words, replace_missing_glyphs, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bilrp.attribution import Attribution

WIDTH_INCHES, MARGIN_INCHES, HEAD_INCHES, FOOT_INCHES = 6.0, 0.15, 0.4, 0.35
FONT_SIZE = 12.0
MAX_BAR_HEIGHT_INCHES = 40.0


def plot(
    attribution: Attribution, *, column: int | None = None, title: str | None = None, palette: str = "paper"
) -> Figure:
    """Draw the values of one target on the image or text, or as bars.

    Args:
        attribution: what to draw.
        column, title, palette: as for `Attribution.plot`.
    """
    colors, view = resolve_palette(palette), attribution.view
    values = attribution.column(column).detach().cpu().double().numpy()
    scaled = values / (np.abs(values).max() or 1.0)
    plane, inner = attribution.regions.label_map, WIDTH_INCHES - 2 * MARGIN_INCHES
    if isinstance(view, Image) and plane is not None:
        labels = plane.cpu().numpy()
        axes = _add_axes(inner * labels.shape[0] / labels.shape[1])
        weight = np.append(scaled, 0.0)[labels]  # label −1, no region, is the last
        axes.imshow(tint_pixels(view.crop_to_input(labels.shape), weight, colors))
        axes.set_axis_off()
    elif isinstance(view, Text):
        axes = _draw_words(view, scaled, colors)
    else:
        names = attribution.regions.names or tuple(map(str, range(len(values))))
        axes = _add_axes(min(MAX_BAR_HEIGHT_INCHES, 0.3 + 0.22 * len(values)), left=1.3)
        axes.barh(range(len(values)), values, color=np.where(values > 0, colors.positive, colors.negative))
        axes.set_yticks(range(len(values)), labels=[replace_missing_glyphs(shorten(n, 16)) for n in names])
        axes.invert_yaxis()
    figure = axes.figure
    height = figure.get_figheight()  # type: ignore[union-attr]
    score, rest = attribution.score, attribution.unattributed
    if isinstance(score, Tensor):
        score, rest = float(score[column or 0]), float(rest[column or 0])
    line = f"{attribution.similarity} {format_number(score)}, unattributed {format_number(rest)}"
    heading = title or "What makes it similar?"
    figure.text(
        MARGIN_INCHES / WIDTH_INCHES, 1 - 0.12 / height, heading, weight="bold", va="top", color=TEXT_COLOR
    )
    figure.text(MARGIN_INCHES / WIDTH_INCHES, 0.1 / height, line, size=8.5, color=MUTED_COLOR, va="bottom")
    return figure  # type: ignore[return-value]


def render_html(attribution: Attribution) -> str:
    """Return the attribution (to the first target) for a notebook: words on coloured backgrounds, or the figure."""
    column = 0 if attribution.values.dim() > 1 else None
    if isinstance(attribution.view, Text):
        return _render_words(attribution, column)
    figure = plot(attribution, column=column)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=NOTEBOOK_DPI)
    source = base64.b64encode(data.getvalue()).decode("ascii")
    return f'<img alt="{html.escape(repr(attribution))}" src="data:image/png;base64,{source}">'


def _render_words(attribution: Attribution, column: int | None) -> str:
    """Return the text as HTML; the stronger a background, the larger the contribution."""
    from matplotlib.colors import to_rgb

    palette, spans = resolve_palette("paper"), attribution.spans(column)
    largest = max((abs(span.weight) for span in spans), default=0.0) or 1.0
    assert isinstance(attribution.view, Text)
    text, position, parts = attribution.view.text, 0, []
    for span in spans:
        color = to_rgb(palette.positive if span.weight > 0 else palette.negative)
        red, green, blue = (round(255 * part) for part in color)
        style = f"background:rgba({red},{green},{blue},{0.7 * abs(span.weight) / largest:.2f})"
        parts += [
            html.escape(text[position : max(position, span.start)]),
            f'<span style="{style}" title="{format_number(span.weight)}">{html.escape(span.text)}</span>',
        ]
        position = max(position, span.end)
    score = attribution.score if column is None else float(attribution.score[column])  # type: ignore[index]
    line = f"{attribution.similarity.replace('_', ' ')} {format_number(float(score))}"
    words = "".join(parts) + html.escape(text[position:])
    return f'<div style="line-height:1.7">{words}<br><small>{html.escape(line)}</small></div>'


def _add_axes(height: float, left: float = MARGIN_INCHES) -> Axes:
    """Return the axes of a new figure, `height` inches high."""
    total = HEAD_INCHES + height + FOOT_INCHES + (0.2 if left > MARGIN_INCHES else 0.0)
    figure = make_figure((WIDTH_INCHES, total))
    inner = (WIDTH_INCHES - left - MARGIN_INCHES) / WIDTH_INCHES
    return figure.add_axes((left / WIDTH_INCHES, 1 - (HEAD_INCHES + height) / total, inner, height / total))


def _draw_words(view: Text, scaled: np.ndarray, palette: Palette) -> Axes:
    """Draw the words of a text on backgrounds of their values in [−1, 1]; special tokens are left out."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    shown = [region for region, span in enumerate(view.spans) if span is not None]
    texts = [" ".join(view.region_texts[region].split()) or "·" for region in shown]
    spans = [view.spans[region] for region in shown]
    joined = [n > 0 and here[0] == spans[n - 1][1] for n, here in enumerate(spans)]  # type: ignore[index]
    width = WIDTH_INCHES - 2 * MARGIN_INCHES
    words = layout_words(texts, joined, [False] * len(texts), left=0, top=0, width=width, font_size=FONT_SIZE)
    height = words[-1].top + words[-1].height
    axes = _add_axes(height)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for word, value in zip(words, scaled[shown], strict=True):
        color = to_rgba(palette.positive if value > 0 else palette.negative, 0.85 * abs(value))
        axes.add_patch(Rectangle((word.left, word.top), word.width, word.height, color=color, lw=0))
        text = replace_missing_glyphs(word.text)
        axes.text(word.left, word.baseline, text, size=FONT_SIZE, color=TEXT_COLOR, va="baseline")
    return axes
