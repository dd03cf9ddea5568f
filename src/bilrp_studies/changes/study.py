"""Changes study: is the first difference that people are shown the change that was made?

A photograph counts if the centre of the first difference is inside the changed box, on either side. A sentence counts if
the first difference contains the changed word and at most MAX_WORDS words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import bilrp
from bilrp.encoder import Encoder, read_item
from bilrp.encoders import registry
from bilrp.explanation import Explanation, pair
from bilrp.findings.differences import Difference
from bilrp.inputs import Image, Text
from bilrp.pipeline import decompose_item
from bilrp.progress import progress_bar
from bilrp.render.findings_figure import list_differences
from bilrp.render.report import Report, Table
from bilrp_studies.changes.planted import Box, PlantedChange, plant_in_photographs, plant_in_sentences
from bilrp_studies.changes.settings import ChangesSettings
from bilrp_studies.common.study_report import build_study_report

MAX_WORDS = 3  # of a difference that names the changed word
HEADER = ("change", "cases", "first difference", "among the first three", "chance")


def run(settings: ChangesSettings) -> Report:
    """Run the whole study and return its report.

    >>> run(ChangesSettings(data=folder)).results["rows"]["pasted"]  # doctest: +SKIP
    """
    parts = (
        (
            settings.image_encoder,
            plant_in_photographs(settings.data / "pascal_voc", settings.cases, seed=settings.seed),
        ),
        (
            settings.text_encoder,
            plant_in_sentences(settings.data / "stsb", settings.cases, seed=settings.seed),
        ),
    )
    rows: dict[str, list[dict[str, float]]] = {}
    with progress_bar(settings.progress) as bar:
        for name, changes in parts:
            encoder = registry.load(name)
            every = list(changes)
            bar.start(f"explaining with {name}", len(every))
            for change, explanation in explain_changes(encoder, every):
                rows.setdefault(change.kind, []).append(judge(change, explanation))
                bar.advance()
    table = []
    for kind, cases in rows.items():
        table.append(
            (kind, len(cases), *(float(np.mean([c[k] for c in cases])) for k in ("first", "three", "chance")))
        )
    names = ("cases", "first", "three", "chance")
    return build_study_report(
        "Is the first difference the change that was made?",
        describe_result(rows),
        {"Planted changes": [Table(HEADER, table, f"{settings.image_encoder} and {settings.text_encoder}.")]},
        settings=settings,
        results={"rows": {row[0]: dict(zip(names, row[1:], strict=True)) for row in table}},
        protocol=(
            "Photographs: the centre of the difference is inside the changed box. Sentences: the difference contains the "
            f"changed word and at most {MAX_WORDS} words. Chance: a region or word at random.",
        ),
    )


def describe_result(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return how many of all cases were right.

    >>> describe_result({"pasted": [{"first": 1.0}, {"first": 0.0}]})
    'The first difference is the change in 1 of 2 cases.'
    """
    every = [case["first"] for cases in rows.values() for case in cases]
    return f"The first difference is the change in {sum(every):.0f} of {len(every)} cases."


def explain_changes(
    encoder: Encoder, changes: Iterable[PlantedChange]
) -> Iterable[tuple[PlantedChange, Explanation]]:
    """Yield each change with its explanation; an original that is changed several times is decomposed once.

    Args:
        encoder: The encoder.
        changes: What to explain, the changes of one original after each other.
    """
    original: Any = None
    left: bilrp.Decomposition | None = None
    for change in changes:
        if left is None or change.a is not original:
            original, left = change.a, decompose_item(encoder, read_item(encoder, change.a))[None]
        yield change, pair(left, decompose_item(encoder, read_item(encoder, change.b))[None])


def judge(change: PlantedChange, explanation: Explanation) -> dict[str, float]:
    """Return whether the first difference, or one of the first three, is the change, and what chance gives.

    Args:
        change: What was changed.
        explanation: Of the two.
    """
    shown = list_differences(explanation, 3)
    right = [is_the_change(change, explanation, difference) for difference in shown]
    side = explanation.b
    single = [
        is_the_change(change, explanation, Difference("b", [n], 0.0)) for n in range(side.regions.count)
    ]
    return {"first": float(right[:1] == [True]), "three": float(any(right)), "chance": float(np.mean(single))}


def is_the_change(change: PlantedChange, explanation: Explanation, difference: Difference) -> bool:
    """Return whether a difference is where the change was made.

    Args:
        change: What was changed.
        explanation: Of the two.
        difference: One of its differences.
    """
    side = explanation.a if difference.side == "a" else explanation.b
    if isinstance(side.view, Text):
        assert change.words is not None
        words = {_word_number(side.view, region) for region in difference.regions} - {None}
        return bool(words & change.words["ab".index(difference.side)]) and len(words) <= MAX_WORDS
    assert isinstance(side.view, Image) and change.box is not None
    return _is_inside(_find_center(side.view, side.regions.labels[0], difference.regions), change.box)


def _word_number(view: Text, region: int) -> int | None:
    """Return the number of the word, counted by white space, that a region begins in; None for special tokens."""
    span = view.spans[region]
    return None if span is None else len(view.text[: span[0] + 1].split()) - 1


def _find_center(view: Image, labels: torch.Tensor, regions: list[int]) -> tuple[float, float]:
    """Return the centre (x, y) of some regions, in pixels of the original."""
    inside = torch.isin(labels.cpu(), torch.tensor(regions)).numpy()
    y, x = (float(np.mean(at + 0.5)) for at in np.nonzero(inside))
    left, top, _, _ = view.map_to_original(view.map_to_view((y, x, y, x), (labels.shape[0], labels.shape[1])))
    return left, top


def _is_inside(point: tuple[float, float], box: Box) -> bool:
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
