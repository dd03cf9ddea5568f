"""The tokenizer's own marks ([CLS], </s>, a prompt): in the account always, in pictures where they are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bilrp.findings.special_tokens import only, unmarked
from bilrp.inputs import Text

if TYPE_CHECKING:
    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation


def shown(explanation: Explanation, *, marks: bool) -> Explanation:
    """What a picture, a page or a list shows: all regions with `marks`, else those that are no mark of a tokenizer's own.

    Its account is not the score's: that of the whole explanation is shown beside it.

    >>> shown(found, marks=False).a.view.words  # doctest: +SKIP
    ('A', 'cat', 'sat')
    """
    sides = explanation.a, explanation.b
    rows, columns = (numbers(side, marks=marks) for side in sides)
    if (len(rows), len(columns)) == tuple(side.regions.count for side in sides):
        return explanation
    a, b = (_only(side, kept) for side, kept in zip(sides, (rows, columns), strict=True))
    within = explanation.within
    if within is not None:
        within = within[0][rows][:, rows], within[1][columns][:, columns]
    return replace(explanation, a=a, b=b, relevance=explanation.relevance[rows][:, columns], within=within)


def numbers(side: Decomposition, *, marks: bool) -> list[int]:
    """The regions of a side that are shown."""
    return list(range(side.regions.count)) if marks else unmarked(side.regions, side.view)


def _only(side: Decomposition, kept: list[int]) -> Decomposition:
    if len(kept) == side.regions.count:
        return side
    assert isinstance(side.view, Text)
    view = Text(side.view.text, tuple(side.view.spans[region] for region in kept))
    return replace(side, parts=side.parts[kept], regions=only(side.regions, kept), view=view)
