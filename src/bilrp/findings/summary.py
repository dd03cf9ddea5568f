"""One sentence of finding: how similar, what matches, what counts against, and how far to trust it.

Every number in it is computed from the explanation at hand, so the sentence is true by construction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from bilrp.findings import chance
from bilrp.findings.cluster import Finding
from bilrp.findings.layout import plane
from bilrp.findings.words import about, amount, percent, place
from bilrp.item import Image, View
from bilrp.regions import Regions

NAMED = 3  # findings in the sentence
FAINT = 0.05  # of the score: if the first three hold less, nothing stands out
BORDER = 1.5  # times its area: more relevance than that on the outermost regions is worth a word
PADDED = 0.05  # of the relevance on padding,
CUT = 0.2  # of a picture cut off,
ONE = 0.5  # of the relevance on a single region,
MOST = 0.5  # of the score unattributed
WORTH = 0.005  # of the score: less is not worth a clause


@runtime_checkable
class Side(Protocol):
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
class Explained(Protocol):
    """What a sentence needs of an explanation."""

    @property
    def a(self) -> Side: ...
    @property
    def b(self) -> Side: ...
    @property
    def score(self) -> float: ...
    @property
    def relevance(self) -> Tensor: ...
    @property
    def unattributed(self) -> float: ...
    @property
    def similarity(self) -> str: ...
    @property
    def distance(self) -> bool: ...
    @property
    def within(self) -> tuple[Tensor, Tensor] | None: ...


def sentence(
    found: Explained, findings: Sequence[Finding], *, reference: Sequence[float] | None = None
) -> str:
    """The score on a scale people know, the first findings, what counts against, what is unattributed, and warnings.

    `reference` are cosines of pairs taken at random, to say how much is much.
    """
    clauses = [_matches(found, findings), *_rest(found), *warnings(found, findings)]
    return f"{_score(found, reference)}: {'; '.join(clauses)}."


def label(found: Explained, finding: Finding) -> str:
    """A finding in a few words: where in the first, where in the second."""
    return f"{_where(found.a, finding.a)} ↔ {_where(found.b, finding.b)}"


def warnings(found: Explained, findings: Sequence[Finding]) -> list[str]:
    """What a reader should know before trusting the rest; empty where there is nothing to warn of."""
    said = []
    if abs(found.unattributed) > MOST * abs(found.score) and found.score:
        said.append("most of the score is unattributed, so that the rest says little")
    elif sum(abs(f.share or 0.0) for f in findings[:NAMED]) < FAINT and found.score:
        said.append("nothing stands out: the similarity is spread over many small matches")
    mass = found.relevance.detach().cpu().double().abs().numpy()
    total = mass.sum()
    if not total:
        return said
    for side, which, share in (
        (found.a, "A", mass.sum(1) / total),
        (found.b, "B", mass.sum(0) / total),
    ):
        said += _of_side(side, which, share)
    return said


def _score(found: Explained, reference: Sequence[float] | None) -> str:
    """Cosine and dot product, where both exist, against what is known of pairs taken at random."""
    a, b = (side.embedding.detach().cpu().double() for side in (found.a, found.b))
    dot, norms = float(a @ b), float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    cosine = dot / norms if norms else None
    dimensions = _dimensions(found.a.origin)
    if dimensions is not None:
        return _estimate(found, dot, norms, dimensions)
    both = {"cosine": f"{cosine:.3g}"} if cosine is not None else {}
    both["dot"] = amount(dot)
    lead = "cosine" if found.similarity == "dot" and cosine is not None else found.similarity
    first = both.pop(lead, amount(found.score))
    others = ", ".join(f"{name} {value}" for name, value in both.items())
    said = f"{lead.replace('_', ' ').capitalize()} {first}{f' ({others})' if others else ''}"
    scale = _scale(found, cosine, reference)
    return f"{said}, {scale}" if scale else said


def _estimate(found: Explained, dot: float, norms: float, dimensions: int) -> str:
    """An estimate with its standard error: with entries N(0, 1/d) in W, var ⟨Wφ, Wφ'⟩ = (‖φ‖²‖φ'‖² + ⟨φ, φ'⟩²) / d."""
    errors = {"dot": math.hypot(norms, dot), "cosine": 1 - (dot / norms) ** 2 if norms else 0.0}
    error = errors.get(found.similarity)
    spread = "" if error is None else f" ± {error / math.sqrt(dimensions):.2g}"
    score = f"{found.similarity.replace('_', ' ')} {amount(found.score)}"
    return (
        f"Estimated {score}{spread} ({dimensions} random dimension{'s' if dimensions > 1 else ''}, not exact)"
    )


