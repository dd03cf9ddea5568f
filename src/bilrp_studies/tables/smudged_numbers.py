"""Precision of number matches on smudged pages, with and without the network's own confidence as reliability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from PIL import Image

from bilrp.encoder import Encoder, read_item, resolve_regions
from bilrp.findings.grouping import MIN_RELIABILITY
from bilrp_studies.tables.alignment import extract_digits
from bilrp_studies.tables.page_layout import LAYOUT_SCALE
from bilrp_studies.tables.pages import Page

SMUDGED_FRACTION = 0.1  # of the digits
HALF_DIGIT_PIXELS = (14, 9)  # half the height and width of a digit on the scan of a page
MIN_DIGITS = 3


@dataclass(frozen=True)
class ReadNumber:
    """A number that the network read: its digits, those of the transcription at its place, and its reliability."""

    digits: str
    true_digits: str | None
    reliability: float


@dataclass(frozen=True)
class MatchPrecision:
    """Equal numbers of two pages, over all pairs of pages: how many are equal in the transcription too.

    Args:
        matches: number of pairs of equal numbers.
        precision: of all of them.
        weighted_precision: each with weight w w'.
        reliable_precision: of those that are not marked (w w' at least `MIN_RELIABILITY`).
        reliable_recall: of the true matches, those that are not marked.
    """

    matches: int
    precision: float
    weighted_precision: float
    reliable_precision: float
    reliable_recall: float


def smudge(page: Page, rng: np.random.Generator, fraction: float = SMUDGED_FRACTION) -> np.ndarray:
    """Return the scan of a page with some digits blurred, faded or blotted.

    Args:
        page: The page.
        rng: Chooses the digits.
        fraction: How many of them.
    """
    from scipy import ndimage

    gray, (high, wide) = page.gray.copy(), HALF_DIGIT_PIXELS
    chosen = rng.random(len(page.digits)) < fraction
    for x, y in zip(LAYOUT_SCALE * page.digits.x[chosen], LAYOUT_SCALE * page.digits.y[chosen], strict=True):
        patch = gray[max(0, int(y - high)) : int(y + high), max(0, int(x - wide)) : int(x + wide)]
        kind = rng.integers(3)
        if kind == 0:
            patch[:] = ndimage.gaussian_filter(patch, 3.0)
        elif kind == 1:
            patch[:] = (patch + np.median(patch)) / 2
        else:
            rows, columns = np.mgrid[: patch.shape[0], : patch.shape[1]]
            middle = rng.uniform((6, 4), (22, 14))
            patch[np.hypot(rows - middle[0], columns - middle[1]) < rng.uniform(3, 7)] = patch.min()
    return gray


@torch.no_grad()
def read_numbers(encoder: Encoder, page: Page, gray: np.ndarray) -> list[ReadNumber]:
    """Return the numbers that the network reads on a scan, each with the transcription at its place.

    Args:
        encoder: The bigram network.
        page: The page with its transcription.
        gray: Its scan, clean or smudged.
    """
    item = read_item(encoder, Image.fromarray((255 * gray).round().astype(np.uint8)))
    regions, _ = resolve_regions(encoder, item, None)
    assert encoder.reliability is not None and regions.bounds is not None
    weights = regions.average(encoder.reliability(item.x)).tolist()
    scale = np.array(gray.shape) / np.array(item.x.shape[2:]) / LAYOUT_SCALE
    numbers = []
    for digits, (top, left, bottom, right), weight in zip(
        regions.names or (), regions.bounds.tolist(), weights, strict=True
    ):
        if digits.isdecimal() and len(digits) >= MIN_DIGITS:
            rows, columns = (np.array([top, bottom]) * scale[0], np.array([left, right]) * scale[1])
            numbers.append(ReadNumber(digits, _read_transcription(page, rows, columns), weight))
    return numbers


def _read_transcription(page: Page, rows: np.ndarray, columns: np.ndarray) -> str | None:
    """Return the digits of the cell that has most digits inside a box of network pixels; None if it has none."""
    digits = page.digits
    inside = (digits.y > rows[0]) & (digits.y < rows[1]) & (digits.x > columns[0]) & (digits.x < columns[1])
    cells = Counter(zip(digits.row[inside].tolist(), digits.column[inside].tolist(), strict=True))
    if not cells:
        return None
    row, column = cells.most_common(1)[0][0]
    return extract_digits(page.transcription.values[row][column])


def measure_matches(pages: Sequence[Sequence[ReadNumber]]) -> MatchPrecision:
    """Judge the equal numbers of all pairs of pages by their transcriptions."""
    weights, right = [], []
    for first, second in combinations(pages, 2):
        for a in first:
            for b in second:
                if a.digits == b.digits:
                    weights.append(a.reliability * b.reliability)
                    right.append(a.true_digits is not None and a.true_digits == b.true_digits)
    weight, is_right = np.array(weights), np.array(right, dtype=bool)
    kept = weight >= MIN_RELIABILITY
    return MatchPrecision(
        len(weight),
        _share(is_right.sum(), len(is_right)),
        _share((weight * is_right).sum(), weight.sum()),
        _share((kept & is_right).sum(), kept.sum()),
        _share((kept & is_right).sum(), is_right.sum()),
    )


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
