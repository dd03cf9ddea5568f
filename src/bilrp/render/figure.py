"""The paper's picture with matplotlib: two images, red and blue arcs between them, and marginal heat maps.

No pyplot, so no global state: each call makes its own figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from bilrp.errors import InputError, wrap_errors
from bilrp.io import files
from bilrp.render import findings_figure, score_line
from bilrp.render import links as algorithm
from bilrp.render.styles import Palette, resolve_palette
from bilrp.render.visibility import select_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
MIN_OPACITY = 1 / 255
TEXT_COLOR = "#222222"
MUTED_COLOR = "#6b6b6b"


def plot(
    explanation: Any,
    *,
    style: str | algorithm.Style = "auto",
    palette: str = "paper",
    heatmaps: bool = True,
    title: str | None = None,
    names: tuple[str, str] | None = None,
    links: bool | None = None,
    special_tokens: bool = False,
) -> Figure:
    """The explanation as a matplotlib figure: its findings; with `links`, or by a style of the paper, every single pair.

    What has neither pictures nor words is a matrix. `special_tokens` draws the tokenizer's own, [CLS] and the like, with
    a text.

    >>> plot(explanation, style="pascal_voc").savefig("why.png")
    """
    chosen = resolve_palette(palette)
    single = style != "auto" if links is None else links
    algorithm.resolve_style(style)  # refuse a slip, whatever is drawn
    if not single:
        heading = title or "Which parts make these two similar?"
        drawn = findings_figure.draw_findings(
            explanation, chosen, title=heading, names=names, special_tokens=special_tokens
        )
        if drawn is not None:
            return drawn
    if not _has_images(explanation):
        return plot_matrix(explanation, palette=palette, title=title, special_tokens=special_tokens)
    a, b = explanation.a, explanation.b
    made = algorithm.compute_links(explanation.relevance, style, min_opacity=MIN_OPACITY)
    canvas, top, bottom = _make_axes(a.input_image.shape, b.input_image.shape, heatmaps=heatmaps)
    draw_arcs(top, (a.input_image, b.input_image), (a.regions.boxes, b.regions.boxes), made, chosen)
    if bottom is not None:
        draw_marginals(bottom, explanation, chosen)
    _draw_text(canvas, explanation, chosen, title=title, names=names, heatmaps=heatmaps)
    return canvas


def plot_side_by_side(
    explanations: Sequence[Any],
    titles: Sequence[str],
    *,
    style: str | algorithm.Style = "auto",
    palette: str = "paper",
    width: float | int = 10.0,
) -> Figure:
    """Several explanations of one pair beside each other: only their arcs, each under its title.

    >>> plot_side_by_side([at_layer_17, at_layer_31], ["layer 17", "layer 31"])
    """
    chosen = resolve_palette(palette)
    count = len(explanations)
    shapes = [(e.a.input_image.shape, e.b.input_image.shape) for e in explanations]
    tall = max(max(a[0], b[0]) / (a[1] + b[1] + 0.30 * max(a[0], b[0])) for a, b in shapes)
    margin, head, between = 0.15, 0.38, 0.5
    wide = (width - 2 * margin - between * (count - 1)) / count
    height = head + 1.065 * tall * wide + margin
    drawn = _new_figure((width, height))
    drawn.set_dpi(150)  # what it is saved with, where nothing else is said
    for place, (explanation, title) in enumerate(zip(explanations, titles, strict=True)):
        x = (margin + place * (wide + between)) / width
        axes = drawn.add_axes((x, margin / height, wide / width, 1 - (head + margin) / height))
        made = algorithm.compute_links(explanation.relevance, style, min_opacity=MIN_OPACITY)
        a, b = explanation.a, explanation.b
        draw_arcs(
            axes,
            (a.input_image, b.input_image),
            (a.regions.boxes, b.regions.boxes),
            made,
            chosen,
            line_width=1.1,
        )
        words = f"{title}:  {explanation.similarity} {score_line.format_number(explanation.score)}"
        drawn.text(x, 1 - 0.10 / height, words, size=10.5, va="top", color=TEXT_COLOR)
    return drawn


def write(explanation: Any, path: str | Path, *, dpi: int = 200, **options: Any) -> Path:
    """Draw and write a .png, .svg or .pdf, whole or not at all."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: pictures are written as {', '.join(SUFFIXES)}")
    with files.atomic_write(path) as temporary:
        drawn = plot(explanation, **options)
        with wrap_errors(f"cannot draw {path}"):  # fonts and text layout raise what they like
            save_figure(drawn, temporary, dpi=dpi)
    return path


