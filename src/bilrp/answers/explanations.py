"""Answers about two inputs and about three: `explain` and `contrast`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from bilrp.answers.shapes import (
    Box,
    BriefExplanation,
    ContrastAnswer,
    ExplainAnswer,
    ExplainManyAnswer,
    Finding,
    MatchedRegion,
    Region,
    SetsAnswer,
    Side,
)
from bilrp.covering import describe_covering
from bilrp.findings import number_matches
from bilrp.findings.formatting import describe_location
from bilrp.findings.summary import describe_verdict, is_estimate, list_warnings, name_whole
from bilrp.inputs import Image, Text
from bilrp.render.findings_figure import serialize_differences, serialize_findings
from bilrp.render.report import to_jsonable
from bilrp.render.visibility import list_visible_regions, select_visible

if TYPE_CHECKING:
    from torch import Tensor

    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation
    from bilrp.groups import Contrast
    from bilrp.render.gallery import GalleryEntry
    from bilrp.set_comparison import SetComparison

DEFAULT_PAIRS = 5  # strongest pairs of regions, unless another number is asked for


def build_explain(
    explanation: Explanation, *, names: tuple[str, str], encoder: str, seconds: float | None = None,
    top: int | None = None, special_tokens: bool = False,
) -> ExplainAnswer:  # fmt: skip
    """Return the answer to "why are these two similar?".

    Args:
        explanation, names: the explanation, and the names of its inputs.
        encoder: name of the encoder.
        seconds: run time, if known.
        top: number of pairs of regions to list.
        special_tokens: list pairs with special tokens too.
    """
    e, breakdown = explanation, explanation.breakdown
    covered = [] if e.runs is None else e.cover_findings()
    answer = {
        "schema": "bilrp/explain/1",
        "a": names[0],
        "b": names[1],
        "encoder": encoder,
        "similarity": e.similarity,
        "score": breakdown.score,
        "unweighted_score": e.unweighted_score,
        "estimate": is_estimate(e),
        "summary": e.summary(),
        "verdict": describe_verdict(e),
        "share_of": name_whole(e),
        "sides": [
            describe_side(side, name, values)
            for side, name, values in zip((e.a, e.b), names, e.marginals(), strict=True)
        ],
        "findings": serialize_findings(e),
        **serialize_differences(e, special_tokens=special_tokens),
        "covered": [
            {"finding": each.number, "without_a": each.without_a, "without_b": each.without_b}
            for each in covered
        ],
        "checked": describe_covering(covered),
        **_list_numbers(e),
        "warnings": list_warnings(e, e.findings()),
        "explained": breakdown.explained,
        "unattributed": breakdown.unattributed,
        "near_zero": breakdown.is_near_zero,
        "positive_share": breakdown.compute_share(breakdown.positive),
        "negative_share": breakdown.compute_share(breakdown.negative),
        "explained_share": breakdown.compute_share(breakdown.explained),
        "shared": breakdown.shared if breakdown.is_centered else None,
        "specific": breakdown.specific,
        "unattributed_share": breakdown.compute_share(breakdown.unattributed - breakdown.shared),
        "special_tokens": breakdown.special_tokens,
        "special_tokens_share": breakdown.compute_share(breakdown.special_tokens),
        "self_terms": breakdown.self_terms_a + breakdown.self_terms_b,
        "reference_terms": None
        if e.reference_terms is None
        else [breakdown.reference_terms_a, breakdown.reference_terms_b],
        "reference_score": None if e.reference_terms is None else breakdown.reference_score,
        "positive": breakdown.positive,
        "negative": breakdown.negative,
        "closed": breakdown.is_complete,
        "regions": [e.a.regions.count, e.b.regions.count],
        "top": _list_top(e, DEFAULT_PAIRS if top is None else top, special_tokens=special_tokens),
        "plan": None if e.a.plan is None else str(e.a.plan),
        "seconds": None if seconds is None else round(seconds, 3),
    }
    return cast(ExplainAnswer, to_jsonable(answer))


def build_sets(
    comparison: SetComparison, *, names: tuple[str, str], encoder: str, top: int | None = None
) -> SetsAnswer:
    """Return the answer about two sets.

    Args:
        comparison, names: the comparison, and the names of the sets.
        encoder, top: as for `build_explain`.
    """
    terms = build_explain(comparison.explanation, names=names, encoder=encoder, top=top)
    answer = {
        **terms,
        "schema": "bilrp/sets/1",
        "summary": comparison.summary(),
        "verdict": comparison.summary(),
        "mean": comparison.mean,
        "scores": comparison.scores.tolist(),
        "examples": [
            {"a": e.a.name, "b": e.b.name, "score": e.score, "summary": e.summary()}
            for e in comparison.examples
        ],
    }
    return cast(SetsAnswer, to_jsonable(answer))


def build_explain_many(
    entries: Sequence[GalleryEntry], *, summary: str | None = None, outputs: Sequence[str] = ()
) -> ExplainManyAnswer:
    """Return the answer about several pairs.

    Args:
        entries, summary: the explanations with their headings, and a sentence about all of them.
        outputs: files that are written.
    """
    rows: list[BriefExplanation] = [
        {
            "heading": entry.heading,
            "score": entry.explanation.score,
            "summary": entry.explanation.summary(),
            "a": entry.explanation.a.name,
            "b": entry.explanation.b.name,
            "unattributed": entry.explanation.unattributed,
            "findings": list_findings(entry.explanation),
        }
        for entry in entries
    ]
    return {
        "schema": "bilrp/explain-many/1",
        "summary": summary,
        "explanations": to_jsonable(rows),
        "outputs": list(outputs),
    }


def build_contrast(
    contrast: Contrast, names: Sequence[str], *, outputs: Sequence[str] = ()
) -> ContrastAnswer:
    """Return the answer to "why is a closer to b than to c?".

    Args:
        contrast, names: the contrast, and the names of a, b and c.
        outputs: files that are written.
    """
    values = contrast.marginals()
    pairs = (contrast.toward, names[1]), (contrast.against, names[2])
    inputs = contrast.toward.a, contrast.toward.b, contrast.against.b
    answer = {
        "schema": "bilrp/contrast/1",
        "summary": contrast.summary(names),
        "similarity": contrast.toward.similarity,
        "score": contrast.score,
        "unattributed": contrast.unattributed,
        "contributions": {name: each.tolist() for name, each in zip("abc", values, strict=True)},
        "sides": [
            describe_side(side, name, each) for side, name, each in zip(inputs, names, values, strict=True)
        ],
        "explanations": [
            {
                "heading": f"What makes it similar to {other}",
                "score": explanation.score,
                "summary": explanation.summary(),
                "findings": serialize_findings(explanation),
            }
            for explanation, other in pairs
        ],
        "outputs": list(outputs),
    }
    return cast(ContrastAnswer, to_jsonable(answer))


def list_findings(explanation: Explanation) -> list[Finding]:
    """Return the findings of an explanation, JSON-ready."""
    return to_jsonable(serialize_findings(explanation))


def describe_side(side: Decomposition, name: str, values: Tensor | None = None) -> Side:
    """Return an input with its regions: characters of a text, or rectangles of an image.

    Args:
        side, name: the decomposed input, and its name.
        values: what each region contributes.
    """
    view, bounds = side.view, None if isinstance(side.view, Text) else side.regions.bounds
    contributions = None if values is None else values.detach().cpu().double().tolist()
    regions: list[Region] = []
    for number in range(side.regions.count):
        region: Region = {"region": number}
        if contributions is not None:
            region["contribution"] = contributions[number]
        if isinstance(view, Text) and (span := view.spans[number]) is not None:
            region["start"], region["end"], region["text"] = *span, view.text[slice(*span)]
        elif bounds is not None:
            region["box"] = _make_box(bounds[number])
        regions.append(region)
    if isinstance(view, Text):
        return {"name": name, "kind": "text", "text": view.text, "regions": regions}
    if isinstance(view, Image):
        size = list(view.original_size or view.size)
        return {"name": name, "kind": "image", "size": size, "regions": regions}
    return {"name": name, "kind": "tensor", "regions": regions}


def _list_top(explanation: Explanation, count: int, *, special_tokens: bool) -> list[dict[str, Any]]:
    """Return the strongest pairs of regions."""
    sides = explanation.a, explanation.b
    rows, columns = (list_visible_regions(side, special_tokens=special_tokens) for side in sides)
    return [
        {
            "a": _describe_region(explanation.a, rows[match.a]),
            "b": _describe_region(explanation.b, columns[match.b]),
            "relevance": match.relevance,
        }
        for match in select_visible(explanation, special_tokens=special_tokens).top(count)
    ]


def _list_numbers(explanation: Explanation) -> dict[str, Any]:
    """Return the numbers that two tables have in common, and the blocks of neighbouring ones; nothing for other inputs."""
    sides = explanation.a.regions, explanation.b.regions
    if not number_matches.are_numbers(*sides):
        return {}
    relevance = explanation.relevance.detach().cpu().double().numpy()
    terms = explanation.breakdown
    score = 0.0 if terms.is_near_zero else terms.specific
    return {
        name: number_matches.serialize_matches(match(relevance, *sides, score=score), *sides)
        for name, match in (
            ("numbers", number_matches.match_numbers), ("number_blocks", number_matches.match_blocks),
        )
    }  # fmt: skip


def _describe_region(side: Decomposition, index: int) -> MatchedRegion:
    region: MatchedRegion = {"region": index, "place": describe_location(side.regions, side.view, [index])}
    if side.regions.boxes is not None:
        region["box"] = _make_box(side.regions.boxes[index])
    if side.regions.names is not None:
        region["name"] = side.regions.names[index]
    return region


def _make_box(edges: Tensor) -> Box:
    top, left, bottom, right = (int(edge) for edge in edges.tolist())
    return {"top": top, "left": left, "bottom": bottom, "right": right}
