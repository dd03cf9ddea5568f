"""Blocks of numbers on two pages: found wherever they are, with the changed numbers, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilrp.findings.number_copies import PageNumbers, count_different_digits, find_copies


def make_page(
    numbers: list[list[str]], *, row: float = 16, column: float = 44, left: float = 10, top: float = 10
) -> PageNumbers:
    """A page of numbers of 30 × 12 px in a grid; an empty text is a number that was not read."""
    cells = [(r, c, text) for r, line in enumerate(numbers) for c, text in enumerate(line) if text]
    boxes = [
        (top + r * row, left + c * column, top + r * row + 12, left + c * column + 30) for r, c, _ in cells
    ]
    return PageNumbers(tuple(text for *_, text in cells), np.array(boxes, dtype=float), (1000, 1000))


def draw_numbers(rng: np.random.Generator, rows: int, columns: int) -> list[list[str]]:
    return [[f"{rng.integers(10_000):04}" for _ in range(columns)] for _ in range(rows)]


def paste(onto: list[list[str]], block: list[list[str]], row: int, column: int) -> list[list[str]]:
    pasted = [list(line) for line in onto]
    for r, line in enumerate(block):
        pasted[row + r][column : column + len(line)] = line
    return pasted


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.tuples(st.integers(3, 5), st.integers(3, 5)),
    place=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    spacing=st.tuples(st.floats(14, 24), st.floats(36, 60)),
)
def test_a_block_is_found_wherever_it_is_pasted(seed, size, place, spacing) -> None:
    """In another place and another layout; the digit that was changed inside it is the one difference."""
    rng = np.random.default_rng(seed)
    source, other = draw_numbers(rng, 8, 8), draw_numbers(rng, 8, 8)
    block = [line[1 : 1 + size[1]] for line in source[2 : 2 + size[0]]]
    true = {text for line in block for text in line}
    middle = block[size[0] // 2][size[1] // 2]
    wrong = f"{middle[0]}{(int(middle[1]) + 3) % 10}{middle[2:]}"
    block = [[wrong if text == middle else text for text in line] for line in block]
    a = make_page(source)
    b = make_page(paste(other, block, *place), row=spacing[0], column=spacing[1], left=70)
    copies = find_copies(a, b)
    assert len(copies) == 1
    assert {a.numbers[i] for i in copies[0].a} == true - {middle}
    assert all(a.numbers[i] == b.numbers[j] for i, j in copies[0].pairs)
    assert [(a.numbers[each.a], b.numbers[each.b]) for each in copies[0].errors] == [(middle, wrong)]
    back = find_copies(b, a)
    assert [block.swap().pairs for block in back] == [copies[0].pairs]


def test_a_number_that_was_not_read_does_not_end_a_block() -> None:
    rng = np.random.default_rng(0)
    source = draw_numbers(rng, 5, 5)
    copy = [list(line) for line in source]
    copy[2][2] = ""
    copies = find_copies(make_page(source), make_page(copy, left=40))
    assert [len(block.pairs) for block in copies] == [24]
    assert copies[0].differences == ()


def test_pages_that_share_single_numbers_have_no_block() -> None:
    rng = np.random.default_rng(1)
    source = draw_numbers(rng, 6, 6)
    scattered = draw_numbers(rng, 6, 6)
    for r, c in ((0, 0), (2, 4), (5, 1), (4, 5)):
        scattered[r][c] = source[c][r]
    assert find_copies(make_page(source), make_page(scattered)) == []


def test_short_numbers_count_rows_and_make_no_block() -> None:
    counting = [[str(10 + r) for r in range(9)]]
    assert find_copies(make_page(counting), make_page(counting)) == []


def test_repeated_numbers_are_matched_once() -> None:
    numbers = [["1234", "1234", "1234", "1234"], ["5678", "1234", "5678", "9012"]]
    (block,) = find_copies(make_page(numbers), make_page(numbers, left=90))
    assert len({i for i, _ in block.pairs}) == len({j for _, j in block.pairs}) == len(block.pairs)


@pytest.mark.parametrize(("a", "b", "digits"), [("123", "123", 0), ("123", "153", 1), ("12", "123", None)])
def test_different_digits(a: str, b: str, digits: int | None) -> None:
    assert count_different_digits(a, b) == digits
