"""The account of a score: what adds up to it."""

from __future__ import annotations

from dataclasses import dataclass

from bilrp.findings.formatting import format_column

MAX_ROUNDING_SHARE = 1e-5  # of a score: nothing a reader should wonder about


@dataclass(frozen=True)
class ScoreBreakdown:
    """What adds up to a score, in float64.

    score = positive + negative + special_tokens + self_terms_a + self_terms_b + unattributed

    `positive` and `negative` (≤ 0) are on pairs of regions; `special_tokens` is on pairs where a mark of a tokenizer's
    own takes part, [CLS] or </s>; `self_terms_a`, `self_terms_b` are what each side owes to itself (0 but for
    distances). What is missing is the definition of unattributed, so the account closes to the last digit. Where the
    rules compare with a reference input, part of that is known: what `reference_terms_a` and `reference_terms_b`, either
    side against the other's reference, and `reference_score`, the references with each other, contribute.

    >>> print(ScoreBreakdown(score=10.0, positive=12.0, negative=-3.0))
    score 10.00: for 12.00, against −3.00, unattributed 1.00
    """

    score: float
    positive: float
    negative: float
    self_terms_a: float = 0.0
    self_terms_b: float = 0.0
    special_tokens: float = 0.0
    reference_terms_a: float = 0.0
    reference_terms_b: float = 0.0
    reference_score: float = 0.0

    @property
    def explained(self) -> float:
        """The part of the score that regions account for, marks among them."""
        return self.positive + self.negative + self.special_tokens + self.self_terms_a + self.self_terms_b

    @property
    def unattributed(self) -> float:
        """The part of the score that no pair of regions accounts for: biases, constants, references, uncovered features."""
        return self.score - self.explained

    @property
    def is_complete(self) -> bool:
        """Do regions account for all of the score but rounding? Of a score of 0 there is nothing to account for."""
        return self.score != 0 and abs(self.unattributed) <= MAX_ROUNDING_SHARE * abs(self.score)

    def compute_share(self, value: float) -> float | None:
        """A value as a share of the score; None where the score is 0, for nothing has no shares."""
        return value / self.score if self.score else None

    def __str__(self) -> str:
        """The score and what adds up to it, to one precision; what rounds to nothing has no sign."""
        rare = {"marks": self.special_tokens, "each side with itself": self.self_terms_a + self.self_terms_b}
        terms = {"for": self.positive, "against": self.negative, **{k: v for k, v in rare.items() if v}}
        terms["unattributed"] = self.unattributed
        score, *told = format_column([self.score, *terms.values()])
        return f"score {score}: " + ", ".join(map(" ".join, zip(terms, told, strict=True)))
