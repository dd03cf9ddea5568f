"""The transfer study as a page: the table beside the paper's, the chart, and what the layers look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bilrp.explanation import Explanation
from bilrp_studies.common import image_folders
from bilrp.render.report import Picture, Report, Section, Table, Text, left_out
from bilrp_studies.transfer.figures import chart, side_by_side
from bilrp_studies.transfer.svm import Accuracy
from bilrp_studies.transfer.train_test_pairs import Pair, effective_regions
from bilrp_studies.transfer.settings import TransferSettings

PAPER = {
    "UFI (paper)": (605, {5: 0.45, 10: 0.57, 17: 0.62, 24: 0.54, 31: 0.19}),
    "LFW (paper)": (61, {5: 0.78, 10: 0.86, 17: 0.92, 24: 0.89, 31: 0.75}),
    "Sphaera (paper)": (111, {5: 0.93, 10: 0.96, 17: 0.98, 24: 0.97, 31: 0.96}),
}


def write(
    found: image_folders.Found,
    settings: TransferSettings,
    labels: np.ndarray,
    accuracies: Mapping[int, Accuracy],
    chosen: Sequence[Pair],
    explained: Sequence[Mapping[int, Explanation]],
    best: int,
) -> Report:
    """The report of a finished study."""
    spread = {layer: [effective_regions(pair[layer].relevance) for pair in explained] for layer in accuracies}
    names = [item.name for item in found.items]
    results = _results(found, settings, labels, accuracies, chosen, spread, names)
    last = max(accuracies)
    total = _region_count(explained)
    title = "How transferable is the similarity model?"
    drawn = chart(accuracies, spread, total, PAPER["LFW (paper)"][1])
    sections = [
        Section("The question", [Text(text) for text in _question(found, labels, settings)]),
        Section("The table", [_table(accuracies, labels, spread), Text(_reading(settings))]),
        Section("By layer", [Picture("by-layer.png", drawn, _chart_caption())]),
        Section("What the layers look at", _pictures(found, chosen, explained, best, last)),
        Section("The answer", [Text(_answer(accuracies, spread, best, last, total))]),
        *left_out(found.skipped),
    ]
    return Report(title, _answer(accuracies, spread, best, last, total), sections, results)


def _results(
    found: image_folders.Found,
    settings: TransferSettings,
    labels: np.ndarray,
    accuracies: Mapping[int, Accuracy],
    chosen: Sequence[Pair],
    spread: Mapping[int, Sequence[float]],
    names: Sequence[str],
) -> dict[str, Any]:
    mean = {layer: float(np.mean(values)) if len(values) else None for layer, values in spread.items()}
    return {
        "accuracy": {str(layer): a.mean for layer, a in accuracies.items()},
        "accuracy_std": {str(layer): a.std for layer, a in accuracies.items()},
        "classes": len(np.unique(labels)),
        "effective_regions": {str(layer): value for layer, value in mean.items()},
        "effective_regions_std": {str(n): float(np.std(v)) if len(v) else None for n, v in spread.items()},
        "images": len(names),
        "accuracy_by_split": {str(layer): a.values for layer, a in accuracies.items()},
        "cost_by_split": {str(layer): a.costs for layer, a in accuracies.items()},
        "pairs": [
            {"test": names[pair.test], "train": names[pair.train]}
            | {"effective_regions": {str(layer): spread[layer][k] for layer in spread}}
            for k, pair in enumerate(chosen)
        ],
        "settings": settings.decisive(),
        "skipped": [asdict(item) for item in found.skipped],
        "notes": found.notes,
    }


def _question(found: image_folders.Found, labels: np.ndarray, settings: TransferSettings) -> list[str]:
    count = len(np.unique(labels))
    return [
        "A network trained to name objects in photographs is asked for something else: who, or what, is in these "
        f"{len(found.items):,} pictures of {count} classes? Each of its layers gives another idea of "
        "“similar”. Which layer's idea carries over to this task, and can one see why?",
        f"Pictures were cut to {_crop_words(settings.crop)} and scaled to {settings.size}×{settings.size} pixels. "
        f"For each layer a linear classifier (a support vector machine) learned from a random half of every class and was "
        f"tested on the other half, {_times(settings.splits)}.",
        *found.notes,
    ]


def _times(splits: int) -> str:
    return "once" if splits == 1 else f"{splits} times with other halves"


def _crop_words(crop: float) -> str:
    if crop == 1:
        return "their middle square"
    return f"the middle {crop:.0%}" if crop < 1 else f"the middle {crop:g} pixels"


def _table(
    accuracies: Mapping[int, Accuracy], labels: np.ndarray, spread: Mapping[int, Sequence[float]]
) -> Table:
    layers = list(accuracies)
    best = max(accuracies, key=lambda layer: accuracies[layer].mean)
    mark = {layer: "*" if layer == best else "" for layer in layers}
    rows: list[list[Any]] = [
        ["these pictures", len(np.unique(labels))]
        + [f"{accuracies[n].mean:.2f}\u00a0±\u00a0{accuracies[n].std:.2f}{mark[n]}" for n in layers]
    ]
    for name, (count, values) in PAPER.items():
        rows.append([name, count] + [f"{values[n]:.2f}" if n in values else None for n in layers])
    effective = [f"{np.mean(spread[n]):.0f}" if len(spread[n]) else None for n in layers]
    rows.append(["effective regions", None, *effective])
    header = ("accuracy", "classes", *(f"layer {layer}" for layer in layers))
    caption = "Share of test pictures named rightly (mean ± standard deviation over splits; * best layer)."
    return Table(header, rows, caption)


def _reading(settings: TransferSettings) -> str:
    return (
        "Effective regions: on how many of the picture's regions "
        f"({settings.regions}×{settings.regions} pixels each) the explanation of one similarity sits. If k regions share "
        "it equally the number is k. It is the exponential of the entropy of the regions' positive shares, averaged over "
        "both pictures of a pair and over all pairs explained."
    )


def _chart_caption() -> str:
    return (
        "Above: accuracy of the classifier on each layer, with its spread over splits; the paper's LFW row in grey. "
        "Below: effective regions of the explanations, one dot a pair."
    )


def _answer(
    accuracies: Mapping[int, Accuracy],
    spread: Mapping[int, Sequence[float]],
    best: int,
    last: int,
    total: int,
) -> str:
    top, end = accuracies[best], accuracies[last]
    if best == last:
        text = f"The highest layer, {last}, serves this task best: {top.mean:.0%} of the test pictures are named rightly."
    else:
        text = (
            f"Layer {best} serves this task best: {top.mean:.0%} of the test pictures are named rightly, against "
            f"{end.mean:.0%} with the highest layer, {last}."
        )
    if not spread[best]:
        return text
    wide, narrow = float(np.mean(spread[best])), float(np.mean(spread[last]))
    if best == last:
        return f"{text} Its explanations rest on {wide:.0f} of {total} regions."
    if wide > narrow:
        return (
            f"{text} The explanations show a reason: similarity at layer {best} rests on about {wide:.0f} of {total} "
            f"regions of a picture, at layer {last} on about {narrow:.0f}. The highest layer has specialised on a few "
            "features and no longer keeps what would be needed elsewhere."
        )
    return (
        f"{text} The explanations do not show concentration as the reason here: they rest on about {wide:.0f} of {total} "
        f"regions at layer {best} and {narrow:.0f} at layer {last}."
    )


def _region_count(explained: Sequence[Mapping[int, Explanation]]) -> int:
    return next((e.relevance.shape[0] for pair in explained for e in pair.values()), 0)


def _pictures(
    found: image_folders.Found,
    chosen: Sequence[Pair],
    explained: Sequence[Mapping[int, Explanation]],
    best: int,
    last: int,
    most: int = 6,
) -> list[Text | Picture]:
    if not chosen:
        return [Text("No pairs were explained (--pairs 0).")]
    shown = (17, 31) if explained and {17, 31} <= set(explained[0]) else (best, last)
    shown = tuple(dict.fromkeys(shown))
    blocks: list[Text | Picture] = [
        Text(
            "Each line joins a region of a test picture (left) to a region of its most similar training picture (right): "
            "red where the match makes the two more similar, blue where it makes them less similar, stronger where it "
            "weighs more."
        )
    ]
    items = found.items
    for number, (pair, found_pair) in enumerate(list(zip(chosen, explained, strict=True))[:most], start=1):
        test, train = items[pair.test], items[pair.train]
        same = "the same class" if test.label == train.label else "another class"
        caption = (
            f"{_words(test.label)} and the most similar training picture, {_words(train.label)} ({same})."
        )
        figure = side_by_side([found_pair[layer] for layer in shown], [f"layer {n}" for n in shown])
        blocks.append(Picture(f"pair-{number}.png", figure, caption))
    return blocks


def _words(label: str) -> str:
    return label.replace("_", " ")
