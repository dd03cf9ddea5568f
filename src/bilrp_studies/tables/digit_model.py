"""Split of the pages, and the digit network trained on a few labels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bilrp.encoders.bigram import DigitNet, load_weights, save_weights
from bilrp.errors import InputError
from bilrp.progress import Progress
from bilrp_studies.common.digit_training import Recipe, train
from bilrp_studies.tables import page_evaluation
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
    """Pages for training, for choosing the threshold, and for testing; and the reason for each skipped page."""

    train: list[Page]
    validation: list[Page]
    test: list[Page]
    skipped: dict[str, str]


@dataclass(frozen=True)
class DigitModel:
    """The digit network, a description of its training data, and its detection threshold."""

    net: DigitNet
    metadata: dict[str, Any]
    threshold: float
    train_seconds: float | None


def split_pages(settings: TablesSettings, bar: Progress) -> PageSplit:
    """Read and split all pages; a page whose table cannot be found is skipped and reported.

    With given weights, pages they were trained or tuned on are recognised by their content and excluded from the test.
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
    """Load the network from the given weights, else train it and save it in the report's folder.

    Args:
        split: The pages.
        settings: Weights, number of labels, seed and steps.
        bar: Progress bar of the training.
    """
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
    """Return the training hyperparameters for the settings."""
    return Recipe(seed=settings.seed, steps=settings.steps)


def train_digit_net(
    pages: Sequence[Page], label_count: int, recipe: Recipe, bar: Progress
) -> tuple[DigitNet, int, float]:
    """Train on digits and negatives, evenly from all pages; return (network, number of labels used, seconds).

    Args:
        pages: Pages to train on.
        label_count: Maximum number of labelled digits.
        recipe: Training hyperparameters.
        bar: Progress bar, advanced once per step.
    """
    start = time.perf_counter()
    patches = make_patches(pages, label_count, seed=recipe.seed)
    bar.start(f"training on {label_count} labels", recipe.steps)
    net = train(patches, recipe, progress=lambda _step, _loss: bar.advance())
    return net, int((patches.label >= 0).sum()), time.perf_counter() - start


def make_patches(pages: Sequence[Page], label_count: int, *, seed: int) -> Patches:
    """Return the same number of labelled digits from each page, and negatives.

    Args:
        pages: Pages to cut patches from.
        label_count: Maximum number of labelled digits in total.
        seed: Determines the choice of patches.
    """
    each = label_count // len(pages)
    parts = [digit_patches(p, each, seed=seed + i) for i, p in enumerate(pages)]
    parts += [negative_patches(p, round(0.8 * each), seed=seed + i) for i, p in enumerate(pages)]
    return join_patches([*parts, photo_negative_patches(label_count // 5, seed=seed)])


def measure_learning_curve(
    split: PageSplit, model: DigitModel, settings: TablesSettings, bar: Progress
) -> list[dict[str, Any]]:
    """Train with fewer labels and measure on the same test pages.

    Args:
        split: The pages.
        model: The model trained with all labels, reused for the last point.
        settings: Numbers of labels, seed and steps.
        bar: Progress bar of the training.
    """
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
