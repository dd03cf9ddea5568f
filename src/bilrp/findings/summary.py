"""Summarize an explanation in a few sentences: a verdict, what carries it, what adds up to the score, warnings.

Every number is computed from the explanation, and every share is formatted by `format_share`, as in tables, files and pages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from bilrp.findings import random_baseline
from bilrp.findings.breakdown import NEAR_ZERO_FRACTION, ScoreBreakdown
from bilrp.findings.differences import Difference, DistanceBreakdown
from bilrp.findings.formatting import (
    describe_location,
    format_number,
    format_percent,
    format_share,
    format_signed,
)
from bilrp.findings.grouping import Finding
from bilrp.findings.number_matches import are_numbers, describe_number_finding, match_blocks, match_numbers
from bilrp.findings.pooled_photograph_means import POOLED_PHOTOGRAPH_MEANS
from bilrp.findings.reference_likeness import is_like_photographs
from bilrp.findings.region_layout import to_label_image
from bilrp.inputs import Image, Text, View
from bilrp.regions import Regions

MAX_NAMED_FINDINGS = 3
MIN_MENTIONED_SHARE = 0.005  # of the score, or of its scale near zero; smaller terms are left out
NEARLY_SAME_FRACTION = 0.75  # of the way from the most similar random pair to 1
MIN_NEARLY_SAME_COSINE = 0.85
NEGATIONS = frozenset(
    ("not", "no", "never", "none", "nobody", "nothing", "neither", "nor", "without", "cannot", "n't")
)
MIN_SAME_COSINE = 0.99  # from here on the two are practically the same to the model
# Beyond these limits the summary contains a warning.
MIN_NAMED_SHARE = 0.05  # of the score, in the named findings together
MAX_BORDER_DENSITY_RATIO = 1.5  # share of the relevance on the outermost regions, relative to their area
MAX_BORDER_AREA_FRACTION = 0.5  # outermost regions that cover more are not called a border
MAX_PADDING_SHARE = 0.05  # of the relevance
MAX_CROPPED_FRACTION = 0.2  # of the image
DOMINANT_SHARE = 0.5  # of the relevance, in one region
COSINE_SIMILARITIES = ("cosine", "dot", "squared_distance")  # what a cosine says about the score
# What a high cosine of inputs unlike the random pairs says: two faces exceed any two photographs, whoever they show.
ALIKE_IN_KIND = "Alike in kind at least"
HIGH_VERDICTS = ("Very similar", "Similar")
UNRELIABLE = "unreliable input"
FEW_REGIONS = 4  # with at most this many regions, one may dominate without a warning
MAX_UNATTRIBUTED_SHARE = 0.5  # of the score
# Default composites of networks for images (ViT, CoAtNet, ConvNeXt) without measured trained weights: docs/rules.md.
UNMEASURED_COMPOSITES = ("transformer(0)", "conv_attention(0.25)", "uniform(0.25)")


@runtime_checkable
class DecompositionLike(Protocol):
    """The attributes of a decomposition that a summary uses."""

    @property
    def embedding(self) -> Tensor: ...
    @property
    def regions(self) -> Regions: ...
    @property
    def origin(self) -> Mapping[str, object]: ...
    @property
    def view(self) -> View | None: ...


@runtime_checkable
class ExplanationLike(Protocol):
    """The attributes of an explanation that a summary uses."""

    @property
    def a(self) -> DecompositionLike: ...
    @property
    def b(self) -> DecompositionLike: ...
    @property
    def score(self) -> float: ...
    @property
    def relevance(self) -> Tensor: ...
    @property
    def unattributed(self) -> float: ...
    @property
    def breakdown(self) -> ScoreBreakdown: ...
    @property
    def similarity(self) -> str: ...
    @property
    def is_distance(self) -> bool: ...
    @property
    def self_terms(self) -> tuple[Tensor, Tensor] | None: ...
    @property
    def reference_terms(self) -> tuple[Tensor, Tensor] | None: ...
    @property
    def reference_score(self) -> float: ...
    @property
    def unweighted_score(self) -> float | None: ...


class BreakdownClause(NamedTuple):
    """A term of the score in words; `kind` is positive, negative, special_tokens, unattributed or none."""

    kind: str
    text: str


class Summary(NamedTuple):
    """The sentences of a summary.

    Args:
        verdict: How similar the two are.
        lead: The beginning of the sentence about matches.
        named: The findings it names, from 0, strongest first.
        matches: That sentence.
        breakdown_lead: The beginning of the sentence about what adds up to the score.
        breakdown: Its clauses.
        warnings: Warnings, one sentence each.
        is_warning_first: Whether the first warning belongs before the matches.
    """

    verdict: str
    lead: str
    named: tuple[int, ...]
    matches: str
    breakdown_lead: str
    breakdown: tuple[BreakdownClause, ...]
    warnings: tuple[str, ...]
    is_warning_first: bool

    def __str__(self) -> str:
        """Return all sentences, in the order in which people read them."""
        first = 1 if self.is_warning_first else 0
        sentence = f"{self.breakdown_lead}{', '.join(clause.text for clause in self.breakdown)}."
        return " ".join(
            [self.verdict, *self.warnings[:first], self.matches, sentence, *self.warnings[first:]]
        )


def summarize(
    explanation: ExplanationLike, findings: Sequence[Finding], *, random_scores: Sequence[float] | None = None
) -> str:
    """Return the verdict, what carries it, what adds up to the score, and warnings, one sentence each.

    Args:
        explanation, findings: What to summarize, and its findings, strongest first.
        random_scores: Cosines of random pairs to compare the score with.
    """
    return str(collect_summary(explanation, findings, random_scores=random_scores))


def collect_summary(
    explanation: ExplanationLike, findings: Sequence[Finding], *, random_scores: Sequence[float] | None = None
) -> Summary:
    """Return the sentences of `summarize`, for pages that show matches as crops and the score breakdown as a bar.

    Args:
        explanation, findings, random_scores: As for `summarize`.
    """
    verdict = describe_verdict(explanation, random_scores=random_scores)
    warnings = [f"{warning[0].upper()}{warning[1:]}." for warning in list_warnings(explanation, findings)]
    is_weak = verdict.startswith(random_baseline.NOT_SIMILAR)
    lead = "Most alike:" if explanation.is_distance else "Strongest:" if is_weak else "Carried by"
    common = ""
    if are_numbers(explanation.a.regions, explanation.b.regions):
        common = _count_common_numbers(explanation)
        lead = f"{common} Strongest:"
    sign = -1 if explanation.is_distance else 1  # a distance is lowered by what is alike
    named = [n for n, f in enumerate(findings) if sign * f.relevance > 0][:MAX_NAMED_FINDINGS]
    breakdown_lead, clauses = _describe_breakdown(explanation)
    return Summary(
        verdict=verdict,
        lead=lead,
        named=tuple(named),
        matches=_describe_matches(explanation, findings, named, lead) if named or not common else common,
        breakdown_lead=breakdown_lead,
        breakdown=tuple(clauses),
        warnings=tuple(warnings),
        is_warning_first=is_mostly_unattributed(explanation),  # that warning is the first
    )


def describe_differences(
    explanation: ExplanationLike, distance: DistanceBreakdown, differences: Sequence[Difference]
) -> str:
    """Return what sets the two apart: words, or positions in images, with their share of the squared distance.

    Args:
        explanation, differences: What to describe, and its differences, largest first.
        distance: The squared distance that shares refer to.
    """
    if distance.is_zero:
        return "nothing: the two embeddings are equal"
    phrases = []
    for difference in differences:
        side = explanation.a if difference.side == "a" else explanation.b
        share = distance.compute_share(difference.contribution)
        if share is None or share < MIN_MENTIONED_SHARE:
            continue
        place = _describe_regions(side, difference.regions)
        phrases.append(f"{place} of {difference.side.upper()} ({format_share(share)})")
    return _join_phrases(phrases) if phrases else "nothing stands out"


def label_finding(explanation: ExplanationLike, finding: Finding) -> str:
    """Return where a finding is in a and in b: words, or positions in images; the numbers of tables once for both."""
    mark = f" ({UNRELIABLE})" if finding.is_unreliable else ""
    if are_numbers(explanation.a.regions, explanation.b.regions):
        return f"{describe_number_finding(explanation.a.regions, explanation.b.regions, finding)}{mark}"
    sides = ((explanation.a, finding.a), (explanation.b, finding.b))
    return " ↔ ".join(_describe_regions(side, numbers) for side, numbers in sides) + mark


def is_mostly_unattributed(explanation: ExplanationLike) -> bool:
    """Return whether more than half of the score is unattributed; a score near zero has no shares."""
    terms = explanation.breakdown
    share = terms.compute_share(terms.unattributed - terms.shared)
    return share is not None and abs(share) > MAX_UNATTRIBUTED_SHARE


def list_warnings(explanation: ExplanationLike, findings: Sequence[Finding]) -> list[str]:
    """Return warnings about the explanation, the one about unattributed relevance first."""
    warnings = []
    named_share = sum(abs(f.share or 0.0) for f in findings[:MAX_NAMED_FINDINGS])
    if is_mostly_unattributed(explanation):
        warnings.append("warning: more than half of the score is unattributed")
    elif are_numbers(explanation.a.regions, explanation.b.regions):
        warnings.append("the rest of the score is pairs of digits inside numbers that differ")
    elif not explanation.breakdown.is_near_zero and named_share < MIN_NAMED_SHARE:
        warnings.append("nothing stands out: the similarity is spread over many small matches")
    if explanation.unweighted_score is not None:
        warnings.append(
            f"regions are weighted by their reliability: without weights the score is "
            f"{format_number(explanation.unweighted_score)}"
        )
    if negated := _find_negated_side(explanation):
        side, word = negated
        warnings.append(
            f"only {side} has “{word}”: a high similarity says that the two are about the same, not that they agree"
        )
    mass = explanation.relevance.detach().cpu().double().abs().numpy()
    if not mass.sum():
        return warnings
    sides = {
        "A": _find_issues(explanation.a, mass.sum(1) / mass.sum()),
        "B": _find_issues(explanation.b, mass.sum(0) / mass.sum()),
    }
    for name, side in sides.items():
        if side.dominant_region is not None:
            region, share = side.dominant_region
            warnings.append(f"one region of {name} ({region}) has {format_percent(share)} of the relevance")
    for place in ("border", "padding"):
        values = [(name, getattr(side, place)) for name, side in sides.items()]
        values = [(name, share_and_area) for name, share_and_area in values if share_and_area is not None]
        if values:
            shares = " and ".join(
                f"{format_percent(share)} {f'of the relevance is on the {place} of' if n == 0 else 'on that of'} {name}"
                for n, (name, (share, _)) in enumerate(values)
            )
            areas = list(dict.fromkeys(format_percent(area) for _, (_, area) in values))
            warnings.append(f"{shares}, {' and '.join(areas)} of {'its' if len(values) == 1 else 'the'} area")
    cropped = [
        f"{format_percent(side.cropped)} of {name}"
        for name, side in sides.items()
        if side.cropped > MAX_CROPPED_FRACTION
    ]
    if cropped:
        warnings.append(f"{' and '.join(cropped)} was cropped and is not explained")
    if composite := _find_unmeasured_composite(explanation):
        warnings.append(
            f"whether matches are in the right place was never measured for images under the rules {composite}: "
            "see whether the score falls without them"
        )
    return warnings


def _find_unmeasured_composite(explanation: ExplanationLike) -> str | None:
    """Return the name of a composite without evidence on images, of the first side that has one."""
    for side in (explanation.a, explanation.b):
        name = str(side.origin.get("composite", ""))
        name = name.removeprefix("centered(").removesuffix(")") if name.startswith("centered(") else name
        if isinstance(side.view, Image) and name in UNMEASURED_COMPOSITES:
            return name
    return None


def describe_verdict(explanation: ExplanationLike, *, random_scores: Sequence[float] | None = None) -> str:
    """Return one sentence: how similar the two are, in words, and compared with random pairs if these are known.

    Args:
        explanation: What to judge.
        random_scores: Cosines of random pairs; None: those that were measured for the encoder.
    """
    dot, norms = _compute_products(explanation)
    dimensions = _projected_dimensions(explanation.a.origin)
    if dimensions is not None:
        return f"{_describe_estimate(explanation, dot, norms, dimensions)}."
    name = explanation.similarity.replace("_", " ")
    score = f"{name} {format_number(explanation.score)}"
    if explanation.similarity not in COSINE_SIMILARITIES or not norms:
        return f"{score[0].upper()}{score[1:]}."
    cosine = dot / norms
    scores = [f"cosine {format_number(cosine)}"] + ([] if name == "cosine" else [score])
    scores = ", ".join(reversed(scores) if explanation.is_distance else scores)
    if cosine >= MIN_SAME_COSINE:
        kind = {"picture": " picture", "text": " text"}.get(_name_input_kind(explanation), "")
        return f"Practically the same{kind} to the model ({scores})."
    baseline = _choose_baseline(explanation, random_scores)
    if baseline is not None:
        verdict, comparison = random_baseline.judge(cosine, baseline)
        is_high = verdict in HIGH_VERDICTS
        highest = baseline.quantiles[-1]
        is_nearly_same = cosine >= max(MIN_NEARLY_SAME_COSINE, highest + NEARLY_SAME_FRACTION * (1 - highest))
        if is_high and not is_nearly_same and random_scores is None and _is_unlike(explanation):
            return f"{ALIKE_IN_KIND} ({scores}): {comparison}, but these two are unlike those photographs."
        if is_nearly_same:
            kind = {"picture": " picture", "text": " text"}.get(_name_input_kind(explanation), "")
            verdict = f"Nearly the same{kind} to the model"
        weak = "; the strongest of weak matches are shown" if verdict == random_baseline.NOT_SIMILAR else ""
        return f"{verdict} ({scores}): {comparison}{weak}."
    if cosine < NEAR_ZERO_FRACTION:
        return f"{random_baseline.NOT_SIMILAR} ({scores}): the strongest of weak matches are shown."
    return f"{scores[0].upper()}{scores[1:]} (a cosine of 1 is the same, 0 has nothing in common)."


def _find_negated_side(explanation: ExplanationLike) -> tuple[str, str] | None:
    """Return the side of two English sentences that has a negation, and the word, if only one of them has one."""
    words = []
    for side in (explanation.a, explanation.b):
        if not isinstance(side.view, Text) or _is_long_text(side):
            return None
        tokens = re.findall(r"n't\b|\w+(?=n't\b)|\w+", side.view.text.lower().replace("’", "'"))
        words.append([word for word in tokens if word in NEGATIONS])
    if bool(words[0]) == bool(words[1]):
        return None
    return ("A", words[0][0]) if words[0] else ("B", words[1][0])


def _compute_products(explanation: ExplanationLike) -> tuple[float, float]:
    """Return ⟨φ, φ'⟩ and ‖φ‖‖φ'‖; 0 for embeddings of two sizes."""
    a, b = (side.embedding.detach().cpu().double() for side in (explanation.a, explanation.b))
    if a.shape != b.shape:
        return 0.0, 0.0
    return float(a @ b), float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))


def _describe_estimate(explanation: ExplanationLike, dot: float, norms: float, dimensions: int) -> str:
    """Return an estimate with its standard error: for W_ij ~ N(0, 1/d), var ⟨Wφ, Wφ'⟩ = (‖φ‖²‖φ'‖² + ⟨φ, φ'⟩²) / d."""
    errors = {"dot": math.hypot(norms, dot), "cosine": 1 - (dot / norms) ** 2 if norms else 0.0}
    error = errors.get(explanation.similarity)
    spread = "" if error is None else f" ± {error / math.sqrt(dimensions):.2g}"
    score = f"{explanation.similarity.replace('_', ' ')} {format_number(explanation.score)}"
    return (
        f"Estimated {score}{spread} ({dimensions} random dimension{'s' if dimensions > 1 else ''}, not exact)"
    )