def save_figure(figure: Figure, path: Path, *, dpi: int = 200) -> None:
    """Save without a date or a version inside, so that the same numbers give the same bytes."""
    import matplotlib

    kind = path.suffix.lower().lstrip(".")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "bilrp", "svg.fonttype": "none", "pdf.fonttype": 42}):
        fast: dict[str, Any] = (
            {"pil_kwargs": {"compress_level": 3}} if kind == "png" else {}
        )  # a third of the time, a tenth more bytes
        figure.savefig(path, dpi=dpi, metadata=metadata, **fast)


def draw_arcs(
    axes: Axes,
    images: tuple[np.ndarray, np.ndarray],
    boxes: tuple[Tensor, Tensor],
    links: algorithm.Links,
    palette: Palette,
    *,
    gap: float = 0.30,
    line_width: float = 1.5,
) -> None:
    """Two images side by side in one axes, and every link as an arc between the middles of its regions."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_rgba

    left, right = images
    tall = max(left.shape[0], right.shape[0])
    shift = left.shape[1] + gap * tall
    lower = (tall - left.shape[0]) / 2, (tall - right.shape[0]) / 2
    for image, x, y in ((left, 0.0, lower[0]), (right, shift, lower[1])):
        extent = (x, x + image.shape[1], y + image.shape[0], y)
        axes.imshow(_fade(image), extent=extent, interpolation="lanczos", zorder=0)
    start = compute_box_centers(boxes[0])[links.rows.numpy()] + [0.0, lower[0]]
    stop = compute_box_centers(boxes[1])[links.columns.numpy()] + [shift, lower[1]]
    alpha, positive = links.opacity.numpy(), links.value.numpy() > 0
    colours = np.where(positive[:, None], to_rgba(palette.positive), to_rgba(palette.negative))
    colours[:, 3] = alpha
    dashes = [(0, (3, 1.6)) if palette.dashed and not sign else "solid" for sign in positive]
    paths = [_arc_path(p, q, _arc_height(p, q, tall)) for p, q in zip(start, stop, strict=True)]
    lines = PathCollection(
        paths,
        edgecolors=colours,
        facecolors="none",
        linewidths=line_width,
        linestyles=dashes or "solid",
        capstyle="round",
    )
    axes.add_collection(lines)
    for points in (start, stop):
        axes.scatter(*points.T, s=4 * line_width**2, c=colours, linewidths=0, zorder=3)
    axes.set(xlim=(-0.5, shift + right.shape[1] + 0.5), ylim=(tall + 0.5, -0.06 * tall), aspect="equal")
    axes.set_axis_off()


def draw_marginals(axes: Sequence[Axes], explanation: Any, palette: Palette) -> None:
    """Each region's share on its own image: row sums on a, column sums on b, one scale for both."""
    relevance = explanation.relevance.detach().cpu().double()
    sides = (explanation.a, relevance.sum(1)), (explanation.b, relevance.sum(0))
    largest = max(float(values.abs().max()) for _, values in sides) or 1.0
    for place, (side, values) in zip(axes, sides, strict=True):
        place.imshow(tint_regions(side.input_image, side.regions.boxes, values.numpy() / largest, palette))
        place.set_axis_off()


