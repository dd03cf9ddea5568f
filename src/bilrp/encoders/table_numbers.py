"""Numbers of a scanned table as regions: digits that the network detects, joined to digit strings.

Digits of one number are one pitch apart, one and a half across a decimal point; columns are further apart. Each number is
one region with its digits as its name, and everything else on the page is one more, so that nothing is unattributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bilrp.regions import NUMBERS, RegionFunction, Regions

STRIDE_PIXELS = 2  # of the digit maps, see `bigram.STRIDE_PIXELS`
DETECTION_THRESHOLD = 0.4
"""A blob counts as a digit from this height on; blobs are trained to reach 1."""

MAX_STEP_PIXELS = 14.0  # from digit to digit of one number: the pitch is 8, and 12 across a decimal point
MIN_STEP_PIXELS = 4.0  # two detections closer than this are one digit
MAX_RISE_PIXELS = 4.0  # of a digit over the one before it; lines are 16 apart
MIN_DIGITS = 2  # the network knows pairs of digits: a single one adds nothing
DIGIT_REACH_PIXELS = (6.0, 7.5)  # half the width and half the height of the place of a digit
HALF_DIGIT_PIXELS = 5
REST_NAME = "rest of the page"


class DetectedDigits(NamedTuple):
    """Digits detected on the maps: class, centre in pixels of the network's input, and 1 − runner-up / peak."""

    value: np.ndarray
    x: np.ndarray
    y: np.ndarray
    margin: np.ndarray = np.empty(0)


def detect_digits(maps: Tensor, *, threshold: float = DETECTION_THRESHOLD) -> DetectedDigits:
    """Detect local maxima of ten digit maps [1, 10, H, W]; where classes compete the strongest wins."""
    best = maps.amax(dim=1, keepdim=True)
    # Digits are 8 px apart and lines 16 px: keep one maximum within ±1 cell horizontally and ±2 vertically.
    highest = functional.max_pool2d(best, (5, 3), stride=1, padding=(2, 1))
    y, x = ((best == highest) & (best >= threshold))[0, 0].nonzero(as_tuple=True)
    (first, second), value = maps[0, :, y, x].topk(2, dim=0)
    # between cells: the mean of the peak and its neighbours, because columns are only 3 px further apart than digits
    left, peak, right = (functional.pad(best[0, 0], (1, 1))[y, x + shift] for shift in (0, 1, 2))
    offset = (right - left) / (left + peak + right)
    centers = (x + offset) * STRIDE_PIXELS + 1.0, y * STRIDE_PIXELS + 1.0
    margin = (1 - second / first).double().cpu().numpy()
    at_x, at_y = (t.double().cpu().numpy() for t in centers)
    return DetectedDigits(value[0].cpu().numpy(), at_x, at_y, margin)


def join_digits(digits: DetectedDigits) -> list[list[int]]:
    """Return the digits of each number, from left to right; single digits are left out.

    >>> join_digits(DetectedDigits(np.array([3, 9, 7]), np.array([30.0, 10.0, 60.0]), np.array([5.0, 5.0, 5.0])))
    []
    >>> join_digits(DetectedDigits(np.array([3, 9, 7]), np.array([22.0, 10.0, 60.0]), np.array([5.0, 5.0, 5.0])))
    [[1, 0]]
    """
    following: dict[int, int] = {}
    preceded: set[int] = set()
    order = np.argsort(digits.x, kind="stable")
    x, y = digits.x[order], digits.y[order]
    stops = np.searchsorted(x, x + MAX_STEP_PIXELS, side="right")
    starts = np.searchsorted(x, x + MIN_STEP_PIXELS, side="left")
    for here in range(len(order)):
        near = np.arange(starts[here], stops[here])
        level = near[np.abs(y[near] - y[here]) <= MAX_RISE_PIXELS]
        if len(level) and int(level[0]) not in preceded:
            following[here] = int(level[0])
            preceded.add(int(level[0]))
    numbers = []
    for first in sorted(following.keys() - preceded, key=lambda n: (y[n], x[n])):
        chain = [first]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        numbers.append([int(order[n]) for n in chain])
    return [number for number in numbers if len(number) >= MIN_DIGITS]


