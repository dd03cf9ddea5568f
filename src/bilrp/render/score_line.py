"""The score breakdown as one line of text, used by figures, pages and the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bilrp.findings.formatting import format_number, format_share
from bilrp.inputs import Image, Text

if TYPE_CHECKING:
    from bilrp.explanation import Explanation, ScoreBreakdown

MAX_ROUNDING_SHARE = 1e-4  # of a score


def format_score_line(explanation: Explanation) -> str:
    """Return "score = explained + special tokens + unattributed" with percentages.

    Where rules use a reference input, the line says how much of the unattributed part belongs to it.

    >>> import torch, bilrp
    >>> net = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.ones_(net.weight), torch.nn.init.ones_(net.bias)
    >>> format_score_line(bilrp.explain(net, torch.ones(1, 2), torch.ones(1, 2), similarity="dot"))
    'dot 18 = 8 explained by pairs of regions (44 %) + 10 unattributed (56 %)'
    """
    breakdown = explanation.breakdown
    # a distance also has terms of each side with itself
    by = "pairs of regions" if explanation.self_terms is None else "regions"
    score = f"{explanation.similarity} {format_number(breakdown.score)}"
    if breakdown.is_complete and not breakdown.special_tokens:
        return f"{score}, all of it explained by {by}"
    if breakdown.score == 0 and breakdown.unattributed == 0 and not breakdown.special_tokens:
        positive = breakdown.positive + breakdown.self_terms_a + breakdown.self_terms_b
        if not positive:
            return f"{score}, no region has relevance"
        return f"{score}, {format_number(positive)} for it and {format_number(-breakdown.negative)} against"
    on_pairs = breakdown.explained - breakdown.special_tokens
    share = _format_share_suffix(breakdown.compute_share(on_pairs))
    terms = [f"{format_number(on_pairs)} explained by {by}{share}"]
    if breakdown.special_tokens:
        terms.append(_format_term(breakdown, breakdown.special_tokens, "with special tokens"))
    if breakdown.is_centered:
        sign = "−" if breakdown.shared < 0 else "+"
        terms.append(f"{sign} {format_number(abs(breakdown.shared))} shared by any two")
    rest = breakdown.unattributed - breakdown.shared
    if abs(rest) > MAX_ROUNDING_SHARE * abs(breakdown.score):
        unattributed = _format_term(breakdown, rest, "unattributed")
        terms.append(unattributed + _format_reference_part(explanation))
    return f"{score} = {' '.join(terms)}"


def _format_term(breakdown: ScoreBreakdown, value: float, label: str) -> str:
    share = _format_share_suffix(breakdown.compute_share(value))
    return f"{'−' if value < 0 else '+'} {format_number(abs(value))} {label}{share}"


def _format_reference_part(explanation: Explanation) -> str:
    """Return how much of the unattributed part involves a reference input, or ""."""
    if explanation.reference_terms is None or explanation.breakdown.is_centered:
        return ""
    breakdown, part = explanation.breakdown, explanation.breakdown.references
    is_all = abs(breakdown.unattributed - part) <= MAX_ROUNDING_SHARE * abs(breakdown.score)
    kind = _name_reference_kind(explanation)
    return f", {'all' if is_all else format_number(part)} of it against the reference {kind}"


def _name_reference_kind(explanation: Explanation) -> str:
    """Return the name of the reference input in messages: picture, text or input."""
    kinds = {type(side.view) for side in (explanation.a, explanation.b) if side.reference is not None}
    return {(Image,): "picture", (Text,): "text"}.get(tuple(kinds), "input")


def _format_share_suffix(share: float | None) -> str:
    return "" if share is None else f" ({format_share(abs(share))})"
