"""Findings for people: as a list that the page, the terminal and files share, and as outlines joined by ribbons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bilrp.findings.formatting import describe_location, format_share
from bilrp.findings.summary import label_finding
from bilrp.render import scene, score_line, typesetting
from bilrp.render.scene import (
    BADGE_RADIUS_INCHES,
    LANE_SPACING_INCHES,
    MAX_RIBBON_WIDTH_INCHES,
    MUTED_COLOR,
    PANEL_GAP_INCHES,
    TEXT_COLOR,
    ImagePanel,
    Panel,
    TextPanel,
)
from bilrp.render.visibility import select_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bilrp.explanation import Explanation
    from bilrp.findings.grouping import Finding
    from bilrp.render.styles import Palette

SHEET_WIDTH_INCHES, MARGIN_INCHES = 9.0, 0.3  # inches of the sheet
MAX_PANEL_HEIGHT_INCHES = 3.9  # of an input at most
CARDS_PER_ROW = 3  # beside each other
FULL_WIDTH_SHARE = 0.03  # of the score, at least, is what a ribbon of full width stands for
CARD_HEIGHT_INCHES = 1.0  # inches high
MIN_DRAWN_FRACTION = (
    0.05  # of the strongest finding: fainter ones are in the list of the page, not in the picture
)


def serialize_findings(explanation: Explanation, k: int = 12) -> list[dict[str, Any]]:
    """The findings as plain values: region numbers of both sides, relevance, share of the score, and where they are.

    >>> import torch, bilrp
    >>> net = torch.nn.Linear(4, 4, bias=False)
    >>> serialize_findings(bilrp.explain(net, torch.eye(4)[:1], torch.eye(4)[:1]))[0]["label"]
    'region 0 ↔ region 0'
    """
    return [
        {
            "a": finding.a,
            "b": finding.b,
            "relevance": finding.relevance,
            "share": finding.share,
            "label": label_finding(explanation, finding),
        }
        for finding in explanation.findings(k)
    ]


def draw_findings(
    full_explanation: Explanation, palette: Palette, *, title: str, names: tuple[str, str] | None, k: int = 12,
    special_tokens: bool = False,
) -> Figure | None:  # fmt: skip
    """The sheet: the sentence, both inputs with their findings, each finding close up; None where regions have no place."""
    explanation = select_visible(full_explanation, special_tokens=special_tokens)
    lines = typesetting.wrap(
        full_explanation.summary(), width=SHEET_WIDTH_INCHES - 2 * MARGIN_INCHES, font_size=9
    )
    top = 0.62 + 0.165 * len(lines) + (0.3 if names else 0.12)
    placed = place_side_by_side(explanation, top)
    if placed is None:
        return None
    left, right = place_stacked(explanation, top) or placed
    below = isinstance(left, TextPanel) and right.top > left.top
    words = isinstance(left, TextPanel) or isinstance(right, TextPanel)
    found = explanation.findings(min(k, 2 * CARDS_PER_ROW) if words else k)
    found = [f for f in found if abs(f.relevance) >= MIN_DRAWN_FRACTION * abs(found[0].relevance)]
    under = max(left.top + left.height, right.top + right.height) + (0.4 if words else 0.25)
    photographs = isinstance(left, ImagePanel) or isinstance(right, ImagePanel)
    card = CARD_HEIGHT_INCHES if photographs else 0.36
    rows = -(-min(len(found), 2 * CARDS_PER_ROW) // CARDS_PER_ROW)
    high = under + rows * (card + 0.5) + 0.45
    axes = make_sheet(high)
    draw_heading(axes, title, lines, explanation, palette)
    for one, name in zip((left, right), names or ("", ""), strict=True):
        if not isinstance(one, TextPanel):  # a text is its own name
            axes.text(
                one.left,
                one.top - 0.08,
                typesetting.replace_missing_glyphs(typesetting.shorten(name)),
                size=8.5,
                color=MUTED_COLOR,
                va="baseline",
            )
        one.draw(axes)
    draw_matches(axes, (left, right), found, palette, vertical=below)
    draw_cards(
        axes, explanation, (left, right), found[: 2 * CARDS_PER_ROW], palette, top=under, card_height=card
    )
    axes.text(
        MARGIN_INCHES,
        high - 0.16,
        score_line.format_score_line(full_explanation),
        size=8.5,
        color=MUTED_COLOR,
        va="baseline",
    )
    figure = axes.get_figure()
    assert figure is not None
    return figure  # type: ignore[return-value]


def place_side_by_side(explanation: Explanation, top: float) -> tuple[Panel, Panel] | None:
    each = (SHEET_WIDTH_INCHES - 2 * MARGIN_INCHES - PANEL_GAP_INCHES) / 2
    left = scene.make_panel(
        explanation.a, left=MARGIN_INCHES, top=top, width=each, height=MAX_PANEL_HEIGHT_INCHES
    )
    right = scene.make_panel(
        explanation.b,
        left=MARGIN_INCHES + each + PANEL_GAP_INCHES,
        top=top,
        width=each,
        height=MAX_PANEL_HEIGHT_INCHES,
    )
    return None if left is None or right is None else (left, right)


def place_stacked(explanation: Explanation, top: float) -> tuple[Panel, Panel] | None:
    """Two sentences, one under the other, where each fits into a line: then ribbons run straight from word to word."""
    found = []
    for side in (explanation.a, explanation.b):
        one = scene.make_panel(
            side,
            left=MARGIN_INCHES,
            top=top,
            width=SHEET_WIDTH_INCHES - 2 * MARGIN_INCHES,
            height=1.0,
            max_lines=1,
        )
        if not isinstance(one, TextPanel) or one.line_count > 1:
            return None
        found.append(one)
        top += one.height + PANEL_GAP_INCHES
    return found[0], found[1]


def make_sheet(height: float) -> Axes:
    """A white sheet with one axes all over it, in inches from its upper left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(SHEET_WIDTH_INCHES, height), facecolor="white")
    FigureCanvasAgg(drawn)
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    return axes


