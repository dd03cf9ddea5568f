"""One sentence of finding: how similar, what matches, what counts against, and how far to trust it.

Every number in it is computed from the explanation at hand, so the sentence is true by construction.
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

MAX_NAMED_FINDINGS = 3  # findings in the sentence
MIN_NAMED_SHARE = 0.05  # of the score: if the first three hold less, nothing stands out
MAX_BORDER_DENSITY_RATIO = (
    1.5  # times its area: more relevance than that on the outermost regions is worth a word
)
MAX_PADDING_SHARE = 0.05  # of the relevance on padding,
MAX_CROPPED_FRACTION = 0.2  # of a picture cut off,
DOMINANT_SHARE = 0.5  # of the relevance on a single region,
FEW_REGIONS = 4  # where there are no more regions than that, one may
MAX_UNATTRIBUTED_SHARE = 0.5  # of the score unattributed
MIN_MENTIONED_SHARE = 0.005  # of the score: less is not worth a clause


@runtime_checkable
class DecompositionLike(Protocol):
    """What a sentence needs of a decomposition."""

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
    """What a sentence needs of an explanation."""

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
    """The score on a scale people know, the first findings, what counts against, what is unattributed, and warnings.

    `random_scores` are cosines of pairs taken at random, to say how much is much.
    """
    said = list_warnings(explanation, findings)
    loud, others = (said[:1], said[1:]) if is_mostly_unattributed(explanation) else ([], said)
    clauses = [*loud, _describe_matches(explanation, findings), *_describe_totals(explanation), *others]
    return f"{_describe_score(explanation, random_scores)}: {'; '.join(clauses)}."


def label_finding(explanation: ExplanationLike, finding: Finding) -> str:
    """A finding in a few words: where in the first, where in the second."""
    return f"{_describe_regions(explanation.a, finding.a)} ↔ {_describe_regions(explanation.b, finding.b)}"


def is_mostly_unattributed(explanation: ExplanationLike) -> bool:
    """Do pairs of regions account for less than half of the score? Then everything else is said after that."""
    return bool(explanation.score) and abs(explanation.unattributed) > MAX_UNATTRIBUTED_SHARE * abs(
        explanation.score
    )


def list_warnings(explanation: ExplanationLike, findings: Sequence[Finding]) -> list[str]:
    """What a reader should know before trusting the rest; empty where there is nothing to warn of."""
    said = []
    if is_mostly_unattributed(explanation):
        said.append("BEWARE, most of the score is unattributed, so that the rest says little")
    elif (
        sum(abs(f.share or 0.0) for f in findings[:MAX_NAMED_FINDINGS]) < MIN_NAMED_SHARE
        and explanation.score
    ):
        said.append("nothing stands out: the similarity is spread over many small matches")
    mass = explanation.relevance.detach().cpu().double().abs().numpy()
    if not mass.sum():
        return said
    sides = {
        "A": _find_issues(explanation.a, mass.sum(1) / mass.sum()),
        "B": _find_issues(explanation.b, mass.sum(0) / mass.sum()),
    }
    for name, side in sides.items():
        if side.dominant_region is not None:
            region, share = side.dominant_region
            said.append(f"one region of {name} ({region}) has {format_percent(share)} of the relevance")
    for where, which in (("the border", "border"), ("the padding", "padding")):
        values = [
            (name, getattr(side, which)) for name, side in sides.items() if getattr(side, which) is not None
        ]
        if values:
            of = " and ".join(
                f"{format_percent(share)} {'of the relevance lies on ' + where + ' of' if n == 0 else 'on that of'} {name}"
                for n, (name, (share, _)) in enumerate(values)
            )
            areas = list(dict.fromkeys(format_percent(area) for _, (_, area) in values))
            said.append(f"{of}, {' and '.join(areas)} of {'its' if len(values) == 1 else 'the'} area")
    cut = [
        f"{format_percent(side.cropped)} of {name}"
        for name, side in sides.items()
        if side.cropped > MAX_CROPPED_FRACTION
    ]
    if cut:
        said.append(f"{' and '.join(cut)} was cut off and is not explained")
    return said


def _describe_score(explanation: ExplanationLike, random_scores: Sequence[float] | None) -> str:
    """Cosine and dot product, where both exist, against what is known of pairs taken at random."""
    a, b = (side.embedding.detach().cpu().double() for side in (explanation.a, explanation.b))
    dot, norms = float(a @ b), float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    cosine = dot / norms if norms else None
    dimensions = _projected_dimensions(explanation.a.origin)
    if dimensions is not None:
        return _describe_estimate(explanation, dot, norms, dimensions)
    both = {"cosine": f"{cosine:.3g}"} if cosine is not None else {}
    both["dot"] = format_number(dot)
    lead = "cosine" if explanation.similarity == "dot" and cosine is not None else explanation.similarity
    first = both.pop(lead, format_number(explanation.score))
    others = ", ".join(f"{name} {value}" for name, value in both.items())
    said = f"{lead.replace('_', ' ').capitalize()} {first}{f' ({others})' if others else ''}"
    scale = _compare_with_random_pairs(explanation, cosine, random_scores)
    return f"{said}, {scale}" if scale else said


def _describe_estimate(explanation: ExplanationLike, dot: float, norms: float, dimensions: int) -> str:
    """An estimate with its standard error: with entries N(0, 1/d) in W, var ⟨Wφ, Wφ'⟩ = (‖φ‖²‖φ'‖² + ⟨φ, φ'⟩²) / d."""
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
        return ""  # what is known was measured on whole photographs, not on parts of them
    shape = explanation.a.regions.labels.shape[-2:], explanation.b.regions.labels.shape[-2:]
    known = random_baseline.look_up_baseline(explanation.a.origin, *shape)
    return (
        ""
        if known is None
        else random_baseline.compare_with_baseline(cosine, known, "of photographs taken at random")
    )


