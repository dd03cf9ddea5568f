"""Accuracy of a linear SVM on random halves: how well a layer's similarity serves another task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bilrp.progress import Progress
from bilrp_studies.transfer.settings import TransferSettings

SVM_COSTS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
NUM_FOLDS = 4


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy and chosen C on each random split, for one layer."""

    values: tuple[float, ...]
    costs: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float:
        return float(np.std(self.values))


def split_halves(labels: np.ndarray, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a random half of every class for training, the other for testing; odd classes are rounded at random.

    >>> train, test = split_halves(np.array([0, 0, 1, 1]), seed=0)
    >>> sorted(labels[train])
    [0, 1]
    """
    draw = np.random.default_rng(seed)
    train = []
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        half = len(members) // 2 + (len(members) % 2 and draw.integers(2))
        train.append(members[:half])
    chosen = np.sort(np.concatenate(train))
    return chosen, np.setdiff1d(np.arange(len(labels)), chosen)


def assign_folds(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Assign a fold to every item, each class distributed as evenly as possible.

    Args:
        labels: Class of each item; classes may be smaller than `count`.
        count: Number of folds.
        seed: Seed of the assignment.
    """
    draw = np.random.default_rng(seed)
    fold, dealt = np.empty(len(labels), dtype=int), 0
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        fold[members] = (dealt + np.arange(len(members))) % count
        dealt += len(members)
    return fold


def evaluate_svm(
    kernel: np.ndarray, labels: np.ndarray, train: np.ndarray, test: np.ndarray, *, seed: int = 0
) -> tuple[float, float]:
    """Return (test accuracy, C) of a linear SVM, with C by 4-fold grid search on the training half.

    The kernel is divided by its mean diagonal on the training half, so that C is comparable across layers.

    Args:
        kernel: Gram matrix of all items.
        labels: Class of each item.
        train: Indices of the training half.
        test: Indices of the test half.
        seed: Seed of the folds.
    """
    scale = float(np.mean(np.diag(kernel)[train]))
    scaled = kernel / (scale if scale > 0 else 1.0)
    part = assign_folds(labels[train], NUM_FOLDS, seed=seed)
    scores = []
    for cost in SVM_COSTS:
        right = [
            _count_correct(scaled, labels, train[part != k], train[part == k], cost)
            for k in range(NUM_FOLDS)
            if (part == k).any() and len(np.unique(labels[train[part != k]])) > 1
        ]
        scores.append(sum(right))
    cost = SVM_COSTS[int(np.argmax(scores))]
    return _count_correct(scaled, labels, train, test, cost) / len(test), cost


def _count_correct(
    kernel: np.ndarray, labels: np.ndarray, train: np.ndarray, test: np.ndarray, cost: float
) -> int:
    """Return how many of `test` an SVM trained on `train` classifies correctly."""
    from sklearn.svm import SVC

    machine = SVC(C=cost, kernel="precomputed").fit(kernel[np.ix_(train, train)], labels[train])
    return int((machine.predict(kernel[np.ix_(test, train)]) == labels[test]).sum())


def measure_accuracies(
    kernels: Mapping[int, np.ndarray], labels: np.ndarray, settings: TransferSettings, bar: Progress
) -> list[Accuracy]:
    """Evaluate the SVM of every layer on the same random splits.

    Args:
        kernels: Gram matrix of all images, by layer.
        labels: Class of each image.
        settings: Number of splits and seed.
        bar: Progress bar.
    """
    bar.start("support vector machines", len(kernels) * settings.splits)
    items = []
    for kernel in kernels.values():
        rows = []
        for split in range(settings.splits):
            train, test = split_halves(labels, seed=settings.seed + split)
            rows.append(evaluate_svm(kernel, labels, train, test, seed=settings.seed + split))
            bar.advance()
        items.append(Accuracy(*(tuple(column) for column in zip(*rows, strict=True))))
    return items
