"""What the views ask, as plain values: neighbours by part, one-sided heat maps, pairs, contrasts, groups, cover-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from bilrp.app.collection_session import CollectionSession
from bilrp.app.security import HTTPError
from bilrp.collection.items_table import top_k_indices
from bilrp.collection.subquery import query_vector
from bilrp.explanation import Explanation, pair
from bilrp.inputs import Image
from bilrp.render import page

MAX_NEIGHBOURS = 100  # neighbours of one answer
MAX_GROUP_EXAMPLES = 6  # items that show what a group is


@dataclass(frozen=True)
class VectorSpec:
    """Of what, whole or by some of its regions, or without some; by cosine or dot product."""

    id: str
    part: tuple[int, ...] = ()
    without: tuple[int, ...] = ()
    similarity: str = "cosine"
    group: str | None = None  # the mean of a group, in the place of an item

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


def find_neighbours(session: CollectionSession, spec: VectorSpec, k: int) -> dict[str, Any]:
    """The nearest items, without the item itself; of a group, its own members too."""
    at = session.position(spec.id) if spec.group is None else None
    order, scores = session.collection.items.top_k(
        resolve_vector(session, spec), k + (at is not None), spec.similarity
    )
    ranked = zip(order.tolist(), scores.tolist(), strict=True)
    near = [session.label(i) | {"score": score} for i, score in ranked if i != at]
    return {"id": spec.id, "neighbours": near[:k], "of": len(session.collection)}


def describe_item(session: CollectionSession, key: str) -> dict[str, Any]:
    """One item with where its regions lie, as the page draws a side; its picture is an address."""
    found = session.parts(key)
    src = f"/api/items/{key}/picture" if isinstance(found.view, Image) else None
    at = session.position(key)
    group = "" if at is None else session.item_groups[at]
    return page.serialize_side(found, src=src) | {"id": key, "name": session.name(key), "group": group}


def compute_attribution(
    session: CollectionSession, key: str, against: Sequence[VectorSpec]
) -> dict[str, Any]:
    """⟨P_I(x), t⟩ for each region I of x: what it contributes to the similarity with t, mean of what it is compared with."""
    found, similarity = session.parts(key), against[0].similarity
    total = np.zeros(found.parts.shape[1], np.float32)
    for each in against:
        vector = resolve_vector(session, each)
        total += vector / ((np.linalg.norm(vector) or 1.0) if similarity == "cosine" else 1.0)
    total /= len(against)
    own = float(found.embedding.norm()) or 1.0
    total /= own if similarity == "cosine" else 1.0
    values = found.parts.numpy() @ total
    score = float(found.embedding.float().numpy() @ total)
    told = {"values": round_values(values), "score": score, "unattributed": score - float(values.sum())}
    return {"id": key, "side": describe_item(session, key), **told}


def round_values(values: np.ndarray) -> list[float]:
    """Numbers to six digits: what a screen can show, in few letters."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def explain_pair(session: CollectionSession, a: str, b: str, similarity: str) -> Explanation:
    """Of one pair, with the photographs as sharp as they are."""
    sides = [
        replace(session.parts(key), view=session.full_view(key), name=session.name(key)) for key in (a, b)
    ]
    return pair(sides[0], sides[1], similarity=similarity)


def build_pair_payload(session: CollectionSession, a: str, b: str, similarity: str) -> dict[str, Any]:
    """What `mount` draws of a pair."""
    return page.build_payload(explain_pair(session, a, b, similarity)) | {
        "palette": "paper",
        "compact": False,
    }


def resolve_group_or_item(
    session: CollectionSession, target: dict[str, Any]
) -> tuple[str, torch.Tensor, list[int]]:
    """A group by its name or one item by its id: what it is called, its mean embedding, its positions."""
    if "group" in target:
        name = target["group"]
        if name not in session.groups:
            raise HTTPError(404, "there is no such group")
        return name or "no group", session.collection.mean(session.groups[name]), session.groups[name]
    at = session.position(target["id"])
    return session.name(target["id"]), session.embedding(target["id"]), [] if at is None else [at]


