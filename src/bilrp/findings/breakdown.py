"""The breakdown of a score into the terms that add up to it."""

from __future__ import annotations

from dataclasses import dataclass

from bilrp.findings.formatting import format_column

MAX_ROUNDING_SHARE = 1e-5  # of a score: anything smaller is rounding
# Below this part of its scale a score is near zero: its terms cancel, and shares of it would be hundreds of per cent. Half
# of all pairs of unrelated sentences have a cosine below 0.047 (`random_baseline`).
NEAR_ZERO_FRACTION = 0.05


@dataclass(frozen=True)
class ScoreBreakdown:
    """The terms of a score, in float64.

    score = positive + negative + special_tokens + self_terms_a + self_terms_b + unattributed

    `unattributed` is defined as the remainder, so the equation is exact.

    Args:
        score: The similarity.
        positive, negative: Sum of the positive, and of the negative relevance of pairs of regions.
        self_terms_a, self_terms_b: Pairs of regions of one input with each other; 0 except for distances.
        special_tokens: Pairs with a special token of the tokenizer ([CLS], </s>).
        reference_terms_a: Part of `unattributed`: regions of a with the reference input of b.
        reference_terms_b: The same with a and b exchanged.
        reference_score: Part of `unattributed`: the two reference inputs with each other.
        is_centered: The reference is the mean embedding of unrelated inputs (`composites.centered`). Then its terms are
            what any two inputs share, and shares are of what is specific to the two.
        scale: What a score of the same inputs can reach, e.g. ‖φ‖‖φ'‖ for the dot product; None: the sum of the absolute
            terms.

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
    is_centered: bool = False
    scale: float | None = None

    @property
    def explained(self) -> float:
        """The part of the score attributed to regions, special tokens included."""
        return self.positive + self.negative + self.special_tokens + self.self_terms_a + self.self_terms_b

    @property
    def unattributed(self) -> float:
        """The part of the score attributed to no pair: biases, constants, references, features in no region."""
        return self.score - self.explained

    @property
    def references(self) -> float:
        """The known terms of `unattributed`: everything that involves a reference input."""
        return self.reference_terms_a + self.reference_terms_b + self.reference_score

    @property
    def shared(self) -> float:
        """The part of the score that any two inputs share; 0 if that is unknown."""
        return self.references if self.is_centered else 0.0

    @property
    def specific(self) -> float:
        """The part of the score that is specific to the two inputs: all of it if nothing is known to be shared."""
        return self.score - self.shared

    @property
    def is_complete(self) -> bool:
        """Whether the unattributed part is only rounding; False for a score of 0."""
        return self.score != 0 and abs(self.unattributed) <= MAX_ROUNDING_SHARE * abs(self.score)

    @property
    def is_near_zero(self) -> bool:
        """Whether the specific score is less than a twentieth of its scale (a tenth, if all of it is): no shares then.

        >>> ScoreBreakdown(score=0.02, positive=0.3, negative=-0.28, scale=1.0).is_near_zero
        True
        """
        terms = (self.positive, self.negative, self.special_tokens, self.self_terms_a, self.self_terms_b)
        scale = sum(map(abs, (*terms, self.unattributed))) if self.scale is None else self.scale
        # A score near zero is a difference of larger terms, so its specific part needs twice the margin.
        least = NEAR_ZERO_FRACTION * (2 if abs(self.score) <= NEAR_ZERO_FRACTION * scale else 1)
        return abs(self.specific) <= least * scale

    def compute_share(self, value: float) -> float | None:
        """Return value / (score − what any two inputs share), or None if that is near zero."""
        return None if self.is_near_zero else value / self.specific

    def __str__(self) -> str:
        """Return all terms with the same number of decimals."""
        self_terms = self.self_terms_a + self.self_terms_b
        optional = {"special tokens": self.special_tokens, "each side with itself": self_terms}
        terms = {"for": self.positive, "against": self.negative, **{k: v for k, v in optional.items() if v}}
        terms |= {"shared by any pair": self.shared} if self.is_centered else {}
        terms["unattributed"] = self.unattributed - self.shared
        score, *values = format_column([self.score, *terms.values()])
        return f"score {score}: " + ", ".join(map(" ".join, zip(terms, values, strict=True)))
