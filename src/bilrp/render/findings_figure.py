"""Findings for people: as a list that the page, the terminal and files share, and as outlines joined by ribbons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bilrp.findings.summary import label
from bilrp.findings.formatting import about, place
from bilrp.render import score_line, scene, typesetting
from bilrp.render.visibility import shown
from bilrp.render.scene import BADGE, GAP, INK, LANE, SOFT, WIDEST, Panel, Paragraph, Photograph

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bilrp.explanation import Explanation
    from bilrp.findings.grouping import Finding
    from bilrp.render.styles import Palette

WIDE, MARGIN = 9.0, 0.3  # inches of the sheet
TALL = 3.9  # of an input at most
CARDS = 3  # beside each other
FULL = 0.03  # of the score, at least, is what a ribbon of full width stands for
CARD = 1.0  # inches high
SHOWN = 0.05  # of the strongest finding: fainter ones are in the list of the page, not in the picture


def listed(explanation: Explanation, k: int = 12) -> list[dict[str, Any]]:
    """The findings as plain values: region numbers of both sides, relevance, share of the score, and where they are.

    >>> import torch, bilrp
    >>> net = torch.nn.Linear(4, 4, bias=False)
    >>> listed(bilrp.explain(net, torch.eye(4)[:1], torch.eye(4)[:1]))[0]["label"]
    'region 0 ↔ region 0'
    """
    return [
        {
            "a": finding.a,
            "b": finding.b,
            "relevance": finding.relevance,
            "share": finding.share,
            "label": label(explanation, finding),
        }
        for finding in explanation.findings(k)
    ]


def draw(
    whole: Explanation, chosen: Palette, *, title: str, names: tuple[str, str] | None, k: int = 12,
    marks: bool = False,
) -> Figure | None:  # fmt: skip
    """The sheet: the sentence, both inputs with their findings, each finding close up; None where regions have no place."""
    explanation = shown(whole, marks=marks)
    lines = typesetting.wrapped(whole.summary(), wide=WIDE - 2 * MARGIN, point=9)
    top = 0.62 + 0.165 * len(lines) + (0.3 if names else 0.12)
    placed = side_by_side(explanation, top)
    if placed is None:
        return None
    left, right = stacked(explanation, top) or placed
    below = isinstance(left, Paragraph) and right.top > left.top
    words = isinstance(left, Paragraph) or isinstance(right, Paragraph)
    found = explanation.findings(min(k, 2 * CARDS) if words else k)
    found = [f for f in found if abs(f.relevance) >= SHOWN * abs(found[0].relevance)]
    under = max(left.top + left.high, right.top + right.high) + (0.4 if words else 0.25)
    photographs = isinstance(left, Photograph) or isinstance(right, Photograph)
    card = CARD if photographs else 0.36
    rows = -(-min(len(found), 2 * CARDS) // CARDS)
    high = under + rows * (card + 0.5) + 0.45
    axes = sheet(high)
    heading(axes, title, lines, explanation, chosen)
    for one, name in zip((left, right), names or ("", ""), strict=True):
        if not isinstance(one, Paragraph):  # a text is its own name
            axes.text(
                one.left, one.top - 0.08, typesetting.glyphs(typesetting.short(name)), size=8.5, color=SOFT, va="baseline"
            )
        one.draw(axes)
    join(axes, (left, right), found, chosen, down=below)
    cards(axes, explanation, (left, right), found[: 2 * CARDS], chosen, top=under, card=card)
    axes.text(MARGIN, high - 0.16, score_line.line(whole), size=8.5, color=SOFT, va="baseline")
    figure = axes.get_figure()
    assert figure is not None
    return figure  # type: ignore[return-value]


def side_by_side(explanation: Explanation, top: float) -> tuple[Panel, Panel] | None:
    each = (WIDE - 2 * MARGIN - GAP) / 2
    left = scene.panel(explanation.a, left=MARGIN, top=top, wide=each, high=TALL)
    right = scene.panel(explanation.b, left=MARGIN + each + GAP, top=top, wide=each, high=TALL)
    return None if left is None or right is None else (left, right)


def stacked(explanation: Explanation, top: float) -> tuple[Panel, Panel] | None:
    """Two sentences, one under the other, where each fits into a line: then ribbons run straight from word to word."""
    found = []
    for side in (explanation.a, explanation.b):
        one = scene.panel(side, left=MARGIN, top=top, wide=WIDE - 2 * MARGIN, high=1.0, lines=1)
        if not isinstance(one, Paragraph) or one.lines > 1:
            return None
        found.append(one)
        top += one.high + GAP
    return found[0], found[1]


def sheet(high: float) -> Axes:
    """A white sheet with one axes all over it, in inches from its upper left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(WIDE, high), facecolor="white")
    FigureCanvasAgg(drawn)
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    return axes


def heading(axes: Axes, title: str, lines: Sequence[str], explanation: Explanation, chosen: Palette) -> None:
    """The question, the sentence that answers it, and what the colours mean."""
    from matplotlib.lines import Line2D

    axes.text(MARGIN, 0.38, typesetting.glyphs(title), size=13, weight="bold", color=INK, va="baseline")
    for n, line in enumerate(lines):
        axes.text(MARGIN, 0.66 + 0.165 * n, typesetting.glyphs(line), size=9, color=INK, va="baseline")
    more, less = ("less", "more") if explanation.distance else ("more", "less")
    dashes = (0, (2.2, 0.7)) if chosen.dashed else "solid"
    handles = [
        Line2D([], [], color=chosen.positive, lw=4, alpha=0.55, label=f"makes them {more} similar"),
        Line2D(
            [], [], color=chosen.negative, lw=4, alpha=0.55, ls=dashes, label=f"makes them {less} similar"
        ),
    ]
    drawn = axes.get_figure()
    assert drawn is not None
    drawn.legend(  # type: ignore[union-attr]
        handles=handles,
        loc="center right",
        bbox_to_anchor=(1 - 0.15 / WIDE, 1 - 0.33 / drawn.get_figheight()),  # type: ignore[union-attr]
        ncols=2,
        frameon=False,
        fontsize=8.5,
    )