def _describe_matches(explanation: ExplanationLike, findings: Sequence[Finding]) -> str:
    """The strongest findings that make the two similar: of a distance, those that lower it."""
    sign = -1 if explanation.is_distance else 1
    strongest = [f for f in findings if sign * f.relevance > 0 and f.share is not None][:MAX_NAMED_FINDINGS]
    if not strongest:
        return "no regions stand out as alike"
    shares: dict[str, list[str]] = {}  # findings of one place, told together
    for f in strongest:
        in_a = _describe_regions(explanation.a, f.a, include_size=False)
        in_b = _describe_regions(explanation.b, f.b, include_size=False)
        where = f"{in_a} with {in_b}"
        shares.setdefault(where, []).append(format_share(f.share or 0.0))
    named = [
        f"{where} ({_join_phrases(held)}{' of the score' if n == 0 else ''})"
        for n, (where, held) in enumerate(shares.items())
    ]
    return f"what matches most is {_join_phrases(named)}"


def _describe_totals(explanation: ExplanationLike) -> list[str]:
    """What counts for and against the similarity, and what no region accounts for: they add up to the score."""
    if not explanation.score:
        return []
    pairs = explanation.relevance.detach().cpu().double() / abs(explanation.score)
    raised, lowered = float(pairs.clamp(min=0).sum()), -float(pairs.clamp(max=0).sum())
    said = []
    if explanation.is_distance:
        own = sum(float(within.detach().cpu().double().sum()) for within in explanation.self_terms or ())
        apart = raised + own / abs(explanation.score)
        said.append(
            f"{format_percent(apart)} sets them apart and {format_percent(lowered)} brings them together"
        )
    elif lowered >= MIN_MENTIONED_SHARE:
        said.append(f"{format_percent(raised)} counts for it and {format_percent(lowered)} against it")
    rest = explanation.unattributed / explanation.score
    said.append(
        f"{format_share(rest)} is unattributed"
        if abs(rest) >= MIN_MENTIONED_SHARE
        else "nothing is unattributed"
    )
    if explanation.reference_terms is not None and abs(rest) >= MIN_MENTIONED_SHARE:
        known = (
            sum(float(t.detach().cpu().double().sum()) for t in explanation.reference_terms)
            + explanation.reference_score
        ) / explanation.score
        part = "all of it" if abs(rest - known) < MIN_MENTIONED_SHARE else format_share(known)
        said[-1] += f" ({part} against the reference {_name_input_kind(explanation)})"
    return said


