"""The account of a score in words and numbers as people read them; picture, page, terminal and files share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bilrp.findings.formatting import format_number, format_percent
from bilrp.inputs import Image, Text

MAX_ROUNDING_SHARE = 1e-4  # of a score

if TYPE_CHECKING:
    from bilrp.explanation import Explanation, ScoreBreakdown


def format_score_line(explanation: Explanation) -> str:
    """One line that adds up: score = explained + where a tokenizer's marks take part + unattributed.

    Of the unattributed it says what is against a reference picture or text.

    >>> import torch, bilrp
    >>> net = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.ones_(net.weight), torch.nn.init.ones_(net.bias)
    >>> format_score_line(bilrp.explain(net, torch.ones(1, 2), torch.ones(1, 2), similarity="dot"))
    'dot 18 = 8 explained by pairs of regions (44 %) + 10 unattributed (56 %)'
    """
    found = explanation.breakdown
    # of a distance, each side owes something to itself
    by = "pairs of regions" if explanation.self_terms is None else "regions"
    score = f"{explanation.similarity} {format_number(found.score)}"
    if found.is_complete and not found.special_tokens:
        return f"{score}, all of it explained by {by}"
    if found.score == 0 and found.unattributed == 0 and not found.special_tokens:
        for_it, against = found.positive + found.self_terms_a + found.self_terms_b, -found.negative
        return (
            f"{score}, {format_number(for_it)} for it and {format_number(against)} against"
            if for_it
            else f"{score}, and no region counts"
        )
    on_pairs = found.explained - found.special_tokens
    terms = [
        f"{format_number(on_pairs)} explained by {by}{_format_share_suffix(found.compute_share(on_pairs))}"
    ]
    if found.special_tokens:
        terms.append(_format_term(found, found.special_tokens, "with the tokenizer's marks"))
    if not found.is_complete:
        terms.append(
            _format_term(found, found.unattributed, "unattributed") + _format_reference_part(explanation)
        )
    return f"{score} = {' '.join(terms)}"


def _format_term(breakdown: ScoreBreakdown, value: float, what: str) -> str:
    share = _format_share_suffix(breakdown.compute_share(value))
    return f"{'−' if value < 0 else '+'} {format_number(abs(value))} {what}{share}"


def _format_reference_part(explanation: Explanation) -> str:
    """How much of the unattributed is known to be against a reference input: either side's regions, or the references."""
    if explanation.reference_terms is None:
        return ""
    found = explanation.breakdown
    known = found.reference_terms_a + found.reference_terms_b + found.reference_score
    all_of_it = abs(found.unattributed - known) <= MAX_ROUNDING_SHARE * abs(found.score)
    return f", {'all' if all_of_it else format_number(known)} of it against the reference {name_reference_kind(explanation)}"


def name_reference_kind(explanation: Explanation) -> str:
    """What a reference is: a picture, a text or just an input."""
    kinds = {type(side.view) for side in (explanation.a, explanation.b) if side.reference is not None}
    return {(Image,): "picture", (Text,): "text"}.get(tuple(kinds), "input")


def _format_share_suffix(share: float | None) -> str:
    return "" if share is None else f" ({format_percent(abs(share))})"