def join(
    axes: Axes,
    panels: tuple[Panel, Panel],
    found: Sequence[Finding],
    chosen: Palette,
    *,
    down: bool = False,
) -> None:
    """Outlines on both sides and one ribbon for each finding, as wide as its relevance; the strongest on top."""
    strongest = max(found, key=lambda f: abs(f.relevance), default=None)
    most = 1.0 if strongest is None else abs(strongest.relevance)
    if strongest is not None and strongest.share:  # where nothing stands out, no ribbon does
        most = max(most, most * FULL / abs(strongest.share))
    colours = [chosen.positive if f.relevance > 0 else chosen.negative for f in found]
    ways = [_ways(panels[0], [f.a for f in found], right=True, down=down)]
    ways.append(_ways(panels[1], [f.b for f in found], right=False, down=down))
    lanes = any(isinstance(panel, Paragraph) for panel in panels) and not down
    widest = LANE if lanes else WIDEST
    for n in reversed(range(len(found))):
        strength = abs(found[n].relevance) / most
        panels[0].mark(axes, found[n].a, colours[n], strength)
        panels[1].mark(axes, found[n].b, colours[n], strength)
        scene.ribbon(
            axes, ways[0][n], ways[1][n], colour=colours[n], wide=max(0.012, widest * strength),
            dashed=chosen.dashed and found[n].relevance < 0, down=down,
        )  # fmt: skip
    for side, panel in enumerate(panels):
        members = [(f.a, f.b)[side] for f in found]
        spots = [way[-1] for way in ways[side]] if down else [panel.spot(m, right=side == 0) for m in members]
        scene.badges(axes, spots, colours, aside=isinstance(panel, Paragraph))
    axes.set(xlim=(0, WIDE), ylim=(axes.get_figure().get_figheight(), 0))  # type: ignore[union-attr]


def _ways(panel: Panel, members: Sequence[list[int]], *, right: bool, down: bool) -> list[np.ndarray]:
    """From each finding's regions to its ribbon: under a line of words, each in a lane of its own."""
    if down and isinstance(panel, Paragraph):
        return [
            panel.across(numbers, below=right)[None] + [0.0, BADGE if right else -BADGE]
            for numbers in members
        ]
    taken: dict[float | None, int] = {}
    ways = []
    for numbers in members:
        line = panel.line(numbers, right=right)
        ways.append(panel.way(numbers, right=right, lane=taken.get(line, 0)))
        taken[line] = taken.get(line, 0) + 1
    return ways


def cards(
    axes: Axes,
    explanation: Explanation,
    panels: tuple[Panel, Panel],
    found: Sequence[Finding],
    chosen: Palette,
    *,
    top: float,
    card: float = CARD,
) -> None:
    """Each finding close up: its two places side by side, its number and its share."""
    each = (WIDE - 2 * MARGIN) / CARDS
    for n, finding in enumerate(found):
        x, y = MARGIN + n % CARDS * each, top + n // CARDS * (card + 0.5)
        colour = chosen.positive if finding.relevance > 0 else chosen.negative
        share = "" if finding.share is None else f"{about(finding.share)} of the score"
        scene.badge(axes, np.array([x + BADGE, y + 0.1]), n + 1, colour)
        axes.text(x + 2.7 * BADGE, y + 0.14, share, size=9, weight="bold", color=INK, va="baseline")
        wide, left = (each - 0.4) / 2, x
        sides = zip((explanation.a, explanation.b), panels, (finding.a, finding.b), strict=True)
        for (side, one, numbers), core in zip(sides, _strongest(explanation, finding), strict=True):
            if left > x:
                axes.text(
                    left + 0.11, y + 0.26 + card / 2, "↔", size=11, color=colour, ha="center", va="center"
                )
                left += 0.22
            box = (left, y + 0.26, wide, card)
            if isinstance(one, Photograph):
                left += one.close_up(axes, numbers, core, box, colour)
            else:
                left += _quote(axes, place(side.regions, side.view, numbers), box, most=int(card / 0.17))


def _strongest(explanation: Explanation, finding: Finding) -> tuple[int, int]:
    """The pair of regions in a finding that has most of its relevance."""
    own = explanation.relevance[finding.a][:, finding.b].detach().cpu().double().numpy()
    row, column = np.unravel_index((own * np.sign(finding.relevance)).argmax(), own.shape)
    return finding.a[row], finding.b[column]


def _quote(axes: Axes, words: str, box: tuple[float, float, float, float], *, most: int) -> float:
    """Words within a box, in its middle; how many inches of it they take."""
    lines = typesetting.wrapped(words, wide=box[2], point=9)
    lines = lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1]} …”"]
    start = box[1] + (box[3] - 0.17 * (len(lines) - 1)) / 2
    for n, line in enumerate(lines):
        axes.text(box[0], start + 0.17 * n, typesetting.glyphs(line), size=9, color=INK, va="center")
    return max(typesetting.width(line, 9) for line in lines)
