"""Draw findings with matplotlib as outlines joined by ribbons, and serialize them for pages and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bilrp.findings.differences import Difference
from bilrp.findings.formatting import describe_location, format_share
from bilrp.findings.grouping import Finding
from bilrp.findings.summary import collect_summary, describe_differences, format_relevance, label_finding
from bilrp.inputs import Text
from bilrp.render import scene, score_line, typesetting
from bilrp.render.notebook_figure import make_figure
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
from bilrp.render.visibility import list_visible_regions, select_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bilrp.explanation import Explanation
    from bilrp.render.styles import Palette, Show

SHEET_WIDTH_INCHES, MARGIN_INCHES = 9.0, 0.3
MAX_PANEL_HEIGHT_INCHES = 3.9
CARDS_PER_ROW = 3
MAX_CARDS = 2 * CARDS_PER_ROW  # what has no card is not drawn either
BOLD_WIDTH_FRACTION = 0.86  # of a line: bold letters are wider than those measured
ACCOUNT_WIDTH_INCHES = 3.2
SPECIAL_TOKENS_COLOR, UNATTRIBUTED_COLOR = "#5c5853", "#aaa49b"
CARD_HEIGHT_INCHES = 1.0
FULL_WIDTH_SHARE = 0.03  # of the score: a finding with less never has a ribbon of full width
MAX_NAMED_DIFFERENCES = 3
DIFFERS_LEAD = "Differs most:"
CHANGED_LEAD = "Nothing is without a match; changed most:"
MIN_DIFFERENCE_FRACTION = 0.1  # of the largest difference; smaller ones are left out
MIN_DRAWN_FRACTION = 0.05  # of the strongest finding; weaker ones are not drawn


def serialize_findings(explanation: Explanation, k: int = 12) -> list[dict[str, Any]]:
    """Return findings as JSON-ready dicts: regions of both sides, relevance, share of the score, label, reliability."""
    return [
        {
            "a": finding.a,
            "b": finding.b,
            "relevance": finding.relevance,
            "share": finding.share,
            "label": label_finding(explanation, finding),
            "reliability": finding.reliability,
            "unreliable": finding.is_unreliable,
        }
        for finding in explanation.findings(k)
    ]


def serialize_differences(
    explanation: Explanation, k: int = 6, *, special_tokens: bool = False
) -> dict[str, Any]:
    """Return what differs as a JSON-ready dict: the squared distance, the largest differences, and a phrase about them.

    Without a distance (embeddings of two sizes) the list is empty.

    Args:
        explanation, k, special_tokens: As for `list_differences`.
    """
    if explanation.a.embedding.shape != explanation.b.embedding.shape:
        return {"squared_distance": None, "differences": [], "differs_most": "", "differs_lead": ""}
    breakdown = explanation.distance
    sides = {"a": explanation.a, "b": explanation.b}
    shown = list_differences(explanation, k, special_tokens=special_tokens)
    return {
        "squared_distance": {
            "value": breakdown.squared_distance,
            "unattributed": breakdown.unattributed,
            "normalized": breakdown.is_normalized,
        },
        "differences": [
            {
                "side": difference.side,
                "regions": difference.regions,
                "contribution": difference.contribution,
                "share": breakdown.compute_share(difference.contribution),
                "matched": difference.is_matched,
                "label": describe_location(
                    sides[difference.side].regions, sides[difference.side].view, difference.regions
                ),
            }
            for difference in shown
        ],
        "differs_most": describe_differences(explanation, breakdown, shown[:MAX_NAMED_DIFFERENCES]),
        "differs_lead": CHANGED_LEAD if shown and shown[0].is_matched else DIFFERS_LEAD,
    }


def list_differences(
    explanation: Explanation, k: int = MAX_CARDS, *, special_tokens: bool = False
) -> list[Difference]:
    """Return at most k differences to show, largest first: those that set the two apart, without much smaller ones.

    Args:
        explanation: What to show.
        k: Maximum number of differences.
        special_tokens: Include special tokens of texts.
    """
    if explanation.a.embedding.shape != explanation.b.embedding.shape or explanation.distance.is_zero:
        return []
    visible = {
        name: {*list_visible_regions(side, special_tokens=special_tokens)}
        for name, side in (("a", explanation.a), ("b", explanation.b))
    }
    every = explanation.differences(explanation.a.regions.count + explanation.b.regions.count)
    shown = [d for d in every if d.contribution > 0 and visible[d.side] >= {*d.regions}]
    if shown and not shown[0].is_matched:  # matched regions are not differences if others have no match
        shown = [d for d in shown if not d.is_matched]
    return [d for d in shown[:k] if d.contribution >= MIN_DIFFERENCE_FRACTION * shown[0].contribution]


def draw_findings(
    full_explanation: Explanation, palette: Palette, *, title: str, names: tuple[str, str] | None, k: int = MAX_CARDS,
    special_tokens: bool = False, show: Show = "matches",
) -> Figure | None:  # fmt: skip
    """Draw the summary, both inputs with their findings or differences, and a card for each.

    Args:
        full_explanation: What to draw, special tokens included.
        palette: Colours of positive and negative findings.
        title: Heading of the figure.
        names: Names of the two inputs.
        k: Maximum number of findings.
        special_tokens: Draw special tokens of texts.
        show: "matches" or "differences".

    Returns:
        The figure, or None if regions are neither words nor areas of an image.
    """
    explanation = select_visible(full_explanation, special_tokens=special_tokens)
    texts = _heading_texts(full_explanation, show, special_tokens=special_tokens)
    line_width = SHEET_WIDTH_INCHES - 2 * MARGIN_INCHES
    verdict = typesetting.wrap(texts[0], width=BOLD_WIDTH_FRACTION * line_width, font_size=9.5)
    lines = typesetting.wrap(texts[1], width=line_width, font_size=9) if texts[1] else []
    top = 0.62 + 0.165 * (len(verdict) + len(lines)) + (0.3 if names else 0.12)
    panels = place_side_by_side(explanation, top)
    if panels is None:
        return None
    left, right = panels = place_stacked(explanation, top) or panels
    stacked = isinstance(left, TextPanel) and right.top > left.top
    has_text = any(isinstance(panel, TextPanel) for panel in panels)
    cards = _list_cards(full_explanation, explanation, k, show, special_tokens=special_tokens)
    cards_top = max(panel.top + panel.height for panel in panels) + (0.4 if has_text else 0.25)
    card = CARD_HEIGHT_INCHES if any(isinstance(panel, ImagePanel) for panel in panels) else 0.36
    height = (
        cards_top + -(-len(cards) // CARDS_PER_ROW) * (card + 0.5) + (0.75 if show == "matches" else 0.45)
    )
    axes = make_sheet(height)
    draw_heading(axes, title, verdict, lines)
    _draw_legend(axes, cards, explanation, palette)
    for panel, name in zip(panels, names or ("", ""), strict=True):
        if not isinstance(panel, TextPanel):  # the name of a text is the text itself
            name = typesetting.shorten(name)
            _draw_line(axes, panel.left, panel.top - 0.08, name, size=8.5, color=MUTED_COLOR)
        panel.draw(axes)
    if show == "matches":
        findings = [c for c in cards if isinstance(c, Finding)]
        draw_matches(axes, panels, findings, palette, vertical=stacked)
    else:
        differences = [c for c in cards if isinstance(c, Difference)]
        draw_differences(axes, panels, differences, palette)
    draw_cards(axes, explanation, panels, cards, palette, top=cards_top, card_height=card)
    if show == "matches":
        draw_breakdown(axes, full_explanation, palette, bottom=height - 0.36)
    line = score_line.format_score_line(full_explanation)
    _draw_line(axes, MARGIN_INCHES, height - 0.16, line, size=8.5, color=MUTED_COLOR)
    figure = axes.get_figure()
    assert figure is not None
    return figure  # type: ignore[return-value]


def _heading_texts(explanation: Explanation, show: Show, *, special_tokens: bool) -> tuple[str, str]:
    """Return the verdict, and the other sentences above a figure."""
    parts = collect_summary(explanation, explanation.findings())
    if show == "matches":
        return parts.verdict, str(parts)[len(parts.verdict) :].strip()
    differences = serialize_differences(explanation, special_tokens=special_tokens)
    most = differences["differs_most"]
    has_words = any(isinstance(side.view, Text) for side in (explanation.a, explanation.b))
    shown = list_differences(explanation, special_tokens=special_tokens)
    # the differences of images are drawn
    return parts.verdict, f"{differences['differs_lead']} {most}." if most and (
        has_words or not shown
    ) else ""


def _list_cards(
    full: Explanation, visible: Explanation, k: int, show: Show, *, special_tokens: bool
) -> list[Finding | Difference]:
    """Return the findings or differences to draw, with the region numbers of the visible explanation."""
    if show == "matches":
        findings = visible.findings(k)
        return [f for f in findings if abs(f.relevance) >= MIN_DRAWN_FRACTION * abs(findings[0].relevance)]
    numbers = {
        name: {n: i for i, n in enumerate(list_visible_regions(side, special_tokens=special_tokens))}
        for name, side in (("a", full.a), ("b", full.b))
    }
    return [
        replace(d, regions=[numbers[d.side][n] for n in d.regions])
        for d in list_differences(full, k, special_tokens=special_tokens)
    ]


def place_side_by_side(explanation: Explanation, top: float) -> tuple[Panel, Panel] | None:
    """Place both inputs side by side; None if an input is neither an image nor a text."""
    width = (SHEET_WIDTH_INCHES - 2 * MARGIN_INCHES - PANEL_GAP_INCHES) / 2
    left, right = (
        scene.make_panel(side, left=x, top=top, width=width, height=MAX_PANEL_HEIGHT_INCHES)
        for side, x in (
            (explanation.a, MARGIN_INCHES),
            (explanation.b, MARGIN_INCHES + width + PANEL_GAP_INCHES),
        )
    )
    return None if left is None or right is None else (left, right)


def place_stacked(explanation: Explanation, top: float) -> tuple[Panel, Panel] | None:
    """Place two texts one above the other; None if either does not fit into one line."""
    panels = []
    width = SHEET_WIDTH_INCHES - 2 * MARGIN_INCHES
    for side in (explanation.a, explanation.b):
        panel = scene.make_panel(side, left=MARGIN_INCHES, top=top, width=width, height=1.0, max_lines=1)
        if not isinstance(panel, TextPanel) or panel.line_count > 1:
            return None
        panels.append(panel)
        top += panel.height + PANEL_GAP_INCHES
    return panels[0], panels[1]


def make_sheet(height: float) -> Axes:
    """Create a white figure with one axes over all of it, in inches from the upper left."""
    axes = make_figure((SHEET_WIDTH_INCHES, height)).add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    return axes


def draw_heading(axes: Axes, title: str, verdict: Sequence[str], lines: Sequence[str]) -> None:
    """Draw the title, the verdict and the lines of the summary.

    Args:
        axes: The sheet.
        title: Title of the figure.
        verdict, lines: Lines of the verdict, in bold, and of the other sentences.
    """
    _draw_line(axes, MARGIN_INCHES, 0.38, title, size=13, weight="bold")
    for n, line in enumerate(verdict):
        _draw_line(axes, MARGIN_INCHES, 0.66 + 0.165 * n, line, size=9.5, weight="bold")
    for n, line in enumerate(lines, len(verdict)):
        _draw_line(axes, MARGIN_INCHES, 0.66 + 0.165 * n, line, size=9)


def _draw_legend(
    axes: Axes, cards: Sequence[Finding | Difference], explanation: Explanation, palette: Palette
) -> None:
    """Draw the legend of the colours that are drawn."""
    from matplotlib.lines import Line2D

    if any(isinstance(card, Difference) for card in cards):
        handles = [Line2D([], [], color=palette.negative, label="sets the two apart", lw=4, alpha=0.55)]
    else:
        signs = {1 if card.relevance > 0 else -1 for card in cards if isinstance(card, Finding)}
        handles = scene.legend_handles(
            palette, explanation.is_distance, dashes=(2.2, 0.7), signs=tuple(signs), lw=4, alpha=0.55
        )
    figure = axes.get_figure()
    assert figure is not None
    figure.legend(  # type: ignore[union-attr]
        handles=handles,
        loc="center right",
        bbox_to_anchor=(1 - 0.15 / SHEET_WIDTH_INCHES, 1 - 0.33 / figure.get_figheight()),  # type: ignore[union-attr]
        ncols=2,
        frameon=False,
        fontsize=8.5,
    )


def draw_breakdown(axes: Axes, explanation: Explanation, palette: Palette, *, bottom: float) -> None:
    """Draw what adds up to the score as one bar: terms that raise it from the left, terms that lower it back to it.

    Args:
        axes: The sheet.
        explanation: The explanation, special tokens included.
        palette: Colours of positive and negative relevance.
        bottom: Lower edge of the bar in inches.
    """
    from matplotlib.patches import Rectangle

    terms = explanation.breakdown
    values = (
        (terms.positive + terms.self_terms_a + terms.self_terms_b, palette.positive),
        (terms.negative, palette.negative),
        (terms.special_tokens, SPECIAL_TOKENS_COLOR),
        (terms.unattributed, UNATTRIBUTED_COLOR),
    )
    segments, at = [], 0.0
    for sign in (1, -1):
        for value, color in values:
            if sign * value > 0:
                segments.append((at, at + value, color))
                at += value
    ends = [0.0, terms.score, *(end for start, stop, _ in segments for end in (start, stop))]
    low, span = min(ends), (max(ends) - min(ends)) or 1.0
    unit = ACCOUNT_WIDTH_INCHES / span
    for start, stop, color in segments:
        y, height = (bottom - 0.15, 0.1) if stop > start else (bottom - 0.04, 0.04)
        x = MARGIN_INCHES + (min(start, stop) - low) * unit
        axes.add_patch(Rectangle((x, y), abs(stop - start) * unit, height, color=color, lw=0))
    x = MARGIN_INCHES + (terms.score - low) * unit
    axes.add_patch(Rectangle((x - 0.01, bottom - 0.18), 0.02, 0.18, color=TEXT_COLOR, lw=0))


def draw_matches(
    axes: Axes,
    panels: tuple[Panel, Panel],
    findings: Sequence[Finding],
    palette: Palette,
    *,
    vertical: bool = False,
) -> None:
    """Draw outlines on both sides and a ribbon for each finding, the strongest on top.

    Args:
        axes, panels: Where to draw, and the two inputs.
        findings: Findings, strongest first.
        palette: Colours of positive and negative findings.
        vertical: Whether b is below a.
    """
    strongest = max(findings, key=lambda f: abs(f.relevance), default=None)
    full_width = 1.0 if strongest is None else abs(strongest.relevance)
    if strongest is not None and strongest.share:
        full_width = max(full_width, full_width * FULL_WIDTH_SHARE / abs(strongest.share))
    colors = [palette.positive if f.relevance > 0 else palette.negative for f in findings]
    paths = [
        _ribbon_paths(panels[0], [f.a for f in findings], right=True, vertical=vertical),
        _ribbon_paths(panels[1], [f.b for f in findings], right=False, vertical=vertical),
    ]
    lanes = any(isinstance(panel, TextPanel) for panel in panels) and not vertical
    widest = LANE_SPACING_INCHES if lanes else MAX_RIBBON_WIDTH_INCHES
    for n in reversed(range(len(findings))):
        strength = abs(findings[n].relevance) / full_width
        panels[0].draw_outline(axes, findings[n].a, colors[n], strength)
        panels[1].draw_outline(axes, findings[n].b, colors[n], strength)
        scene.draw_ribbon(
            axes, paths[0][n], paths[1][n], color=colors[n], width=max(0.012, widest * strength),
            dashed=palette.dashed and findings[n].relevance < 0, vertical=vertical,
        )  # fmt: skip
    for side, panel in enumerate(panels):
        if vertical:
            positions = [path[-1] for path in paths[side]]
        else:
            positions = [panel.badge_position((f.a, f.b)[side], right=side == 0) for f in findings]
        scene.draw_badges(axes, positions, colors, horizontal=isinstance(panel, TextPanel))
    axes.set(xlim=(0, SHEET_WIDTH_INCHES), ylim=(axes.get_figure().get_figheight(), 0))  # type: ignore[union-attr]


def draw_differences(
    axes: Axes, panels: tuple[Panel, Panel], differences: Sequence[Difference], palette: Palette
) -> None:
    """Outline and number the differences on their inputs.

    Args:
        axes, panels: Where to draw, and the two inputs.
        differences: Differences, largest first.
        palette: They have the colour of what makes two inputs less similar.
    """
    largest = max((d.contribution for d in differences), default=1.0)
    for side, panel in zip(("a", "b"), panels, strict=True):
        here = [(n, d) for n, d in enumerate(differences, 1) if d.side == side]
        for _, difference in reversed(here):
            panel.draw_outline(axes, difference.regions, palette.negative, difference.contribution / largest)
        positions = [panel.badge_position(d.regions, right=side == "a") for _, d in here]
        scene.draw_badges(
            axes, positions, [palette.negative] * len(here), horizontal=isinstance(panel, TextPanel),
            numbers=[n for n, _ in here],
        )  # fmt: skip
    axes.set(xlim=(0, SHEET_WIDTH_INCHES), ylim=(axes.get_figure().get_figheight(), 0))  # type: ignore[union-attr]


def _ribbon_paths(
    panel: Panel, members: Sequence[list[int]], *, right: bool, vertical: bool
) -> list[np.ndarray]:
    """Return the path from each finding's regions to its ribbon; under a line of words each has its own lane."""
    if vertical and isinstance(panel, TextPanel):
        return [
            panel.phrase_center(numbers, below=right)[None]
            + [0.0, BADGE_RADIUS_INCHES if right else -BADGE_RADIUS_INCHES]
            for numbers in members
        ]
    used_lanes: dict[float | None, int] = {}
    paths = []
    for numbers in members:
        line = panel.line_top(numbers, right=right)
        paths.append(panel.ribbon_path(numbers, right=right, lane=used_lanes.get(line, 0)))
        used_lanes[line] = used_lanes.get(line, 0) + 1
    return paths


