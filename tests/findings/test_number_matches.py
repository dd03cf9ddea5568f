"""Numbers of two tables: what is read, what occurs in both, in which blocks, with exact relevance."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
import torch

import bilrp
import table_pages
from bilrp.encoders import bigram, table_numbers
from bilrp.findings import number_matches
from bilrp.regions import NUMBERS, Regions


def make_table(values: list[list[str]]) -> Regions:
    """Regions of a table whose cells are 20 × 8 px, 24 px and 16 px apart, and the rest of the page."""
    rows, columns = len(values), len(values[0])
    labels = np.full((16 * rows, 24 * columns), rows * columns)
    for n, (r, c) in enumerate(product(range(rows), range(columns))):
        labels[16 * r + 4 : 16 * r + 12, 24 * c + 2 : 24 * c + 22] = n
    names = (*(value for row in values for value in row), table_numbers.REST_NAME)
    return Regions(torch.from_numpy(labels)[None], len(names), NUMBERS, names=names)


A = make_table([["11", "22", "33"], ["44", "55", "66"], ["77", "88", "99"]])
B = make_table([["55", "10", "12"], ["88", "13", "33"], ["14", "15", "33"]])


def test_neighbours_are_the_next_number_of_the_row_and_of_the_column():
    neighbours = number_matches.find_neighbours(A)
    assert neighbours[:9].tolist() == [
        [1, 3],
        [2, 4],
        [-1, 5],
        [4, 6],
        [5, 7],
        [-1, 8],
        [7, -1],
        [8, -1],
        [-1, -1],
    ]
    assert neighbours[9].tolist() == [-1, -1]  # the rest of the page is no number


def test_numbers_and_blocks_have_the_relevance_of_their_pairs():
    relevance = np.random.default_rng(0).random((10, 10))
    numbers = {m.numbers: m for m in number_matches.match_numbers(relevance, A, B, score=2.0)}
    assert set(numbers) == {("33",), ("55",), ("88",)}
    assert numbers["33",].b == [5, 8] and numbers["33",].relevance == pytest.approx(
        relevance[2, [5, 8]].sum(), abs=1e-15
    )
    (block,) = number_matches.match_blocks(relevance, A, B, score=2.0)
    assert (block.numbers, block.a, block.b, block.direction) == (("55", "88"), [4, 7], [0, 3], "column")
    assert block.relevance == pytest.approx(relevance[np.ix_([4, 7], [0, 3])].sum(), abs=1e-15)
    assert block.share == pytest.approx(block.relevance / 2)


@pytest.mark.parametrize("seed", range(20))
def test_no_pair_is_in_two_findings_and_every_common_number_is_in_one(seed):
    rng = np.random.default_rng(seed)
    tables = [make_table(rng.integers(10, 22, (4, 5)).astype(str).tolist()) for _ in range(2)]
    relevance = rng.random((21, 21))
    findings = number_matches.extract_number_findings(relevance, *tables, score=1.0)
    pairs = [{*product(f.a, f.b)} for f in findings]
    assert not any(one & other for one, other in combinations(pairs, 2))
    assert all(
        f.relevance == pytest.approx(sum(relevance[p] for p in own))
        for f, own in zip(findings, pairs, strict=True)
    )
    names = [table.names or () for table in tables]
    common = {*names[0][:-1]} & {*names[1][:-1]}
    assert {names[0][n] for f in findings for n in f.a} == common
    # the slow way: follow each pair of equal neighbours to its end
    neighbours = [number_matches.find_neighbours(table) for table in tables]
    for i, j in product(range(20), range(20)):
        for side in (0, 1):
            after = neighbours[0][i, side], neighbours[1][j, side]
            if min(after) >= 0 and names[0][i] == names[1][j] and names[0][after[0]] == names[1][after[1]]:
                assert any(i in m.a for m in number_matches.match_blocks(relevance, *tables, score=1.0))


def test_digits_join_to_numbers_and_columns_stay_apart():
    x = np.array([10.0, 22, 30, 38, 53.5, 65, 73, 81, 10, 18])
    y = np.array([5.0] * 8 + [21.0] * 2)
    digits = table_numbers.DetectedDigits(np.arange(10), x, y)
    assert table_numbers.join_digits(digits) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    labels = table_numbers.label_numbers(digits, [[0, 1, 2, 3], [4, 5, 6, 7]], (40, 100))
    assert labels[5, 10] == 0 and labels[5, 60] == 1 and labels[30, 10] == -1


@pytest.fixture(scope="module")
def drawn_pages():
    """Two drawn pages: the numbers 0–2 of the last column of A are in the first column of B too."""
    pages = [table_pages.draw_page(rows=8, columns=5, seed=seed) for seed in (3, 4)]
    values = [row[:] for row in pages[1].values]
    for r in range(3):
        values[r + 2][0] = pages[0].values[r][4] = ("0.094", "9.001", "0.113")[
            r
        ]  # which it reads in this font too
    pages[0] = table_pages.draw_page(rows=8, columns=5, seed=3, values=pages[0].values)
    return pages[0], table_pages.draw_page(rows=8, columns=5, seed=4, values=values)


def test_a_planted_run_of_a_drawn_page_is_a_finding(drawn_pages):
    encoder = bigram.bigram()
    explanation = bilrp.explain(encoder, *(page.image for page in drawn_pages))
    assert explanation.a.regions.kind == NUMBERS
    planted = tuple(drawn_pages[0].values[r][4].replace(".", "") for r in (0, 1, 2))
    blocks = number_matches.match_blocks(
        explanation.relevance.double().numpy(),
        explanation.a.regions,
        explanation.b.regions,
        score=explanation.score,
    )
    assert blocks[0].numbers == planted and blocks[0].direction == "column"
    assert explanation.findings()[0].share == pytest.approx(blocks[0].share)
    assert f"{', '.join(planted)} (down a column)" in explanation.summary()
    assert explanation.breakdown.is_complete  # numbers and the rest of the page are everything


def test_the_command_lists_the_numbers_of_two_drawn_pages(drawn_pages, tmp_path, bilrp_command):
    for name, page in zip("ab", drawn_pages, strict=True):
        page.image.save(tmp_path / f"{name}.png")
    paths = [str(tmp_path / f"{name}.png") for name in "ab"]
    output = tmp_path / "why.html"
    code, out, err = bilrp_command("explain", *paths, "-e", "bigram", "--json", "-o", output)
    assert code == 0, err
    values = json.loads(out)
    planted = {drawn_pages[0].values[r][4].replace(".", "") for r in (0, 1, 2)}
    assert planted <= {match["numbers"][0] for match in values["numbers"]}
    assert {*values["number_blocks"][0]["numbers"]} == planted
    assert (tmp_path / "why.html").stat().st_size > 10_000


@pytest.mark.slow
def test_numbers_of_real_pages_agree_with_their_transcriptions(data):
    from bilrp.encoder import read_item
    from bilrp_studies.tables.alignment import extract_digits, read_transcription

    encoder = bigram.bigram()
    read, true = [], []
    for name in ("1898-01", "1899-01"):
        item = read_item(encoder, data / "historic_tables" / "images" / f"{name}.jpg")
        regions = encoder.regions(item.x)  # type: ignore[operator]
        read.append(Counter(n for n in regions.names or () if len(n) >= 3 and n.isdecimal()))
        cells = read_transcription(data / "historic_tables" / "data" / f"{name}.csv").values
        true.append(Counter(extract_digits(cell) for row in cells for cell in row))
    for here, cells in zip(read, true, strict=True):
        right = (here & cells).total()
        assert right / here.total() > 0.93 and right / cells.total() > 0.93
    claimed, really = {*read[0]} & {*read[1]}, {*true[0]} & {*true[1]}
    assert len(claimed & really) / len(claimed) > 0.93 and len(claimed & really) / len(really) > 0.93
