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
from bilrp.findings.grouping import Finding
from bilrp.findings.region_layout import plane
from bilrp.findings.formatting import about, amount, percent, place
from bilrp.inputs import Image, Text, View
from bilrp.regions import Regions

NAMED = 3  # findings in the sentence
FAINT = 0.05  # of the score: if the first three hold less, nothing stands out
BORDER = 1.5  # times its area: more relevance than that on the outermost regions is worth a word
PADDED = 0.05  # of the relevance on padding,
CUT = 0.2  # of a picture cut off,
ONE = 0.5  # of the relevance on a single region,
FEW = 4  # where there are no more regions than that, one may
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
    @property
    def against(self) -> tuple[Tensor, Tensor] | None: ...
    @property
    def references(self) -> float: ...


def sentence(
    found: Explained, findings: Sequence[Finding], *, reference: Sequence[float] | None = None
) -> str:
    """The score on a scale people know, the first findings, what counts against, what is unattributed, and warnings.

    `reference` are cosines of pairs taken at random, to say how much is much.
    """
    said = warnings(found, findings)
    loud, others = (said[:1], said[1:]) if mostly_unattributed(found) else ([], said)
    clauses = [*loud, _matches(found, findings), *_rest(found), *others]
    return f"{_score(found, reference)}: {'; '.join(clauses)}."


def label(found: Explained, finding: Finding) -> str:
    """A finding in a few words: where in the first, where in the second."""
    return f"{_where(found.a, finding.a)} ↔ {_where(found.b, finding.b)}"


def mostly_unattributed(found: Explained) -> bool:
    """Do pairs of regions account for less than half of the score? Then everything else is said after that."""
    return bool(found.score) and abs(found.unattributed) > MOST * abs(found.score)


def warnings(found: Explained, findings: Sequence[Finding]) -> list[str]:
    """What a reader should know before trusting the rest; empty where there is nothing to warn of."""
    said = []
    if mostly_unattributed(found):
        said.append("BEWARE, most of the score is unattributed, so that the rest says little")
    elif sum(abs(f.share or 0.0) for f in findings[:NAMED]) < FAINT and found.score:
        said.append("nothing stands out: the similarity is spread over many small matches")
    mass = found.relevance.detach().cpu().double().abs().numpy()
    if not mass.sum():
        return said
    sides = {
        "A": _trouble(found.a, mass.sum(1) / mass.sum()),
        "B": _trouble(found.b, mass.sum(0) / mass.sum()),
    }
    for name, side in sides.items():
        if side.one is not None:
            said.append(f"one region of {name} ({side.one[0]}) has {percent(side.one[1])} of the relevance")
    for where, which in (("the border", "border"), ("the padding", "padding")):
        values = [
            (name, getattr(side, which)) for name, side in sides.items() if getattr(side, which) is not None
        ]
        if values:
            of = " and ".join(
                f"{percent(share)} {'of the relevance lies on ' + where + ' of' if n == 0 else 'on that of'} {name}"
                for n, (name, (share, _)) in enumerate(values)
            )
            areas = list(dict.fromkeys(percent(area) for _, (_, area) in values))
            said.append(f"{of}, {' and '.join(areas)} of {'its' if len(values) == 1 else 'the'} area")
    cut = [f"{percent(side.cut)} of {name}" for name, side in sides.items() if side.cut > CUT]
    if cut:
        said.append(f"{' and '.join(cut)} was cut off and is not explained")
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
        return random_baseline.against(cosine, random_baseline.of(reference), "taken at random")
    if not (_is_whole(found.a) and _is_whole(found.b)):
        return ""  # what is known was measured on whole photographs, not on parts of them
    shape = found.a.regions.labels.shape[-2:], found.b.regions.labels.shape[-2:]
    known = random_baseline.known(found.a.origin, *shape)
    return "" if known is None else random_baseline.against(cosine, known, "of photographs taken at random")


def _matches(found: Explained, findings: Sequence[Finding]) -> str:
    """The strongest findings that make the two similar: of a distance, those that lower it."""
    sign = -1 if found.distance else 1
    strongest = [f for f in findings if sign * f.relevance > 0 and f.share is not None][:NAMED]
    if not strongest:
        return "no regions stand out as alike"
    shares: dict[str, list[str]] = {}  # findings of one place, told together
    for f in strongest:
        where = f"{_where(found.a, f.a, size=False)} with {_where(found.b, f.b, size=False)}"
        shares.setdefault(where, []).append(about(f.share or 0.0))
    named = [
        f"{where} ({_listed(held)}{' of the score' if n == 0 else ''})"
        for n, (where, held) in enumerate(shares.items())
    ]
    return f"what matches most is {_listed(named)}"