def _choose_baseline(
    explanation: ExplanationLike, random_scores: Sequence[float] | None
) -> random_baseline.RandomBaseline | None:
    """Return the random pairs to compare with: those given, else those measured for the encoder on inputs like these."""
    if random_scores is not None and len(random_scores):
        return random_baseline.compute_baseline(random_scores)
    sides = (explanation.a, explanation.b)
    if not all(_covers_whole_input(side) for side in sides):
        return None  # the baselines were measured on whole photographs and texts
    long_texts = sum(_is_long_text(side) for side in sides)
    if long_texts:
        return random_baseline.look_up_long_baseline(explanation.a.origin, long_texts)
    return random_baseline.look_up_baseline(
        explanation.a.origin, *(side.regions.labels.shape[-2:] for side in sides)
    )


def _is_unlike(explanation: ExplanationLike) -> bool:
    """Return whether the inputs are unlike the photographs that a baseline was measured on, as faces and drawings are."""
    origin = explanation.a.origin
    layer = origin.get("layer")
    weights = str(origin.get("weights"))
    mean = POOLED_PHOTOGRAPH_MEANS.get(weights)
    if mean is None or layer not in (None, random_baseline.VGG16_LAYER_BY_WEIGHTS.get(weights)):
        return False
    sides = (explanation.a, explanation.b)
    return not is_like_photographs([side.embedding.detach().cpu().numpy() for side in sides], mean)


