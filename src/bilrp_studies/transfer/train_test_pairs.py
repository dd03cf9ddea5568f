"""Test pictures and their most similar training pictures, explained, and on how many regions that rests."""

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
    """A test picture and its most similar training picture, by place in the list of pictures."""

    test: int
    train: int


def choose_pairs(kernel: np.ndarray, labels: np.ndarray, *, count: int, seed: int) -> list[TrainTestPair]:
    """Test pictures of as many classes as possible, each with the training picture of highest cosine.

    The cosine, not the dot product: else a few training pictures with long features win every comparison.
    """
    train, test = split_halves(labels, seed=seed)
    draw = np.random.default_rng(seed)
    order = draw.permutation(test)
    # the first picture of every class, then the second …: no class twice before all have had their turn
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
    """Every pair at every layer; decompositions already on disk are read, not made."""
    options: dict[str, Any] = {"regions": settings.regions, "project": settings.project}
    new = {i for pair in pairs for i in (pair.test, pair.train) if not is_cached(model, pixels[i], **options)}
    bar.start(f"explanations ({len(new)} pictures to decompose)", len(pairs))
    found = []
    for pair in pairs:
        found.append(explain_layers(model, pixels[pair.test], pixels[pair.train], **options))
        bar.advance()
    return found


def count_effective_regions(relevance: Tensor | np.ndarray) -> float:
    """On how many regions does the relevance sit? exp(H) of what each region adds to the score, mean of both sides.

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
