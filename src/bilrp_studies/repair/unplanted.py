"""A shortcut that was not planted: found by an audit, repaired, and verified by labels that neither of them sees."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bilrp import collection as collections
from bilrp.collection.audit import Suspect
from bilrp.collection.core import Collection
from bilrp.collection.repair_selection import find_neighbours
from bilrp.encoders import registry
from bilrp.errors import InputError
from bilrp.render.report import Report, Table
from bilrp_studies.common.study_report import build_study_report
from bilrp_studies.repair.settings import RepairSettings

SUFFIXES = (".jpg", ".jpeg", ".png")
AUDIT_SAMPLE_ITEMS = 24
MAX_SUSPECTS = 3  # that are repaired
HEADER = (
    "suspect",
    "items with it",
    "neighbours with it too",
    "same folder, with it",
    "same folder, without it",
    "said",
)


def run(settings: RepairSettings) -> Report:
    """Audit a folder of labelled images, repair what the audit finds, and compare neighbours with the labels."""
    weights = None if settings.weights is None else str(settings.weights)
    encoder = registry.load(settings.encoders[0], weights=weights)
    paths = sorted(path for path in settings.data.rglob("*") if path.suffix.lower() in SUFFIXES)
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(settings.items, len(paths))).astype(int))
    records = [{"file": str(paths[n]), "group": paths[n].relative_to(settings.data).parts[0]} for n in chosen]
    if not records:
        raise InputError(f"{settings.data}: no images there")
    collection = collections.build(
        records, encoder, settings.out / "unplanted.lance", progress=settings.progress
    )
    groups = collection.groups()
    if len(groups) < 2:
        raise InputError(f"{settings.data}: its folders are the labels, and there is only one")
    suspects = collection.audit(
        sample=AUDIT_SAMPLE_ITEMS, seed=settings.seed, progress=settings.progress
    ).suspects
    alike = [each for each in suspects if isinstance(each, Suspect) and each.kind == "alike"]
    cases = [repair_suspect(collection, each, settings) for each in alike[:MAX_SUSPECTS]]
    rows = [
        (
            each["suspect"],
            each["carriers"],
            *(_format_change(each, key) for key in ("attraction", "carriers_same", "others_same")),
            each["said"],
        )
        for each in cases
    ]
    repaired = sum("after" in each for each in cases)
    return build_study_report(
        f"A shortcut that was not planted, {settings.encoders[0]}",
        f"{len(collection)} images in {len(groups)} folders: the audit found {len(alike)} parts that look the same in many "
        f"of them; {repaired} of the first {len(cases)} were repaired.",
        {
            "Suspects": [
                Table(
                    HEADER, rows, "Before → after the repair, over the ten nearest neighbours of all items."
                )
            ]
        },
        settings=settings,
        results={"suspects": cases},
        protocol=["Folders are the labels. Neither the audit nor the repair sees them."],
    )


def repair_suspect(collection: Collection, suspect: Suspect, settings: RepairSettings) -> dict[str, Any]:
    """Return the figures before and after the repair of a suspect, or why it was refused, JSON-ready.

    Args:
        collection: the collection.
        suspect: one of its audit's suspects.
        settings: settings of the study.
    """
    labels = torch.from_numpy(np.unique(collection.items.label_values("group"), return_inverse=True)[1])
    carriers = torch.zeros(len(collection), dtype=torch.bool)
    carriers[list(suspect.carriers)] = True
    embeddings = torch.from_numpy(np.array(collection.embeddings))
    cosine = collection.resolve_similarity(None) == "cosine"
    case: dict[str, Any] = {
        "suspect": str(suspect),
        "carriers": int(carriers.sum()),
        "before": compare_labels(embeddings, labels, carriers, cosine=cosine),
    }
    start = time.process_time()
    try:
        repair = collection.repair(suspect=suspect, progress=settings.progress)
    except InputError as error:
        return case | {"said": str(error), "seconds": time.process_time() - start}
    case["after"] = compare_labels(repair.apply(embeddings), labels, carriers, cosine=cosine)
    return case | {
        "said": str(repair.report),
        "seconds": time.process_time() - start,
        "predicted": repair.report.to_dict(),
    }


def compare_labels(
    embeddings: Float[Tensor, "n h"], labels: Tensor, carriers: Bool[Tensor, " n"], *, cosine: bool
) -> dict[str, float]:
    """Return the share of neighbours with the part and, for items with and without it, of those with the same label.

    Args:
        embeddings: Embeddings to measure.
        labels: A number for each item.
        carriers: Which items have the part.
        cosine: Rank by cosine, else by dot product.
    """
    neighbours = find_neighbours(embeddings, cosine=cosine)
    same = (labels[neighbours] == labels[:, None]).double().mean(1)
    shared = carriers[neighbours].double().mean(1)
    values = shared[carriers].mean(), same[carriers].mean(), same[~carriers].mean()
    return dict(zip(("attraction", "carriers_same", "others_same"), map(float, values), strict=True))


def _format_change(case: dict[str, Any], key: str) -> str:
    values = [case[name][key] for name in ("before", "after") if name in case]
    return " → ".join(f"{value:.3f}" for value in values)