def _rest(found: Explained) -> list[str]:
    """What counts for and against the similarity, and what no region accounts for: they add up to the score."""
    if not found.score:
        return []
    pairs = found.relevance.detach().cpu().double() / abs(found.score)
    raised, lowered = float(pairs.clamp(min=0).sum()), -float(pairs.clamp(max=0).sum())
    said = []
    if found.distance:
        own = sum(float(within.detach().cpu().double().sum()) for within in found.within or ())
        apart = raised + own / abs(found.score)
        said.append(f"{percent(apart)} sets them apart and {percent(lowered)} brings them together")
    elif lowered >= WORTH:
        said.append(f"{percent(raised)} counts for it and {percent(lowered)} against it")
    rest = found.unattributed / found.score
    said.append(f"{about(rest)} is unattributed" if abs(rest) >= WORTH else "nothing is unattributed")
    if found.against is not None and abs(rest) >= WORTH:
        known = (
            sum(float(t.detach().cpu().double().sum()) for t in found.against) + found.references
        ) / found.score
        said[-1] += (
            f" ({'all of it' if abs(rest - known) < WORTH else about(known)} against the reference {_shown(found)})"
        )
    return said


def _shown(found: Explained) -> str:
    """What is compared with a reference: pictures, texts, or just inputs."""
    kinds = {type(side.view) for side in (found.a, found.b)}
    return {(Image,): "picture", (Text,): "text"}.get(tuple(kinds), "input")


class _Trouble(NamedTuple):
    """What may be wrong with one input: a place and its share, (share, area) on border and padding, what was cut off."""

    one: tuple[str, float] | None = None
    border: tuple[float, float] | None = None
    padding: tuple[float, float] | None = None
    cut: float = 0.0


def _trouble(side: Side, share: np.ndarray) -> _Trouble:
    """`share` is what each region has of the relevance of either sign."""
    largest = int(share.argmax())
    dominates = share[largest] > ONE and len(share) > FEW
    one = (_where(side, [largest]), float(share[largest])) if dominates else None
    labels = plane(side.regions)
    if labels is None:
        return _Trouble(one)
    size = np.bincount(labels[labels >= 0], minlength=len(share)) / labels.size
    rim = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    border = _on(rim[rim >= 0], share, size)
    known = border if border[1] < ONE and border[0] > BORDER * border[1] else None
    if not isinstance(side.view, Image):
        return _Trouble(one, known)
    padding = _on(_padded(side.view, labels, len(share)), share, size)
    return _Trouble(one, known, padding if padding[0] > PADDED else None, _cut(side.view))


def _on(regions: np.ndarray, share: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    return float(share[regions].sum()), float(size[regions].sum())


def _padded(view: Image, labels: np.ndarray, count: int) -> np.ndarray:
    """The regions that lie for the larger part beyond the picture."""
    left, top, right, bottom = view.box
    wide, high = view.size
    y = top + (np.arange(labels.shape[0]) + 0.5) / labels.shape[0] * (bottom - top)
    x = left + (np.arange(labels.shape[1]) + 0.5) / labels.shape[1] * (right - left)
    beyond = ((y < 0) | (y > high))[:, None] | (x < 0) | (x > wide)
    inside = labels >= 0
    pixels, padding = (np.bincount(labels[inside], w, count) for w in (None, beyond[inside]))
    return np.flatnonzero(padding > pixels / 2)


def _cut(view: Image) -> float:
    """How much of a picture the model did not see."""
    left, top, right, bottom = view.visible
    return 1 - (right - left) * (bottom - top) / (view.size[0] * view.size[1])


def _is_whole(side: Side) -> bool:
    """Is it all in regions, and of a picture all that the model sees, and nothing beyond it?"""
    covered = bool((side.regions.labels >= 0).all())
    if not isinstance(side.view, Image):
        return covered
    wide, high = side.view.size
    return covered and np.allclose(side.view.box, (0, 0, wide, high), atol=1)  # a pixel of rounding


def is_estimate(found: Explained) -> bool:
    """Was the score estimated from random dimensions, and is it not the model's own?"""
    return _dimensions(found.a.origin) is not None


def _dimensions(origin: Mapping[str, Any]) -> int | None:
    """How many random dimensions an embedding was projected to, if it was."""
    found = re.match(r"\d+", str(origin.get("projection") or ""))
    return int(found[0]) if found else None


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _where(side: Side, numbers: Sequence[int], *, size: bool = True) -> str:
    return place(side.regions, side.view, numbers, size=size)
