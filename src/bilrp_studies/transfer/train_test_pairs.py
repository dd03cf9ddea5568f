"""Test images and their most similar training images, explained, and the number of effective regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from bilrp.explanation import Explanation
from bilrp.progress import Progress
from bilrp_studies.common.vgg_layers import LayeredVGG, explain_layers, is_cached
from bilrp_studies.transfer.settings import TransferSettings
from bilrp_studies.transfer.svm import split_halves


@dataclass(frozen=True)
class TrainTestPair:
    """Indices of a test image and its most similar training image."""

    test: int
    train: int


def choose_pairs(kernel: np.ndarray, labels: np.ndarray, *, count: int, seed: int) -> list[TrainTestPair]:
    """Choose test images of as many classes as possible, each with the training image of highest cosine.

    By dot product a few training images with large norm would win every comparison.

    Args:
        kernel: Gram matrix of all images.
        labels: Class of each image.
        count: Number of pairs.
        seed: Seed of the split and the choice.
    """
    train, test = split_halves(labels, seed=seed)
    draw = np.random.default_rng(seed)
    order = draw.permutation(test)
    # round-robin over classes: the first image of every class, then the second …
    seen: dict[int, int] = {}
    turn = []
    for label in labels[order].tolist():
        seen[label] = seen.get(label, -1) + 1
        turn.append(seen[label])
    chosen = order[np.argsort(turn, kind="stable")][:count]
    length = np.sqrt(np.maximum(np.diag(kernel), np.finfo(float).tiny))
    cosine = kernel / length[:, None] / length
    return [TrainTestPair(int(i), int(train[np.argmax(cosine[i, train])])) for i in chosen]


def explain_pairs(
    model: LayeredVGG,
    pixels: Sequence[np.ndarray],
    pairs: Sequence[TrainTestPair],
    settings: TransferSettings,
    bar: Progress,
) -> list[dict[int, Explanation]]:
    """Explain every pair at every layer; cached decompositions are loaded.

    Args:
        model: The layers, and the cache.
        pixels: All images, uint8.
        pairs: Pairs to explain.
        settings: Regions and projection.
        bar: Progress bar, advanced once per pair.
    """
    options: dict[str, Any] = {"regions": settings.regions, "project": settings.project}
    new = {i for pair in pairs for i in (pair.test, pair.train) if not is_cached(model, pixels[i], **options)}
    bar.start(f"explanations ({len(new)} pictures to decompose)", len(pairs))
    items = []
    for pair in pairs:
        items.append(explain_layers(model, pixels[pair.test], pixels[pair.train], **options))
        bar.advance()
    return items


def count_effective_regions(relevance: Tensor | np.ndarray) -> float:
    """Number of regions that carry the relevance: exp(H) of the regions' positive contributions, mean of both sides.

    p_I = max(0, Σ_I' R_II') / Σ_I max(0, Σ_I' R_II'), n = exp(−Σ_I p_I log p_I): k regions with equal shares give k.

    >>> count_effective_regions(np.diag([1.0, 1.0, 0.0, 0.0]))
    2.0
    """
    values = np.asarray(relevance, dtype=float)
    return float(np.mean([_effective_count(values.sum(axis)) for axis in (1, 0)]))


def _effective_count(marginal: np.ndarray) -> float:
    positive = np.maximum(marginal, 0)
    if positive.sum() == 0:
        return 0.0
    share = positive[positive > 0] / positive.sum()
    return float(np.exp(-(share * np.log(share)).sum()))