def draw_cards(
    axes: Axes,
    explanation: Explanation,
    panels: tuple[Panel, Panel],
    cards: Sequence[Finding | Difference],
    palette: Palette,
    *,
    top: float,
    card_height: float = CARD_HEIGHT_INCHES,
) -> None:
    """Draw a card for each finding or difference: its number, its share, and its regions.

    Args:
        axes, panels: Where to draw, and the two inputs.
        explanation: The explanation of the findings.
        cards: The findings or differences.
        palette: Colours of positive and negative findings.
        top: Top edge of the first row in inches.
        card_height: In inches.
    """
    column = (SHEET_WIDTH_INCHES - 2 * MARGIN_INCHES) / CARDS_PER_ROW
    for n, one in enumerate(cards):
        x, y = MARGIN_INCHES + n % CARDS_PER_ROW * column, top + n // CARDS_PER_ROW * (card_height + 0.5)
        label, color, sides = _describe_card(explanation, one, palette)
        scene.draw_badge(axes, np.array([x + BADGE_RADIUS_INCHES, y + 0.1]), n + 1, color)
        _draw_line(axes, x + 2.7 * BADGE_RADIUS_INCHES, y + 0.14, label, size=9, weight="bold")
        left = x
        for number, numbers, core in sides:
            side, panel = (explanation.a, explanation.b)[number], panels[number]
            if left > x:
                middle = y + 0.26 + card_height / 2
                axes.text(left + 0.11, middle, "↔", size=11, color=color, ha="center", va="center")
                left += 0.22
            box = (left, y + 0.26, (column - 0.4) / 2, card_height)
            if isinstance(panel, ImagePanel):
                left += panel.draw_close_up(axes, numbers, core, box, color)
            else:
                quote = describe_location(side.regions, side.view, numbers)
                left += _draw_quote(axes, quote, box, max_lines=int(card_height / 0.17))


