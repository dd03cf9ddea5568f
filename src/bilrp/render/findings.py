"""Findings for people: as a list that the page, the terminal and files share, and as outlines joined by ribbons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bilrp.findings.summary import label

if TYPE_CHECKING:
    from bilrp.explanation import Explanation


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
