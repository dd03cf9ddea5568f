"""Format numbers, shares and locations of regions for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bilrp.findings.number_matches import are_numbers, describe_numbers
from bilrp.findings.region_layout import to_label_image
from bilrp.inputs import Image, Text, View
from bilrp.regions import Regions

POSITION_NAMES = (
    ("upper left", "top", "upper right"),
    ("left", "middle", "right"),
    ("lower left", "bottom", "lower right"),
)
MAX_QUOTED_WORDS = 6  # quoted from a finding
MIN_SPANNING_FRACTION = 0.7  # of the width or height: a longer box "spans" it and has no left or right


def format_number(value: float | int) -> str:
    """Format a number with four significant digits, or with thousands separators.

    >>> format_number(27328.8), format_number(-0.81234), format_number(-0.0)
    ('27,329', '−0.8123', '0')
    """
    return (f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:z.4g}").replace("-", "−")


def format_signed(value: float) -> str:
    """Format a number as `format_number` does, with its sign.

    >>> format_signed(0.0204), format_signed(-3.0), format_signed(0.0)
    ('+0.0204', '−3', '0')
    """
    return f"{'+' if value > 0 else ''}{format_number(value)}"


def format_column(values: Sequence[float]) -> list[str]:
    """Format numbers with the same decimals, so that the largest shows four significant digits.

    >>> format_column([27328.8, -0.81234]), format_column([0.93, -0.00001])
    (['27,329', '−1'], ['0.9300', '0.0000'])
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    digits = min(12, max(0, 3 - math.floor(math.log10(largest)))) if largest else 0
    return [f"{value:z,.{digits}f}".replace("-", "−") for value in values]


def format_percent(share: float | int | None, digits: int = 0) -> str:
    """Format a share as a percentage with fixed decimals; "" for None.

    >>> format_percent(0.974), format_percent(-0.0001), format_percent(-0.0021, 2), format_percent(None)
    ('97 %', '0 %', '−0.21 %', '')
    """
    if share is None:
        return ""
    return f"{100 * share:z,.{digits}f} %".replace("-", "−")


def format_share(share: float | int) -> str:
    """Format a share as a percentage with two significant digits: every share of a score, in sentences, tables and pages.

    >>> format_share(0.1068), format_share(0.0631), format_share(-0.0021)
    ('11 %', '6.3 %', '−0.21 %')
    """
    value = abs(100 * share)
    if value < 0.0005:
        return "0 %"
    sign = "−" if share < 0 else ""
    if value >= 9.95:
        return f"{sign}{value:,.0f} %"
    return f"{sign}{value:.1f} %" if value >= 0.995 else f"{sign}{value:.2g} %"


def describe_location(regions: Regions, view: View | None, numbers: Sequence[int]) -> str:
    """Describe where regions are: in per cent of an image's width and height, or the quoted words of a text.

    Args:
        regions, numbers: All regions of the input, and those to describe.
        view: The input as people see it; None describes the regions of the tensor.

    >>> import torch
    >>> from bilrp.regions import grid, tokens
    >>> describe_location(grid(8)(torch.zeros(1, 3, 48, 64)), None, [0, 1, 8, 9])
    'x 0–25 %, y 0–33 %'
    >>> describe_location(tokens(("a", "young", "girl"))(torch.zeros(1, 3, 4)), None, [1, 2])
    '“young girl”'
    """
    if are_numbers(regions):
        return describe_numbers(regions, numbers)
    words = view.region_texts if isinstance(view, Text) else regions.names
    if words is not None:
        names = regions.names or words  # a special token has no text, only a name
        return _quote_words([word or name for word, name in zip(words, names, strict=True)], numbers)
    labels = to_label_image(regions)
    if labels is None:
        return _list_region_numbers(numbers)
    box, image_size = _bounding_box(labels, numbers), labels.shape[::-1]
    if isinstance(view, Image):
        height, width = labels.shape
        image_size = view.original_size or view.size
        view_box = view.map_to_view((box[1], box[0], box[3], box[2]), (height, width))
        box = _clip_box(view.map_to_original(view_box), image_size)
    return format_box(box, image_size)


def format_box(box: tuple[float, float, float, float], image_size: tuple[float, float]) -> str:
    """Format a box (left, top, right, bottom) in per cent of an image of size (width, height), from its upper left corner.

    >>> format_box((30, 0, 60, 50), (120, 100))
    'x 25–50 %, y 0–50 %'
    """
    across, down = (
        f"{round(100 * box[n] / size)}–{round(100 * box[n + 2] / size)} %"
        for n, size in enumerate(image_size)
    )
    return f"x {across}, y {down}"


def describe_position(box: tuple[float, float, float, float], image_size: tuple[float, float]) -> str:
    """Describe the position of a box (left, top, right, bottom) in an image of size (width, height).

    >>> [describe_position(box, (100, 100)) for box in ((0, 0, 30, 30), (5, 80, 95, 100), (0, 0, 90, 80))]
    ['upper left', 'across the bottom', 'all over']
    """
    left, top, right, bottom = box
    spans_width = (right - left) / image_size[0] > MIN_SPANNING_FRACTION
    spans_height = (bottom - top) / image_size[1] > MIN_SPANNING_FRACTION
    column = min(2, int(3 * (left + right) / 2 / image_size[0]))
    row = min(2, int(3 * (top + bottom) / 2 / image_size[1]))
    if spans_width and spans_height:
        return "all over"
    if spans_width:
        return f"across the {POSITION_NAMES[row][1]}"
    if spans_height:
        return f"down the {POSITION_NAMES[1][column]}"
    return POSITION_NAMES[row][column]


def _bounding_box(labels: np.ndarray, numbers: Sequence[int]) -> tuple[float, float, float, float]:
    """Return (left, top, right, bottom) around these regions."""
    y, x = np.nonzero(np.isin(labels, numbers))
    return float(x.min()), float(y.min()), float(x.max() + 1), float(y.max() + 1)


def _clip_box(
    box: tuple[float, float, float, float], image_size: tuple[float, float]
) -> tuple[float, float, float, float]:
    """Return the part of a box inside the image, without padding."""
    left, top, right, bottom = box
    return max(left, 0.0), max(top, 0.0), min(right, image_size[0]), min(bottom, image_size[1])


def _quote_words(words: Sequence[str], numbers: Sequence[int]) -> str:
    """Quote words, consecutive ones as one phrase.

    >>> _quote_words(("the", "cat", "and", "the", "dog"), [0, 1, 3])
    '“the cat … the”'
    >>> _quote_words(("the", "cat") * 8, range(0, 16, 2))
    '“the … the … the … the … the … the …” and 2 more'
    """
    pieces = [words[numbers[0]]]
    for before, number in pairwise(numbers[:MAX_QUOTED_WORDS]):
        pieces.append(f"{' ' if number == before + 1 else ' … '}{words[number]}")
    remaining = len(numbers) - MAX_QUOTED_WORDS
    phrase = "".join(pieces).strip()
    return f"“{phrase} …” and {remaining} more" if remaining > 0 else f"“{phrase}”"


def _list_region_numbers(numbers: Sequence[int]) -> str:
    """List region numbers, consecutive ones as a range.

    >>> _list_region_numbers([3]), _list_region_numbers([0, 1, 2, 7])
    ('region 3', 'regions 0–2, 7')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ranges = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"region{'s' if len(numbers) > 1 else ''} {ranges}"