def _name_input_kind(explanation: ExplanationLike) -> str:
    """What is compared with a reference: pictures, texts, or just inputs."""
    kinds = {type(side.view) for side in (explanation.a, explanation.b)}
    return {(Image,): "picture", (Text,): "text"}.get(tuple(kinds), "input")


class _InputIssues(NamedTuple):
    """What may be wrong with one input: a place and its share, (share, area) on border and padding, what was cut off."""

    dominant_region: tuple[str, float] | None = None
    border: tuple[float, float] | None = None
    padding: tuple[float, float] | None = None
    cropped: float = 0.0


def _find_issues(side: DecompositionLike, share: np.ndarray) -> _InputIssues:
    """`share` is what each region has of the relevance of either sign."""
    largest = int(share.argmax())
    dominates = share[largest] > DOMINANT_SHARE and len(share) > FEW_REGIONS
    one = (_describe_regions(side, [largest]), float(share[largest])) if dominates else None
    labels = to_label_image(side.regions)
    if labels is None:
        return _InputIssues(one)
    size = np.bincount(labels[labels >= 0], minlength=len(share)) / labels.size
    rim = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    border = _sum_over(rim[rim >= 0], share, size)
    known = (
        border if border[1] < DOMINANT_SHARE and border[0] > MAX_BORDER_DENSITY_RATIO * border[1] else None
    )
    if not isinstance(side.view, Image):
        return _InputIssues(one, known)
    padding = _sum_over(_padding_regions(side.view, labels, len(share)), share, size)
    return _InputIssues(
        one, known, padding if padding[0] > MAX_PADDING_SHARE else None, _cropped_fraction(side.view)
    )


def _sum_over(regions: np.ndarray, share: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    return float(share[regions].sum()), float(size[regions].sum())


def _padding_regions(view: Image, labels: np.ndarray, count: int) -> np.ndarray:
    """The regions that lie for the larger part beyond the picture."""
    left, top, right, bottom = view.box
    wide, high = view.size
    y = top + (np.arange(labels.shape[0]) + 0.5) / labels.shape[0] * (bottom - top)
    x = left + (np.arange(labels.shape[1]) + 0.5) / labels.shape[1] * (right - left)
    beyond = ((y < 0) | (y > high))[:, None] | (x < 0) | (x > wide)
    inside = labels >= 0
    pixels, padding = (np.bincount(labels[inside], w, count) for w in (None, beyond[inside]))
    return np.flatnonzero(padding > pixels / 2)


def _cropped_fraction(view: Image) -> float:
    """How much of a picture the model did not see."""
    left, top, right, bottom = view.visible_box
    return 1 - (right - left) * (bottom - top) / (view.size[0] * view.size[1])


def _covers_whole_input(side: DecompositionLike) -> bool:
    """Is it all in regions, and of a picture all that the model sees, and nothing beyond it?"""
    covered = bool((side.regions.labels >= 0).all())
    if not isinstance(side.view, Image):
        return covered
    wide, high = side.view.size
    return covered and np.allclose(side.view.box, (0, 0, wide, high), atol=1)  # a pixel of rounding


def is_estimate(explanation: ExplanationLike) -> bool:
    """Was the score estimated from random dimensions, and is it not the model's own?"""
    return _projected_dimensions(explanation.a.origin) is not None


def _projected_dimensions(origin: Mapping[str, Any]) -> int | None:
    """How many random dimensions an embedding was projected to, if it was."""
    found = re.match(r"\d+", str(origin.get("projection") or ""))
    return int(found[0]) if found else None


def _join_phrases(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _describe_regions(side: DecompositionLike, numbers: Sequence[int], *, include_size: bool = True) -> str:
    return describe_location(side.regions, side.view, numbers, include_size=include_size)