def _scale(found: Explained, cosine: float | None, reference: Sequence[float] | None) -> str:
    if cosine is None:
        return ""
    if reference is not None and len(reference):
        return chance.against(cosine, chance.of(reference), "taken at random")
    shape = found.a.regions.labels.shape[-2:], found.b.regions.labels.shape[-2:]
    known = chance.known(found.a.origin, *shape)
    return "" if known is None else chance.against(cosine, known, "of photographs taken at random")


def _matches(found: Explained, findings: Sequence[Finding]) -> str:
    """The strongest findings that make the two similar: of a distance, those that lower it."""
    sign = -1 if found.distance else 1
    strongest = [f for f in findings if sign * f.relevance > 0 and f.share is not None][:NAMED]
    if not strongest:
        return "no regions stand out as alike"
    named = [
        f"{_where(found.a, f.a, size=False)} with {_where(found.b, f.b, size=False)} "
        f"({about(f.share or 0.0)}{' of the score' if n == 0 else ''})"
        for n, f in enumerate(strongest)
    ]
    return f"what matches most is {_listed(named)}"


def _rest(found: Explained) -> list[str]:
    """What counts against the similarity, and what no region accounts for."""
    if not found.score:
        return []
    pairs = found.relevance.detach().cpu().double()
    if found.distance:
        own = sum(float(within.detach().cpu().double().sum()) for within in found.within or ())
        against, verb = (float(pairs.clamp(min=0).sum()) + own) / abs(found.score), "sets them apart"
    else:
        against, verb = -float(pairs.clamp(max=0).sum()) / abs(found.score), "counts against it"
    said = [f"{percent(against)} {verb}"] if against >= WORTH else []
    rest = found.unattributed / found.score
    said.append(f"{about(rest)} is unattributed" if abs(rest) >= WORTH else "nothing is unattributed")
    return said


def _of_side(side: Side, which: str, share: np.ndarray) -> list[str]:
    """Warnings about one input: `share` is what each region has of the relevance of either sign."""
    said = []
    largest = int(share.argmax())
    if share[largest] > ONE and len(share) > 4:
        where = _where(side, [largest])
        said.append(f"one region of {which} ({where}) has {percent(share[largest])} of the relevance")
    labels = plane(side.regions)
    if labels is None:
        return said
    edge = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    edge = edge[edge >= 0]
    area = np.isin(labels, edge).mean()
    if area < ONE and share[edge].sum() > BORDER * area:
        said.append(
            f"{percent(share[edge].sum())} of the relevance lies on the border of {which}, {percent(area)} of its area"
        )
    if isinstance(side.view, Image):
        said += _of_view(side.view, labels, which, share)
    return said


def _of_view(view: Image, labels: np.ndarray, which: str, share: np.ndarray) -> list[str]:
    """What was padded and has relevance, and what was cut off."""
    left, top, right, bottom = view.box
    wide, high = view.size
    y = top + (np.arange(labels.shape[0]) + 0.5) / labels.shape[0] * (bottom - top)
    x = left + (np.arange(labels.shape[1]) + 0.5) / labels.shape[1] * (right - left)
    beyond = ((y < 0) | (y > high))[:, None] | (x < 0) | (x > wide)
    inside = labels >= 0
    pixels, padding = (np.bincount(labels[inside], w, len(share)) for w in (None, beyond[inside]))
    padded = float(share[padding > pixels / 2].sum())
    said = [f"{percent(padded)} of the relevance lies on the padding of {which}"] if padded > PADDED else []
    seen = (min(right, wide) - max(left, 0)) * (min(bottom, high) - max(top, 0)) / (wide * high)
    if 1 - seen > CUT:
        said.append(f"{percent(1 - seen)} of {which} was cut off and is not explained")
    return said


def _dimensions(origin: Mapping[str, Any]) -> int | None:
    """How many random dimensions an embedding was projected to, if it was."""
    found = re.match(r"\d+", str(origin.get("projection") or ""))
    return int(found[0]) if found else None


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _where(side: Side, numbers: Sequence[int], *, size: bool = True) -> str:
    return place(side.regions, side.view, numbers, size=size)