def label_numbers(digits: DetectedDigits, numbers: Iterable[list[int]], shape: tuple[int, int]) -> np.ndarray:
    """Return the number that each pixel belongs to, −1 for none; a pixel near two digits belongs to the nearer.

    Args:
        digits, numbers: Detected digits, and the digits of each number.
        shape: Height and width of the page in pixels.
    """
    labels, nearest = np.full(shape, -1), np.full(shape, np.inf)
    reach_x, reach_y = DIGIT_REACH_PIXELS
    for label, members in enumerate(numbers):
        for x, y in zip(digits.x[members], digits.y[members], strict=True):
            rows = slice(max(0, int(y - reach_y)), min(shape[0], int(y + reach_y) + 1))
            columns = slice(max(0, int(x - reach_x)), min(shape[1], int(x + reach_x) + 1))
            down = np.abs(np.arange(rows.start, rows.stop) + 0.5 - y)[:, None] / reach_y
            across = np.abs(np.arange(columns.start, columns.stop) + 0.5 - x) / reach_x
            far = np.maximum(down, across)
            closer = (far <= 1) & (far < nearest[rows, columns])
            labels[rows, columns][closer] = label
            nearest[rows, columns][closer] = far[closer]
    return labels


def measure_confidence(ink: np.ndarray, digits: DetectedDigits, numbers: Iterable[list[int]]) -> np.ndarray:
    """Return how far each number can be trusted, in [0, 1]: its least certain digit, less the unread ink next to it.

    min_i (1 − runner-up_i / peak_i) · max(0, 1 − u), with u the ink within a digit's step of either end that belongs to no
    detected digit, as a fraction of the ink of one of its digits. A smudged digit is often not detected at all: the
    number then ends next to ink that was not read, and the digits that remain look as certain as ever.

    Args:
        ink: [height, width] in [0, 1].
        digits, numbers: As for `label_numbers`.
    """
    reach_y = int(DIGIT_REACH_PIXELS[1])
    unread = ink.copy()
    for x, y in zip(digits.x, digits.y, strict=True):
        unread[_window(x, y, HALF_DIGIT_PIXELS, reach_y + 1)] = 0
    confidence = []
    for members in numbers:
        x, y = digits.x[members], digits.y[members]
        own = np.mean([ink[_window(*at, HALF_DIGIT_PIXELS, reach_y)].sum() for at in zip(x, y, strict=True)])
        step = (MAX_STEP_PIXELS - HALF_DIGIT_PIXELS) / 2  # half the gap between a number and the next digit
        next_to = [
            unread[_window(end + side * (HALF_DIGIT_PIXELS + step), y[at], step, reach_y - 1)].sum()
            for end, side, at in ((x.min(), -1, 0), (x.max(), 1, -1))
        ]
        confidence.append(digits.margin[members].min() * max(0.0, 1 - max(next_to) / max(own, 1e-9)))
    return np.array(confidence)


def _window(x: float, y: float, half_width: float, half_height: float) -> tuple[slice, slice]:
    """Return the rows and columns around a point."""
    rows = slice(max(0, round(y - half_height)), max(0, round(y + half_height)))
    return rows, slice(max(0, round(x - half_width)), max(0, round(x + half_width)))


def number_reliability(
    digit_net: nn.Module, *, threshold: float = DETECTION_THRESHOLD
) -> Callable[[Tensor], Tensor]:
    """Return a function ink → [1, height, width]: the confidence in each pixel's number, 1 where there is none."""

    def measure(ink: Tensor) -> Tensor:
        with torch.no_grad():
            digits = detect_digits(digit_net(ink), threshold=threshold)
        numbers = join_digits(digits)
        labels = label_numbers(digits, numbers, (ink.shape[2], ink.shape[3]))
        confidence = measure_confidence(ink[0, 0].double().cpu().numpy(), digits, numbers)
        return torch.from_numpy(np.append(confidence, 1.0)[labels])[None].to(ink)

    return measure


def number_regions(
    digit_net: nn.Module,
    *,
    threshold: float = DETECTION_THRESHOLD,
    max_regions: int,
    fallback: RegionFunction,
) -> RegionFunction:
    """Return a spec ink → Regions: one region for each number on the page, named by its digits, and the rest.

    Args:
        digit_net: Network from ink to ten digit maps.
        threshold: Minimum height of a digit's peak.
        max_regions: Largest number of regions.
        fallback: Spec for a page without numbers, or with more than `max_regions`.
    """

    def spec(ink: Tensor) -> Regions:
        with torch.no_grad():
            digits = detect_digits(digit_net(ink), threshold=threshold)
        numbers = join_digits(digits)
        labels = label_numbers(digits, numbers, (ink.shape[2], ink.shape[3]))
        kept = np.unique(labels[labels >= 0])  # all of a number's pixels may be nearer to others
        if not len(kept) or len(kept) >= max_regions:
            return fallback(ink)
        position = np.full(len(numbers) + 1, -1)
        position[kept] = np.arange(len(kept))
        labels = position[labels]
        names = ["".join(str(v) for v in digits.value[numbers[n]]) for n in kept]
        if (labels < 0).any():
            labels[labels < 0] = len(kept)
            names.append(REST_NAME)
        return Regions(torch.from_numpy(labels)[None].to(ink.device), len(names), NUMBERS, names=tuple(names))

    return spec
