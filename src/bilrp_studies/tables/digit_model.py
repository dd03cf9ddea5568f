"""Which pages are for what, and the network learned from a few labels of some of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bilrp.encoders.bigram import DigitNet, load_weights, save_weights
from bilrp.errors import InputError
from bilrp.progress import Progress
from bilrp_studies.tables import page_evaluation
from bilrp_studies.tables.digit_training import Recipe, train
from bilrp_studies.tables.pages import Page, find_pages, read_page
from bilrp_studies.tables.patches import (
    Patches,
    digit_patches,
    join_patches,
    negative_patches,
    photo_negative_patches,
)
from bilrp_studies.tables.settings import TablesSettings


@dataclass(frozen=True)
class PageSplit:
    """Pages to train on, to choose a threshold on, and to measure on; and the ones that could not be used."""

    train: list[Page]
    validation: list[Page]
    test: list[Page]
    skipped: dict[str, str]


@dataclass(frozen=True)
class DigitModel:
    """Part one of the network, what it was trained on, and the digit threshold that goes with it."""

    net: DigitNet
    metadata: dict[str, Any]
    threshold: float
    train_seconds: float | None


def split_pages(settings: TablesSettings, bar: Progress) -> PageSplit:
    """Read all pages; a page whose table cannot be found is reported and skipped.

    With weights, the pages they were trained or tuned on are known by their content and kept out of the test.
    """
    known = load_weights(settings.weights)[1] if settings.weights else None
    pages, skipped = [], {}
    for image, text in page_evaluation.track_progress(find_pages(settings.data), "reading pages", bar):
        try:
            pages.append(read_page(image, text))
        except InputError as error:
            skipped[image.stem] = str(error)
    if known is not None:
        used = {*known.get("train_pages", []), *known.get("validation_pages", [])}
        parts = [[p for p in pages if (p.digest in used) == seen] for seen in (True, False)]
        split = PageSplit(parts[0], [], parts[1], skipped)
    else:
        order = np.random.default_rng(settings.seed).permutation(len(pages))
        few = max(1, len(pages) // 6)
        picks = [[pages[i] for i in part] for part in np.split(order, [few, 2 * few])]
        split = PageSplit(picks[0], picks[1], picks[2], skipped)
    if len(split.test) < 2:
        raise InputError(f"{len(split.test)} pages are left to measure on: give at least 4 pages with tables")
    return split


def load_or_train(split: PageSplit, settings: TablesSettings, bar: Progress) -> DigitModel:
    """The network: from the weights given, else trained and written beside the report."""
    if settings.weights:
        net, about = load_weights(settings.weights)
        return DigitModel(net, about, float(about.get("threshold", 0.4)), None)
    recipe = make_recipe(settings)
    net, count, seconds = train_digit_net(split.train, settings.labels, recipe, bar)
    threshold = page_evaluation.choose_threshold(net, split.validation)
    about = {
        "labels": count,
        "threshold": threshold,
        "train_pages": [p.digest for p in split.train],
        "validation_pages": [p.digest for p in split.validation],
        "recipe": asdict(recipe),
    }
    save_weights(net, settings.out / "bigram.safetensors", about)
    return DigitModel(net, about, threshold, seconds)


def make_recipe(settings: TablesSettings) -> Recipe:
    """How to train, as the settings say."""
    return Recipe(seed=settings.seed, steps=settings.steps)


def train_digit_net(
    pages: Sequence[Page], label_count: int, recipe: Recipe, bar: Progress
) -> tuple[DigitNet, int, float]:
    """Train on about `label_count` digits and as many negatives, evenly from all pages: (net, labels used, seconds)."""
    start = time.perf_counter()
    patches = make_patches(pages, label_count, seed=recipe.seed)
    bar.start(f"training on {label_count} labels", recipe.steps)
    net = train(patches, recipe, progress=lambda _step, _loss: bar.advance())
    return net, int((patches.label >= 0).sum()), time.perf_counter() - start


def make_patches(pages: Sequence[Page], label_count: int, *, seed: int) -> Patches:
    """The same number of labelled digits from each page, never more than `label_count` in all, and negatives."""
    each = label_count // len(pages)
    parts = [digit_patches(p, each, seed=seed + i) for i, p in enumerate(pages)]
    parts += [negative_patches(p, round(0.8 * each), seed=seed + i) for i, p in enumerate(pages)]
    return join_patches([*parts, photo_negative_patches(label_count // 5, seed=seed)])


def measure_learning_curve(
    split: PageSplit, model: DigitModel, settings: TablesSettings, bar: Progress
) -> list[dict[str, Any]]:
    """The same training from fewer labels, measured on the same pages."""
    rows = []
    for labels in (*settings.curve, settings.labels):
        if labels == settings.labels:
            net, count, seconds = model.net, model.metadata["labels"], model.train_seconds
        else:
            net, count, seconds = train_digit_net(split.train, labels, make_recipe(settings), bar)
        scores = page_evaluation.score_pages(net, split.test, threshold=model.threshold)
        rows.append(
            {
                "labels": count,
                "digit_f1": page_evaluation.digit_f1(scores),
                "bigram_correlation": page_evaluation.bigram_correlation(scores),
                "seconds": seconds,
            }
        )
    return rows
