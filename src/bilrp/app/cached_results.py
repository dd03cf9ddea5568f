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

from bilrp.app.collection_session import Shelf
from bilrp.io import files
from bilrp.errors import InputError
from bilrp.inputs import Image

FOLDER = "app"
SWEEPS = 6  # of the power iteration: enough for two components that anybody could see
EXAMPLES = 12  # pairs shown of each finding
SAMPLE = 48  # items that an audit looks at
MAX_FILE_BYTES = 16_000_000  # of a kept file, whatever the number of items
BYTES_PER_ITEM = 16  # more for each: the map has eight, in base64


def kept(shelf: Shelf, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is kept under a name for exactly these items, else made now and kept; a damaged file counts as absent."""
    folder = Path(shelf.found.path)
    stamp = hashlib.sha256("".join(shelf.found.ids).encode()).hexdigest()
    path = folder / FOLDER / f"{name}.json"
    try:
        most = MAX_FILE_BYTES + BYTES_PER_ITEM * len(shelf.found)
        found = json.loads(files.read_bytes(path, most=most, follow=False))
        if found["stamp"] == stamp:
            return found["made"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    made = make()
    if folder.is_dir():  # a collection in a cloud is only looked at
        with contextlib.suppress(
            OSError, InputError
        ):  # where nothing can be written, it is made anew next time
            path.parent.mkdir(exist_ok=True)
            files.write_bytes(path, json.dumps({"stamp": stamp, "made": made}).encode())
    return made


def atlas(shelf: Shelf) -> dict[str, Any]:
    """Where each item lies: the first two principal components of the embeddings, each divided by its length.

    C = Σ (u − ū)(u − ū)ᵀ with u = φ/‖φ‖, found by power iteration in blocks, so that any size fits into memory.
    """
    return kept(shelf, "map", lambda: _components(shelf))


def _components(shelf: Shelf) -> dict[str, Any]:
    found, norms = shelf.found, np.maximum(shelf.found.items.norms, 1e-30)
    count = len(found)

    def blocks() -> Any:
        start = 0
        for block in found.items.blocks():
            yield slice(start, start + len(block)), block / norms[start : start + len(block), None]
            start += len(block)

    mean = np.zeros(found.width)
    for _, unit in blocks():
        mean += unit.sum(0, dtype=np.float64) / count
    axes = np.random.default_rng(0).standard_normal((found.width, 4))
    places, total = np.zeros((count, 4)), 0.0
    for sweep in range(SWEEPS):
        axes = np.linalg.qr(axes)[0]
        onward, total = np.zeros_like(axes), 0.0
        for at, unit in blocks():
            places[at] = unit @ axes - mean @ axes
            onward += unit.T @ places[at] - np.outer(mean, places[at].sum(0))
            total += float((unit.astype(np.float64) ** 2).sum())
        if sweep < SWEEPS - 1:
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


def audit(shelf: Shelf) -> dict[str, Any]:
    """The findings of `bilrp audit` with the pairs that show them."""
    return kept(shelf, "audit", lambda: _audited(shelf))


def _audited(shelf: Shelf) -> dict[str, Any]:
    with shelf.discreet():
        report = shelf.found.audit(sample=SAMPLE)
    label, shown = shelf.label, shelf.found.view(report.pairs[0][0])

    def pairs(of: Any) -> list[list[dict[str, Any]]]:
        return [[label(i), label(j)] for i, j in of[:EXAMPLES]]

    suspects = [
        {
            "kind": s.kind, "said": str(s), "where": s.where, "share": s.share, "area": s.area, "changed": s.changed,
            "count": len(s.pairs), "pairs": pairs(s.pairs), "mask": s.mask.astype(int).tolist(),
        }
        for s in report.suspects
    ]  # fmt: skip
    clusters = [
        {"count": len(c.pairs), "pairs": pairs(c.pairs), "places": np.round(c.places, 6).tolist()}
        for c in report.clusters
    ]
    return {
        "suspects": suspects,
        "clusters": clusters,
        "places": np.round(report.places, 6).tolist(),
        "pairs": len(report.pairs),
        "unattributed": report.unattributed,
        "picture": isinstance(shown, Image),
    }