def _is_long_text(side: DecompositionLike) -> bool:
    return isinstance(side.view, Text) and len(side.view.text.split()) > random_baseline.MAX_BASELINE_WORDS


def _describe_matches(
    explanation: ExplanationLike, findings: Sequence[Finding], named: Sequence[int], lead: str
) -> str:
    """Return the named findings as one sentence, each with its number or its words."""
    if not named:
        return "No regions stand out as alike."
    marks = [f", {UNRELIABLE}" if finding.is_unreliable else "" for finding in findings]
    matches = [
        f"{_name_match(explanation, findings[n], n + 1)} ({format_relevance(findings[n])}{marks[n]})"
        for n in named
    ]
    return f"{lead} {_join_phrases(matches)}."


def _count_common_numbers(explanation: ExplanationLike) -> str:
    """Return how many numbers occur in both tables, with their share of the score, and how many blocks they form."""
    sides = explanation.a.regions, explanation.b.regions
    relevance, terms = explanation.relevance.detach().cpu().double().numpy(), explanation.breakdown
    numbers = match_numbers(relevance, *sides, score=0.0)
    if not numbers:
        return "No number occurs in both tables."
    total = sum(match.relevance for match in numbers)
    share = terms.compute_share(total)
    amount = format_signed(total) if share is None else f"{format_share(share)} of the score"
    blocks = match_blocks(relevance, *sides, score=0.0)
    count = f"{len(numbers)} numbers occur" if len(numbers) > 1 else "1 number occurs"
    longest = max((len(block.numbers) for block in blocks), default=0)
    runs = (
        f", {len(blocks)} runs of neighbours"
        if len(blocks) > 1
        else ", one run of neighbours"
        if blocks
        else ""
    )
    runs += f" (the longest of {longest})" if len(blocks) > 1 else f" (of {longest})" if blocks else ""
    return f"{count} in both tables ({amount}){runs}."