def draw_heading(
    axes: Axes, title: str, lines: Sequence[str], explanation: Explanation, palette: Palette
) -> None:
    """The question, the sentence that answers it, and what the colours mean."""
    from matplotlib.lines import Line2D

    axes.text(
        MARGIN_INCHES,
        0.38,
        typesetting.replace_missing_glyphs(title),
        size=13,
        weight="bold",
        color=TEXT_COLOR,
        va="baseline",
    )
    for n, line in enumerate(lines):
        axes.text(
            MARGIN_INCHES,
            0.66 + 0.165 * n,
            typesetting.replace_missing_glyphs(line),
            size=9,
            color=TEXT_COLOR,
            va="baseline",
        )
    more, less = ("less", "more") if explanation.is_distance else ("more", "less")
    dashes = (0, (2.2, 0.7)) if palette.dashed else "solid"
    handles = [
        Line2D([], [], color=palette.positive, lw=4, alpha=0.55, label=f"makes them {more} similar"),
        Line2D(
            [], [], color=palette.negative, lw=4, alpha=0.55, ls=dashes, label=f"makes them {less} similar"
        ),
    ]
    drawn = axes.get_figure()
    assert drawn is not None
    drawn.legend(  # type: ignore[union-attr]
        handles=handles,
        loc="center right",
        bbox_to_anchor=(1 - 0.15 / SHEET_WIDTH_INCHES, 1 - 0.33 / drawn.get_figheight()),  # type: ignore[union-attr]
        ncols=2,
        frameon=False,
        fontsize=8.5,
    )


def draw_matches(
    axes: Axes,
    panels: tuple[Panel, Panel],
    findings: Sequence[Finding],
    palette: Palette,
    *,
    vertical: bool = False,
) -> None:
    """Outlines on both sides and one ribbon for each finding, as wide as its relevance; the strongest on top."""
    strongest = max(findings, key=lambda f: abs(f.relevance), default=None)
    most = 1.0 if strongest is None else abs(strongest.relevance)
    if strongest is not None and strongest.share:  # where nothing stands out, no ribbon does
        most = max(most, most * FULL_WIDTH_SHARE / abs(strongest.share))
    colours = [palette.positive if f.relevance > 0 else palette.negative for f in findings]
    ways = [_ribbon_paths(panels[0], [f.a for f in findings], right=True, vertical=vertical)]
    ways.append(_ribbon_paths(panels[1], [f.b for f in findings], right=False, vertical=vertical))
    lanes = any(isinstance(panel, TextPanel) for panel in panels) and not vertical
    widest = LANE_SPACING_INCHES if lanes else MAX_RIBBON_WIDTH_INCHES
    for n in reversed(range(len(findings))):
        strength = abs(findings[n].relevance) / most
        panels[0].draw_outline(axes, findings[n].a, colours[n], strength)
        panels[1].draw_outline(axes, findings[n].b, colours[n], strength)
        scene.draw_ribbon(
            axes, ways[0][n], ways[1][n], color=colours[n], width=max(0.012, widest * strength),
            dashed=palette.dashed and findings[n].relevance < 0, vertical=vertical,
        )  # fmt: skip
    for side, panel in enumerate(panels):
        members = [(f.a, f.b)[side] for f in findings]
        spots = (
            [way[-1] for way in ways[side]]
            if vertical
            else [panel.badge_position(m, right=side == 0) for m in members]
        )
        scene.draw_badges(axes, spots, colours, horizontal=isinstance(panel, TextPanel))
    axes.set(xlim=(0, SHEET_WIDTH_INCHES), ylim=(axes.get_figure().get_figheight(), 0))  # type: ignore[union-attr]