def _describe_card(
    explanation: Explanation, one: Finding | Difference, palette: Palette
) -> tuple[str, str, list[tuple[int, list[int], int]]]:
    """Return the text of a card, its colour, and for each side it shows: its number, its regions, the strongest region."""
    if isinstance(one, Difference):
        share = explanation.distance.compute_share(one.contribution)
        label = f"{format_share(share or 0.0)} of what differs, in {one.side.upper()}"
        return label, palette.negative, [("ab".index(one.side), one.regions, one.regions[0])]
    whole = "what is specific" if explanation.is_centered else "the score"
    label = format_relevance(one) + ("" if one.share is None else f" of {whole}")
    cores = _strongest_pair(explanation, one)
    color = palette.positive if one.relevance > 0 else palette.negative
    return label, color, [(0, one.a, cores[0]), (1, one.b, cores[1])]


def _strongest_pair(explanation: Explanation, finding: Finding) -> tuple[int, int]:
    """Return the pair of regions in a finding with the most relevance of its sign."""
    relevance = explanation.relevance[finding.a][:, finding.b].detach().cpu().double().numpy()
    row, column = np.unravel_index((relevance * np.sign(finding.relevance)).argmax(), relevance.shape)
    return finding.a[row], finding.b[column]


def _draw_quote(axes: Axes, quote: str, box: tuple[float, float, float, float], *, max_lines: int) -> float:
    """Draw a quote, vertically centred in a box (left, top, width, height); return its width in inches."""
    lines = typesetting.wrap(quote, width=box[2], font_size=9)
    lines = lines if len(lines) <= max_lines else [*lines[: max_lines - 1], f"{lines[max_lines - 1]} …”"]
    start = box[1] + (box[3] - 0.17 * (len(lines) - 1)) / 2
    for n, line in enumerate(lines):
        _draw_line(axes, box[0], start + 0.17 * n, line, size=9, va="center")
    return max(typesetting.measure_width(line, 9) for line in lines)


def _draw_line(
    axes: Axes, x: float, y: float, line: str, *, size: float, color: str = TEXT_COLOR,
    weight: str = "normal", va: Literal["baseline", "center"] = "baseline",
) -> None:  # fmt: skip
    text = typesetting.replace_missing_glyphs(line)
    axes.text(x, y, text, size=size, color=color, weight=weight, va=va)
