"""Answers for the views as JSON values: neighbours, one-sided attributions, pairs, contrasts, groups, occlusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from urllib.parse import quote

import numpy as np
import torch

from bilrp.answers.collections import build_search
from bilrp.answers.explanations import build_explain
from bilrp.answers.http_shapes import (
    CoverAnswer,
    GroupAnswer,
    GroupContrastAnswer,
    HeatAnswer,
    NeighbourLabel,
    NeighboursAnswer,
    ScoredLabel,
    SideAnswer,
    SimilarityName,
)
from bilrp.answers.shapes import ExplainAnswer, SearchAnswer
from bilrp.app.collection_session import MAX_TEXT_CHARACTERS, CollectionSession
from bilrp.app.security import HTTPError
from bilrp.collection.items_table import top_k_indices
from bilrp.collection.subquery import query_vector
from bilrp.explanation import Explanation, pair
from bilrp.highlights import Highlight, highlight
from bilrp.inputs import Image, Text, View
from bilrp.render import page

MAX_NEIGHBOURS = 100
MAX_GROUP_EXAMPLES = 6


@dataclass(frozen=True)
class VectorSpec:
    """A vector to compare with: an item's embedding, only some of its regions, all but some, or the mean of a group.

    Args:
        id: the item or query.
        part: use only these regions; empty: all.
        without: leave out these regions.
        similarity: "cosine" or "dot".
        group: use the mean embedding of this group in place of an item.
    """

    id: str
    part: tuple[int, ...] = ()
    without: tuple[int, ...] = ()
    similarity: str = "cosine"
    group: str | None = None

    @property
    def needs_parts(self) -> bool:
        return bool(self.part or self.without)


def resolve_vector(session: CollectionSession, spec: VectorSpec) -> np.ndarray:
    """Return the vector that neighbours are ranked by: φ(x), a group's mean, or `query_vector` of a part."""
    if spec.group is not None:
        return resolve_group_or_item(session, {"group": spec.group})[1].numpy()
    if not spec.needs_parts:
        return session.embedding(spec.id).numpy()
    return query_vector(
        session.parts(spec.id).embedding.float().numpy(),
        session.sparse_parts(spec.id),
        part=spec.part or None,
        without=spec.without,
    )


def find_neighbours(
    session: CollectionSession, spec: VectorSpec, k: int, where: str | None = None
) -> NeighboursAnswer:
    """Return the k nearest items, without the item itself; a group's own members are included.

    Args:
        session, spec: the served collection; the vector to rank by, and the similarity.
        k: number of items.
        where: only items that match this condition, from `get_where`.
    """
    at, items = session.position(spec.id) if spec.group is None else None, session.collection.items
    vector, count = resolve_vector(session, spec), k + (at is not None)
    if where is None:
        order, scores = items.top_k(vector, count, spec.similarity)
    else:
        order, scores = items.rank(items.find(where), vector, count, spec.similarity)
    ranked = [(i, score) for i, score in zip(order.tolist(), scores.tolist(), strict=True) if i != at][:k]
    neighbours: list[NeighbourLabel] = [{**session.label(i), "score": score} for i, score in ranked]
    if session.is_text:
        texts = items.take([i for i, _ in ranked], ["text"])["text"] if ranked else []
        for each, text in zip(neighbours, texts, strict=True):
            each["text"] = (text or "")[:MAX_TEXT_CHARACTERS]
    return {"id": spec.id, "neighbours": neighbours, "of": len(session.collection)}


def search(
    session: CollectionSession,
    query: str,
    key: str,
    k: int,
    *,
    similarity: str,
    where: str | None = None,
    with_highlights: bool = False,
) -> SearchAnswer:
    """Return the answer of `bilrp search --json` to a query.

    Args:
        session, k, where: as for `find_neighbours`.
        query, key: as it was asked, and the id of the item or query.
        similarity: "cosine" or "dot".
        with_highlights: also weigh the words or regions of the query and of each neighbour.
    """
    collection, at = session.collection, session.position(key)
    with session.redact_paths():
        neighbours = collection.nearest(
            session.embedding(key), k + (at is not None), similarity=similarity, where=where
        )
        neighbours = [n for n in neighbours if n.position != at][:k]
        highlights: Sequence[Highlight] = ()
        if with_highlights and neighbours:
            hits = [session.item(n.id) for n in neighbours]
            highlights = highlight(collection.encoder, session.item(key), hits, similarity=similarity)
    answer = build_search(collection, query, neighbours, similarity=similarity, highlights=highlights)
    return {**answer, "collection": Path(collection.path).name}


