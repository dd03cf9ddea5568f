"""Strips: inputs in a row, each with its regions tinted by their contributions, on one scale for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bilrp.findings.formatting import format_signed
from bilrp.findings.region_layout import to_label_image
from bilrp.inputs import Image, Text
from bilrp.render import page, typesetting
from bilrp.render.notebook_figure import make_figure
from bilrp.render.scene import MUTED_COLOR, TEXT_COLOR
from bilrp.render.styles import Palette, resolve_palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bilrp.attribution import Attribution
    from bilrp.decomposition import Decomposition

SHEET_WIDTH_INCHES, MARGIN_INCHES, GAP_INCHES = 9.0, 0.3, 0.2
MAX_ITEM_HEIGHT_INCHES = 2.6
MIN_COLUMNS = 3  # of a strip, so that a single item does not fill the sheet
MAX_THUMBNAIL_PIXELS = 360
DRAWN_PIXELS = 512  # of the longer side of an image in a figure
GREY_FRACTION = 0.8
MAX_TINT = 0.8  # opacity of the largest contribution
TINT_POWER = 0.75  # small contributions stay visible


@dataclass(frozen=True, eq=False)
class StripItem:
    """One input of a strip.

    Args:
        side: The input with its regions.
        values: The contribution of each region, in units of the score.
        label: Name of the input.
        note: A line below it, e.g. its score.
    """

    side: Decomposition | Attribution
    values: np.ndarray
    label: str
    note: str = ""


@dataclass(frozen=True, eq=False)
class Strip:
    """A heading and the inputs below it."""

    title: str
    items: Sequence[StripItem]


@dataclass(frozen=True)
class Legend:
    """What the two colours of all strips mean."""

    positive: str
    negative: str
    unit: str


def find_largest(strips: Sequence[Strip]) -> float:
    """Return the largest |contribution| of all strips: the end of their scale; 1 if there is none."""
    values = [np.abs(item.values).max(initial=0.0) for strip in strips for item in strip.items]
    return float(max(values, default=0.0)) or 1.0


def serialize_strips(strips: Sequence[Strip], legend: Legend) -> dict[str, object]:
    """Return strips for a page: thumbnails or words, boxes of regions, and contributions relative to the largest."""
    largest = find_largest(strips)
    return {
        "largest": format_signed(largest).lstrip("+"),
        "positive": legend.positive,
        "negative": legend.negative,
        "unit": legend.unit,
        "rows": [
            {"title": strip.title, "items": [_serialize_item(item, largest) for item in strip.items]}
            for strip in strips
        ],
    }


def _serialize_item(item: StripItem, largest: float) -> dict[str, object]:
    view, boxes = item.side.view, getattr(item.side, "region_boxes", None)  # an attribution has none
    tints = [round(float(value), 4) for value in _tint(item.values / largest)]
    about = {"label": item.label, "note": item.note, "tints": tints}
    if isinstance(view, Text):  # a text is its own name
        return about | {"label": "", "text": view.text, "spans": view.spans}
    if view is None or boxes is None:
        return about
    return about | {
        "src": page.encode_thumbnail(view.pixels, MAX_THUMBNAIL_PIXELS),
        "size": list(view.size),
        "boxes": [[round(float(edge), 1) for edge in box] for box in boxes],
    }


def _tint(relative: np.ndarray) -> np.ndarray:
    """Return the opacity of the colour of values in [−1, 1], with their sign."""
    return MAX_TINT * np.sign(relative) * np.abs(relative) ** TINT_POWER


def draw_strips(
    strips: Sequence[Strip], legend: Legend, *, title: str, sentences: str, palette: str = "paper"
) -> Figure:
    """Draw strips below each other, with the title and sentences above and one scale of colours below.

    Args:
        strips: What to draw.
        legend: What the colours mean.
        title: Heading of the figure.
        sentences: Text below it.
        palette: "paper" or "safe".
    """
    colors, largest = resolve_palette(palette), find_largest(strips)
    inner = SHEET_WIDTH_INCHES - 2 * MARGIN_INCHES
    lines = typesetting.wrap(sentences, width=inner, font_size=9.5)
    top = 0.6 + 0.175 * len(lines)
    columns = max(MIN_COLUMNS, max(len(strip.items) for strip in strips))
    width = (inner - GAP_INCHES * (columns - 1)) / columns
    rows = []
    for strip in strips:
        heights = [_item_height(item, width) for item in strip.items]
        rows.append((top, heights))
        top += (0.35 if strip.title else 0.1) + max(heights) + 0.45
    height = top + 0.6
    figure = make_figure((SHEET_WIDTH_INCHES, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    _write(axes, MARGIN_INCHES, 0.38, title, size=13, weight="bold")
    for n, line in enumerate(lines):
        _write(axes, MARGIN_INCHES, 0.64 + 0.175 * n, line, size=9.5)
    for strip, (start, heights) in zip(strips, rows, strict=True):
        if strip.title:
            _write(axes, MARGIN_INCHES, start + 0.22, strip.title, size=10.5, weight="bold")
        for n, (item, item_height) in enumerate(zip(strip.items, heights, strict=True)):
            left = MARGIN_INCHES + n * (width + GAP_INCHES)
            upper = start + (0.35 if strip.title else 0.1)
            _draw_item(axes, item, largest, colors, (left, upper, width, item_height))
    _draw_scale(axes, legend, largest, colors, bottom=height - 0.3)
    axes.set(xlim=(0, SHEET_WIDTH_INCHES), ylim=(height, 0))
    return figure


def _item_height(item: StripItem, width: float) -> float:
    view = item.side.view
    if isinstance(view, Image):
        return min(MAX_ITEM_HEIGHT_INCHES, width * view.size[1] / view.size[0])
    words = _layout(item, 0.0, 0.0, width)
    return words[-1].top + words[-1].height if words else 0.3


def _layout(item: StripItem, left: float, top: float, width: float) -> tuple[typesetting.Word, ...]:
    shown, texts = _words(item)
    return typesetting.layout_words(
        texts, [False] * len(shown), [False] * len(shown), left=left, top=top, width=width, font_size=10.5
    )


def _words(item: StripItem) -> tuple[list[int], list[str]]:
    """Return the regions of a text that are drawn, and their words; special tokens have none."""
    view = item.side.view
    texts = view.region_texts if isinstance(view, Text) else item.side.regions.names
    texts = texts or tuple(map(str, range(len(item.values))))
    shown = [n for n, text in enumerate(texts) if text]
    return shown, [" ".join(texts[n].split()) or "·" for n in shown]


def _draw_item(
    axes: Axes, item: StripItem, largest: float, colors: Palette, box: tuple[float, float, float, float]
) -> None:
    from matplotlib.colors import to_rgb, to_rgba
    from matplotlib.patches import Rectangle

    left, top, width, height = box
    tints, view, labels = _tint(item.values / largest), item.side.view, to_label_image(item.side.regions)
    if isinstance(view, Image) and labels is not None:
        scale = min(width / view.size[0], height / view.size[1])
        finer = max(1, DRAWN_PIXELS // max(labels.shape))
        pixels = view.crop_to_input((labels.shape[0] * finer, labels.shape[1] * finer))
        pixels = _turn_grey(pixels.astype(np.float64) / 255)
        weight = np.append(tints, 0.0)[labels]  # label −1, no region, is the last
        weight = weight.repeat(finer, axis=0).repeat(finer, axis=1)[..., None]
        color = np.where(weight > 0, to_rgb(colors.positive), to_rgb(colors.negative))
        pixels = pixels * (1 - np.abs(weight)) + color * np.abs(weight)
        width, height = view.size[0] * scale, view.size[1] * scale
        extent = (left, left + width, top + height, top)
        axes.imshow(pixels, extent=extent, interpolation="antialiased", aspect="auto")
    else:
        shown, _ = _words(item)
        for number, word in zip(shown, _layout(item, left, top, width), strict=True):
            color = to_rgba(colors.positive if tints[number] > 0 else colors.negative, abs(tints[number]))
            axes.add_patch(Rectangle((word.left, word.top), word.width, word.height, color=color, lw=0))
            _write(axes, word.left, word.baseline, word.text, size=10.5)
    most = max(8, int(width * 13))
    label = "" if isinstance(view, Text) else item.label  # a text is its own name
    lines = [(text, color) for text, color in ((label, TEXT_COLOR), (item.note, MUTED_COLOR)) if text]
    for n, (text, color) in enumerate(lines):
        line = typesetting.shorten(text, most)
        _write(axes, left, top + box[3] + 0.16 + 0.15 * n, line, size=8.5, color=color)


def _turn_grey(pixels: np.ndarray) -> np.ndarray:
    """Return an image with little colour, so that its own colours are not mistaken for contributions."""
    grey = (pixels @ [0.299, 0.587, 0.114])[..., None]
    return GREY_FRACTION * grey + (1 - GREY_FRACTION) * pixels


def _draw_scale(axes: Axes, legend: Legend, largest: float, colors: Palette, *, bottom: float) -> None:
    """Draw the scale of both colours with its ends, in units of the score."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    steps, length = 24, 2.6
    for n in range(2 * steps):
        value = (n + 0.5) / steps - 1
        tint = float(_tint(np.array(value)))
        color = to_rgba(colors.positive if tint > 0 else colors.negative, abs(tint))
        x = MARGIN_INCHES + n * length / (2 * steps)
        axes.add_patch(Rectangle((x, bottom - 0.1), length / (2 * steps), 0.1, color=color, lw=0))
    end = format_signed(largest)
    start = f"{format_signed(-largest)} {legend.unit}"
    _write(axes, MARGIN_INCHES, bottom + 0.16, start, size=8, color=MUTED_COLOR)
    x = MARGIN_INCHES + length - typesetting.measure_width(end, 8)
    _write(axes, x, bottom + 0.16, end, size=8, color=MUTED_COLOR)
    label = f"{legend.negative}   |   {legend.positive}"
    _write(axes, MARGIN_INCHES + length + 0.2, bottom, label, size=8.5)


def _write(axes: Axes, x: float, y: float, text: str, *, size: float, **style: Any) -> None:
    color = style.pop("color", TEXT_COLOR)
    axes.text(x, y, typesetting.replace_missing_glyphs(text), size=size, color=color, va="baseline", **style)