def tint_regions(image: np.ndarray, boxes: Tensor, values: np.ndarray, palette: Palette) -> np.ndarray:
    """The picture in grey, each region tinted by its value in [−1, 1]."""
    from matplotlib.colors import to_rgb

    grey = image.astype(np.float64) @ [0.299, 0.587, 0.114] / 255
    base = np.repeat((0.35 + 0.65 * grey)[..., None], 3, axis=2)
    weight = np.zeros(grey.shape)
    for (top, left, bottom, right), value in zip(boxes.tolist(), values, strict=True):
        weight[top:bottom, left:right] = value
    tint = np.where(weight[..., None] > 0, to_rgb(palette.positive), to_rgb(palette.negative))
    strength = 0.85 * np.abs(weight)[..., None] ** 0.75
    return base * (1 - strength) + tint * strength


def plot_matrix(
    explanation: Any, *, palette: str = "paper", title: str | None = None, special_tokens: bool = False
) -> Figure:
    """Relevance as a table of coloured cells: for inputs that are no pictures (tokens, features)."""
    from matplotlib.colors import LinearSegmentedColormap

    chosen = resolve_palette(palette)
    seen = select_visible(explanation, special_tokens=special_tokens)
    values = seen.relevance.detach().cpu().double().numpy()
    rows, columns = (
        _region_names(side.regions, n) for side, n in zip((seen.a, seen.b), values.shape, strict=True)
    )
    width, height = (min(14, max(3.2, 1.8 + 0.32 * n)) for n in reversed(values.shape))
    drawn = _new_figure((width, height + 0.8))
    axes = drawn.add_axes((1.3 / width, 0.55 / (height + 0.8), 1 - 1.6 / width, 1 - 1.75 / (height + 0.8)))
    colourmap = LinearSegmentedColormap.from_list("bilrp", [chosen.negative, "#ffffff", chosen.positive])
    largest = float(np.abs(values).max()) or 1.0
    axes.imshow(values, cmap=colourmap, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    for axis, names in ((axes.yaxis, rows), (axes.xaxis, columns)):
        step = max(1, len(names) // 40)
        axis.set_ticks(range(0, len(names), step), labels=names[::step])
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", rotation=60, length=0, labelsize=8)
    axes.tick_params(axis="y", length=0, labelsize=8)
    for edge in axes.spines.values():
        edge.set_visible(False)
    heading = title or "Which parts match?"
    drawn.text(0.02, 1 - 0.12 / (height + 0.8), heading, weight="bold", va="top", color=TEXT_COLOR)
    line = (
        score_line.format_score_line(explanation)
        if width > 7
        else score_line.format_score_line(explanation).replace(" = ", " =\n")
    )
    drawn.text(
        0.02, 0.12 / (height + 0.8), line, size=8 if width > 4.5 else 6, color=MUTED_COLOR, va="bottom"
    )
    return drawn


def compute_box_centers(boxes: Tensor) -> np.ndarray:
    """The middle (x, y) of each box (top, left, bottom, right)."""
    top, left, bottom, right = boxes.double().cpu().numpy().T
    return np.stack([(left + right) / 2, (top + bottom) / 2], axis=1)


def _has_images(explanation: Any) -> bool:
    sides = explanation.a, explanation.b
    return all(side.input_image is not None and side.regions.boxes is not None for side in sides)


def _new_figure(size: tuple[float | int, float | int]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=size, facecolor="white")
    FigureCanvasAgg(drawn)
    return drawn


def _make_axes(
    left: tuple[int, ...], right: tuple[int, ...], *, heatmaps: bool, width: float = 8.0
) -> tuple[Figure, Axes, tuple[Axes, Axes] | None]:
    """Place everything in inches: heading, arcs, heat maps under their images, a line of words."""
    tall = max(left[0], right[0])
    units = left[1] + right[1] + 0.30 * tall
    margin, head, foot = 0.25, 0.66, 0.50
    unit = (width - 2 * margin) / units
    upper = 1.065 * tall * unit
    lower = 0.72 * tall * unit if heatmaps else 0.0
    height = head + upper + (lower + 0.2 if heatmaps else 0.0) + foot
    drawn = _new_figure((width, height))
    inner = 1 - 2 * margin / width
    top = drawn.add_axes((margin / width, 1 - (head + upper) / height, inner, upper / height))
    if not heatmaps:
        return drawn, top, None
    places = []
    for start, shape in ((0.0, left), (left[1] + 0.30 * tall, right)):
        wide = 0.72 * shape[1] * unit
        x = margin + start * unit + (shape[1] * unit - wide) / 2
        places.append(drawn.add_axes((x / width, foot / height, wide / width, lower / height)))
    return drawn, top, (places[0], places[1])


def _draw_text(
    figure: Figure,
    explanation: Any,
    palette: Palette,
    *,
    title: str | None,
    names: tuple[str, str] | None,
    heatmaps: bool,
) -> None:
    from matplotlib.lines import Line2D

    height = figure.get_figheight()
    heading = title or "Which parts make these two similar?"
    figure.text(0.031, 1 - 0.16 / height, heading, size=12.5, weight="bold", va="top", color=TEXT_COLOR)
    if names:
        text = f"{_shorten(names[0])}   and   {_shorten(names[1])}"
        figure.text(0.031, 1 - 0.40 / height, text, size=8.5, va="top", color=MUTED_COLOR)
    dashes = (0, (3, 1.6)) if palette.dashed else "solid"
    # what raises a distance sets the two apart
    more, less = ("less", "more") if explanation.is_distance else ("more", "less")
    handles = [
        Line2D([], [], color=palette.positive, lw=2.4, label=f"makes them {more} similar"),
        Line2D([], [], color=palette.negative, lw=2.4, ls=dashes, label=f"makes them {less} similar"),
    ]
    figure.legend(
        handles=handles,
        loc="upper right",
        bbox_to_anchor=(0.978, 1 - 0.06 / height),
        frameon=False,
        fontsize=8.5,
    )
    figure.text(
        0.031,
        0.14 / height,
        score_line.format_score_line(explanation),
        size=8.5,
        color=MUTED_COLOR,
        va="bottom",
    )
    if heatmaps:
        middle = sum(axes.get_position().y0 + axes.get_position().y1 for axes in figure.axes[1:]) / 4
        inner = figure.axes[1].get_position().x1, figure.axes[2].get_position().x0
        text = "each region's share,\nsummed over\nits partners"
        if (inner[1] - inner[0]) * figure.get_figwidth() < 1.3:  # no room between wide pictures
            middle, text = 0.36 / height, "each region's share, summed over its partners"
        figure.text(sum(inner) / 2, middle, text, size=8.5, color=MUTED_COLOR, ha="center", va="center")


def _arc_height(start: np.ndarray, stop: np.ndarray, height: int) -> float:
    """How far an arc is bowed upwards: less near the top, so that none leaves the picture."""
    return min(0.16 * height, (min(start[1], stop[1]) + 0.05 * height) / 0.75)


def _arc_path(start: np.ndarray, stop: np.ndarray, height: float) -> Any:
    from matplotlib.path import Path as Curve

    reach = 0.35 * (stop[0] - start[0])
    points = [start, (start[0] + reach, start[1] - height), (stop[0] - reach, stop[1] - height), stop]
    return Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])


def _fade(image: np.ndarray) -> np.ndarray:
    """A little paler and greyer than it is, so that thin coloured lines stand out."""
    values = image.astype(np.float64) / 255
    grey = (values @ [0.299, 0.587, 0.114])[..., None]
    return 0.20 + 0.80 * (0.15 * values + 0.85 * grey)


def _region_names(regions: Any, count: int) -> list[str]:
    names = getattr(regions, "names", None)
    return [_shorten(str(name)) for name in names] if names else [str(i) for i in range(count)]


def _shorten(name: str, max_length: int = 44) -> str:
    """A name as it is: characters the font lacks as a box, $ not as the start of a formula."""
    name = name if len(name) <= max_length else f"{name[: max_length // 2 - 1]}…{name[-max_length // 2 :]}"
    return "".join(c if _has_glyph(c) else "□" for c in name).replace("$", r"\$")


def _has_glyph(character: str) -> bool:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties())).get_char_index(ord(character)) != 0
