"""The still picture of findings: both inputs side by side, each finding outlined, joined by one ribbon, and numbered.

Everything is placed in inches on one axes over the whole figure, y downwards, so that nothing can overlap by accident.
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

    from bilrp.decomposition import Decomposition
    from bilrp.render.typesetting import Word

TEXT_COLOR = "#222222"
MUTED_COLOR = "#6b6b6b"
PANEL_GAP_INCHES = 1.15  # inches between the two inputs: where ribbons are seen against white
BADGE_RADIUS_INCHES = 0.085  # radius of a number's disc
MAX_RIBBON_WIDTH_INCHES = 0.14  # of the strongest finding's ribbon
MAX_DETAIL_FRACTION = 1 / 24  # of a picture's longer side: smaller regions are details,
MIN_DETAIL_INCHES = 0.24  # and a close-up shows them at least this large
LANE_SPACING_INCHES, MAX_LANES = 0.035, 4  # under a line of words: how far apart ribbons run, and how many


@dataclass(frozen=True, eq=False)
class ImagePanel:
    """An input that is a picture, at its place on the sheet: (left, top, width, height) in inches."""

    view: Image
    labels: np.ndarray
    left: float
    top: float
    width: float
    height: float

    @property
    def scale(self) -> float:
        """Inches for a pixel of the view."""
        first, _, last, _ = self.view.frame
        return self.width / (last - first)

    def to_sheet(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where places of the model's input (columns x, rows y of its pixels) are on the sheet."""
        left, top, right, bottom = self.view.box
        start, above, _, _ = self.view.frame
        rows, columns = self.labels.shape
        across, down = (right - left) / columns, (bottom - top) / rows
        return (
            self.left + (left + x * across - start) * self.scale,
            self.top + (top + y * down - above) * self.scale,
        )

    def draw(self, axes: Axes) -> None:
        """The photograph, paler than it is, and what the model did not see paler still."""
        start, above, _, _ = self.view.frame
        wide, high = self.view.size
        corner = self.left - start * self.scale, self.top - above * self.scale
        extent = (corner[0], corner[0] + wide * self.scale, corner[1] + high * self.scale, corner[1])
        shown = _fade(self.view.pixels)
        left, top, right, bottom = self.view.box
        rows, columns = np.arange(high) + 0.5, np.arange(wide) + 0.5
        unseen = ((rows < top) | (rows > bottom))[:, None] | (columns < left) | (columns > right)
        shown[unseen] = 0.75 + 0.25 * shown[unseen]
        axes.imshow(shown, extent=extent, interpolation="lanczos", zorder=0)
        if unseen.any() or min(left, top) < 0 or right > wide or bottom > high:
            x, y = self.to_sheet(np.array([0, self.labels.shape[1]]), np.array([0, self.labels.shape[0]]))
            axes.plot(
                x[[0, 1, 1, 0, 0]], y[[0, 0, 1, 1, 0]], color=MUTED_COLOR, lw=0.8, ls=(0, (2, 2)), zorder=1
            )

    def outline_edges(self, numbers: Sequence[int]) -> np.ndarray:
        """The edges [n, 2, 2] around these regions, as (x, y) on the sheet."""
        inside = np.pad(np.isin(self.labels, numbers), 1)
        edges = [
            *_edge_runs(inside[1:] != inside[:-1]),
            *(e[:, ::-1] for e in _edge_runs((inside[:, 1:] != inside[:, :-1]).T)),
        ]
        points = np.array(edges, dtype=float).reshape(-1, 2, 2)
        return np.stack(self.to_sheet(points[..., 0], points[..., 1]), axis=-1)

    def draw_outline(self, axes: Axes, numbers: Sequence[int], color: str, strength: float) -> None:
        """Outline these regions, on a white line, so that it is seen on any photograph."""
        from matplotlib.collections import LineCollection

        edges = self.outline_edges(numbers)
        axes.add_collection(LineCollection(list(edges), colors="white", linewidths=2.6, alpha=0.7, zorder=2))
        axes.add_collection(
            LineCollection(
                list(edges), colors=color, linewidths=1.3, alpha=0.45 + 0.55 * strength, zorder=2.1
            )
        )

    def draw_close_up(
        self,
        axes: Axes,
        numbers: Sequence[int],
        core_region: int,
        box: tuple[float, float, float, float],
        color: str,
    ) -> float:
        """The photograph around these regions, as it is, in a box (left, top, wide, high); how wide it is there.

        Where regions are details that would be lost in it, as the numbers of a page, it is the surroundings of
        `core_region`.
        """
        left, top, right, bottom = self._bounds(numbers)
        wide, high = right - left, bottom - top
        ratio = box[2] / box[3]
        wide, high = 1.15 * max(wide, high * ratio * 0.5), 1.15 * max(high, wide / ratio * 0.5)
        middle = (left + right) / 2, (top + bottom) / 2
        start, above, stop, below = self._bounds([core_region])
        side = max(stop - start, below - above)
        fine = side < MAX_DETAIL_FRACTION * max(self.view.size)
        if fine and side * min(box[2] / wide, box[3] / high) < MIN_DETAIL_INCHES:
            wide, high = side / MIN_DETAIL_INCHES * box[2], side / MIN_DETAIL_INCHES * box[3]
            middle = (start + stop) / 2, (above + below) / 2
        first, start = (
            max(0, round(min(m - n / 2, size - n)))
            for m, n, size in zip(middle, (wide, high), self.view.size, strict=True)
        )
        cut = self.view.pixels[start : start + max(1, round(high)), first : first + max(1, round(wide))]
        if cut.size == 0:  # padding: nothing of the photograph
            return 0.0
        scale = min(box[2] / cut.shape[1], box[3] / cut.shape[0])
        high, wide = cut.shape[0] * scale, cut.shape[1] * scale
        upper = box[1] + (box[3] - high) / 2
        axes.imshow(
            cut, extent=(box[0], box[0] + wide, upper + high, upper), interpolation="lanczos", zorder=1
        )
        if fine:
            left, top, right, bottom = self.view.frame
            moved = replace(self, left=box[0] + (left - first) * scale, top=upper + (top - start) * scale,
                            width=(right - left) * scale, height=(bottom - top) * scale)  # fmt: skip
            moved.draw_outline(axes, [core_region], color, 1.0)
        return wide

    def _bounds(self, numbers: Sequence[int]) -> tuple[float, float, float, float]:
        """(left, top, right, bottom) of these regions in pixels of the view."""
        y, x = np.nonzero(np.isin(self.labels, numbers))
        rows, columns = self.labels.shape
        place = float(y.min()), float(x.min()), float(y.max() + 1), float(x.max() + 1)
        return self.view.map_to_view(place, (rows, columns))

    def ribbon_path(self, numbers: Sequence[int], *, right: bool, lane: int = 0) -> np.ndarray:
        """From these regions to the ribbon: one point, on their outline at the height of their middle."""
        inside = np.isin(self.labels, numbers)
        rows = np.nonzero(inside.any(1))[0]
        weight = inside[rows].sum(1)
        row = rows[np.searchsorted(weight.cumsum(), weight.sum() / 2)]
        columns = np.nonzero(inside[row])[0]
        edge = columns.max() + 1 if right else columns.min()
        return np.stack(self.to_sheet(np.array([edge]), np.array([row + 0.5])), axis=1)

    def line_top(self, numbers: Sequence[int], *, right: bool) -> float | None:
        """Ribbons leave a photograph wherever they are, in no line."""
        return None

    def badge_position(self, numbers: Sequence[int], *, right: bool) -> np.ndarray:
        """Where the number of a finding stands: at the beginning of its ribbon."""
        return self.ribbon_path(numbers, right=right)[0]


