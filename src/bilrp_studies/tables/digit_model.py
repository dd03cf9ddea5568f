"""Which pages are for what, and the network learned from a few labels of some of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bilrp.encoders.bigram import DigitNet, load_weights, save_weights
from bilrp.progress import Progress
from bilrp.errors import InputError
from bilrp_studies.tables import page_evaluation
from bilrp_studies.tables.pages import Page, find_pages, read_page
from bilrp_studies.tables.patches import Patches, digit_patches, join, negative_patches, picture_negatives
from bilrp_studies.tables.settings import TablesSettings
from bilrp_studies.tables.digit_training import Recipe, train


@dataclass(frozen=True)
class Split:
    """Pages to train on, to choose a threshold on, and to measure on; and the ones that could not be used."""

    train: list[Page]
    validation: list[Page]
    test: list[Page]
    skipped: dict[str, str]


@dataclass(frozen=True)
class Model:
    """Part one of the network, what it was trained on, and the digit threshold that goes with it."""

    net: DigitNet
    about: dict[str, Any]
    threshold: float
    seconds: float | None


def split_pages(settings: TablesSettings, bar: Progress) -> Split:
    """Read all pages; a page whose table cannot be found is reported and skipped.

    With weights, the pages they were trained or tuned on are known by their content and kept out of the test.
    """
    known = load_weights(settings.weights)[1] if settings.weights else None
    pages, skipped = [], {}
    for image, text in page_evaluation.tracked(find_pages(settings.data), "reading pages", bar):
        try:
            pages.append(read_page(image, text))
        except InputError as error:
            skipped[image.stem] = str(error)
    if known is not None:
        used = {*known.get("train_pages", []), *known.get("validation_pages", [])}
        parts = [[p for p in pages if (p.digest in used) == seen] for seen in (True, False)]
        split = Split(parts[0], [], parts[1], skipped)
    else:
        order = np.random.default_rng(settings.seed).permutation(len(pages))
        few = max(1, len(pages) // 6)
        picks = [[pages[i] for i in part] for part in np.split(order, [few, 2 * few])]
        split = Split(picks[0], picks[1], picks[2], skipped)
    if len(split.test) < 2:
        raise InputError(f"{len(split.test)} pages are left to measure on: give at least 4 pages with tables")
    return split


def obtain(split: Split, settings: TablesSettings, bar: Progress) -> Model:
    """The network: from the weights given, else trained and written beside the report."""
    if settings.weights:
        net, about = load_weights(settings.weights)
        return Model(net, about, float(about.get("threshold", 0.4)), None)
    recipe = recipe_of(settings)
    net, count, seconds = fit(split.train, settings.labels, recipe, bar)
    threshold = page_evaluation.choose_threshold(net, split.validation)
    about = {
        "labels": count,
        "threshold": threshold,
        "train_pages": [p.digest for p in split.train],
        "validation_pages": [p.digest for p in split.validation],
        "recipe": asdict(recipe),
    }
    save_weights(net, settings.out / "bigram.safetensors", about)
    return Model(net, about, threshold, seconds)


def recipe_of(settings: TablesSettings) -> Recipe:
    """How to train, as the settings say."""
    return Recipe(seed=settings.seed, steps=settings.steps)


def fit(pages: Sequence[Page], labels: int, recipe: Recipe, bar: Progress) -> tuple[DigitNet, int, float]:
    """Train on about `labels` digits and as many negatives, evenly from all pages: (net, labels used, seconds)."""
    start = time.perf_counter()
    patches = labelled(pages, labels, seed=recipe.seed)
    bar.start(f"training on {labels} labels", recipe.steps)
    net = train(patches, recipe, progress=lambda _step, _loss: bar.advance())
    return net, int((patches.label >= 0).sum()), time.perf_counter() - start


def labelled(pages: Sequence[Page], labels: int, *, seed: int) -> Patches:
    """The same number of labelled digits from each page, never more than `labels` in all, and negatives."""
    each = labels // len(pages)
    parts = [digit_patches(p, each, seed=seed + i) for i, p in enumerate(pages)]
    parts += [negative_patches(p, round(0.8 * each), seed=seed + i) for i, p in enumerate(pages)]
    return join([*parts, picture_negatives(labels // 5, seed=seed)])


def learn_curve(split: Split, model: Model, settings: TablesSettings, bar: Progress) -> list[dict[str, Any]]:
    """The same training from fewer labels, measured on the same pages."""
    rows = []
    for labels in (*settings.curve, settings.labels):
        if labels == settings.labels:
            net, count, seconds = model.net, model.about["labels"], model.seconds
        else:
            net, count, seconds = fit(split.train, labels, recipe_of(settings), bar)
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
