"""How well maps, sums and explanations agree with the transcription."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bilrp.encoders.bigram import STRIDE
from bilrp_studies.tables.alignment import Digits

THRESHOLD = 0.4
"""A blob counts as a digit from this height on; blobs are trained to reach 1."""


@dataclass(frozen=True)
class Detections:
    """Digits read off the maps: class and centre in network pixels."""

    value: np.ndarray
    x: np.ndarray
    y: np.ndarray


def detect(maps: Tensor, *, threshold: float = THRESHOLD) -> Detections:
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
    return Detections(stack[:, y, x].argmax(axis=0), x * STRIDE + 1.0, y * STRIDE + 1.0)


@dataclass(frozen=True)
class Score:
    """Right, spurious and missed digits, and their F1 = 2 right / (2 right + spurious + missed)."""

    right: int
    spurious: int
    missed: int

    @property
    def f1(self) -> float:
        total = 2 * self.right + self.spurious + self.missed
        return 2 * self.right / total if total else 0.0

    def __add__(self, other: Score) -> Score:
        return Score(self.right + other.right, self.spurious + other.spurious, self.missed + other.missed)


def match_digits(found: Detections, digits: Digits, *, reach: float = 4.0) -> Score:
    """Match detections in the table's body with transcribed digits: same class, within half a pitch.

    Every detection inside the box around all value cells counts; each digit is matched at most once.
    """
    from scipy.spatial import KDTree

    inside = (found.x > digits.x.min() - 6) & (found.x < digits.x.max() + 6)
    inside &= (found.y > digits.y.min() - 8) & (found.y < digits.y.max() + 8)
    points = np.stack([found.x, found.y], axis=1)[inside]
    value = found.value[inside]
    right, used = 0, np.zeros(len(points), bool)
    if len(points):
        near = KDTree(points).query_ball_point(np.stack([digits.x, digits.y], axis=1), reach)
        for digit, candidates in zip(digits.value, near, strict=True):
            same = [c for c in candidates if value[c] == digit and not used[c]]
            if same:
                used[same[0]] = True
                right += 1
    return Score(right, len(points) - right, len(digits) - right)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson correlation of two arrays, flattened; 0 where one of them is constant.

    >>> correlation(np.arange(4.0), 2 * np.arange(4.0))
    1.0
    """
    a, b = a.ravel() - a.mean(), b.ravel() - b.mean()
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return round(float(a @ b) / scale, 12) if scale > 0 else 0.0


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman rank correlation of two lists of scores; 0 where one of them is constant."""
    from scipy.stats import rankdata

    return correlation(rankdata(a), rankdata(b))
