"""Results about a whole collection that are computed once and stored in its folder: the two-dimensional map, the audit."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from bilrp.answers.http_shapes import Label, MapAnswer
from bilrp.app.collection_session import CollectionSession
from bilrp.app.map_clusters import list_clusters
from bilrp.collection.text_audit import KIND_LABELS, TextAudit
from bilrp.errors import InputError
from bilrp.inputs import Image
from bilrp.io import files

Result = TypeVar("Result")
CACHE_FOLDER = "app"
POWER_ITERATIONS = 6  # enough for the two leading components of a map
MAX_EXAMPLE_PAIRS = 12  # per finding
AUDIT_SAMPLE_ITEMS = 48
MAX_FILE_BYTES = 16_000_000  # of a stored file, plus BYTES_PER_ITEM for each item
BYTES_PER_ITEM = 16  # the map has eight, in base64


def load_or_compute(session: CollectionSession, name: str, compute: Callable[[], Result]) -> Result:
    """Return the stored result for exactly these items, or compute and store it; a damaged file is ignored.

    Args:
        session, name: the served collection, and the name of the file, without its suffix.
        compute: returns the result as JSON values.
    """
    folder = Path(session.collection.path)
    stamp = hashlib.sha256("".join(session.collection.ids).encode()).hexdigest()
    path = folder / CACHE_FOLDER / f"{name}.json"
    try:
        max_bytes = MAX_FILE_BYTES + BYTES_PER_ITEM * len(session.collection)
        stored = json.loads(files.read_bytes(path, max_bytes=max_bytes, follow_symlinks=False))
        if stored["stamp"] == stamp:
            return stored["made"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    result = compute()
    if folder.is_dir():  # a collection in an object store is read-only
        with contextlib.suppress(OSError, InputError):  # a read-only folder: compute it again next time
            path.parent.mkdir(exist_ok=True)
            files.write_bytes(path, json.dumps({"stamp": stamp, "made": result}).encode())
    return result


def get_map(session: CollectionSession) -> MapAnswer:
    """Return the first two principal components of the normalised embeddings, and the share of variance they explain.

    C = Σ (u − ū)(u − ū)ᵀ with u = φ/‖φ‖, by power iteration over blocks, so that any collection fits into memory.
    """
    return load_or_compute(session, "map", lambda: _compute_map(session))


def _compute_map(session: CollectionSession) -> MapAnswer:
    collection, norms = session.collection, np.maximum(session.collection.items.norms, 1e-30)
    count = len(collection)

    def unit_blocks() -> Iterator[tuple[slice, np.ndarray]]:
        start = 0
        for block in collection.items.iter_blocks():
            yield slice(start, start + len(block)), block / norms[start : start + len(block), None]
            start += len(block)

    mean = np.zeros(collection.width)
    for _, unit in unit_blocks():
        mean += unit.sum(0, dtype=np.float64) / count
    axes = np.random.default_rng(0).standard_normal((collection.width, 4))
    projected, total = np.zeros((count, 4)), 0.0
    for sweep in range(POWER_ITERATIONS):
        axes = np.linalg.qr(axes)[0]
        next_axes, total = np.zeros_like(axes), 0.0
        for rows, unit in unit_blocks():
            projected[rows] = unit @ axes - mean @ axes
            next_axes += unit.T @ projected[rows] - np.outer(mean, projected[rows].sum(0))
            total += float((unit.astype(np.float64) ** 2).sum())
        if sweep < POWER_ITERATIONS - 1:
            axes = next_axes
    left, spectrum, _ = np.linalg.svd(projected, full_matrices=False)
    points = left[:, :2] * spectrum[:2]
    largest = points[np.abs(points).argmax(0), range(points.shape[1])]
    points *= np.where(largest < 0, -1, 1)  # makes the signs reproducible
    variance = max(total - count * float(mean @ mean), 1e-30)
    if points.shape[1] < 2:
        points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    scaled = points / (np.abs(points).max() or 1.0)
    return {
        "by": "the first two principal components of the embeddings, each divided by its length",
        "holds": float((spectrum[:2] ** 2).sum() / variance),
        "places": base64.b64encode(scaled.astype("<f4").tobytes()).decode(),
        "clusters": list_clusters(session, scaled),
    }


def get_audit(session: CollectionSession) -> dict[str, object]:
    """Return the findings of `bilrp audit` with example pairs."""
    return load_or_compute(session, "audit", lambda: _compute_audit(session))


def _compute_audit(session: CollectionSession) -> dict[str, object]:
    with session.redact_paths():
        report = session.collection.audit(sample=AUDIT_SAMPLE_ITEMS)
    if isinstance(report, TextAudit):
        return _serialize_text_audit(session, report)
    example = session.collection.view(report.pairs[0][0])

    def label_pairs(pairs: Sequence[tuple[int, int]]) -> list[list[Label]]:
        return [[session.label(i), session.label(j)] for i, j in pairs[:MAX_EXAMPLE_PAIRS]]

    suspects = [
        {
            "kind": s.kind, "description": str(s), "where": s.where, "share": s.share, "area": s.area, "changed": s.changed,
            "count": len(s.pairs), "pairs": label_pairs(s.pairs), "mask": s.mask.astype(int).tolist(),
            "attraction": s.attraction, "chance": s.chance,
        }
        for s in report.suspects
    ]  # fmt: skip
    clusters = [
        {"count": len(c.pairs), "pairs": label_pairs(c.pairs), "places": np.round(c.mean_map, 6).tolist()}
        for c in report.clusters
    ]
    return {
        "suspects": suspects,
        "clusters": clusters,
        "places": np.round(report.mean_map, 6).tolist(),
        "pairs": len(report.pairs),
        "unattributed": report.unattributed,
        "picture": isinstance(example, Image),
    }


def _serialize_text_audit(session: CollectionSession, report: TextAudit) -> dict[str, object]:
    """Return the ranked phrases with the neighbours that change without them, kinds of words, and traits in words."""
    phrases = [
        {
            "kind": s.kind, "phrase": s.phrase, "description": str(s), "share": s.share, "area": s.area,
            "contribution": s.contribution, "changed": s.changed, "attraction": s.attraction,
            "attraction_without": s.attraction_without, "chance": s.chance, "suspect": s in report.suspects,
            "carriers": len(s.carriers), "count": len(s.pairs),
            "changes": [
                {name: session.label(getattr(change, name)) for name in ("item", "before", "after")}
                for change in s.changes
            ],
        }
        for s in report.phrases
    ]  # fmt: skip
    return {
        "phrases": phrases,
        "kinds": [{"label": KIND_LABELS[k.kind], "share": k.share, "area": k.area} for k in report.kinds],
        "traits": [trait.describe() for trait in report.traits],
        "pairs": len(report.pairs),
        "unattributed": report.unattributed,
    }