def compute_contrast(
    session: CollectionSession, key: str, first: dict[str, Any], second: dict[str, Any], similarity: str
) -> dict[str, Any]:
    """⟨P_I(x), m₁ − m₂⟩: what region I of x speaks for the first and against the second."""
    found, sides = session.parts(key), [resolve_group_or_item(session, of) for of in (first, second)]
    scale = (float(found.embedding.norm()) or 1.0) if similarity == "cosine" else 1.0
    means = [
        mean / ((float(mean.norm()) or 1.0) if similarity == "cosine" else 1.0) / scale
        for _, mean, _ in sides
    ]
    values = [found.parts.numpy() @ mean.numpy() for mean in means]
    scores = [float(found.embedding.float() @ mean) for mean in means]
    return {
        "id": key,
        "side": describe_item(session, key),
        "values": round_values(values[0] - values[1]),
        "each": [round_values(v) for v in values],
        "score": scores[0] - scores[1],
        "unattributed": scores[0] - scores[1] - float((values[0] - values[1]).sum()),
        "sides": [
            {"name": name, "score": score, "count": len(of)}
            for (name, _, of), score in zip(sides, scores, strict=True)
        ],
    }


def describe_group(session: CollectionSession, name: str) -> dict[str, Any]:
    """What holds a group together: its most typical and least typical items, and how near they are to it and to the rest."""
    if name not in session.groups:
        raise HTTPError(404, "there is no such group")
    positions = np.array(session.groups[name])
    mean = session.collection.mean(name).numpy()
    scores = session.collection.items.scores(mean, "cosine")
    outside = np.setdiff1d(np.arange(len(scores)), positions, assume_unique=True)
    least = min(MAX_GROUP_EXAMPLES, max(len(positions) - MAX_GROUP_EXAMPLES, 0))

    def shown(among: np.ndarray, values: np.ndarray, k: int = MAX_GROUP_EXAMPLES) -> list[dict[str, Any]]:
        few = among[top_k_indices(values[among], k)].tolist()
        return [session.label(p) | {"score": float(scores[p])} for p in few]

    return {
        "name": name,
        "count": len(positions),
        "inside": float(scores[positions].mean()),
        "outside": float(scores[outside].mean()) if len(outside) else None,
        "typical": shown(positions, scores),
        "untypical": shown(positions, -scores, least),
        "near": shown(outside, scores),
    }


def occlude_regions(
    session: CollectionSession, a: str, b: str, regions: Sequence[int], similarity: str
) -> dict[str, Any]:
    """Regions of a set to zero: the model's true score with b, beside score − Σ ⟨P_I(a), φ(b)⟩ that was predicted."""
    found, other = session.parts(a), session.embedding(b)
    if not regions or not all(0 <= r < found.regions.count for r in regions):
        raise HTTPError(422, f"paint over some of the regions 0 … {found.regions.count - 1}")
    item = session.item(a)
    labels = found.regions.labels
    covered = torch.isin(labels, torch.tensor(list(regions), device=labels.device))
    if covered.shape != item.x.shape[1:]:
        covered = covered.expand(item.x.shape[1:])
    x = torch.where(covered, torch.zeros_like(item.x[0]), item.x[0])[None]
    embeddings = {"before": session.embed(item), "after": session.embed(replace(item, x=x))}
    left = found.embedding.float() - found.parts[list(regions)].sum(0)
    said = {"before": embeddings["before"], "predicted": left, "true": embeddings["after"]}
    scores = {}
    for name, vector in said.items():
        # Cosine's prediction keeps the length that the input had: relevance explains ⟨φ, φ'⟩ at that length.
        own = embeddings["before"] if name == "predicted" else vector
        scale = float(own.norm()) * float(other.norm()) if similarity == "cosine" else 1.0
        scores[name] = float(vector @ other) / (scale or 1.0)
    return {"a": a, "b": b, "regions": len(regions), "similarity": similarity, **scores}
