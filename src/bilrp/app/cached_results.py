"""What the app works out once for a whole collection and keeps beside it: the map in two dimensions, the audit."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bilrp.app.collection_session import CollectionSession
from bilrp.errors import InputError
from bilrp.inputs import Image
from bilrp.io import files

CACHE_FOLDER = "app"
POWER_ITERATIONS = 6  # of the power iteration: enough for two components that anybody could see
MAX_EXAMPLE_PAIRS = 12  # pairs shown of each finding
AUDIT_SAMPLE_ITEMS = 48  # items that an audit looks at
MAX_FILE_BYTES = 16_000_000  # of a kept file, whatever the number of items
BYTES_PER_ITEM = 16  # more for each: the map has eight, in base64


def load_or_compute(
    session: CollectionSession, name: str, compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What is kept under a name for exactly these items, else made now and kept; a damaged file counts as absent."""
    folder = Path(session.collection.path)
    stamp = hashlib.sha256("".join(session.collection.ids).encode()).hexdigest()
    path = folder / CACHE_FOLDER / f"{name}.json"
    try:
        most = MAX_FILE_BYTES + BYTES_PER_ITEM * len(session.collection)
        found = json.loads(files.read_bytes(path, max_bytes=most, follow_symlinks=False))
        if found["stamp"] == stamp:
            return found["made"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    made = compute()
    if folder.is_dir():  # a collection in a cloud is only looked at
        with contextlib.suppress(
            OSError, InputError
        ):  # where nothing can be written, it is made anew next time
            path.parent.mkdir(exist_ok=True)
            files.write_bytes(path, json.dumps({"stamp": stamp, "made": made}).encode())
    return made


def get_map(session: CollectionSession) -> dict[str, Any]:
    """Where each item lies: the first two principal components of the embeddings, each divided by its length.

    C = Σ (u − ū)(u − ū)ᵀ with u = φ/‖φ‖, found by power iteration in blocks, so that any size fits into memory.
    """
    return load_or_compute(session, "map", lambda: _compute_map(session))


def _compute_map(session: CollectionSession) -> dict[str, Any]:
    found, norms = session.collection, np.maximum(session.collection.items.norms, 1e-30)
    count = len(found)

    def blocks() -> Any:
        start = 0
        for block in found.items.iter_blocks():
            yield slice(start, start + len(block)), block / norms[start : start + len(block), None]
            start += len(block)

    mean = np.zeros(found.width)
    for _, unit in blocks():
        mean += unit.sum(0, dtype=np.float64) / count
    axes = np.random.default_rng(0).standard_normal((found.width, 4))
    places, total = np.zeros((count, 4)), 0.0
    for sweep in range(POWER_ITERATIONS):
        axes = np.linalg.qr(axes)[0]
        onward, total = np.zeros_like(axes), 0.0
        for at, unit in blocks():
            places[at] = unit @ axes - mean @ axes
            onward += unit.T @ places[at] - np.outer(mean, places[at].sum(0))
            total += float((unit.astype(np.float64) ** 2).sum())
        if sweep < POWER_ITERATIONS - 1:
            axes = onward
    turned, spectrum, _ = np.linalg.svd(places, full_matrices=False)
    flat = turned[:, :2] * spectrum[:2]
    flat *= np.where(
        flat[np.abs(flat).argmax(0), range(flat.shape[1])] < 0, -1, 1
    )  # the same way up every time
    spread = max(total - count * float(mean @ mean), 1e-30)
    if flat.shape[1] < 2:
        flat = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    scaled = flat / (np.abs(flat).max() or 1.0)
    return {
        "by": "the first two principal components of the embeddings, each divided by its length",
        "holds": float((spectrum[:2] ** 2).sum() / spread),
        "places": base64.b64encode(scaled.astype("<f4").tobytes()).decode(),
    }


def get_audit(session: CollectionSession) -> dict[str, Any]:
    """The findings of `bilrp audit` with the pairs that show them."""
    return load_or_compute(session, "audit", lambda: _compute_audit(session))


def _compute_audit(session: CollectionSession) -> dict[str, Any]:
    with session.redact_paths():
        report = session.collection.audit(sample=AUDIT_SAMPLE_ITEMS)
    label, shown = session.label, session.collection.view(report.pairs[0][0])

    def pairs(of: Any) -> list[list[dict[str, Any]]]:
        return [[label(i), label(j)] for i, j in of[:MAX_EXAMPLE_PAIRS]]

    suspects = [
        {
            "kind": s.kind, "said": str(s), "where": s.where, "share": s.share, "area": s.area, "changed": s.changed,
            "count": len(s.pairs), "pairs": pairs(s.pairs), "mask": s.mask.astype(int).tolist(),
        }
        for s in report.suspects
    ]  # fmt: skip
    clusters = [
        {"count": len(c.pairs), "pairs": pairs(c.pairs), "places": np.round(c.mean_map, 6).tolist()}
        for c in report.clusters
    ]
    return {
        "suspects": suspects,
        "clusters": clusters,
        "places": np.round(report.mean_map, 6).tolist(),
        "pairs": len(report.pairs),
        "unattributed": report.unattributed,
        "picture": isinstance(shown, Image),
    }
