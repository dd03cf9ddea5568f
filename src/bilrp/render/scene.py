"""The elements of a figure of findings: image and text panels, outlines, ribbons and numbered badges.

Coordinates are inches on one axes over the whole figure, y downwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bilrp.findings.region_layout import to_label_image
from bilrp.inputs import Image, Text
from bilrp.render.typesetting import layout_words, replace_missing_glyphs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from bilrp.decomposition import Decomposition
    from bilrp.render.styles import Palette
    from bilrp.render.typesetting import Word

TEXT_COLOR = "#222222"
MUTED_COLOR = "#6b6b6b"
PANEL_GAP_INCHES = 1.15  # between the two inputs
BADGE_RADIUS_INCHES = 0.085
MAX_RIBBON_WIDTH_INCHES = 0.14
MAX_DETAIL_FRACTION = 1 / 24  # of an image's longer side: smaller regions are details,
MIN_DETAIL_INCHES = 0.24  # and a close-up shows them at least this large
# Radius of the rounded corners of outlines, in sides of a region: a staircase becomes a slope.
CORNER_FRACTION = 0.5
CORNER_POINTS = 5  # of each rounded corner
LANE_SPACING_INCHES, MAX_LANES = 0.035, 4  # of ribbons under a line of words


@dataclass(frozen=True, eq=False)
class ImagePanel:
    """An image input and its box on the sheet in inches."""

    view: Image
    labels: np.ndarray
    left: float
    top: float
    width: float
    height: float

    @property
    def scale(self) -> float:
        """Inches per pixel of the view."""
        first, _, last, _ = self.view.frame
        return self.width / (last - first)

    def to_sheet(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map pixel coordinates (x, y) of the model's input to the sheet."""
        left, top, right, bottom = self.view.box
        start, above, _, _ = self.view.frame
        rows, columns = self.labels.shape
        across, down = (right - left) / columns, (bottom - top) / rows
        return (
            self.left + (left + x * across - start) * self.scale,
            self.top + (top + y * down - above) * self.scale,
        )

    def draw(self, axes: Axes) -> None:
        """Draw the image as it is, and what the model did not see paler."""
        start, above, _, _ = self.view.frame
        width, height = self.view.size
        corner = self.left - start * self.scale, self.top - above * self.scale
        extent = (corner[0], corner[0] + width * self.scale, corner[1] + height * self.scale, corner[1])
        pixels = self.view.pixels.astype(np.float64) / 255
        left, top, right, bottom = self.view.box
        rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
        unseen = ((rows < top) | (rows > bottom))[:, None] | (columns < left) | (columns > right)
        pixels[unseen] = 0.75 + 0.25 * pixels[unseen]
        axes.imshow(pixels, extent=extent, interpolation="lanczos", zorder=0)
        if unseen.any() or min(left, top) < 0 or right > width or bottom > height:
            x, y = self.to_sheet(np.array([0, self.labels.shape[1]]), np.array([0, self.labels.shape[0]]))
            x, y = x[[0, 1, 1, 0, 0]], y[[0, 0, 1, 1, 0]]
            axes.plot(x, y, color=MUTED_COLOR, lw=0.8, ls=(0, (2, 2)), zorder=1)

    def outline_paths(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the closed outlines around these regions, each as points (x, y) [n, 2] on the sheet, with round corners."""
        inside = np.isin(self.labels, numbers)
        radius = CORNER_FRACTION * float(np.sqrt(inside.sum() / max(1, len({*numbers}))))
        paths = [round_corners(corners, radius) for corners in trace_outlines(inside)]
        return [np.stack(self.to_sheet(path[:, 0], path[:, 1]), axis=-1) for path in paths]

    def draw_outline(self, axes: Axes, numbers: Sequence[int], color: str, strength: float) -> None:
        """Outline these regions, with a white line below so that it is visible on any image.

        Args:
            axes: Where to draw.
            numbers: The regions.
            color: Of the outline.
            strength: 0 … 1; a stronger outline is more opaque.
        """
        from matplotlib.collections import LineCollection

        edges = self.outline_paths(numbers)
        alpha = 0.45 + 0.55 * strength
        axes.add_collection(LineCollection(edges, colors="white", linewidths=2.6, alpha=0.7, zorder=2))
        axes.add_collection(LineCollection(edges, colors=color, linewidths=1.3, alpha=alpha, zorder=2.1))

    def draw_close_up(
        self,
        axes: Axes,
        numbers: Sequence[int],
        core_region: int,
        box: tuple[float, float, float, float],
        color: str,
    ) -> float:
        """Draw the part of the image around these regions; return its width in inches.

        Args:
            axes: Where to draw.
            numbers: The regions.
            core_region: Shown with its surroundings where the regions are details too small to be recognized.
            box: (left, top, width, height) that the close-up must fit into.
            color: Of the outline of a detail.
        """
        left, top, right, bottom = self._bounds(numbers)
        width, height = right - left, bottom - top
        ratio = box[2] / box[3]
        width, height = 1.15 * max(width, height * ratio * 0.5), 1.15 * max(height, width / ratio * 0.5)
        center = (left + right) / 2, (top + bottom) / 2
        start, above, stop, below = self._bounds([core_region])
        side = max(stop - start, below - above)
        is_detail = side < MAX_DETAIL_FRACTION * max(self.view.size)
        if is_detail and side * min(box[2] / width, box[3] / height) < MIN_DETAIL_INCHES:
            width, height = side / MIN_DETAIL_INCHES * box[2], side / MIN_DETAIL_INCHES * box[3]
            center = (start + stop) / 2, (above + below) / 2
        x, y = (
            max(0, round(min(c - n / 2, size - n)))
            for c, n, size in zip(center, (width, height), self.view.size, strict=True)
        )
        crop = self.view.pixels[y : y + max(1, round(height)), x : x + max(1, round(width))]
        if crop.size == 0:  # only padding
            return 0.0
        scale = min(box[2] / crop.shape[1], box[3] / crop.shape[0])
        height, width = crop.shape[0] * scale, crop.shape[1] * scale
        upper = box[1] + (box[3] - height) / 2
        extent = (box[0], box[0] + width, upper + height, upper)
        axes.imshow(crop, extent=extent, interpolation="lanczos", zorder=1)
        if is_detail:
            left, top, right, bottom = self.view.frame
            panel = replace(self, left=box[0] + (left - x) * scale, top=upper + (top - y) * scale,
                            width=(right - left) * scale, height=(bottom - top) * scale)  # fmt: skip
            panel.draw_outline(axes, [core_region], color, 1.0)
        return width

    def _bounds(self, numbers: Sequence[int]) -> tuple[float, float, float, float]:
        """Return (left, top, right, bottom) of these regions in pixels of the view."""
        y, x = np.nonzero(np.isin(self.labels, numbers))
        rows, columns = self.labels.shape
        box = float(y.min()), float(x.min()), float(y.max() + 1), float(x.max() + 1)
        return self.view.map_to_view(box, (rows, columns))

    def ribbon_path(self, numbers: Sequence[int], *, right: bool, lane: int = 0) -> np.ndarray:
        """Return the point on the outline of these regions, at half their area, where the ribbon starts.

        Args:
            numbers: The regions.
            right: Start at their right edge instead of their left.
            lane: Not used: ribbons of images need no lanes.
        """
        inside = np.isin(self.labels, numbers)
        rows = np.nonzero(inside.any(1))[0]
        weight = inside[rows].sum(1)
        row = rows[np.searchsorted(weight.cumsum(), weight.sum() / 2)]
        columns = np.nonzero(inside[row])[0]
        edge = columns.max() + 1 if right else columns.min()
        return np.stack(self.to_sheet(np.array([edge]), np.array([row + 0.5])), axis=1)

    def line_top(self, numbers: Sequence[int], *, right: bool) -> float | None:
        """Return None: ribbons of images need no lanes."""
        return None

    def badge_position(self, numbers: Sequence[int], *, right: bool) -> np.ndarray:
        """Return where the badge of a finding is drawn: at the start of its ribbon."""
        return self.ribbon_path(numbers, right=right)[0]


@dataclass(frozen=True, eq=False)
class TextPanel:
    """A text input: its words in lines, each with its box on the sheet."""

    words: tuple[Word, ...]
    left: float
    top: float
    width: float
    height: float
    font_size: float

    def draw(self, axes: Axes) -> None:
        """Draw the words."""
        for word in self.words:
            axes.text(
                word.left, word.baseline, replace_missing_glyphs(word.text), size=self.font_size,
                color=MUTED_COLOR if word.is_special else TEXT_COLOR, va="baseline", zorder=3,
            )  # fmt: skip

    def draw_outline(self, axes: Axes, numbers: Sequence[int], color: str, strength: float) -> None:
        """Draw a box around each of these words.

        Args:
            axes, numbers, color, strength: As for `ImagePanel.draw_outline`.
        """
        from matplotlib.patches import FancyBboxPatch

        for word in (self.words[n] for n in numbers):
            axes.add_patch(
                FancyBboxPatch(
                    (word.left - 0.02, word.top), word.width + 0.04, word.height, boxstyle="round,pad=0,rounding_size=0.05",
                    facecolor=(*_to_rgb(color), 0.06 + 0.2 * strength), edgecolor=color, linewidth=1.0,
                    alpha=None, zorder=1,
                )
            )  # fmt: skip

    @property
    def line_count(self) -> int:
        """Number of lines."""
        return len({word.top for word in self.words})

    def ribbon_path(self, numbers: Sequence[int], *, right: bool, lane: int = 0) -> np.ndarray:
        """Return the path from a word along the space under its line to the edge of the text.

        Args:
            numbers: The words.
            right: Go to the right edge of the text instead of the left.
            lane: Lane under the line, so that ribbons do not overlap.
        """
        word = self._outermost_word(numbers, right=right)
        under = word.top + word.height + LANE_SPACING_INCHES * (0.7 + lane % MAX_LANES)
        if right:
            return np.array([[word.left + word.width / 2, under], [self.left + self.width, under]])
        return np.array([[word.left + word.width / 2, under], [self.left, under]])

    def line_top(self, numbers: Sequence[int], *, right: bool) -> float | None:
        """Return the top of the line that a ribbon runs under; ribbons of one line take different lanes."""
        return self._outermost_word(numbers, right=right).top

    def badge_position(self, numbers: Sequence[int], *, right: bool) -> np.ndarray:
        """Return where the badge of a finding is drawn: at the corner of the word where its ribbon starts."""
        word = self._outermost_word(numbers, right=right)
        return np.array([word.left, word.top - 0.03])

    def phrase_center(self, numbers: Sequence[int], *, below: bool) -> np.ndarray:
        """Return the center of the longest run of consecutive words, at its lower or upper edge."""
        runs: list[list[int]] = [[]]
        for number in numbers:
            if runs[-1] and number != runs[-1][-1] + 1:
                runs.append([])
            runs[-1].append(number)
        longest = max(runs, key=len)
        first, last = self.words[longest[0]], self.words[longest[-1]]
        return np.array(
            [(first.left + last.left + last.width) / 2, first.top + (first.height if below else 0.0)]
        )

    def _outermost_word(self, numbers: Sequence[int], *, right: bool) -> Word:
        words = [self.words[n] for n in numbers]
        return (max if right else min)(words, key=lambda word: word.left)


Panel = ImagePanel | TextPanel


def make_panel(
    side: Decomposition, *, left: float, top: float, width: float, height: float, max_lines: int | None = None
) -> Panel | None:
    """Create the panel of an input, or return None if it is neither an image nor a text.

    Args:
        side: The decomposition of the input.
        left, top: Left and top edge in inches.
        width, height: Maximum width and height in inches.
        max_lines: Maximum number of lines of a text; its font gets smaller, down to 9 points.
    """
    labels = to_label_image(side.regions)
    if not isinstance(side.view, Image) or labels is None:
        words = side.view.region_texts if isinstance(side.view, Text) else side.regions.names
        if words is None:
            return None
        return _make_text_panel(
            side, tuple(words), left=left, top=top, width=width, height=height, max_lines=max_lines
        )
    first, above, last, below = side.view.frame
    scale = min(width / (last - first), height / (below - above))
    return ImagePanel(side.view, labels, left, top, (last - first) * scale, (below - above) * scale)


def _make_text_panel(
    side: Decomposition,
    word_texts: tuple[str, ...],
    *,
    left: float,
    top: float,
    width: float,
    height: float,
    max_lines: int | None,
) -> TextPanel:
    names = side.regions.names or word_texts
    spans = side.view.spans if isinstance(side.view, Text) else (None,) * len(word_texts)
    texts = [word or names[n] or "·" for n, word in enumerate(word_texts)]
    joined = [
        n > 0 and here is not None and spans[n - 1] is not None and here[0] == spans[n - 1][1]  # type: ignore[index]
        for n, here in enumerate(spans)
    ]
    is_special = [isinstance(side.view, Text) and not word for word in word_texts]
    smallest = 6.0 if max_lines is None else 9.0

    def try_font_size(point: float) -> TextPanel:
        words = layout_words(texts, joined, is_special, left=left, top=top, width=width, font_size=point)
        panel = TextPanel(words, left, top, width, words[-1].top + words[-1].height - top, point)
        fits = panel.height <= height and (max_lines is None or panel.line_count <= max_lines)
        return panel if fits or point <= smallest else try_font_size(point - 1)

    return try_font_size(12.0)


def draw_ribbon(
    axes: Axes,
    start: np.ndarray,
    stop: np.ndarray,
    *,
    color: str,
    width: float,
    dashed: bool = False,
    vertical: bool = False,
) -> None:
    """Draw a ribbon from a to b.

    Args:
        axes: Where to draw.
        start, stop: Paths [n, 2] from the regions of a, and of b, to the ribbon.
        color: Of the ribbon.
        width: In inches.
        dashed: Draw it dashed.
        vertical: Whether b is below a.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    first, last = start[-1], stop[-1]
    bend = (0.5 * (last - first)) * ([0.0, 1.0] if vertical else [1.0, 0.0])
    points = [*start, first + bend, last - bend, *stop[::-1]]
    codes = [
        Curve.MOVETO,
        *[Curve.LINETO] * (len(start) - 1),
        *[Curve.CURVE4] * 3,
        *[Curve.LINETO] * (len(stop) - 1),
    ]
    axes.add_patch(
        PathPatch(
            Curve(points, codes), facecolor="none", edgecolor=color, linewidth=72 * width, alpha=0.45, zorder=2.5,
            capstyle="butt", joinstyle="round", linestyle=(0, (2.2, 0.7)) if dashed else "solid",
        )
    )  # fmt: skip


def draw_badges(
    axes: Axes,
    positions: Sequence[np.ndarray],
    colors: Sequence[str],
    *,
    horizontal: bool = False,
    numbers: Sequence[int] | None = None,
) -> None:
    """Draw numbers at these positions, each moved down (or right, if `horizontal`) off the others.

    Args:
        axes: Where to draw.
        positions: Positions (x, y) in inches.
        colors: Colour of each badge.
        horizontal: Move overlapping badges to the right instead of down.
        numbers: The numbers; None: from 1.
    """
    badges: list[np.ndarray] = []
    numbers = range(1, len(positions) + 1) if numbers is None else numbers
    for number, position, color in zip(numbers, positions, colors, strict=True):
        badge = position.astype(float).copy()
        while any(np.hypot(*(badge - other)) < 2.1 * BADGE_RADIUS_INCHES for other in badges):
            badge[0 if horizontal else 1] += 0.25 * BADGE_RADIUS_INCHES
        badges.append(badge)
        draw_badge(axes, badge, number, color)


def draw_badge(axes: Axes, position: np.ndarray, number: int, color: str) -> None:
    """Draw a number on a disc.

    Args:
        axes: Where to draw.
        position: Centre (x, y) in inches.
        number: The number.
        color: Of the disc.
    """
    from matplotlib.patches import Circle

    x, y = float(position[0]), float(position[1])
    axes.add_patch(Circle((x, y), BADGE_RADIUS_INCHES, facecolor=color, edgecolor="white", lw=0.8, zorder=4))
    axes.text(
        x, y, str(number), size=7, weight="bold", color="white", ha="center", va="center_baseline", zorder=5
    )


def legend_handles(
    palette: Palette,
    is_distance: bool,
    *,
    dashes: tuple[float, float],
    signs: Sequence[int] = (1, -1),
    lw: float,
    alpha: float | None = None,
) -> list[Line2D]:
    """Return legend entries for positive and negative relevance; for a distance, positive means less similar.

    Args:
        palette: The colours.
        is_distance: Whether the score is a distance.
        dashes: Dash pattern of negative relevance, if the palette is dashed.
        signs: The signs that are drawn.
        lw, alpha: Width in points and opacity of the lines.
    """
    from matplotlib.lines import Line2D

    more, less = ("less", "more") if is_distance else ("more", "less")
    style = (0, dashes) if palette.dashed else "solid"
    entries = {
        1: Line2D([], [], color=palette.positive, label=f"makes them {more} similar", lw=lw, alpha=alpha),
        -1: Line2D(
            [], [], color=palette.negative, label=f"makes them {less} similar", ls=style, lw=lw, alpha=alpha
        ),
    }
    return [entries[sign] for sign in entries if sign in signs]


def trace_outlines(inside: np.ndarray) -> list[np.ndarray]:
    """Return the closed outlines of a mask as corners (x, y) [n, 2], holes included; the mask is on the right hand.

    >>> trace_outlines(np.ones((1, 2), dtype=bool))[0].tolist()
    [[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 1.0]]
    """
    padded = np.pad(inside, 1)
    following: dict[tuple[int, int], list[tuple[int, int]]] = {}
    steps = (
        ((-1, 0), (0, 0), (1, 0)),
        ((0, 1), (1, 0), (1, 1)),
        ((1, 0), (1, 1), (0, 1)),
        ((0, -1), (0, 1), (0, 0)),
    )
    for (down, across), start, stop in steps:
        border = (
            inside & ~padded[1 + down : padded.shape[0] - 1 + down, 1 + across : padded.shape[1] - 1 + across]
        )
        for y, x in zip(*np.nonzero(border), strict=True):
            following.setdefault((int(x) + start[0], int(y) + start[1]), []).append(
                (int(x) + stop[0], int(y) + stop[1])
            )
    outlines = []
    for first in sorted(following):
        while following[first]:
            path = [first, following[first].pop()]
            while path[-1] != first:
                path.append(following[path[-1]].pop())
            points = np.array(path[:-1], dtype=float)
            way, back = np.roll(points, -1, axis=0) - points, points - np.roll(points, 1, axis=0)
            outlines.append(points[(way != back).any(axis=1)])  # without points on a straight line
    return outlines


def round_corners(corners: np.ndarray, radius: float) -> np.ndarray:
    """Return a closed path with each corner replaced by a curve, which begins at most half an edge before it.

    Args:
        corners: (x, y) [n, 2] of a closed path.
        radius: Where curves begin, before and after each corner.
    """
    t = np.linspace(0, 1, CORNER_POINTS)[:, None]
    curves = []
    for before, corner, after in zip(
        np.roll(corners, 1, axis=0), corners, np.roll(corners, -1, axis=0), strict=True
    ):
        start, stop = (
            corner + (other - corner) * min(0.5, radius / float(np.linalg.norm(other - corner)))
            for other in (before, after)
        )
        curves.append((1 - t) ** 2 * start + 2 * t * (1 - t) * corner + t**2 * stop)
    path = np.concatenate(curves)
    return np.concatenate([path, path[:1]])


def _to_rgb(color: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(color)