@dataclass(frozen=True, eq=False)
class TextPanel:
    """An input that is a text: its words in lines, each with its box on the sheet."""

    words: tuple[Word, ...]
    left: float
    top: float
    width: float
    height: float
    font_size: float  # size of the letters

    def draw(self, axes: Axes) -> None:
        for word in self.words:
            axes.text(
                word.left, word.baseline, replace_missing_glyphs(word.text), size=self.font_size,
                color=MUTED_COLOR if word.is_special else TEXT_COLOR, va="baseline", zorder=3,
            )  # fmt: skip

    def draw_outline(self, axes: Axes, numbers: Sequence[int], color: str, strength: float) -> None:
        """A box around each of these words."""
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
        """How many lines it has."""
        return len({word.top for word in self.words})

    def ribbon_path(self, numbers: Sequence[int], *, right: bool, lane: int = 0) -> np.ndarray:
        """From the edge of a word along under its line to the edge of the text: never through a word."""
        word = self._outermost_word(numbers, right=right)
        under = word.top + word.height + LANE_SPACING_INCHES * (0.7 + lane % MAX_LANES)
        if right:
            return np.array([[word.left + word.width / 2, under], [self.left + self.width, under]])
        return np.array([[word.left + word.width / 2, under], [self.left, under]])

    def line_top(self, numbers: Sequence[int], *, right: bool) -> float | None:
        """The line that a ribbon runs under: several take a lane each."""
        return self._outermost_word(numbers, right=right).top

    def badge_position(self, numbers: Sequence[int], *, right: bool) -> np.ndarray:
        """Where the number of a finding stands: over the corner of the word that its ribbon begins at."""
        word = self._outermost_word(numbers, right=right)
        return np.array([word.left, word.top - 0.03])

    def phrase_center(self, numbers: Sequence[int], *, below: bool) -> np.ndarray:
        """The middle of the longest run of these words, at their lower or their upper edge."""
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
        chosen = [self.words[n] for n in numbers]
        return max(chosen, key=lambda one: one.left) if right else min(chosen, key=lambda one: one.left)


