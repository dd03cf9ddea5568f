"""Summarize an explanation in one sentence: score, strongest findings, what counts against, warnings.

Every number is computed from the explanation.
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
from bilrp.findings.formatting import describe_location, format_number, format_percent, format_share
from bilrp.findings.grouping import Finding
from bilrp.findings.region_layout import to_label_image
from bilrp.inputs import Image, Text, View
from bilrp.regions import Regions

MAX_NAMED_FINDINGS = 3
MIN_MENTIONED_SHARE = 0.005  # of the score; smaller terms are left out
# Beyond these limits the summary contains a warning.
MIN_NAMED_SHARE = 0.05  # of the score, in the named findings together
MAX_BORDER_DENSITY_RATIO = 1.5  # share of the relevance on the outermost regions, relative to their area
MAX_BORDER_AREA_FRACTION = 0.5  # outermost regions that cover more are not called a border
MAX_PADDING_SHARE = 0.05  # of the relevance
MAX_CROPPED_FRACTION = 0.2  # of the image
DOMINANT_SHARE = 0.5  # of the relevance, in one region
FEW_REGIONS = 4  # with at most this many regions, one may dominate without a warning
MAX_UNATTRIBUTED_SHARE = 0.5  # of the score


@runtime_checkable
class DecompositionLike(Protocol):
    """The attributes of a decomposition that a summary uses."""

    @property
    def embedding(self) -> Tensor: ...
    @property
    def regions(self) -> Regions: ...
    @property
    def origin(self) -> Mapping[str, Any]: ...
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
    def similarity(self) -> str: ...
    @property
    def is_distance(self) -> bool: ...
    @property
    def self_terms(self) -> tuple[Tensor, Tensor] | None: ...
    @property
    def reference_terms(self) -> tuple[Tensor, Tensor] | None: ...
    @property
    def reference_score(self) -> float: ...


def summarize(
    explanation: ExplanationLike, findings: Sequence[Finding], *, random_scores: Sequence[float] | None = None
) -> str:
    """Return one sentence: the score, the first findings, what counts for and against, and warnings.

    Args:
        explanation: What to summarize.
        findings: Its findings, strongest first.
        random_scores: Cosines of random pairs to compare the score with.
    """
    warnings = list_warnings(explanation, findings)
    first = 1 if is_mostly_unattributed(explanation) else 0  # that warning comes before the findings
    clauses = [
        *warnings[:first],
        _describe_matches(explanation, findings),
        *_describe_totals(explanation),
        *warnings[first:],
    ]
    return f"{_describe_score(explanation, random_scores)}: {'; '.join(clauses)}."


def label_finding(explanation: ExplanationLike, finding: Finding) -> str:
    """Return where a finding is in a and in b."""
    return f"{_describe_regions(explanation.a, finding.a)} ↔ {_describe_regions(explanation.b, finding.b)}"


def is_mostly_unattributed(explanation: ExplanationLike) -> bool:
    """Return whether more than half of the score is unattributed."""
    limit = MAX_UNATTRIBUTED_SHARE * abs(explanation.score)
    return bool(explanation.score) and abs(explanation.unattributed) > limit


def list_warnings(explanation: ExplanationLike, findings: Sequence[Finding]) -> list[str]:
    """Return warnings about the explanation, the one about unattributed relevance first."""
    warnings = []
    named_share = sum(abs(f.share or 0.0) for f in findings[:MAX_NAMED_FINDINGS])
    if is_mostly_unattributed(explanation):
        warnings.append("warning: more than half of the score is unattributed")
    elif explanation.score and named_share < MIN_NAMED_SHARE:
        warnings.append("nothing stands out: the similarity is spread over many small matches")
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
    return warnings


def _describe_score(explanation: ExplanationLike, random_scores: Sequence[float] | None) -> str:
    """Return the score with cosine and dot product, and how they compare with random pairs."""
    a, b = (side.embedding.detach().cpu().double() for side in (explanation.a, explanation.b))
    dot, norms = float(a @ b), float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    cosine = dot / norms if norms else None
    dimensions = _projected_dimensions(explanation.a.origin)
    if dimensions is not None:
        return _describe_estimate(explanation, dot, norms, dimensions)
    scores = {"cosine": f"{cosine:.3g}"} if cosine is not None else {}
    scores["dot"] = format_number(dot)
    name = "cosine" if explanation.similarity == "dot" and cosine is not None else explanation.similarity
    score = scores.pop(name, format_number(explanation.score))
    others = ", ".join(f"{name} {value}" for name, value in scores.items())
    description = f"{name.replace('_', ' ').capitalize()} {score}{f' ({others})' if others else ''}"
    comparison = _compare_with_random_pairs(explanation, cosine, random_scores)
    return f"{description}, {comparison}" if comparison else description


def _describe_estimate(explanation: ExplanationLike, dot: float, norms: float, dimensions: int) -> str:
    """Return an estimate with its standard error: for W_ij ~ N(0, 1/d), var ⟨Wφ, Wφ'⟩ = (‖φ‖²‖φ'‖² + ⟨φ, φ'⟩²) / d."""
    errors = {"dot": math.hypot(norms, dot), "cosine": 1 - (dot / norms) ** 2 if norms else 0.0}
    error = errors.get(explanation.similarity)
    spread = "" if error is None else f" ± {error / math.sqrt(dimensions):.2g}"
    score = f"{explanation.similarity.replace('_', ' ')} {format_number(explanation.score)}"
    return (
        f"Estimated {score}{spread} ({dimensions} random dimension{'s' if dimensions > 1 else ''}, not exact)"
    )


