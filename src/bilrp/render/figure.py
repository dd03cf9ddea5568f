"""Draw an explanation with matplotlib: findings, or as in the paper two images, arcs between them and heat maps.

Does not use pyplot, so there is no global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from torch import Tensor

from bilrp.errors import InputError, wrap_errors
from bilrp.io import files
from bilrp.render import findings_figure, score_line
from bilrp.render import links as algorithm
from bilrp.render.notebook_figure import make_figure
from bilrp.render.scene import MUTED_COLOR, TEXT_COLOR, legend_handles
from bilrp.render.styles import Palette, Show, check_show, resolve_palette
from bilrp.render.typesetting import replace_missing_glyphs, shorten
from bilrp.render.visibility import select_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bilrp.explanation import Explanation
    from bilrp.explanation_files import DrawingOptions

MIN_OPACITY = 1 / 255
FIGURE_INCHES = 8.0  # width
DEFAULT_TITLE = "Which parts make these two similar?"
DIFFERENCES_TITLE = "What sets these two apart?"


def plot(
    explanation: Explanation,
    *,
    style: str | algorithm.Style = "auto",
    palette: str = "paper",
    heatmaps: bool = True,
    title: str | None = None,
    names: tuple[str, str] | None = None,
    links: bool | None = None,
    special_tokens: bool = False,
    show: Show = "matches",
) -> Figure:
    """Draw the findings; or every pair as an arc, with `links` or a style of the paper; or, without images, a matrix.

    Args:
        explanation: What to draw.
        style: Name of a link style ("auto", "pascal_voc", …), or a style.
        palette: "paper" or "safe" (colour-blind safe).
        heatmaps: With arcs, also draw each region's share on its image.
        title: Heading of the figure.
        names: Names of the two inputs.
        links: Draw pairs instead of findings; default: if a style is given.
        special_tokens: Draw special tokens ([CLS], </s>) of texts.
        show: "matches", or "differences": what sets the two apart.

    >>> plot(explanation, style="pascal_voc").savefig("why.png")
    """
    colors = resolve_palette(palette)
    draw_pairs = style != "auto" if links is None else links
    algorithm.resolve_style(style)  # raises if unknown, also where it is not used
    heading = title or (DIFFERENCES_TITLE if check_show(show) == "differences" else DEFAULT_TITLE)
    if not draw_pairs or show == "differences":
        figure = findings_figure.draw_findings(
            explanation, colors, title=heading, names=names, special_tokens=special_tokens, show=show
        )
        if figure is not None:
            return figure
    if not _has_images(explanation):
        return plot_matrix(explanation, palette=palette, title=title, special_tokens=special_tokens)
    shapes = [side.input_image.shape for side in (explanation.a, explanation.b)]  # type: ignore[union-attr]
    figure, top, bottom = _make_axes(shapes[0], shapes[1], heatmaps=heatmaps)
    draw_explanation_arcs(top, explanation, style, colors)
    if bottom is not None:
        draw_marginals(bottom, explanation, colors)
    _draw_text(figure, explanation, colors, title=title, names=names, heatmaps=heatmaps)
    return figure


def draw_explanation_arcs(
    axes: Axes, explanation: Any, style: str | algorithm.Style, palette: Palette, **options: float
) -> None:
    """Draw an explanation of images as arcs; options are those of `draw_arcs`."""
    links = algorithm.compute_links(explanation.relevance, style, min_opacity=MIN_OPACITY)
    a, b = explanation.a, explanation.b
    images, boxes = (a.input_image, b.input_image), (a.regions.boxes, b.regions.boxes)
    draw_arcs(axes, images, boxes, links, palette, **options)


def write(
    explanation: Explanation, path: str | Path, *, dpi: int = 200, **options: Unpack[DrawingOptions]
) -> Path:
    """Plot an explanation and write it as .png, .svg or .pdf atomically.

    Args:
        explanation: What to draw.
        path: The file; its suffix selects the format.
        dpi: Resolution of a .png.
        options: Arguments of `plot`.
    """
    path = Path(path)
    if path.suffix.lower() not in files.FIGURE_SUFFIXES:
        raise InputError(f"cannot write {path}: figures are written as {', '.join(files.FIGURE_SUFFIXES)}")
    with files.atomic_write(path) as temporary:
        figure = plot(explanation, **options)
        with wrap_errors(f"cannot draw {path}"):  # fonts and text layout raise errors of many types
            save_figure(figure, temporary, dpi=dpi)
    return path


def save_figure(figure: Figure, path: Path, *, dpi: int = 200) -> None:
    """Save a figure without date and version, so that equal figures give equal bytes.

    Args:
        figure: The figure.
        path: A .png, .svg or .pdf.
        dpi: Resolution of a .png.
    """
    import matplotlib

    kind = path.suffix.lower().lstrip(".")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "bilrp", "svg.fonttype": "none", "pdf.fonttype": 42}):
        # compression level 3 takes a third of the time for a tenth more bytes
        options: dict[str, Any] = {"pil_kwargs": {"compress_level": 3}} if kind == "png" else {}
        figure.savefig(path, dpi=dpi, metadata=metadata, **options)


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
    """Draw two images side by side, and every link as an arc between the centers of its regions.

    Args:
        axes: Where to draw.
        images: The two images, uint8 [height, width, 3].
        boxes: The boxes of their regions (top, left, bottom, right).
        links: The links to draw.
        palette: Colours of positive and negative links.
        gap: Space between the images, relative to their height.
        line_width: In points.
    """
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_rgba

    left, right = images
    height = max(left.shape[0], right.shape[0])
    shift = left.shape[1] + gap * height
    offsets = (height - left.shape[0]) / 2, (height - right.shape[0]) / 2
    for image, x, y in ((left, 0.0, offsets[0]), (right, shift, offsets[1])):
        extent = (x, x + image.shape[1], y + image.shape[0], y)
        axes.imshow(_fade(image), extent=extent, interpolation="lanczos", zorder=0)
    start = compute_box_centers(boxes[0])[links.rows.numpy()] + [0.0, offsets[0]]
    stop = compute_box_centers(boxes[1])[links.columns.numpy()] + [shift, offsets[1]]
    alpha, positive = links.opacity.numpy(), links.value.numpy() > 0
    colors = np.where(positive[:, None], to_rgba(palette.positive), to_rgba(palette.negative))
    colors[:, 3] = alpha
    dashes = [(0, (3, 1.6)) if palette.dashed and not sign else "solid" for sign in positive]
    paths = [_arc_path(p, q, _arc_height(p, q, height)) for p, q in zip(start, stop, strict=True)]
    lines = PathCollection(
        paths,
        edgecolors=colors,
        facecolors="none",
        linewidths=line_width,
        linestyles=dashes or "solid",
        capstyle="round",
    )
    axes.add_collection(lines)
    for points in (start, stop):
        axes.scatter(*points.T, s=4 * line_width**2, c=colors, linewidths=0, zorder=3)
    axes.set(xlim=(-0.5, shift + right.shape[1] + 0.5), ylim=(height + 0.5, -0.06 * height), aspect="equal")
    axes.set_axis_off()


def draw_marginals(axes: Sequence[Axes], explanation: Any, palette: Palette) -> None:
    """Draw row sums of the relevance on image a and column sums on image b, with one scale for both.

    Args:
        axes: The axes of both images.
        explanation: An explanation of images.
        palette: Colours of positive and negative values.
    """
    relevance = explanation.relevance.detach().cpu().double()
    sides = (explanation.a, relevance.sum(1)), (explanation.b, relevance.sum(0))
    largest = max(float(values.abs().max()) for _, values in sides) or 1.0
    for side_axes, (side, values) in zip(axes, sides, strict=True):
        scaled = values.numpy() / largest
        side_axes.imshow(tint_regions(side.input_image, side.regions.boxes, scaled, palette))
        side_axes.set_axis_off()


def tint_regions(image: np.ndarray, boxes: Tensor, values: np.ndarray, palette: Palette) -> np.ndarray:
    """Return the image in grey, each region tinted by its value in [−1, 1].

    Args:
        image: The image, uint8 [height, width, 3].
        boxes: Boxes of the regions (top, left, bottom, right).
        values: A value for each region.
        palette: Colours of positive and negative values.
    """
    weight = np.zeros(image.shape[:2])
    for (top, left, bottom, right), value in zip(boxes.tolist(), values, strict=True):
        weight[top:bottom, left:right] = value
    return tint_pixels(image, weight, palette)


def tint_pixels(image: np.ndarray, weight: np.ndarray, palette: Palette) -> np.ndarray:
    """Return the image in grey, each pixel tinted by its weight in [−1, 1].

    Args:
        image: The image, uint8 [height, width, 3].
        weight: A weight for each pixel, [height, width].
        palette: Colours of positive and negative weights.
    """
    from matplotlib.colors import to_rgb

    grey = image.astype(np.float64) @ [0.299, 0.587, 0.114] / 255
    base = np.repeat((0.35 + 0.65 * grey)[..., None], 3, axis=2)
    tint = np.where(weight[..., None] > 0, to_rgb(palette.positive), to_rgb(palette.negative))
    strength = 0.85 * np.abs(weight)[..., None] ** 0.75
    return base * (1 - strength) + tint * strength


def plot_matrix(
    explanation: Explanation,
    *,
    palette: str = "paper",
    title: str | None = None,
    special_tokens: bool = False,
) -> Figure:
    """Draw relevance as a matrix of coloured cells, for tokens and features.

    Args:
        explanation: What to draw.
        palette: "paper" or "safe".
        title: Heading of the figure.
        special_tokens: Include special tokens of texts.
    """
    from matplotlib.colors import LinearSegmentedColormap

    colors = resolve_palette(palette)
    visible = select_visible(explanation, special_tokens=special_tokens)
    values = visible.relevance.detach().cpu().double().numpy()
    rows, columns = (
        _region_names(side.regions, n) for side, n in zip((visible.a, visible.b), values.shape, strict=True)
    )
    width, height = (min(14, max(3.2, 1.8 + 0.32 * n)) for n in reversed(values.shape))
    figure = make_figure((width, height + 0.8))
    axes = figure.add_axes((1.3 / width, 0.55 / (height + 0.8), 1 - 1.6 / width, 1 - 1.75 / (height + 0.8)))
    colormap = LinearSegmentedColormap.from_list("bilrp", [colors.negative, "#ffffff", colors.positive])
    largest = float(np.abs(values).max()) or 1.0
    axes.imshow(values, cmap=colormap, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    for axis, names in ((axes.yaxis, rows), (axes.xaxis, columns)):
        step = max(1, len(names) // 40)
        axis.set_ticks(range(0, len(names), step), labels=names[::step])
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", rotation=60, length=0, labelsize=8)
    axes.tick_params(axis="y", length=0, labelsize=8)
    for edge in axes.spines.values():
        edge.set_visible(False)
    heading = title or "Which parts match?"
    figure.text(0.02, 1 - 0.12 / (height + 0.8), heading, weight="bold", va="top", color=TEXT_COLOR)
    line = score_line.format_score_line(explanation)
    line = line if width > 7 else line.replace(" = ", " =\n")
    size = 8 if width > 4.5 else 6
    figure.text(0.02, 0.12 / (height + 0.8), line, size=size, color=MUTED_COLOR, va="bottom")
    return figure


def compute_box_centers(boxes: Tensor) -> np.ndarray:
    """Return the center (x, y) of each box (top, left, bottom, right)."""
    top, left, bottom, right = boxes.double().cpu().numpy().T
    return np.stack([(left + right) / 2, (top + bottom) / 2], axis=1)


def _has_images(explanation: Any) -> bool:
    sides = explanation.a, explanation.b
    return all(side.input_image is not None and side.regions.boxes is not None for side in sides)


def _make_axes(
    left: tuple[int, ...], right: tuple[int, ...], *, heatmaps: bool
) -> tuple[Figure, Axes, tuple[Axes, Axes] | None]:
    """Create a figure with axes for the arcs and the heat maps, laid out in inches."""
    tallest = max(left[0], right[0])
    units = left[1] + right[1] + 0.30 * tallest
    margin, head, foot = 0.25, 0.66, 0.50
    width = FIGURE_INCHES
    unit = (width - 2 * margin) / units
    upper = 1.065 * tallest * unit
    lower = 0.72 * tallest * unit if heatmaps else 0.0
    height = head + upper + (lower + 0.2 if heatmaps else 0.0) + foot
    figure = make_figure((width, height))
    inner = 1 - 2 * margin / width
    top = figure.add_axes((margin / width, 1 - (head + upper) / height, inner, upper / height))
    if not heatmaps:
        return figure, top, None
    bottom = []
    for start, shape in ((0.0, left), (left[1] + 0.30 * tallest, right)):
        heatmap_width = 0.72 * shape[1] * unit
        x = margin + start * unit + (shape[1] * unit - heatmap_width) / 2
        bottom.append(figure.add_axes((x / width, foot / height, heatmap_width / width, lower / height)))
    return figure, top, (bottom[0], bottom[1])


def _draw_text(
    figure: Figure,
    explanation: Any,
    palette: Palette,
    *,
    title: str | None,
    names: tuple[str, str] | None,
    heatmaps: bool,
) -> None:
    height = figure.get_figheight()
    heading = title or DEFAULT_TITLE
    figure.text(0.031, 1 - 0.16 / height, heading, size=12.5, weight="bold", va="top", color=TEXT_COLOR)
    if names:
        text = replace_missing_glyphs(f"{shorten(names[0])}   and   {shorten(names[1])}")
        figure.text(0.031, 1 - 0.40 / height, text, size=8.5, va="top", color=MUTED_COLOR)
    figure.legend(
        handles=legend_handles(palette, explanation.is_distance, dashes=(3, 1.6), lw=2.4),
        loc="upper right",
        bbox_to_anchor=(0.978, 1 - 0.06 / height),
        frameon=False,
        fontsize=8.5,
    )
    line = score_line.format_score_line(explanation)
    figure.text(0.031, 0.14 / height, line, size=8.5, color=MUTED_COLOR, va="bottom")
    if heatmaps:
        middle = sum(axes.get_position().y0 + axes.get_position().y1 for axes in figure.axes[1:]) / 4
        inner = figure.axes[1].get_position().x1, figure.axes[2].get_position().x0
        text = "each region's share,\nsummed over\nits partners"
        if (inner[1] - inner[0]) * figure.get_figwidth() < 1.3:  # too little space between wide images
            middle, text = 0.36 / height, "each region's share, summed over its partners"
        figure.text(sum(inner) / 2, middle, text, size=8.5, color=MUTED_COLOR, ha="center", va="center")


def _arc_height(start: np.ndarray, stop: np.ndarray, height: int) -> float:
    """Return how far an arc bends upwards: less near the top, so that it stays inside the axes."""
    return min(0.16 * height, (min(start[1], stop[1]) + 0.05 * height) / 0.75)


def _arc_path(start: np.ndarray, stop: np.ndarray, height: float) -> Any:
    from matplotlib.path import Path as Curve

    reach = 0.35 * (stop[0] - start[0])
    points = [start, (start[0] + reach, start[1] - height), (stop[0] - reach, stop[1] - height), stop]
    return Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])


def _fade(image: np.ndarray) -> np.ndarray:
    """Return the image paler and greyer, so that thin coloured lines are visible on it."""
    values = image.astype(np.float64) / 255
    grey = (values @ [0.299, 0.587, 0.114])[..., None]
    return 0.20 + 0.80 * (0.15 * values + 0.85 * grey)


def _region_names(regions: Any, count: int) -> list[str]:
    names = getattr(regions, "names", None)
    if not names:
        return [str(i) for i in range(count)]
    return [replace_missing_glyphs(shorten(str(name))) for name in names]
