"""Agreement of digit maps, bigram sums and similarities with the transcription."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bilrp.encoders.bigram import STRIDE_PIXELS
from bilrp_studies.tables.alignment import Digits

DETECTION_THRESHOLD = 0.4
"""A blob counts as a digit from this height on; blobs are trained to reach 1."""

MAX_DISTANCE_PIXELS = 4.0  # of a detection from its digit, in network pixels: half the digit pitch


@dataclass(frozen=True)
class Detections:
    """Digits detected on the maps: class and centre in network pixels."""

    value: np.ndarray
    x: np.ndarray
    y: np.ndarray


def detect(maps: Tensor, *, threshold: float = DETECTION_THRESHOLD) -> Detections:
    """Detect local maxima of ten digit maps [1, 10, H, W]; where classes compete the strongest wins.

    >>> import torch
    >>> len(detect(torch.zeros(1, 10, 8, 8)).value)
    0
    """
    from scipy import ndimage

    stack = maps[0].numpy()
    best = stack.max(axis=0)
    # Digits are 8 px apart and lines 16 px: keep one maximum within ±1 cell horizontally and ±2 vertically.
    peak = (best == ndimage.maximum_filter(best, size=(5, 3))) & (best >= threshold)
    y, x = np.nonzero(peak)
    return Detections(stack[:, y, x].argmax(axis=0), x * STRIDE_PIXELS + 1.0, y * STRIDE_PIXELS + 1.0)


@dataclass(frozen=True)
class DetectionScore:
    """Correct, spurious and missed digits; F1 = 2 correct / (2 correct + spurious + missed)."""

    correct: int
    spurious: int
    missed: int

    @property
    def f1(self) -> float:
        total = 2 * self.correct + self.spurious + self.missed
        return 2 * self.correct / total if total else 0.0

    def __add__(self, other: DetectionScore) -> DetectionScore:
        return DetectionScore(
            self.correct + other.correct, self.spurious + other.spurious, self.missed + other.missed
        )


def match_digits(detections: Detections, digits: Digits) -> DetectionScore:
    """Match detections inside the table with transcribed digits of the same class.

    Every detection inside the bounding box of all value cells counts; each digit is matched at most once.
    """
    from scipy.spatial import KDTree

    inside = (detections.x > digits.x.min() - 6) & (detections.x < digits.x.max() + 6)
    inside &= (detections.y > digits.y.min() - 8) & (detections.y < digits.y.max() + 8)
    points = np.stack([detections.x, detections.y], axis=1)[inside]
    value = detections.value[inside]
    right, used = 0, np.zeros(len(points), bool)
    if len(points):
        neighbours = KDTree(points).query_ball_point(
            np.stack([digits.x, digits.y], axis=1), MAX_DISTANCE_PIXELS
        )
        for digit, candidates in zip(digits.value, neighbours, strict=True):
            same = [c for c in candidates if value[c] == digit and not used[c]]
            if same:
                used[same[0]] = True
                right += 1
    return DetectionScore(right, len(points) - right, len(digits) - right)


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson correlation of two arrays, flattened; 0 if one of them is constant.

    >>> pearson(np.arange(4.0), 2 * np.arange(4.0))
    1.0
    """
    a, b = a.ravel() - a.mean(), b.ravel() - b.mean()
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return round(float(a @ b) / scale, 12) if scale > 0 else 0.0


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman rank correlation of two lists of scores; 0 if one of them is constant."""
    from scipy.stats import rankdata

    return pearson(rankdata(a), rankdata(b))
