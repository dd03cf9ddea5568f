"""Repair study: is a planted shortcut removed from a similarity without labels, and at what cost?

Every item is embedded without and with the shortcut, so the neighbours without it are known. The repair does not see them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bilrp import collection as collections
from bilrp.collection.core import Collection
from bilrp.collection.repair_selection import METHODS, RefusedRepairError, find_neighbours
from bilrp.encoder import choose_regions, read_item
from bilrp.encoders import registry
from bilrp.errors import InputError
from bilrp.render.report import Report, Table
from bilrp_studies.common.study_report import build_study_report
from bilrp_studies.repair.planted_items import BOILERPLATE, PlantedItems, make_items
from bilrp_studies.repair.rivals import erase_linearly, project_mean_difference
from bilrp_studies.repair.settings import RepairSettings

HEADER = (
    "similarity",
    "neighbours with the shortcut",
    "recall@10, with it",
    "recall@10, without it",
    "relevance on the part",
)


def run(settings: RepairSettings) -> Report:
    """Run the whole study and return its report.

    >>> run(RepairSettings(data=Path("photographs"))).results["rows"]["repair"]  # doctest: +SKIP
    """
    items = make_items(settings)
    encoder = registry.load(
        settings.encoder, weights=None if settings.weights is None else str(settings.weights)
    )
    built = {
        name: collections.build(rows, encoder, settings.out / f"{name}.lance", progress=settings.progress)
        for name, rows in (("clean", items.clean), ("planted", items.planted))
    }
    # a collection has each content once, in an order of its own: put both in that of the items
    clean, planted = (
        torch.from_numpy(np.array(_embeddings_in_order(built[name], rows)))
        for name, rows in (("clean", items.clean), ("planted", items.planted))
    )
    labels = torch.from_numpy(items.has_shortcut)
    base = built["planted"].resolve_similarity(None)
    rows: dict[str, dict[str, Any]] = {}

    def add(name: str, embeddings: Tensor, relevance: float | None = None) -> None:
        rows[name] = measure_neighbours(clean, embeddings, labels, cosine=base == "cosine")
        rows[name]["relevance"] = relevance

    add("without the shortcut", clean)
    options = _name_part(built["planted"], items, settings)
    start = time.process_time()
    try:
        repair, refusal = built["planted"].repair(**options, progress=settings.progress), ""
        report = repair.report
    except RefusedRepairError as error:
        repair, refusal, report = None, str(error), error.report
    seconds = time.process_time() - start
    add("with the shortcut", planted, report.before.relevance)
    if repair is not None:
        add("repair", repair.apply(planted), report.after.relevance)
    for method, embeddings, relevance in _apply_methods(built["planted"], options, planted, settings):
        add(f"repair by {method}", embeddings, relevance)
    add("mean difference, with labels", project_mean_difference(planted, labels))
    add("LEACE, with labels", erase_linearly(planted, labels))
    results = {
        "rows": rows,
        "predicted": report.to_dict(),
        "seconds": seconds,
        "refused": refusal,
    }
    table = [
        (name, *(row[key] for key in ("attraction", "restored", "others", "relevance")))
        for name, row in rows.items()
    ]
    count = int(labels.sum())
    lead = refusal or f"Chosen: {report.after.label}, in {seconds:.0f} s of CPU time."
    return build_study_report(
        f"A {settings.shortcut} on {count} of {len(labels)} items, {settings.encoder}",
        lead,
        {
            "Measured on all items": [Table(HEADER, table, "Against the neighbours without the shortcut.")],
            "Predicted before it was applied": str(report).splitlines(),
        },
        settings=settings,
        results=results,
    )


def measure_neighbours(
    clean: Tensor, embeddings: Tensor, labels: Tensor, *, cosine: bool
) -> dict[str, float]:
    """Return the share of neighbours with the shortcut, and recall@10 of items with and without it.

    Args:
        clean: Embeddings without the shortcut.
        embeddings: Embeddings to measure.
        labels: Which items have the shortcut.
        cosine: Rank by cosine, else by dot product.
    """
    truth, after = (find_neighbours(each, cosine=cosine) for each in (clean, embeddings))
    recall = (truth[:, :, None] == after[:, None]).any(2).double().mean(1)
    attraction = labels[after].double().mean(1)
    values = attraction[labels].mean(), recall[labels].mean(), recall[~labels].mean()
    return dict(zip(("attraction", "restored", "others"), map(float, values), strict=True))


def _apply_methods(
    planted: Collection, options: dict[str, Any], embeddings: Tensor, settings: RepairSettings
) -> Iterator[tuple[str, Tensor, float | None]]:
    """Yield each method with the embeddings it gives; what it refuses is left out."""
    for method in METHODS if settings.methods else ():
        try:
            repair = planted.repair(**options, method=method, progress=settings.progress)
        except RefusedRepairError:
            continue
        yield method, repair.apply(embeddings), repair.report.after.relevance


def _embeddings_in_order(collection: Collection, rows: list[Any]) -> np.ndarray:
    if isinstance(rows[0], str):
        texts = collection.items.take(range(len(collection)), ["text"])["text"]
        position = {text: n for n, text in enumerate(texts)}
        return collection.embeddings[[position[text] for text in rows]]
    positions = [collection.position(path) for path in rows]
    if None in positions:
        raise InputError("two crops are equal: use another --seed")
    return collection.embeddings[[p for p in positions if p is not None]]


def _name_part(collection: Collection, items: PlantedItems, settings: RepairSettings) -> dict[str, Any]:
    """Return how a user would name the part: words, or the regions of one item that shows it."""
    if settings.shortcut == "boilerplate":
        return {"words": BOILERPLATE.rstrip(".")}
    first = items.planted[int(np.flatnonzero(items.has_shortcut)[0])]
    at = collection.position(first)
    assert at is not None
    item = read_item(collection.encoder, first)
    labels = choose_regions(collection.encoder, item).labels[0]
    mask = torch.zeros(224, 224)
    if items.box is None:  # the border
        mask[:14] = mask[-14:] = 1
        mask[:, :14] = mask[:, -14:] = 1
    else:
        left, top, right, bottom = items.box
        mask[top:bottom, left:right] = 1
    inside = torch.nn.functional.interpolate(mask[None, None], size=labels.shape, mode="nearest")[0, 0] > 0
    overlap = [float(inside[labels == region].float().mean()) for region in range(int(labels.max()) + 1)]
    least = min(0.5, max(overlap) * 0.9)
    return {"part": [region for region, share in enumerate(overlap) if share >= least], "of": at}
