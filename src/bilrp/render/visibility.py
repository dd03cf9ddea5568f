"""Select the regions to draw: special tokens ([CLS], </s>, a prompt) are in the breakdown, but drawn only on request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bilrp.findings.special_tokens import exclude_special_tokens, select_regions
from bilrp.inputs import Text

if TYPE_CHECKING:
    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation


def select_visible(explanation: Explanation, *, special_tokens: bool) -> Explanation:
    """Return the explanation restricted to the regions that are drawn.

    Its breakdown lacks the special tokens; figures show that of the full explanation.
    """
    sides = explanation.a, explanation.b
    rows, columns = (list_visible_regions(side, special_tokens=special_tokens) for side in sides)
    if (len(rows), len(columns)) == tuple(side.regions.count for side in sides):
        return explanation
    a, b = (_restrict_side(side, visible) for side, visible in zip(sides, (rows, columns), strict=True))
    self_terms = explanation.self_terms
    if self_terms is not None:
        self_terms = self_terms[0][rows][:, rows], self_terms[1][columns][:, columns]
    relevance = explanation.relevance[rows][:, columns]
    return replace(explanation, a=a, b=b, relevance=relevance, self_terms=self_terms)


def list_visible_regions(side: Decomposition, *, special_tokens: bool) -> list[int]:
    """Return the numbers of the regions of a side that are drawn."""
    if special_tokens:
        return list(range(side.regions.count))
    return exclude_special_tokens(side.regions, side.view)


def _restrict_side(side: Decomposition, selected: list[int]) -> Decomposition:
    if len(selected) == side.regions.count:
        return side
    assert isinstance(side.view, Text)
    view = Text(side.view.text, tuple(side.view.spans[region] for region in selected))
    return replace(
        side, parts=side.parts[selected], regions=select_regions(side.regions, selected), view=view
    )