def explain_answer(session: CollectionSession, a: str, b: str, similarity: str) -> ExplainAnswer:
    """Return the answer of `bilrp explain --json` about two items.

    Args:
        session, a, b, similarity: as for `explain_pair`.
    """
    explanation = explain_pair(session, a, b, similarity)
    names = session.name(a), session.name(b)
    return build_explain(explanation, names=names, encoder=session.collection.encoder.name)


def describe_item(session: CollectionSession, key: str) -> SideAnswer:
    """Return one item with the boxes or spans of its regions, as the page draws a side; the image is a URL."""
    side = session.parts(key)
    src = f"/api/items/{quote(key, safe='')}/picture" if isinstance(side.view, Image) else None
    at = session.position(key)
    group = "" if at is None else session.item_groups[at]
    drawn = page.serialize_side(side, src=src)
    return cast(SideAnswer, drawn | {"id": key, "name": session.name(key), "group": group})


def compute_attribution(session: CollectionSession, key: str, against: Sequence[VectorSpec]) -> HeatAnswer:
    """Return ⟨P_I(x), t⟩ for each region I of x, t the mean of the target vectors.

    Args:
        session, key: the served collection, and the id of x.
        against: the targets; the first one's similarity is used for all.
    """
    side, cosine = session.parts(key), against[0].similarity == "cosine"
    target = np.zeros(side.parts.shape[1], np.float32)
    for spec in against:
        vector = resolve_vector(session, spec)
        target += vector / ((np.linalg.norm(vector) or 1.0) if cosine else 1.0)
    target /= len(against)
    target /= (float(side.embedding.norm()) or 1.0) if cosine else 1.0
    values = side.parts.numpy() @ target
    score = float(side.embedding.float().numpy() @ target)
    return {
        "id": key,
        "side": describe_item(session, key),
        "values": round_values(values),
        "score": score,
        "unattributed": score - float(values.sum()),
    }


