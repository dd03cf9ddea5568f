"""Numbers that occur in both of two scanned tables, and blocks of neighbouring numbers that do.

Regions are numbers, named by their digits (`regions.NUMBERS`). A *block* is a set of pairs of equal numbers that go on in
the same direction on both pages, to the right or down: three equal numbers below each other in both columns are one block.
Its relevance is that of all pairs between its numbers of a and its numbers of b, as for every finding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from bilrp.findings.grouping import Finding
from bilrp.regions import NUMBERS, Regions

MIN_OVERLAP_FRACTION = 0.5  # of the smaller of two numbers: then they are in one column, or in one row
MAX_GAP_SIZES = 1.5  # between neighbours in a row, in widths of the narrower; in a column, in heights
MIN_BLOCK_PAIRS = 2
MAX_LISTED_NUMBERS = 6

Direction = Literal["row", "column", "block"]


@dataclass(frozen=True)
class NumberMatch:
    """Numbers that occur in both pages: one number wherever it occurs, or a block of neighbouring numbers.

    Args:
        numbers: Digit strings in reading order of a; one for a single number.
        a, b: Its regions of both pages.
        relevance: Of all pairs between them.
        share: Of the score; None for a score near zero.
        direction: How a block goes on: along a "row", down a "column", or both ("block"); None for a single number.
    """

    numbers: tuple[str, ...]
    a: list[int]
    b: list[int]
    relevance: float
    share: float | None
    direction: Direction | None = None


def are_numbers(*regions: Regions) -> bool:
    """Return whether all of these regions are numbers of a table."""
    return all(
        each.kind == NUMBERS and each.names is not None and each.bounds is not None for each in regions
    )


def match_numbers(relevance: np.ndarray, a: Regions, b: Regions, *, score: float) -> list[NumberMatch]:
    """Return every number that occurs in both pages, with all its places, most relevance first.

    Args:
        relevance: Relevance [numbers of a, numbers of b].
        a, b: The numbers of the two pages.
        score: What shares refer to; 0: no shares.
    """
    places = [_find_places(each) for each in (a, b)]
    matches = [
        _build_match(relevance, (number,), places[0][number], places[1][number], score)
        for number in places[0].keys() & places[1].keys()
    ]
    return sorted(matches, key=lambda match: (-match.relevance, match.numbers))


def match_blocks(relevance: np.ndarray, a: Regions, b: Regions, *, score: float) -> list[NumberMatch]:
    """Return the blocks of neighbouring numbers that occur in both pages, most relevance first; no pair is in two.

    Args:
        relevance, a, b, score: As for `match_numbers`.
    """
    blocks = [
        _build_match(
            relevance,
            tuple((a.names or ())[n] for n in sorted({i for i, _ in pairs})),
            sorted({i for i, _ in pairs}),
            sorted({j for _, j in pairs}),
            score,
            direction,
        )
        for pairs, direction in _find_blocks(a, b)
    ]
    accepted: list[NumberMatch] = []
    for block in sorted(blocks, key=lambda block: (-len(block.numbers), -block.relevance)):
        if not any({*block.a} & {*other.a} and {*block.b} & {*other.b} for other in accepted):
            accepted.append(block)
    return sorted(accepted, key=lambda block: (-block.relevance, block.numbers))


def extract_number_findings(relevance: np.ndarray, a: Regions, b: Regions, *, score: float) -> list[Finding]:
    """Return blocks, and numbers outside of blocks, as findings: no pair is in two.

    Args:
        relevance, a, b, score: As for `match_numbers`.
    """
    blocks = match_blocks(relevance, a, b, score=score)
    in_blocks = {n for block in blocks for n in block.a}
    alone = [
        _build_match(relevance, match.numbers, rest, match.b, score)
        for match in match_numbers(relevance, a, b, score=score)
        if (rest := [n for n in match.a if n not in in_blocks])
    ]
    matches = sorted([*blocks, *alone], key=lambda match: -match.relevance)
    return [
        Finding(match.a, match.b, match.relevance, match.share) for match in matches if match.relevance > 0
    ]


def serialize_matches(matches: Sequence[NumberMatch], a: Regions, b: Regions) -> list[dict[str, object]]:
    """Return matches as JSON-ready dicts; places are (top, left, bottom, right) in pixels of the network's input.

    Args:
        matches: Numbers or blocks.
        a, b: The numbers of the two pages.
    """
    bounds = [each.bounds for each in (a, b)]
    return [
        {
            "numbers": list(match.numbers),
            "direction": match.direction,
            "a": match.a,
            "b": match.b,
            "places_a": [] if bounds[0] is None else bounds[0][match.a].tolist(),
            "places_b": [] if bounds[1] is None else bounds[1][match.b].tolist(),
            "relevance": match.relevance,
            "share": match.share,
        }
        for match in matches
    ]


def describe_numbers(regions: Regions, numbers: Sequence[int]) -> str:
    """Return these numbers as written on the page: the digits, with a count if one number occurs several times."""
    names = [(regions.names or ())[n] for n in numbers]
    different = list(dict.fromkeys(names))
    listed = ", ".join(different[:MAX_LISTED_NUMBERS])
    more = len(different) - MAX_LISTED_NUMBERS
    text = f"{listed} and {more} more" if more > 0 else listed
    return f"{text} (in {len(names)} places)" if len(different) == 1 and len(names) > 1 else text


def describe_number_finding(a: Regions, b: Regions, finding: Finding) -> str:
    """Return the numbers of a finding once for both pages, with how often they occur or how they go on.

    Args:
        a, b: The numbers of the two pages.
        finding: A finding of `extract_number_findings`.
    """
    names = [(a.names or ())[n] for n in finding.a]
    if len({*names}) == 1 and {(b.names or ())[n] for n in finding.b} == {*names}:
        counts = len(finding.a), len(finding.b)
        return names[0] if counts == (1, 1) else f"{names[0]} ({counts[0]} × in A, {counts[1]} × in B)"
    bounds = a.bounds
    assert bounds is not None
    top, left, bottom, right = bounds[finding.a].T
    if bool(left.max() < right.min()):
        shape = "down a column"
    elif bool(top.max() < bottom.min()):
        shape = "along a row"
    else:
        shape = "side by side and below each other"
    return f"{describe_numbers(a, finding.a)} ({shape})"


def _build_match(
    relevance: np.ndarray, numbers: tuple[str, ...], a: list[int], b: list[int], score: float,
    direction: Direction | None = None,
) -> NumberMatch:  # fmt: skip
    value = float(relevance[np.ix_(a, b)].sum())
    return NumberMatch(numbers, a, b, value, value / score if score else None, direction)


def _find_places(regions: Regions) -> dict[str, list[int]]:
    """Return the regions of each number; what is not a number (the rest of the page) is left out."""
    places = defaultdict(list)
    for n, name in enumerate(regions.names or ()):
        if name.isdecimal():
            places[name].append(n)
    return places


def _find_blocks(a: Regions, b: Regions) -> Iterator[tuple[list[tuple[int, int]], Direction]]:
    """Yield connected sets of pairs of equal numbers, each with the direction it goes on in."""
    names = a.names or (), b.names or ()
    neighbours = [find_neighbours(each).tolist() for each in (a, b)]
    places = [_find_places(each) for each in (a, b)]
    equal = {
        pair
        for name in places[0].keys() & places[1].keys()
        for pair in product(places[0][name], places[1][name])
    }
    links: dict[tuple[int, int], list[tuple[tuple[int, int], int]]] = defaultdict(list)
    for i, j in equal:
        for side, (after_i, after_j) in enumerate(zip(neighbours[0][i], neighbours[1][j], strict=True)):
            if (
                after_i >= 0
                and after_j >= 0
                and names[0][after_i] == names[1][after_j]
                and (after_i, after_j) in equal
            ):
                links[i, j].append(((after_i, after_j), side))
                links[after_i, after_j].append(((i, j), side))
    seen: set[tuple[int, int]] = set()
    for start in sorted(links):
        if start in seen:
            continue
        members, sides, frontier = [], set(), [start]
        seen.add(start)
        while frontier:
            pair = frontier.pop()
            members.append(pair)
            for other, side in links[pair]:
                sides.add(side)
                if other not in seen:
                    seen.add(other)
                    frontier.append(other)
        if len(members) >= MIN_BLOCK_PAIRS:
            direction: Direction = "block" if len(sides) == 2 else "row" if sides == {0} else "column"
            yield sorted(members), direction


def find_neighbours(regions: Regions) -> np.ndarray:
    """Return the number to the right of each number and the one below it, [numbers, 2]; −1 for none."""
    bounds = regions.bounds
    assert bounds is not None
    is_number = np.array([name.isdecimal() for name in regions.names or ()])
    return find_box_neighbours(bounds.cpu().numpy(), is_number)


def find_box_neighbours(
    boxes: np.ndarray, is_number: np.ndarray, *, max_gap_sizes: float = MAX_GAP_SIZES
) -> np.ndarray:
    """Return the box to the right of each box and the one below it, [boxes, 2]; −1 for none.

    Args:
        boxes, is_number: (top, left, bottom, right) of each number, and which of them count.
        max_gap_sizes: Largest distance, in widths of the narrower to the right, in heights of the lower below.
    """
    top, left, bottom, right = boxes.astype(float).T
    height, width = bottom - top, right - left
    neighbours = np.full((len(top), 2), -1)
    for n in np.flatnonzero(is_number):
        rows = np.minimum(bottom, bottom[n]) - np.maximum(top, top[n])
        columns = np.minimum(right, right[n]) - np.maximum(left, left[n])
        across, down = left - right[n], top - bottom[n]
        right_of = (
            is_number & (rows >= MIN_OVERLAP_FRACTION * np.minimum(height, height[n])) & (left > left[n])
        )
        right_of &= across <= max_gap_sizes * np.minimum(width, width[n])
        below = is_number & (columns >= MIN_OVERLAP_FRACTION * np.minimum(width, width[n])) & (top > top[n])
        below &= down <= max_gap_sizes * np.minimum(height, height[n])
        for side, candidates, gap in ((0, right_of, across), (1, below, down)):
            if candidates.any():
                neighbours[n, side] = int(np.where(candidates, gap, np.inf).argmin())
    return neighbours