Panel = ImagePanel | TextPanel


def make_panel(
    side: Decomposition, *, left: float, top: float, width: float, height: float, max_lines: int | None = None
) -> Panel | None:
    """An input at its place, no larger than given; None for what is neither a picture nor words."""
    named = side.view.region_texts if isinstance(side.view, Text) else side.regions.names
    if named is not None:
        return _make_text_panel(
            side, tuple(named), left=left, top=top, width=width, height=height, max_lines=max_lines
        )
    labels = to_label_image(side.regions)
    if not isinstance(side.view, Image) or labels is None:
        return None
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
    marks = side.regions.names or word_texts
    spans = side.view.spans if isinstance(side.view, Text) else (None,) * len(word_texts)
    text = [word or marks[n] or "·" for n, word in enumerate(word_texts)]
    joined = [
        n > 0 and here is not None and spans[n - 1] is not None and here[0] == spans[n - 1][1]  # type: ignore[index]
        for n, here in enumerate(spans)
    ]
    is_mark = [isinstance(side.view, Text) and not word for word in word_texts]
    smallest = 6.0 if max_lines is None else 9.0

    def try_font_size(point: float) -> TextPanel:
        words = layout_words(text, joined, is_mark, left=left, top=top, width=width, font_size=point)
        found = TextPanel(words, left, top, width, words[-1].top + words[-1].height - top, point)
        fits = found.height <= height and (max_lines is None or found.line_count <= max_lines)
        return found if fits or point <= smallest else try_font_size(point - 1)

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
    """One band from the way out of a to the way into b, `width` inches wide; `vertical` where b stands under a."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    out, into = start[-1], stop[-1]
    aside = (0.5 * (into - out)) * ([0.0, 1.0] if vertical else [1.0, 0.0])
    points = [*start, out + aside, into - aside, *stop[::-1]]
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
    axes: Axes, positions: Sequence[np.ndarray], colors: Sequence[str], *, horizontal: bool = False
) -> None:
    """Numbers from 1 at these places, each moved down (or aside) where it would cover another."""
    taken: list[np.ndarray] = []
    for number, (place, colour) in enumerate(zip(positions, colors, strict=True), 1):
        spot = place.astype(float).copy()
        while any(np.hypot(*(spot - other)) < 2.1 * BADGE_RADIUS_INCHES for other in taken):
            spot[0 if horizontal else 1] += 0.25 * BADGE_RADIUS_INCHES
        taken.append(spot)
        draw_badge(axes, spot, number, colour)


def draw_badge(axes: Axes, position: np.ndarray, number: int, color: str) -> None:
    """A number on a disc."""
    from matplotlib.patches import Circle

    x, y = float(position[0]), float(position[1])
    axes.add_patch(Circle((x, y), BADGE_RADIUS_INCHES, facecolor=color, edgecolor="white", lw=0.8, zorder=4))
    axes.text(
        x, y, str(number), size=7, weight="bold", color="white", ha="center", va="center_baseline", zorder=5
    )


def _edge_runs(edges: np.ndarray) -> list[np.ndarray]:
    """Edges between rows as straight pieces ((x, y), (x, y)): neighbouring ones are one piece."""
    found = []
    for y in np.nonzero(edges.any(1))[0]:
        line = np.diff(np.pad(edges[y].astype(np.int8), 1))
        for start, stop in zip(np.nonzero(line == 1)[0], np.nonzero(line == -1)[0], strict=True):
            found.append(np.array([(start - 1, y), (stop - 1, y)]))
    return found


def _to_rgb(color: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(color)


def _fade(image: np.ndarray) -> np.ndarray:
    """A little paler and greyer than it is, so that coloured lines stand out."""
    values = image.astype(np.float64) / 255
    grey = (values @ [0.299, 0.587, 0.114])[..., None]
    return 0.12 + 0.88 * (0.55 * values + 0.45 * grey)