def _ribbon_paths(
    panel: Panel, members: Sequence[list[int]], *, right: bool, vertical: bool
) -> list[np.ndarray]:
    """From each finding's regions to its ribbon: under a line of words, each in a lane of its own."""
    if vertical and isinstance(panel, TextPanel):
        return [
            panel.phrase_center(numbers, below=right)[None]
            + [0.0, BADGE_RADIUS_INCHES if right else -BADGE_RADIUS_INCHES]
            for numbers in members
        ]
    taken: dict[float | None, int] = {}
    ways = []
    for numbers in members:
        line = panel.line_top(numbers, right=right)
        ways.append(panel.ribbon_path(numbers, right=right, lane=taken.get(line, 0)))
        taken[line] = taken.get(line, 0) + 1
    return ways


def draw_cards(
    axes: Axes,
    explanation: Explanation,
    panels: tuple[Panel, Panel],
    findings: Sequence[Finding],
    palette: Palette,
    *,
    top: float,
    card_height: float = CARD_HEIGHT_INCHES,
) -> None:
    """Each finding close up: its two places side by side, its number and its share."""
    each = (SHEET_WIDTH_INCHES - 2 * MARGIN_INCHES) / CARDS_PER_ROW
    for n, finding in enumerate(findings):
        x, y = MARGIN_INCHES + n % CARDS_PER_ROW * each, top + n // CARDS_PER_ROW * (card_height + 0.5)
        colour = palette.positive if finding.relevance > 0 else palette.negative
        share = "" if finding.share is None else f"{format_share(finding.share)} of the score"
        scene.draw_badge(axes, np.array([x + BADGE_RADIUS_INCHES, y + 0.1]), n + 1, colour)
        axes.text(
            x + 2.7 * BADGE_RADIUS_INCHES,
            y + 0.14,
            share,
            size=9,
            weight="bold",
            color=TEXT_COLOR,
            va="baseline",
        )
        wide, left = (each - 0.4) / 2, x
        sides = zip((explanation.a, explanation.b), panels, (finding.a, finding.b), strict=True)
        for (side, one, numbers), core in zip(sides, _strongest_pair(explanation, finding), strict=True):
            if left > x:
                axes.text(
                    left + 0.11,
                    y + 0.26 + card_height / 2,
                    "↔",
                    size=11,
                    color=colour,
                    ha="center",
                    va="center",
                )
                left += 0.22
            box = (left, y + 0.26, wide, card_height)
            if isinstance(one, ImagePanel):
                left += one.draw_close_up(axes, numbers, core, box, colour)
            else:
                left += _draw_quote(
                    axes,
                    describe_location(side.regions, side.view, numbers),
                    box,
                    max_lines=int(card_height / 0.17),
                )


def _strongest_pair(explanation: Explanation, finding: Finding) -> tuple[int, int]:
    """The pair of regions in a finding that has most of its relevance."""
    own = explanation.relevance[finding.a][:, finding.b].detach().cpu().double().numpy()
    row, column = np.unravel_index((own * np.sign(finding.relevance)).argmax(), own.shape)
    return finding.a[row], finding.b[column]


def _draw_quote(axes: Axes, quote: str, box: tuple[float, float, float, float], *, max_lines: int) -> float:
    """Words within a box, in its middle; how many inches of it they take."""
    lines = typesetting.wrap(quote, width=box[2], font_size=9)
    lines = lines if len(lines) <= max_lines else [*lines[: max_lines - 1], f"{lines[max_lines - 1]} …”"]
    start = box[1] + (box[3] - 0.17 * (len(lines) - 1)) / 2
    for n, line in enumerate(lines):
        axes.text(
            box[0],
            start + 0.17 * n,
            typesetting.replace_missing_glyphs(line),
            size=9,
            color=TEXT_COLOR,
            va="center",
        )
    return max(typesetting.measure_width(line, 9) for line in lines)
