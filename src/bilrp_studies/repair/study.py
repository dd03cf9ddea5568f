"""Repair study: is a planted shortcut removed from a similarity without labels, and at what cost?

Every item is embedded without and with the shortcut, so the neighbours without it are known. The repair does not see them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bilrp import collection as collections
from bilrp.collection.batch_encoder import MAX_BATCH_SIZE, BatchEncoder
from bilrp.collection.core import Collection
from bilrp.collection.repair import Repair
from bilrp.collection.repair_report import RepairReport
from bilrp.collection.repair_selection import METHODS, RefusedRepairError, find_neighbours
from bilrp.encoder import Encoder, choose_regions, read_item
from bilrp.encoders import registry
from bilrp.encoders.images import open_image
from bilrp.errors import InputError
from bilrp.progress import progress_bar
from bilrp.render.report import Report, Table
from bilrp_studies.common.study_report import build_study_report
from bilrp_studies.repair import unplanted
from bilrp_studies.repair.planted_items import PlantedItems, make_items, write_image
from bilrp_studies.repair.rivals import (
    DROPPED_FRACTIONS,
    Edit,
    drop_coordinates,
    edit_pixels,
    erase_linearly,
    project_mean_difference,
)
from bilrp_studies.repair.settings import RepairSettings

CLEAN, PLANTED, REPAIRED, LEACE = "without the shortcut", "with the shortcut", "repair", "LEACE, with labels"
NAMED = "repair, items with it named"
CEILING = "true pixels filled in, encoded again"
EDITS: dict[Edit, str] = {
    "filled": CEILING,
    "masked": "true pixels grey, encoded again",
    "blurred": "true pixels blurred, encoded again",
}
FIGURES = ("attraction", "restored", "others", "relevance")
HEADER = (
    "similarity",
    "neighbours with the shortcut",
    "recall@10, with it",
    "recall@10, without it",
    "relevance on the part",
)
SUMMARY_HEADER = ("encoder", "shortcut", "chosen", *HEADER[1:], "misses", "CPU time")


@dataclass(frozen=True, eq=False)
class Case:
    """One shortcut on one encoder: {row: {figure: value}}, what was predicted, or why it was refused."""

    encoder: str
    shortcut: str
    rows: dict[str, dict[str, float | None]]
    report: RepairReport | None
    refusal: str
    seconds: float

    @property
    def missed(self) -> list[str]:
        """The goals of the guide that the measured figures miss."""
        if REPAIRED not in self.rows:
            return ["refused"]
        one, before, clean = (self.rows[name] for name in (REPAIRED, PLANTED, CLEAN))
        ceiling, leace = self.rows.get(CEILING, clean), self.rows[LEACE]
        goals = {
            "neighbours": _of(one, "attraction") <= _of(clean, "attraction") + 0.05,
            "recall": _of(one, "restored") >= 0.9 * _of(ceiling, "restored"),
            "others": _of(one, "others") >= _of(before, "others") - 0.02,
            "relevance": _of(one, "relevance") <= 0.05,
            "LEACE, neighbours": _excess(one, clean) <= _excess(leace, clean) + 0.005,
            "LEACE, others": _of(one, "others") > _of(leace, "others"),
        }
        return [name for name, reached in goals.items() if not reached]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
        predicted = None if self.report is None else self.report.to_dict()
        return {
            "encoder": self.encoder,
            "shortcut": self.shortcut,
            "rows": self.rows,
            "predicted": predicted,
            "refused": self.refusal,
            "missed": self.missed,
            "seconds": self.seconds,
        }


def _of(row: dict[str, float | None], figure: str) -> float:
    value = row[figure]
    return 0.0 if value is None else value


def _excess(row: dict[str, float | None], clean: dict[str, float | None]) -> float:
    """Return how far the neighbours with the shortcut are above the level without it."""
    return max(0.0, _of(row, "attraction") - _of(clean, "attraction"))


def run(settings: RepairSettings) -> Report:
    """Run the whole study and return its report.

    >>> run(RepairSettings(data=Path("photographs"))).results["cases"][0]["rows"]["repair"]  # doctest: +SKIP
    """
    if settings.shortcuts == ["none"]:
        return unplanted.run(settings)
    planted = {name: make_items(settings, name) for name in settings.shortcuts}
    cases: list[Case] = []
    for name in settings.encoders:
        is_vgg = name.startswith("vgg")
        weights = str(settings.weights) if is_vgg and settings.weights is not None else None
        inputs = EmbeddedInputs(registry.load(name, weights=weights), progress=settings.progress)
        for shortcut, items in planted.items():
            cases.append(
                measure_case(inputs, items, settings, encoder=name.split("/")[-1], shortcut=shortcut)
            )
    return _build_report(cases, settings)


@dataclass(frozen=True, eq=False)
class EmbeddedInputs:
    """An encoder and the embeddings of what it has read so far."""

    encoder: Encoder
    progress: bool = False
    known: dict[Any, Tensor] = field(default_factory=dict)

    def embed(self, inputs: Sequence[Any]) -> Float[Tensor, "n h"]:
        """Return the embeddings of files or texts, one forward pass for each that is new."""
        missing = [each for each in dict.fromkeys(inputs) if each not in self.known]
        batch_encoder = BatchEncoder(self.encoder)
        with progress_bar(self.progress) as bar:
            bar.start("embedding", len(missing))
            for start in range(0, len(missing), MAX_BATCH_SIZE):
                batch = missing[start : start + MAX_BATCH_SIZE]
                rows = batch_encoder.encode([read_item(self.encoder, each, quiet=True) for each in batch])
                for each, row in zip(batch, rows, strict=True):
                    if isinstance(row, str):
                        raise InputError(f"{each}: {row}")
                    self.known[each] = row.float()
                bar.advance(len(batch))
        return torch.stack([self.known[each] for each in inputs])


def measure_case(
    inputs: EmbeddedInputs, items: PlantedItems, settings: RepairSettings, *, encoder: str, shortcut: str
) -> Case:
    """Repair one shortcut, and measure it and its rivals.

    Args:
        inputs: the encoder.
        items: the items.
        settings: settings of the study.
        encoder: name of the encoder in the report.
        shortcut: name of the shortcut.
    """
    clean, planted = inputs.embed(items.clean), inputs.embed(items.planted)
    labels = torch.from_numpy(items.has_shortcut)
    path = settings.out / f"{encoder.replace(':', '-')}-{shortcut}.lance"
    kind = "text" if items.words else "file"
    records = [{"id": f"{n:05}", kind: str(each)} for n, each in enumerate(items.planted)]
    collection = collections.build(records, inputs.encoder, path, embeddings=planted)
    cosine = collection.resolve_similarity(None) == "cosine"
    options = name_part(collection, items, shortcut)
    start = time.process_time()
    repair, report, refusal = _try_repair(collection, options, settings)
    seconds = time.process_time() - start
    rows: dict[str, dict[str, float | None]] = {}

    def add(name: str, embeddings: Tensor, relevance: float | None = None) -> None:
        rows[name] = {
            **measure_neighbours(clean, embeddings, labels, cosine=cosine),
            "relevance": relevance,
        }

    add(CLEAN, clean)
    add(PLANTED, planted, None if report is None else report.before.relevance)
    if repair is not None and report is not None:
        add(REPAIRED, repair.apply(planted), report.after.relevance)
    elif report is None and "part" in options:  # the items that have it were not found: name them
        positions = [collection.position(f"{n:05}") for n in items.masks]
        named, its_report, _ = _try_repair(collection, options | {"carriers": positions}, settings)
        if named is not None and its_report is not None:
            add(NAMED, named.apply(planted), its_report.after.relevance)
    for method in METHODS if settings.methods else ():
        other, its_report, _ = _try_repair(collection, options | {"method": method}, settings)
        if other is not None and its_report is not None:
            add(f"repair by {method}", other.apply(planted), its_report.after.relevance)
    add("mean difference, with labels", project_mean_difference(planted, labels))
    add(LEACE, erase_linearly(planted, labels))
    dropped = {share: drop_coordinates(planted, labels, share) for share in DROPPED_FRACTIONS}
    measured = {s: measure_neighbours(clean, each, labels, cosine=cosine) for s, each in dropped.items()}
    best = max(measured, key=lambda share: measured[share]["restored"] + measured[share]["others"])
    add(f"{best:.0%} of the coordinates dropped, with labels", dropped[best])
    for name, embeddings in _encode_edits(inputs, items, settings, shortcut):
        add(name, embeddings)
    return Case(encoder, shortcut, rows, report, refusal, seconds)


def _try_repair(
    collection: Collection, options: dict[str, Any], settings: RepairSettings
) -> tuple[Repair | None, RepairReport | None, str]:
    """Return a repair and its report, or why there is none."""
    try:
        repair = collection.repair(**options, progress=settings.progress)
    except RefusedRepairError as error:
        return None, error.report, str(error)
    except InputError as error:
        return None, None, str(error)
    return repair, repair.report, ""


def _encode_edits(
    inputs: EmbeddedInputs, items: PlantedItems, settings: RepairSettings, shortcut: str
) -> Iterator[tuple[str, Tensor]]:
    """Yield what editing the true pixels of the shortcut and encoding again gives; nothing where it is everywhere."""
    if not items.masks or any(mask.all() for mask in items.masks.values()):
        return
    for edit in EDITS if settings.edits else ("filled",):
        edited = list(items.planted)
        for number, mask in items.masks.items():
            image = edit_pixels(open_image(items.planted[number]), mask, edit)
            path = settings.out / "items" / f"{shortcut}-{edit}" / f"{number:05}.png"
            edited[number] = write_image(image, path)
        yield EDITS[edit], inputs.embed(edited)


def measure_neighbours(
    clean: Float[Tensor, "n h"],
    embeddings: Float[Tensor, "n h"],
    labels: Bool[Tensor, " n"],
    *,
    cosine: bool,
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
    return dict(zip(FIGURES, map(float, values), strict=False))


def name_part(collection: Collection, items: PlantedItems, shortcut: str) -> dict[str, Any]:
    """Return how a user would name the part: words, or the regions of one item that shows it.

    Args:
        collection: the collection with the shortcut.
        items: its items.
        shortcut: name of the shortcut.
    """
    if items.words:
        return {"words": items.words}
    first = min(items.masks)
    item = read_item(collection.encoder, items.planted[first])
    labels = choose_regions(collection.encoder, item).labels[0]
    mask = torch.from_numpy(items.masks[first]).float()[None, None]
    inside = torch.nn.functional.interpolate(mask, size=labels.shape, mode="nearest")[0, 0] > 0
    overlap = [float(inside[labels == region].float().mean()) for region in range(int(labels.max()) + 1)]
    least = min(0.5, max(overlap) * 0.9)
    regions = [region for region, share in enumerate(overlap) if share >= least]
    return {"part": regions, "of": collection.position(f"{first:05}")}


def _build_report(cases: Sequence[Case], settings: RepairSettings) -> Report:
    summary = [
        (
            case.encoder,
            case.shortcut,
            "refused" if case.report is None or case.refusal else case.report.after.label,
            *(_summarize(case, figure) for figure in FIGURES),
            ", ".join(case.missed) or "none",
            f"{case.seconds:.0f} s",
        )
        for case in cases
    ]
    caption = "Without → with the shortcut → repaired."
    sections: dict[str, Any] = {"Every case": [Table(SUMMARY_HEADER, summary, caption)]}
    for case in cases:
        rows = [(name, *(row[figure] for figure in FIGURES)) for name, row in case.rows.items()]
        said = case.refusal or str(case.report)
        sections[f"{case.shortcut}, {case.encoder}"] = [
            Table(HEADER, rows, "Against the neighbours without the shortcut."),
            *said.splitlines(),
        ]
    reached = sum(not case.missed for case in cases)
    lead = f"{reached} of {len(cases)} cases reach every goal."
    if len(cases) == 1:
        lead += f" {cases[0].refusal or summary[0][2]}, in {cases[0].seconds:.0f} s of CPU time."
    return build_study_report(
        f"Is a planted shortcut removed? {settings.items} items, {settings.percent} % with it",
        lead,
        sections,
        settings=settings,
        results={"cases": [case.to_dict() for case in cases]},
        protocol=[
            "Each item is embedded without and with the shortcut, so its neighbours without it are known. The repair is "
            "told the part by the regions of one item or by its words, and nothing else. Rivals with labels know which "
            "items have it; those that edit pixels know where.",
        ],
    )


def _summarize(case: Case, figure: str) -> str:
    names = (CLEAN, PLANTED, REPAIRED) if figure == "attraction" else (PLANTED, REPAIRED)
    values = [case.rows[name][figure] for name in names if name in case.rows]
    return " → ".join("–" if value is None else f"{value:.2f}" for value in values)
