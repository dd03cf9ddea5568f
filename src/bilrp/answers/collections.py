"""Answers about a collection and about passages: `search`, `audit` and `highlight`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from bilrp.answers.explanations import list_findings
from bilrp.answers.shapes import (
    AuditAnswer,
    HighlightAnswer,
    HighlightRow,
    ImageSuspect,
    Neighbour,
    PassageHighlight,
    Phrase,
    Recall,
    SearchAnswer,
    TextAuditAnswer,
)
from bilrp.collection.audit import Audit
from bilrp.render.report import to_jsonable

if TYPE_CHECKING:
    from bilrp.collection.core import Collection
    from bilrp.collection.core import Neighbour as FoundNeighbour
    from bilrp.collection.text_audit import TextAudit, TextSuspect
    from bilrp.explanation import Explanation
    from bilrp.highlights import Highlight


def build_highlight(
    encoder: str, query: str, sources: Sequence[str], highlights: Sequence[Highlight]
) -> HighlightAnswer:
    """Return the highlights of passages.

    Args:
        encoder, query: name of the encoder, and the query.
        sources: the passages as they were given.
        highlights: one for each.
    """
    rows = [{"source": source, **hit.to_dict()} for source, hit in zip(sources, highlights, strict=True)]
    return {
        "schema": "bilrp/highlight/1",
        "encoder": encoder,
        "text": query,
        "highlights": cast("list[PassageHighlight]", to_jsonable(rows)),
    }


def build_search(
    collection: Collection,
    query: str,
    neighbours: Sequence[FoundNeighbour],
    *,
    similarity: str,
    regions: Sequence[int] | None = None,
    recall: float | None = 1.0,
    measured: Recall | None = None,
    exact: str | None = None,
    explanations: Sequence[Explanation] = (),
    highlights: Sequence[Highlight] = (),
) -> SearchAnswer:
    """Return the neighbours of a query.

    Args:
        collection, query: the collection, and the query as it was given.
        neighbours: the result of `Collection.nearest`.
        similarity: by which they are ranked.
        regions: regions of the query that were searched by, or left out.
        recall: of the search; None if it is not known.
        measured: how the recall was measured.
        exact: why the search was exact.
        explanations, highlights: one for each neighbour, if they were explained or highlighted.
    """
    rows: list[Neighbour] = []
    for number, each in enumerate(neighbours):
        row: Neighbour = {
            "id": each.id,
            "name": each.name,
            "score": each.score,
            "text": each.text,
            "group": each.group,
            "metadata": each.metadata,
        }
        if explanations:
            row["summary"] = explanations[number].summary()
            row["findings"] = list_findings(explanations[number])
        if highlights:
            row["highlight"] = cast(HighlightRow, highlights[number].to_dict())
        rows.append(row)
    return {
        "schema": "bilrp/search/1",
        "collection": collection.path,
        "query": query,
        "similarity": similarity,
        "regions": None if regions is None else list(regions),
        "recall": recall,
        "measured": measured,
        "exact": exact,
        "neighbours": to_jsonable(rows),
    }


def build_audit(collection: Collection, audit: Audit | TextAudit) -> AuditAnswer:
    """Return the result of an audit."""
    if not isinstance(audit, Audit):
        return _build_text_audit(collection, audit)
    suspects: list[ImageSuspect] = [
        {
            "kind": suspect.kind,
            "where": suspect.where,
            "share": suspect.share,
            "area": suspect.area,
            "pairs": len(suspect.pairs),
            "carriers": [collection.ids[p] for p in suspect.carriers],
            "changed": suspect.changed,
            "attraction": suspect.attraction,
            "chance": suspect.chance,
            "mask": suspect.mask.astype(int).tolist(),
        }
        for suspect in audit.suspects
    ]
    return {
        "schema": "bilrp/audit/1",
        "kind": "image",
        "collection": collection.path,
        "items": len(collection),
        "pairs": len(audit.pairs),
        "unattributed": audit.unattributed,
        "suspects": to_jsonable(suspects),
    }


def _build_text_audit(collection: Collection, audit: TextAudit) -> TextAuditAnswer:
    ids = collection.ids

    def serialize(phrase: TextSuspect) -> Phrase:
        return {
            "kind": phrase.kind,
            "phrase": phrase.phrase,
            "share": phrase.share,
            "area": phrase.area,
            "contribution": phrase.contribution,
            "pairs": len(phrase.pairs),
            "carriers": [ids[p] for p in phrase.carriers],
            "changed": phrase.changed,
            "attraction": phrase.attraction,
            "attraction_without": phrase.attraction_without,
            "chance": phrase.chance,
            "suspect": phrase in audit.suspects,
            "changes": [
                {"item": ids[each.item], "before": ids[each.before], "after": ids[each.after]}
                for each in phrase.changes
            ],
        }

    return {
        "schema": "bilrp/audit/1",
        "kind": "text",
        "collection": collection.path,
        "items": len(collection),
        "pairs": len(audit.pairs),
        "unattributed": audit.unattributed,
        "suspects": [serialize(phrase) for phrase in audit.suspects],
        "phrases": [serialize(phrase) for phrase in audit.phrases],
        "kinds": [{"kind": each.kind, "share": each.share, "area": each.area} for each in audit.kinds],
        "traits": [
            {
                "trait": each.trait,
                "agreement": each.agreement,
                "chance": each.chance,
                "deviations": each.deviations,
            }
            for each in audit.traits
        ],
    }
