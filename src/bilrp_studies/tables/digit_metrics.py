"""How well maps, sums and explanations agree with the transcription."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bilrp.encoders.bigram import STRIDE_PIXELS
from bilrp_studies.tables.alignment import Digits

DETECTION_THRESHOLD = 0.4
"""A blob counts as a digit from this height on; blobs are trained to reach 1."""


@dataclass(frozen=True)
class Detections:
    """Digits read off the maps: class and centre in network pixels."""

    value: np.ndarray
    x: np.ndarray
    y: np.ndarray


def detect(maps: Tensor, *, threshold: float = DETECTION_THRESHOLD) -> Detections:
    """Local maxima of ten digit maps [1, 10, H, W]; where classes compete the strongest wins.

    >>> import torch
    >>> len(detect(torch.zeros(1, 10, 8, 8)).value)
    0
    """
    from scipy import ndimage

    stack = maps[0].numpy()
    best = stack.max(axis=0)
    # Two digits are 8 px apart and lines 16 px: one maximum within ±1 cell across and ±2 down.
    peak = (best == ndimage.maximum_filter(best, size=(5, 3))) & (best >= threshold)
    y, x = np.nonzero(peak)
    return Detections(stack[:, y, x].argmax(axis=0), x * STRIDE_PIXELS + 1.0, y * STRIDE_PIXELS + 1.0)


@dataclass(frozen=True)
class DetectionScore:
    """Right, spurious and missed digits, and their F1 = 2 right / (2 right + spurious + missed)."""

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


def match_digits(detections: Detections, digits: Digits, *, max_distance: float = 4.0) -> DetectionScore:
    """Match detections in the table's body with transcribed digits: same class, within half a pitch.

    Every detection inside the box around all value cells counts; each digit is matched at most once.
    """
    from scipy.spatial import KDTree

    inside = (detections.x > digits.x.min() - 6) & (detections.x < digits.x.max() + 6)
    inside &= (detections.y > digits.y.min() - 8) & (detections.y < digits.y.max() + 8)
    points = np.stack([detections.x, detections.y], axis=1)[inside]
    value = detections.value[inside]
    right, used = 0, np.zeros(len(points), bool)
    if len(points):
        near = KDTree(points).query_ball_point(np.stack([digits.x, digits.y], axis=1), max_distance)
        for digit, candidates in zip(digits.value, near, strict=True):
            same = [c for c in candidates if value[c] == digit and not used[c]]
            if same:
                used[same[0]] = True
                right += 1
    return DetectionScore(right, len(points) - right, len(digits) - right)


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson correlation of two arrays, flattened; 0 where one of them is constant.

    >>> pearson(np.arange(4.0), 2 * np.arange(4.0))
    1.0
    """
    a, b = a.ravel() - a.mean(), b.ravel() - b.mean()
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return round(float(a @ b) / scale, 12) if scale > 0 else 0.0


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman rank correlation of two lists of scores; 0 where one of them is constant."""
    from scipy.stats import rankdata

    return pearson(rankdata(a), rankdata(b))