def _compare_with_random_pairs(
    explanation: ExplanationLike, cosine: float | None, random_scores: Sequence[float] | None
) -> str:
    if cosine is None:
        return ""
    if random_scores is not None and len(random_scores):
        return random_baseline.compare_with_baseline(
            cosine, random_baseline.compute_baseline(random_scores), "taken at random"
        )
    if not (_covers_whole_input(explanation.a) and _covers_whole_input(explanation.b)):
        return ""  # the baselines were measured on whole photographs
    shapes = explanation.a.regions.labels.shape[-2:], explanation.b.regions.labels.shape[-2:]
    baseline = random_baseline.look_up_baseline(explanation.a.origin, *shapes)
    if baseline is None:
        return ""
    return random_baseline.compare_with_baseline(cosine, baseline, "of photographs taken at random")


def _describe_matches(explanation: ExplanationLike, findings: Sequence[Finding]) -> str:
    """Return the strongest findings that make the two similar (for a distance, those that lower it)."""
    sign = -1 if explanation.is_distance else 1
    strongest = [f for f in findings if sign * f.relevance > 0 and f.share is not None][:MAX_NAMED_FINDINGS]
    if not strongest:
        return "no regions stand out as alike"
    shares: dict[str, list[str]] = {}  # by position: findings at the same position are merged
    for f in strongest:
        in_a = _describe_regions(explanation.a, f.a, include_size=False)
        in_b = _describe_regions(explanation.b, f.b, include_size=False)
        shares.setdefault(f"{in_a} with {in_b}", []).append(format_share(f.share or 0.0))
    matches = [
        f"{position} ({_join_phrases(percents)}{' of the score' if n == 0 else ''})"
        for n, (position, percents) in enumerate(shares.items())
    ]
    return f"what matches most is {_join_phrases(matches)}"


def _describe_totals(explanation: ExplanationLike) -> list[str]:
    """Return what counts for and against the similarity and what is unattributed; they add up to the score."""
    if not explanation.score:
        return []
    pairs = explanation.relevance.detach().cpu().double() / abs(explanation.score)
    positive, negative = float(pairs.clamp(min=0).sum()), -float(pairs.clamp(max=0).sum())
    clauses = []
    if explanation.is_distance:
        self_terms = sum(float(t.detach().cpu().double().sum()) for t in explanation.self_terms or ())
        apart = format_percent(positive + self_terms / abs(explanation.score))
        clauses.append(f"{apart} sets them apart and {format_percent(negative)} brings them together")
    elif negative >= MIN_MENTIONED_SHARE:
        clauses.append(f"{format_percent(positive)} counts for it and {format_percent(negative)} against it")
    unattributed = explanation.unattributed / explanation.score
    if abs(unattributed) < MIN_MENTIONED_SHARE:
        return [*clauses, "nothing is unattributed"]
    clause = f"{format_share(unattributed)} is unattributed"
    if explanation.reference_terms is not None:
        terms = sum(float(t.detach().cpu().double().sum()) for t in explanation.reference_terms)
        share = (terms + explanation.reference_score) / explanation.score
        part = "all of it" if abs(unattributed - share) < MIN_MENTIONED_SHARE else format_share(share)
        clause += f" ({part} against the reference {_name_input_kind(explanation)})"
    return [*clauses, clause]


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


def is_estimate(explanation: ExplanationLike) -> bool:
    """Return whether the score was estimated with a random projection."""
    return _projected_dimensions(explanation.a.origin) is not None


def _projected_dimensions(origin: Mapping[str, Any]) -> int | None:
    """Return the number of dimensions of the random projection, or None."""
    match = re.match(r"\d+", str(origin.get("projection") or ""))
    return int(match[0]) if match else None


def _join_phrases(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _describe_regions(side: DecompositionLike, numbers: Sequence[int], *, include_size: bool = True) -> str:
    return describe_location(side.regions, side.view, numbers, include_size=include_size)