def format_relevance(finding: Finding) -> str:
    """Return a finding's share of the score or, for a score near zero, its relevance in units of the score.

    >>> format_relevance(Finding([0], [0], 0.02, 0.1)), format_relevance(Finding([0], [0], 0.02, None))
    ('10 %', '+0.02')
    """
    return format_signed(finding.relevance) if finding.share is None else format_share(finding.share)


def _name_match(explanation: ExplanationLike, finding: Finding, number: int) -> str:
    """Return the words of a finding, or its number on the cards and badges of images."""
    if are_numbers(explanation.a.regions, explanation.b.regions):
        return describe_number_finding(explanation.a.regions, explanation.b.regions, finding)
    sides = ((explanation.a, finding.a), (explanation.b, finding.b))
    has_words = [isinstance(side.view, Text) or side.regions.names is not None for side, _ in sides]
    if not any(has_words) and any(to_label_image(side.regions) is not None for side, _ in sides):
        return f"match {number}"
    if has_words[0] != has_words[1]:
        side, numbers = sides[has_words.index(True)]
        return f"match {number}, {_describe_regions(side, numbers)}"
    return " with ".join(_describe_regions(side, numbers) for side, numbers in sides)


def _describe_breakdown(explanation: ExplanationLike) -> tuple[str, list[BreakdownClause]]:
    """Return the beginning of the sentence about what adds up to the score, and its clauses.

    Amounts are in units of the score, so that they add up before the reader's eyes: matches often add more than the whole
    score, and others take some of it away.
    """
    terms = explanation.breakdown
    whole = abs(terms.specific) if not terms.is_near_zero else terms.scale or 0.0

    def matters(value: float) -> bool:
        return abs(value) >= MIN_MENTIONED_SHARE * whole and value != 0

    noun = {"text": "words"}.get(_name_input_kind(explanation), "regions")
    positive = format_number(terms.positive + terms.self_terms_a + terms.self_terms_b)
    if explanation.is_distance:
        clauses = [
            BreakdownClause("positive", f"{noun} that differ add {positive}"),
            BreakdownClause("negative", f"{noun} that are alike take away {format_number(-terms.negative)}"),
        ]
    else:
        clauses = [BreakdownClause("positive", f"matching {noun} add {positive}")]
        if matters(terms.negative):
            clauses.append(BreakdownClause("negative", f"others take away {format_number(-terms.negative)}"))
    if matters(terms.special_tokens):
        verb = "add" if terms.special_tokens > 0 else "take away"
        amount = format_number(abs(terms.special_tokens))
        clauses.append(BreakdownClause("special_tokens", f"special tokens {verb} {amount}"))
    unattributed = terms.unattributed - terms.shared
    if matters(unattributed):
        share = terms.compute_share(unattributed)
        of_it = "" if share is None else f" ({format_share(share)})"
        rest = f"{format_number(unattributed)}{of_it} is unattributed{_describe_reference(explanation)}"
        clauses.append(BreakdownClause("unattributed", rest))
    else:
        clauses.append(BreakdownClause("none", "nothing is unattributed"))
    name = explanation.similarity.replace("_", " ") if explanation.is_distance else "score"
    score, near = format_number(explanation.score), " (near zero)" if terms.is_near_zero else ""
    specific = format_number(terms.specific)
    if not terms.is_centered or specific == score:
        return f"In the {name} of {score}{near}, ", clauses
    kind = _name_input_kind(explanation)
    return (
        f"Of the {name} of {score}, any two {kind}s share {format_number(terms.shared)}, and {specific}{near} is specific "
        "to these two: ",
        clauses,
    )