def round_values(values: np.ndarray) -> list[float]:
    """Round to six significant digits, which keeps the JSON short."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def explain_pair(session: CollectionSession, a: str, b: str, similarity: str) -> Explanation:
    """Explain one pair, with the images at full resolution.

    Args:
        session, a, b: the served collection, and the ids of two items or queries.
        similarity: "cosine" or "dot".
    """
    sides = [
        replace(session.parts(key), view=session.full_view(key), name=session.name(key)) for key in (a, b)
    ]
    return pair(sides[0], sides[1], similarity=similarity)


def highlight_hits(
    session: CollectionSession, key: str, ids: Sequence[str], similarity: str
) -> dict[str, object]:
    """Return `Highlight.to_dict` of each hit with its id and name.

    Args:
        session, key, ids: the served collection, and the ids of the query and its hits.
        similarity: "cosine" or "dot".
    """
    hits = highlight(
        session.collection.encoder,
        session.item(key),
        [session.item(each) for each in ids],
        similarity=similarity,
    )
    rows = [
        {"id": each, "name": session.name(each), "text": _text_of(hit.sides[1].view), **hit.to_dict()}
        for each, hit in zip(ids, hits, strict=True)
    ]
    return {"id": key, "text": _text_of(hits[0].sides[0].view), "highlights": rows}


def _text_of(view: View | None) -> str | None:
    return view.text if isinstance(view, Text) else None


def build_pair_payload(session: CollectionSession, a: str, b: str, similarity: str) -> dict[str, object]:
    """Return the payload of a pair for `mount` in the browser.

    Args:
        session, a, b, similarity: as for `explain_pair`.
    """
    return page.build_payload(explain_pair(session, a, b, similarity)) | {
        "palette": "paper",
        "compact": False,
    }


def resolve_group_or_item(
    session: CollectionSession, target: Mapping[str, str]
) -> tuple[str, torch.Tensor, list[int]]:
    """Return (name, mean embedding, positions) of {"group": name} or {"id": key}."""
    if "group" in target:
        name = target["group"]
        if name not in session.groups:
            raise HTTPError(404, "no such group")
        return name or "no group", session.collection.mean(session.groups[name]), session.groups[name]
    at = session.position(target["id"])
    return session.name(target["id"]), session.embedding(target["id"]), [] if at is None else [at]


def compute_contrast(
    session: CollectionSession, key: str, first: Mapping[str, str], second: Mapping[str, str], similarity: str
) -> GroupContrastAnswer:
    """Return ⟨P_I(x), m₁ − m₂⟩: how much region I of x makes it more similar to the first target than to the second.

    Args:
        session, key: the served collection, and the id of x.
        first, second: {"group": name} or {"id": key}; m₁ and m₂ are their mean embeddings.
        similarity: "cosine" or "dot".
    """
    item, sides = session.parts(key), [resolve_group_or_item(session, target) for target in (first, second)]
    scale = (float(item.embedding.norm()) or 1.0) if similarity == "cosine" else 1.0
    means = [
        mean / ((float(mean.norm()) or 1.0) if similarity == "cosine" else 1.0) / scale
        for _, mean, _ in sides
    ]
    values = [item.parts.numpy() @ mean.numpy() for mean in means]
    scores = [float(item.embedding.float() @ mean) for mean in means]
    return {
        "id": key,
        "side": describe_item(session, key),
        "values": round_values(values[0] - values[1]),
        "each": [round_values(v) for v in values],
        "score": scores[0] - scores[1],
        "unattributed": scores[0] - scores[1] - float((values[0] - values[1]).sum()),
        "sides": [
            {"name": name, "score": score, "count": len(positions)}
            for (name, _, positions), score in zip(sides, scores, strict=True)
        ],
    }


def describe_group(session: CollectionSession, name: str) -> GroupAnswer:
    """Return a group's most and least typical items, the nearest items outside, and its mean cosine inside and outside."""
    if name not in session.groups:
        raise HTTPError(404, "no such group")
    positions = np.array(session.groups[name])
    mean = session.collection.mean(name).numpy()
    scores = session.collection.items.scores(mean, "cosine")
    outside = np.setdiff1d(np.arange(len(scores)), positions, assume_unique=True)
    least = min(MAX_GROUP_EXAMPLES, max(len(positions) - MAX_GROUP_EXAMPLES, 0))

    def top(among: np.ndarray, values: np.ndarray, k: int = MAX_GROUP_EXAMPLES) -> list[ScoredLabel]:
        best = among[top_k_indices(values[among], k)].tolist()
        return [{**session.label(p), "score": float(scores[p])} for p in best]

    return {
        "name": name,
        "count": len(positions),
        "inside": float(scores[positions].mean()),
        "outside": float(scores[outside].mean()) if len(outside) else None,
        "typical": top(positions, scores),
        "untypical": top(positions, -scores, least),
        "near": top(outside, scores),
    }


def occlude_regions(
    session: CollectionSession, a: str, b: str, regions: Sequence[int], similarity: SimilarityName
) -> CoverAnswer:
    """Set regions of a to zero; return the score before, the new score, and the prediction score − Σ ⟨P_I(a), φ(b)⟩.

    Args:
        session, a, b: the served collection, the item to occlude, and the item to compare with.
        regions: region numbers of a.
        similarity: "cosine" or "dot".
    """
    side, other = session.parts(a), session.embedding(b)
    if not regions or not all(0 <= r < side.regions.count for r in regions):
        raise HTTPError(422, f"choose some of the regions 0 … {side.regions.count - 1}")
    item = session.item(a)
    labels = side.regions.labels
    covered = torch.isin(labels, torch.tensor(list(regions), device=labels.device))
    if covered.shape != item.x.shape[1:]:
        covered = covered.expand(item.x.shape[1:])
    x = torch.where(covered, torch.zeros_like(item.x[0]), item.x[0])[None]
    vectors = {
        "before": session.embed(item),
        "predicted": side.embedding.float() - side.parts[list(regions)].sum(0),
        "true": session.embed(replace(item, x=x)),
    }
    scores = {}
    for name, vector in vectors.items():
        # The predicted cosine is divided by the original norm: relevance explains ⟨φ, φ'⟩ at that norm.
        own = vectors["before"] if name == "predicted" else vector
        scale = float(own.norm()) * float(other.norm()) if similarity == "cosine" else 1.0
        scores[name] = float(vector @ other) / (scale or 1.0)
    return {
        "a": a,
        "b": b,
        "regions": len(regions),
        "similarity": similarity,
        "before": scores["before"],
        "predicted": scores["predicted"],
        "true": scores["true"],
    }
