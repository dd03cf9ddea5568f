"""The account of a score in words and numbers as people read them; picture, page, terminal and files share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bilrp.findings.formatting import amount, percent
from bilrp.inputs import Image, Text

ROUNDED = 1e-4  # of a score

if TYPE_CHECKING:
    from bilrp.explanation import Account, Explanation


def line(explanation: Explanation) -> str:
    """One line that adds up: score = explained + where a tokenizer's marks take part + unattributed.

    Of the unattributed it says what is against a reference picture or text.

    >>> import torch, bilrp
    >>> net = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.ones_(net.weight), torch.nn.init.ones_(net.bias)
    >>> line(bilrp.explain(net, torch.ones(1, 2), torch.ones(1, 2)))
    'dot 18 = 8 explained by pairs of regions (44 %) + 10 unattributed (56 %)'
    """
    found = explanation.account
    # of a distance, each side owes something to itself
    by = "pairs of regions" if explanation.within is None else "regions"
    score = f"{explanation.similarity} {amount(found.score)}"
    if found.closed and not found.marks:
        return f"{score}, all of it explained by {by}"
    if found.score == 0 and found.unattributed == 0 and not found.marks:
        for_it, against = found.positive + found.within_a + found.within_b, -found.negative
        return (
            f"{score}, {amount(for_it)} for it and {amount(against)} against"
            if for_it
            else f"{score}, and no region counts"
        )
    on_pairs = found.explained - found.marks
    terms = [f"{amount(on_pairs)} explained by {by}{_share(found.share(on_pairs))}"]
    if found.marks:
        terms.append(_term(found, found.marks, "with the tokenizer's marks"))
    if not found.closed:
        terms.append(_term(found, found.unattributed, "unattributed") + _references(explanation))
    return f"{score} = {' '.join(terms)}"


def _term(found: Account, value: float, what: str) -> str:
    return f"{'−' if value < 0 else '+'} {amount(abs(value))} {what}{_share(found.share(value))}"


def _references(explanation: Explanation) -> str:
    """How much of the unattributed is known to be against a reference input: either side's regions, or the references."""
    if explanation.against is None:
        return ""
    found = explanation.account
    known = found.against_a + found.against_b + found.references
    all_of_it = abs(found.unattributed - known) <= ROUNDED * abs(found.score)
    return f", {'all' if all_of_it else amount(known)} of it against the reference {against(explanation)}"


def against(explanation: Explanation) -> str:
    """What a reference is: a picture, a text or just an input."""
    kinds = {type(side.view) for side in (explanation.a, explanation.b) if side.reference is not None}
    return {(Image,): "picture", (Text,): "text"}.get(tuple(kinds), "input")


def _share(share: float | None) -> str:
    return "" if share is None else f" ({percent(abs(share))})"
