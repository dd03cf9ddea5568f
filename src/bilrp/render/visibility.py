"""The tokenizer's own marks ([CLS], </s>, a prompt): in the account always, in pictures where they are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bilrp.findings.special_tokens import exclude_special_tokens, select_regions
from bilrp.inputs import Text

if TYPE_CHECKING:
    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation


def select_visible(explanation: Explanation, *, special_tokens: bool) -> Explanation:
    """What a picture, a page or a list shows: all regions with `special_tokens`, else none of those.

    Its account is not the score's: that of the whole explanation is shown beside it.

    >>> select_visible(found, special_tokens=False).a.view.region_texts  # doctest: +SKIP
    ('A', 'cat', 'sat')
    """
    sides = explanation.a, explanation.b
    rows, columns = (list_visible_regions(side, special_tokens=special_tokens) for side in sides)
    if (len(rows), len(columns)) == tuple(side.regions.count for side in sides):
        return explanation
    a, b = (_restrict_side(side, kept) for side, kept in zip(sides, (rows, columns), strict=True))
    within = explanation.self_terms
    if within is not None:
        within = within[0][rows][:, rows], within[1][columns][:, columns]
    return replace(
        explanation, a=a, b=b, relevance=explanation.relevance[rows][:, columns], self_terms=within
    )


def list_visible_regions(side: Decomposition, *, special_tokens: bool) -> list[int]:
    """The regions of a side that are shown."""
    return (
        list(range(side.regions.count)) if special_tokens else exclude_special_tokens(side.regions, side.view)
    )


def _restrict_side(side: Decomposition, selected: list[int]) -> Decomposition:
    if len(selected) == side.regions.count:
        return side
    assert isinstance(side.view, Text)
    view = Text(side.view.text, tuple(side.view.spans[region] for region in selected))
    return replace(
        side, parts=side.parts[selected], regions=select_regions(side.regions, selected), view=view
    )
