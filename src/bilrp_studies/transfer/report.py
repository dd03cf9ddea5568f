"""The report of the transfer study: accuracies with those of the paper, a chart, and explanations by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bilrp.explanation import Explanation
from bilrp.render.report import Picture, Report, Table
from bilrp_studies.common import image_folders
from bilrp_studies.common.study_report import Block, build_study_report
from bilrp_studies.transfer.figures import plot_accuracies, plot_layers
from bilrp_studies.transfer.settings import TransferSettings
from bilrp_studies.transfer.svm import Accuracy
from bilrp_studies.transfer.train_test_pairs import TrainTestPair, count_effective_regions

PAPER_ACCURACIES = {
    "UFI (paper)": (605, {5: 0.45, 10: 0.57, 17: 0.62, 24: 0.54, 31: 0.19}),
    "LFW (paper)": (61, {5: 0.78, 10: 0.86, 17: 0.92, 24: 0.89, 31: 0.75}),
    "Sphaera (paper)": (111, {5: 0.93, 10: 0.96, 17: 0.98, 24: 0.97, 31: 0.96}),
}
CHART_CAPTION = (
    "Above: accuracy of the classifier on each layer, with its spread over splits; the paper's LFW row in grey. "
    "Below: effective regions of the explanations, one dot a pair."
)


def build_report(
    contents: image_folders.FolderContents,
    settings: TransferSettings,
    labels: np.ndarray,
    accuracies: Mapping[int, Accuracy],
    pairs: Sequence[TrainTestPair],
    explanations: Sequence[Mapping[int, Explanation]],
    best_layer: int,
) -> Report:
    """Build the report of a finished study.

    Args:
        contents: The images read, with skipped files and notes.
        settings: The settings of the study.
        labels: Class of each image.
        accuracies: Accuracy by layer.
        pairs: The explained pairs.
        explanations: Explanations of each pair, by layer.
        best_layer: The layer of highest accuracy.
    """
    spread = {
        layer: [count_effective_regions(pair[layer].relevance) for pair in explanations]
        for layer in accuracies
    }
    names = [item.name for item in contents.items]
    results = _results(contents, labels, accuracies, pairs, spread, names)
    last = max(accuracies)
    total = _count_regions(explanations)
    drawn = plot_accuracies(accuracies, spread, total, PAPER_ACCURACIES["LFW (paper)"][1])
    return build_study_report(
        "How transferable is the similarity model?",
        _answer(accuracies, spread, best_layer, last, total),
        {
            "The question": _question(contents, labels, settings),
            "The table": [_table(accuracies, labels, spread), _describe_effective_regions(settings)],
            "By layer": [Picture("by-layer.png", drawn, CHART_CAPTION)],
            "What the layers look at": _pictures(contents, pairs, explanations, best_layer, last),
        },
        settings=settings,
        results=results,
        skipped=contents.skipped,
    )


def _results(
    contents: image_folders.FolderContents,
    labels: np.ndarray,
    accuracies: Mapping[int, Accuracy],
    pairs: Sequence[TrainTestPair],
    effective_regions: Mapping[int, Sequence[float]],
    names: Sequence[str],
) -> dict[str, Any]:
    mean = {
        layer: float(np.mean(values)) if len(values) else None for layer, values in effective_regions.items()
    }
    return {
        "accuracy": {str(layer): a.mean for layer, a in accuracies.items()},
        "accuracy_std": {str(layer): a.std for layer, a in accuracies.items()},
        "classes": len(np.unique(labels)),
        "effective_regions": {str(layer): value for layer, value in mean.items()},
        "effective_regions_std": {
            str(n): float(np.std(v)) if len(v) else None for n, v in effective_regions.items()
        },
        "images": len(names),
        "accuracy_by_split": {str(layer): a.values for layer, a in accuracies.items()},
        "cost_by_split": {str(layer): a.costs for layer, a in accuracies.items()},
        "pairs": [
            {"test": names[pair.test], "train": names[pair.train]}
            | {"effective_regions": {str(layer): effective_regions[layer][k] for layer in effective_regions}}
            for k, pair in enumerate(pairs)
        ],
        "notes": contents.notes,
    }


def _question(
    contents: image_folders.FolderContents, labels: np.ndarray, settings: TransferSettings
) -> list[str]:
    count = len(np.unique(labels))
    return [
        "A network trained to name objects in photographs is asked for something else: who, or what, is in these "
        f"{len(contents.items):,} pictures of {count} classes? Each of its layers gives another idea of "
        "“similar”. Which layer's idea carries over to this task, and can one see why?",
        f"Pictures were cut to {_describe_crop(settings.crop)} and scaled to {settings.size}×{settings.size} pixels. "
        f"For each layer a linear classifier (a support vector machine) learned from a random half of every class and was "
        f"tested on the other half, {_format_splits(settings.splits)}.",
        *contents.notes,
    ]


def _format_splits(splits: int) -> str:
    return "once" if splits == 1 else f"{splits} times with other halves"


def _describe_crop(crop: float) -> str:
    if crop == 1:
        return "their middle square"
    return f"the middle {crop:.0%}" if crop < 1 else f"the middle {crop:g} pixels"


def _table(
    accuracies: Mapping[int, Accuracy], labels: np.ndarray, effective_regions: Mapping[int, Sequence[float]]
) -> Table:
    layers = list(accuracies)
    best = max(accuracies, key=lambda layer: accuracies[layer].mean)
    mark = {layer: "*" if layer == best else "" for layer in layers}
    rows: list[list[Any]] = [
        ["these pictures", len(np.unique(labels))]
        + [f"{accuracies[n].mean:.2f}\u00a0±\u00a0{accuracies[n].std:.2f}{mark[n]}" for n in layers]
    ]
    for name, (count, values) in PAPER_ACCURACIES.items():
        rows.append([name, count] + [f"{values[n]:.2f}" if n in values else None for n in layers])
    effective = [
        f"{np.mean(effective_regions[n]):.0f}" if len(effective_regions[n]) else None for n in layers
    ]
    rows.append(["effective regions", None, *effective])
    header = ("accuracy", "classes", *(f"layer {layer}" for layer in layers))
    caption = "Share of test pictures named rightly (mean ± standard deviation over splits; * best layer)."
    return Table(header, rows, caption)


def _describe_effective_regions(settings: TransferSettings) -> str:
    return (
        "Effective regions: on how many of the picture's regions "
        f"({settings.regions}×{settings.regions} pixels each) the explanation of one similarity sits. If k regions share "
        "it equally the number is k. It is the exponential of the entropy of the regions' positive shares, averaged over "
        "both pictures of a pair and over all pairs explained."
    )


def _answer(
    accuracies: Mapping[int, Accuracy],
    effective_regions: Mapping[int, Sequence[float]],
    best_layer: int,
    top_layer: int,
    region_count: int,
) -> str:
    top, end = accuracies[best_layer], accuracies[top_layer]
    if best_layer == top_layer:
        text = (
            f"The highest layer, {top_layer}, serves this task best: {top.mean:.0%} of the test pictures are "
            f"named rightly."
        )
    else:
        text = (
            f"Layer {best_layer} serves this task best: {top.mean:.0%} of the test pictures are named rightly, against "
            f"{end.mean:.0%} with the highest layer, {top_layer}."
        )
    if not effective_regions[best_layer]:
        return text
    wide, narrow = float(np.mean(effective_regions[best_layer])), float(np.mean(effective_regions[top_layer]))
    if best_layer == top_layer:
        return f"{text} Its explanations rest on {wide:.0f} of {region_count} regions."
    if wide > narrow:
        return (
            f"{text} The explanations show a reason: similarity at layer {best_layer} rests on about "
            f"{wide:.0f} of {region_count} "
            f"regions of a picture, at layer {top_layer} on about {narrow:.0f}. The highest layer has specialised on a few "
            "features and no longer keeps what would be needed elsewhere."
        )
    return (
        f"{text} The explanations do not show concentration as the reason here: they rest on about "
        f"{wide:.0f} of {region_count} "
        f"regions at layer {best_layer} and {narrow:.0f} at layer {top_layer}."
    )


def _count_regions(explanations: Sequence[Mapping[int, Explanation]]) -> int:
    return next((e.relevance.shape[0] for pair in explanations for e in pair.values()), 0)


def _pictures(
    contents: image_folders.FolderContents,
    pairs: Sequence[TrainTestPair],
    explanations: Sequence[Mapping[int, Explanation]],
    best_layer: int,
    top_layer: int,
    max_pictures: int = 6,
) -> list[Block]:
    if not pairs:
        return ["No pairs were explained (--pairs 0)."]
    shown = (17, 31) if explanations and {17, 31} <= set(explanations[0]) else (best_layer, top_layer)
    shown = tuple(dict.fromkeys(shown))
    blocks: list[Block] = [
        "Each line joins a region of a test picture (left) to a region of its most similar training picture (right): "
        "red where the match makes the two more similar, blue where it makes them less similar, stronger where it "
        "weighs more."
    ]
    items = contents.items
    for number, (pair, found_pair) in enumerate(
        list(zip(pairs, explanations, strict=True))[:max_pictures], start=1
    ):
        test, train = items[pair.test], items[pair.train]
        same = "the same class" if test.label == train.label else "another class"
        caption = f"{_label_text(test.label)} and the most similar training picture, {_label_text(train.label)} ({same})."
        figure = plot_layers([found_pair[layer] for layer in shown], [f"layer {n}" for n in shown])
        blocks.append(Picture(f"pair-{number}.png", figure, caption))
    return blocks


def _label_text(label: str) -> str:
    return label.replace("_", " ")
