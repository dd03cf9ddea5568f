"""Blocks of numbers that are on two pages, also where the layout has moved or a digit was changed in copying.

The numbers of a page are known by their digits, their places, and their neighbours to the right and below. Two equal pairs
of numbers are linked if both pages lead from the first to the second in the same direction, over at most `MAX_STEPS`
numbers: a number that was misread, left out or changed does not end a block. What is between linked numbers and is not
equal is a difference; if one digit differs, it is what a historian calls an error of copying.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from jaxtyping import Float

from bilrp.findings.number_matches import find_box_neighbours

MIN_DIGITS = 3  # shorter numbers count rows, columns and days on every page
MIN_BLOCK_NUMBERS = 4  # smaller blocks occur by chance in tables of one kind
MAX_STEPS = 2  # from one equal number to the next
MAX_GAP_SIZES = 4.0  # of the neighbours: over one number that was not detected
MAX_EQUAL_PLACES = 64  # of one number on two pages: what occurs more often (0000) starts no block

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class PageNumbers:
    """The numbers of one page.

    Args:
        numbers: Digits of each number.
        boxes: Its place (top, left, bottom, right), in pixels of the network's input.
        shape: Height and width of that input.
        confidence: How far each number can be trusted, in [0, 1]; None if the encoder does not say.
    """

    numbers: tuple[str, ...]
    boxes: Float[np.ndarray, "numbers 4"]
    shape: tuple[int, int]
    confidence: Float[np.ndarray, " numbers"] | None = None

    @cached_property
    def following(self) -> np.ndarray:
        """The number to the right of each number and the one below it, [numbers, 2]; −1 for none."""
        is_number = np.array([len(name) >= MIN_DIGITS for name in self.numbers], dtype=bool)
        return find_box_neighbours(self.boxes, is_number, max_gap_sizes=MAX_GAP_SIZES)

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """The position of each number of at least `MIN_DIGITS` digits."""
        places: dict[str, list[int]] = defaultdict(list)
        for n, name in enumerate(self.numbers):
            if len(name) >= MIN_DIGITS:
                places[name].append(n)
        return places

    def list_runs(self) -> Iterator[tuple[str, int, str]]:
        """Yield (number, side, number) of neighbours, over at most `MAX_STEPS`: pages with a block in common share some."""
        for n, name in enumerate(self.numbers):
            if len(name) >= MIN_DIGITS:
                for side in (0, 1):
                    for after in walk(self.following[:, side], n):
                        yield name, side, self.numbers[after]


def walk(following: np.ndarray, start: int) -> list[int]:
    """Return the next `MAX_STEPS` numbers after one, in one direction."""
    steps: list[int] = []
    while len(steps) < MAX_STEPS and (start := int(following[start])) >= 0:
        steps.append(start)
    return steps


@dataclass(frozen=True)
class NumberDifference:
    """A place inside a block where the two pages have different numbers.

    Args:
        a, b: Its numbers on the two pages.
        digits: How many digits differ; None for numbers of different lengths.
    """

    a: int
    b: int
    digits: int | None


@dataclass(frozen=True)
class CopiedBlock:
    """Numbers in the same arrangement on both pages.

    Args:
        pairs: Equal numbers (i of a, j of b); each number of a page is in one pair.
        differences: Places between them where the numbers are not equal.
    """

    pairs: tuple[Pair, ...]
    differences: tuple[NumberDifference, ...]

    @property
    def a(self) -> list[int]:
        return sorted(i for i, _ in self.pairs)

    @property
    def b(self) -> list[int]:
        return sorted(j for _, j in self.pairs)

    @property
    def errors(self) -> list[NumberDifference]:
        """Differences in one digit."""
        return [each for each in self.differences if each.digits == 1]

    def swap(self) -> CopiedBlock:
        """Return the block with a and b exchanged."""
        return CopiedBlock(
            tuple(sorted((j, i) for i, j in self.pairs)),
            tuple(NumberDifference(each.b, each.a, each.digits) for each in self.differences),
        )


def find_copies(a: PageNumbers, b: PageNumbers, *, min_numbers: int = MIN_BLOCK_NUMBERS) -> list[CopiedBlock]:
    """Return the blocks that two pages have in common, largest first; no number of a page is in two.

    Args:
        a, b: The pages.
        min_numbers: Smallest number of equal numbers of a block.
    """
    links = _link_pairs(a, b)
    blocks = [
        pairs for members in _connect(links) if len(pairs := _match_once(members, links)) >= min_numbers
    ]
    blocks.sort(key=lambda pairs: (-len(pairs), pairs))
    used_a: set[int] = set()
    used_b: set[int] = set()
    result = []
    for pairs in blocks:
        rest = [(i, j) for i, j in pairs if i not in used_a and j not in used_b]
        if len(rest) >= min_numbers:
            used_a |= {i for i, _ in rest}
            used_b |= {j for _, j in rest}
            result.append(CopiedBlock(tuple(rest), _find_differences(a, b, rest)))
    return sorted(result, key=lambda block: (-len(block.pairs), block.pairs))


def _link_pairs(a: PageNumbers, b: PageNumbers) -> dict[Pair, set[Pair]]:
    """Return the pairs of equal numbers that lead to another such pair in one direction on both pages, with those."""
    links: dict[Pair, set[Pair]] = defaultdict(set)
    for name in a.places.keys() & b.places.keys():
        if len(a.places[name]) * len(b.places[name]) > MAX_EQUAL_PLACES:
            continue
        for i, j in product(a.places[name], b.places[name]):
            for side in (0, 1):
                steps = walk(a.following[:, side], i), walk(b.following[:, side], j)
                for after_i, after_j in product(*steps):
                    if a.numbers[after_i] == b.numbers[after_j]:
                        links[i, j].add((after_i, after_j))
                        links[after_i, after_j].add((i, j))
    return links


def _connect(links: dict[Pair, set[Pair]]) -> Iterator[list[Pair]]:
    """Yield the connected sets of pairs."""
    seen: set[Pair] = set()
    for start in sorted(links):
        if start in seen:
            continue
        members, frontier = [], [start]
        seen.add(start)
        while frontier:
            pair = frontier.pop()
            members.append(pair)
            frontier += (new := links[pair] - seen)
            seen |= new
        yield members


def _match_once(members: Sequence[Pair], links: dict[Pair, set[Pair]]) -> list[Pair]:
    """Return pairs such that no number is in two: those with the most links first."""
    used: tuple[set[int], set[int]] = set(), set()
    pairs = []
    for pair in sorted(members, key=lambda pair: (-len(links[pair]), pair)):
        if pair[0] not in used[0] and pair[1] not in used[1]:
            used[0].add(pair[0])
            used[1].add(pair[1])
            pairs.append(pair)
    return sorted(pairs)


def _find_differences(a: PageNumbers, b: PageNumbers, pairs: Sequence[Pair]) -> tuple[NumberDifference, ...]:
    """Return the pairs of unequal numbers that at least two pairs of a block have as their neighbours, in one direction."""
    in_block = {i for i, _ in pairs}, {j for _, j in pairs}
    backward = [_invert(page.following) for page in (a, b)]
    support: dict[Pair, int] = defaultdict(int)
    for i, j in pairs:
        for side in (0, 1):
            for after in (
                (a.following[i, side], b.following[j, side]),
                (backward[0][i, side], backward[1][j, side]),
            ):
                support[int(after[0]), int(after[1])] += 1
    differences: dict[int, NumberDifference] = {}
    for (i, j), count in sorted(support.items(), key=lambda each: (-each[1], each[0])):
        free = min(i, j) >= 0 and i not in in_block[0] and j not in in_block[1] and i not in differences
        if free and count >= 2 and j not in {each.b for each in differences.values()}:
            differences[i] = NumberDifference(i, j, count_different_digits(a.numbers[i], b.numbers[j]))
    return tuple(sorted(differences.values(), key=lambda each: each.a))


def _invert(following: np.ndarray) -> np.ndarray:
    """Return the number to the left of each number and the one above it."""
    before = np.full_like(following, -1)
    for side in (0, 1):
        known = np.flatnonzero(following[:, side] >= 0)
        before[following[known, side], side] = known
    return before


def count_different_digits(a: str, b: str) -> int | None:
    """Return in how many places two numbers differ; None if their lengths differ.

    >>> count_different_digits("9766", "9166"), count_different_digits("9766", "976")
    (1, None)
    """
    return sum(x != y for x, y in zip(a, b, strict=True)) if len(a) == len(b) else None
