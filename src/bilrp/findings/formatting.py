"""Numbers, shares and places as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bilrp.findings.region_layout import to_label_image
from bilrp.inputs import Image, Text, View
from bilrp.regions import Regions

POSITION_NAMES = (
    ("upper left", "top", "upper right"),
    ("left", "middle", "right"),
    ("lower left", "bottom", "lower right"),
)
MAX_QUOTED_WORDS = 6  # words of a finding that are quoted
MIN_SPANNING_FRACTION = 0.7  # of a side: a place this long reaches across, and has no left or right


def format_number(value: float | int) -> str:
    """A number as people read it.

    >>> format_number(27328.8), format_number(-0.81234), format_number(-0.0)
    ('27,329', '−0.8123', '0')
    """
    return (f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:z.4g}").replace("-", "−")


def format_column(values: Sequence[float]) -> list[str]:
    """Numbers to be read one below the other: to the precision that shows the largest of them to four digits.

    >>> format_column([27328.8, -0.81234]), format_column([0.93, -0.00001])
    (['27,329', '−1'], ['0.9300', '0.0000'])
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    digits = min(12, max(0, 3 - math.floor(math.log10(largest)))) if largest else 0
    return [f"{value:z,.{digits}f}".replace("-", "−") for value in values]


def format_percent(share: float | int | None, digits: int = 0) -> str:
    """A share as people read it; nothing where there is none.

    >>> format_percent(0.974), format_percent(-0.0001), format_percent(-0.0021, 2), format_percent(None)
    ('97 %', '0 %', '−0.21 %', '')
    """
    if share is None:
        return ""
    return f"{100 * share:z,.{digits}f} %".replace("-", "−")


def format_share(share: float | int) -> str:
    """A share to two digits, however small: what one finding holds of a score.

    >>> format_share(0.1068), format_share(0.0631), format_share(-0.0021)
    ('11 %', '6.3 %', '−0.21 %')
    """
    value = abs(100 * share)
    sign = "−" if share < 0 else ""
    if value == 0 or value >= 9.95:
        return f"{sign}{value:,.0f} %"
    return f"{sign}{value:.1f} %" if value >= 0.995 else f"{sign}{value:.2g} %"


def describe_location(
    regions: Regions, view: View | None, numbers: Sequence[int], *, include_size: bool = True
) -> str:
    """Where regions are, in words: of a photograph with their size in its pixels, of a text the words themselves.

    >>> import torch
    >>> from bilrp.regions import grid, tokens
    >>> describe_location(grid(8)(torch.zeros(1, 3, 48, 64)), None, [0, 1, 8, 9])
    'upper left, 16 × 16 px'
    >>> describe_location(tokens(("a", "young", "girl"))(torch.zeros(1, 3, 4)), None, [1, 2])
    '“young girl”'
    """
    named = view.region_texts if isinstance(view, Text) else regions.names
    if named is not None:
        marks = regions.names or named
        return _quote_words([word or mark for word, mark in zip(named, marks, strict=True)], numbers)
    labels = to_label_image(regions)
    if labels is None:
        return _list_region_numbers(numbers)
    box, whole = _bounding_box(labels, numbers), labels.shape[::-1]
    if isinstance(view, Image):
        high, wide = labels.shape
        left, top, right, bottom = view.map_to_view((box[1], box[0], box[3], box[2]), (high, wide))
        box = _clip_box(view.map_to_original((left, top, right, bottom)), view.original_size or view.size)
        whole = view.original_size or view.size
    where = describe_position(box, whole)
    return f"{where}, {round(box[2] - box[0])} × {round(box[3] - box[1])} px" if include_size else where


def describe_position(box: tuple[float, float, float, float], image_size: tuple[float, float]) -> str:
    """Where (left, top, right, bottom) lies in a picture of that width and height.

    >>> [describe_position(box, (100, 100)) for box in ((0, 0, 30, 30), (5, 80, 95, 100), (0, 0, 90, 80))]
    ['upper left', 'across the bottom', 'all over']
    """
    left, top, right, bottom = box
    wide, high = (
        (right - left) / image_size[0] > MIN_SPANNING_FRACTION,
        (bottom - top) / image_size[1] > MIN_SPANNING_FRACTION,
    )
    column = min(2, int(3 * (left + right) / 2 / image_size[0]))
    row = min(2, int(3 * (top + bottom) / 2 / image_size[1]))
    if wide and high:
        return "all over"
    if wide:
        return f"across the {POSITION_NAMES[row][1]}"
    if high:
        return f"down the {POSITION_NAMES[1][column]}"
    return POSITION_NAMES[row][column]


def _bounding_box(labels: np.ndarray, numbers: Sequence[int]) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) around these regions."""
    y, x = np.nonzero(np.isin(labels, numbers))
    return float(x.min()), float(y.min()), float(x.max() + 1), float(y.max() + 1)


def _clip_box(
    box: tuple[float, float, float, float], image_size: tuple[float, float]
) -> tuple[float, float, float, float]:
    """What of a box lies in the picture; padding has no place in a photograph."""
    left, top, right, bottom = box
    return max(left, 0.0), max(top, 0.0), min(right, image_size[0]), min(bottom, image_size[1])


def _quote_words(words: Sequence[str], numbers: Sequence[int]) -> str:
    """Words in quotes, those that follow each other as one phrase; the tokenizer's own marks by their name.

    >>> _quote_words(("the", "cat", "and", "the", "dog"), [0, 1, 3])
    '“the cat … the”'
    >>> _quote_words(("the", "cat") * 8, range(0, 16, 2))
    '“the … the … the … the … the … the …” and 2 more'
    """
    pieces = [words[numbers[0]]]
    for before, number in pairwise(numbers[:MAX_QUOTED_WORDS]):
        pieces.append(f"{' ' if number == before + 1 else ' … '}{words[number]}")
    more = len(numbers) - MAX_QUOTED_WORDS
    return f"“{''.join(pieces).strip()}{' …' if more > 0 else ''}”{f' and {more} more' if more > 0 else ''}"


def _list_region_numbers(numbers: Sequence[int]) -> str:
    """Regions by their numbers, those that follow each other as a range.

    >>> _list_region_numbers([3]), _list_region_numbers([0, 1, 2, 7])
    ('region 3', 'regions 0–2, 7')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spoken = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"region{'s' if len(numbers) > 1 else ''} {spoken}"