def _describe_reference(explanation: ExplanationLike) -> str:
    """Return how much of the unattributed part is against the reference input, in parentheses, or ""."""
    if explanation.reference_terms is None or explanation.breakdown.is_centered:
        return ""
    terms, value = explanation.breakdown, explanation.breakdown.references
    share, rest = terms.compute_share(value), terms.compute_share(terms.unattributed - value)
    if rest is not None and abs(rest) < MIN_MENTIONED_SHARE:
        part = "all of it"
    else:
        part = format_number(value) if share is None else format_share(share)
    return f" ({part} against the reference {_name_input_kind(explanation)})"


def _name_input_kind(explanation: ExplanationLike) -> str:
    """Return what the inputs are called: picture, text or input."""
    kinds = {type(side.view) for side in (explanation.a, explanation.b)}
    return {(Image,): "picture", (Text,): "text"}.get(tuple(kinds), "input")


class _InputIssues(NamedTuple):
    """Possible problems of one input: a dominant region and its share, (share, area) of border and padding, crop."""

    dominant_region: tuple[str, float] | None = None
    border: tuple[float, float] | None = None
    padding: tuple[float, float] | None = None
    cropped: float = 0.0


def _find_issues(side: DecompositionLike, share: np.ndarray) -> _InputIssues:
    """Find the problems of one input; `share` is each region's share of the absolute relevance."""
    largest = int(share.argmax())
    dominates = share[largest] > DOMINANT_SHARE and len(share) > FEW_REGIONS
    dominant = (_describe_regions(side, [largest]), float(share[largest])) if dominates else None
    labels = to_label_image(side.regions)
    if labels is None:
        return _InputIssues(dominant)
    size = np.bincount(labels[labels >= 0], minlength=len(share)) / labels.size
    outermost = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    border = _sum_over(outermost[outermost >= 0], share, size)
    if border[1] >= MAX_BORDER_AREA_FRACTION or border[0] <= MAX_BORDER_DENSITY_RATIO * border[1]:
        border = None
    if not isinstance(side.view, Image):
        return _InputIssues(dominant, border)
    padding = _sum_over(_padding_regions(side.view, labels, len(share)), share, size)
    if padding[0] <= MAX_PADDING_SHARE:
        padding = None
    return _InputIssues(dominant, border, padding, _cropped_fraction(side.view))


def _sum_over(regions: np.ndarray, share: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    return float(share[regions].sum()), float(size[regions].sum())


def _padding_regions(view: Image, labels: np.ndarray, count: int) -> np.ndarray:
    """Return the regions of which more than half is padding."""
    left, top, right, bottom = view.box
    width, height = view.size
    y = top + (np.arange(labels.shape[0]) + 0.5) / labels.shape[0] * (bottom - top)
    x = left + (np.arange(labels.shape[1]) + 0.5) / labels.shape[1] * (right - left)
    outside = ((y < 0) | (y > height))[:, None] | (x < 0) | (x > width)
    inside = labels >= 0
    pixels, padding = (np.bincount(labels[inside], w, count) for w in (None, outside[inside]))
    return np.flatnonzero(padding > pixels / 2)


def _cropped_fraction(view: Image) -> float:
    """Return the fraction of the image that the model did not see."""
    left, top, right, bottom = view.visible_box
    return 1 - (right - left) * (bottom - top) / (view.size[0] * view.size[1])


def _covers_whole_input(side: DecompositionLike) -> bool:
    """Return whether regions cover all of the input and, for an image, the model saw all of it without padding."""
    covered = bool((side.regions.labels >= 0).all())
    if not isinstance(side.view, Image):
        return covered
    return covered and np.allclose(side.view.box, (0, 0, *side.view.size), atol=1)  # a pixel of rounding


def name_whole(explanation: ExplanationLike) -> str:
    """Return what shares refer to: the score, or what is specific to the two where what any two share is known."""
    if not explanation.breakdown.is_centered:
        return "the score"
    return f"what is specific to these two {_name_input_kind(explanation)}s"


def is_estimate(explanation: ExplanationLike) -> bool:
    """Return whether the score was estimated with a random projection."""
    return _projected_dimensions(explanation.a.origin) is not None


def _projected_dimensions(origin: Mapping[str, Any]) -> int | None:
    """Return the number of dimensions of the random projection, or None."""
    match = re.match(r"\d+", str(origin.get("projection") or ""))
    return int(match[0]) if match else None


def _join_phrases(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _describe_regions(side: DecompositionLike, numbers: Sequence[int]) -> str:
    return describe_location(side.regions, side.view, numbers)
