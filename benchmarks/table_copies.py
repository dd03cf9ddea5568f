"""Are numbers on two scanned pages matched, and planted copies found? python benchmarks/table_copies.py FOLDER [--pages N]

FOLDER has scans in images/ and transcriptions in data/. Pairs of equal numbers on two pages are judged by the
transcriptions, alone and in runs of at least three. Then blocks of numbers are pasted from one page into another, at another
place and with other distances of rows and columns; in a tenth of them (and once more in all) one digit is changed.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from PIL import Image

from bilrp.collection.page_numbers import find_numbers
from bilrp.encoder import Encoder, read_item
from bilrp.encoders import registry
from bilrp.findings.number_copies import PageNumbers, find_copies
from bilrp_studies.tables.page_layout import LAYOUT_SCALE
from bilrp_studies.tables.pages import Page, find_pages, read_page

BLOCK_CELLS = (5, 5)
ROW_PIXELS, COLUMN_PIXELS = (
    20.0,
    52.0,
)  # distances of a pasted block, in network pixels; the print has 16 and 44
CORNERS = ((0.14, 0.2), (0.14, 0.6), (0.55, 0.2), (0.55, 0.6))  # of pasted blocks, in fractions of the page
MIN_FOUND_FRACTION = 0.5  # of the numbers of a block that must be in one match
MIN_NUMBERS = 5


@dataclass(frozen=True)
class Planted:
    """A pasted block: its source, the true numbers, and (before, after) of a changed one."""

    source: int
    numbers: list[str]
    changed: tuple[str, str] | None


def to_image(gray: np.ndarray) -> Image.Image:
    return Image.fromarray((255 * gray.clip(0, 1)).round().astype(np.uint8))


def cell_centers(page: Page) -> dict[tuple[int, int], np.ndarray]:
    """Return the centre (x, y) of each transcribed number in fractions of the straightened page."""
    d, (height, width) = page.digits, page.ink.shape
    size = np.array([width, height]) / LAYOUT_SCALE
    return {
        (int(r), int(c)): np.array([d.x[here].mean(), d.y[here].mean()]) / size
        for r, c in {*zip(d.row.tolist(), d.column.tolist(), strict=True)}
        if (here := (d.row == r) & (d.column == c)).any()
    }


def read_cell(page: Page, cell: tuple[int, int]) -> str:
    return "".join(filter(str.isdigit, page.transcription.values[cell[0]][cell[1]]))


def locate(numbers: PageNumbers, centers: dict[tuple[int, int], np.ndarray]) -> dict[int, tuple[int, int]]:
    """Return the cell of each number that was read inside one."""
    top, left, bottom, right = numbers.boxes.T
    height, width = numbers.shape
    cells = {}
    for cell, (x, y) in centers.items():
        inside = (left <= x * width) & (x * width < right) & (top <= y * height) & (y * height < bottom)
        for n in np.flatnonzero(inside & np.array([bool(name) for name in numbers.numbers])):
            cells[int(n)] = cell
    return cells


def judge_pairs(pages: list[Page], read: list[PageNumbers]) -> dict[str, float]:
    """Return precision and recall of pairs of equal numbers, alone and in runs of at least three."""
    centers = [cell_centers(page) for page in pages]
    cells = [locate(numbers, each) for numbers, each in zip(read, centers, strict=True)]
    truth = [make_true_page(page, each, n.shape) for page, each, n in zip(pages, centers, read, strict=True)]
    count: Counter[str] = Counter()
    for i, j in combinations(range(len(pages)), 2):
        equal = {
            (a, b)
            for name in read[i].places.keys() & read[j].places.keys()
            for a in read[i].places[name]
            for b in read[j].places[name]
        }
        true = sum(
            len(truth[i].places[name]) * len(truth[j].places[name])
            for name in truth[i].places.keys() & truth[j].places.keys()
        )
        known: set[tuple[tuple[int, int], tuple[int, int]]] = set()
        runs = {pair for block in find_copies(read[i], read[j], min_numbers=3) for pair in block.pairs}
        for kind, pairs in (("alone", equal), ("runs", runs)):
            right = [
                (cells[i][a], cells[j][b])
                for a, b in pairs
                if a in cells[i]
                and b in cells[j]
                and read_cell(pages[i], cells[i][a]) == read_cell(pages[j], cells[j][b])
            ]
            count[f"{kind} predicted"] += len(pairs)
            count[f"{kind} right"] += len(right)
            if kind == "runs":
                known = {*right}
        count["alone true"] += true
        order = [sorted(each) for each in (centers[i], centers[j])]
        for block in find_copies(truth[i], truth[j], min_numbers=3):
            count["runs true"] += len(block.pairs)
            count["runs recalled"] += sum((order[0][a], order[1][b]) in known for a, b in block.pairs)
    return {
        "pairs alone": count["alone true"],
        "precision alone": count["alone right"] / count["alone predicted"],
        "recall alone": count["alone right"] / count["alone true"],
        "pairs in runs": count["runs true"],
        "precision in runs": count["runs right"] / max(count["runs predicted"], 1),
        "recall in runs": count["runs recalled"] / max(count["runs true"], 1),
    }


def make_true_page(
    page: Page, centers: dict[tuple[int, int], np.ndarray], shape: tuple[int, int]
) -> PageNumbers:
    """Return a page of the transcribed numbers at their places."""
    cells = sorted(centers)
    middle = np.array([centers[cell] for cell in cells]) * np.array(shape[::-1])
    x, y = middle.T
    boxes = np.stack([y - 7, x - 20, y + 7, x + 20], axis=1)
    return PageNumbers(tuple(read_cell(page, cell) for cell in cells), boxes, shape)


def plant(
    target: Page, sources: list[tuple[int, Page]], changed: list[bool], rng: np.random.Generator
) -> tuple[np.ndarray, list[Planted]]:
    """Paste a block of each source into a copy of the target."""
    gray, planted = target.gray.copy(), []
    paper = float(np.percentile(gray, 75))
    for (number, source), corner, is_changed in zip(sources, CORNERS, changed, strict=True):
        shape = source.transcription.shape
        top, left = (int(rng.integers(1, size - n - 1)) for size, n in zip(shape, BLOCK_CELLS, strict=True))
        cells = [(top + r, left + c) for r in range(BLOCK_CELLS[0]) for c in range(BLOCK_CELLS[1])]
        y0, x0 = (int(f * n) for f, n in zip(corner, gray.shape, strict=True))
        step = (round(ROW_PIXELS * LAYOUT_SCALE), round(COLUMN_PIXELS * LAYOUT_SCALE))
        gray[y0 - 24 : y0 + BLOCK_CELLS[0] * step[0] + 8, x0 - 40 : x0 + BLOCK_CELLS[1] * step[1] + 20] = (
            paper
        )
        texts, victim, pair = [], cells[int(rng.integers(len(cells)))], None
        for n, cell in enumerate(cells):
            picture, text = crop_cell(source, cell), read_cell(source, cell)
            if is_changed and cell == victim:
                picture, wrong = change_digit(source, cell, picture, rng)
                pair = (text, wrong)
            else:
                texts.append(text)
            row, column = divmod(n, BLOCK_CELLS[1])
            y, x = y0 + row * step[0], x0 + column * step[1]
            gray[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
        planted.append(Planted(number, texts, pair))
    return gray, planted


def crop_cell(page: Page, cell: tuple[int, int]) -> np.ndarray:
    """Return the picture of a number."""
    left, top, right, bottom = cell_box(page, cell)
    return page.gray[top:bottom, left:right].copy()


def cell_box(page: Page, cell: tuple[int, int]) -> tuple[int, int, int, int]:
    d = page.digits
    here = (d.row == cell[0]) & (d.column == cell[1])
    x, y = d.x[here] * LAYOUT_SCALE, d.y[here] * LAYOUT_SCALE
    return round(x.min()) - 10, round(y.mean()) - 15, round(x.max()) + 11, round(y.mean()) + 16


def change_digit(
    page: Page, cell: tuple[int, int], picture: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, str]:
    """Replace the last digit of a number by another digit of the page."""
    d, text = page.digits, read_cell(page, cell)
    here = np.flatnonzero((d.row == cell[0]) & (d.column == cell[1]))
    at = int(here[d.place[here].argmax()])
    others = np.flatnonzero(d.certain & (d.value != d.value[at]))
    other = int(rng.choice(others))
    left, top, *_ = cell_box(page, cell)
    size = (8, 14)  # half the width and height of a digit in layout pixels
    place, given = (
        (round(float(d.y[n]) * LAYOUT_SCALE), round(float(d.x[n]) * LAYOUT_SCALE)) for n in (at, other)
    )
    glyph = page.gray[given[0] - size[1] : given[0] + size[1], given[1] - size[0] : given[1] + size[0]]
    y, x = place[0] - top - size[1], place[1] - left - size[0]
    changed = picture.copy()
    window = changed[max(y, 0) : y + glyph.shape[0], x : x + glyph.shape[1]]
    window[:] = glyph[: window.shape[0], : window.shape[1]]
    return changed, text[:-1] + str(int(d.value[other]))


def judge_planted(
    pages: list[Page], read: list[PageNumbers], encoder: Encoder, *, share: float, seed: int
) -> dict[str, float]:
    """Return how many planted blocks and changed digits are found, and false alarms with other pages."""
    rng, count = np.random.default_rng(seed), Counter()
    for number, page in enumerate(pages):
        others = [n for n in range(len(pages)) if n != number]
        sources = [(int(n), pages[int(n)]) for n in rng.choice(others, len(CORNERS), replace=False)]
        gray, planted = plant(page, sources, [bool(rng.random() < share) for _ in sources], rng)
        numbers = find_numbers(encoder, read_item(encoder, to_image(gray)))
        for each in planted:
            copies = find_copies(read[each.source], numbers, min_numbers=MIN_NUMBERS)
            best = max(
                (len({*each.numbers} & {numbers.numbers[j] for j in block.b}) for block in copies), default=0
            )
            count["blocks"] += 1
            count["found"] += best >= MIN_FOUND_FRACTION * len({*each.numbers})
            errors = [
                (read[each.source].numbers[e.a], numbers.numbers[e.b])
                for block in copies
                for e in block.errors
            ]
            count["changed"] += each.changed is not None
            count["listed"] += each.changed in errors
            count["false errors"] += len([pair for pair in errors if pair != each.changed])
        for n in {*others} - {n for n, _ in sources}:
            count["false blocks"] += len(find_copies(read[n], numbers, min_numbers=MIN_NUMBERS))
            count["pairs without a copy"] += 1
    return dict(count) | {
        "blocks found": count["found"] / count["blocks"],
        "changed digits listed": count["listed"] / max(count["changed"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", type=int, default=24)
    options = parser.parse_args()
    start, encoder = time.process_time(), registry.load("bigram")
    pages = [read_page(*pair) for pair in find_pages(options.folder)[: options.pages]]
    read = [find_numbers(encoder, read_item(encoder, to_image(page.gray))) for page in pages]
    print(f"{len(pages)} pages", {k: round(v, 4) for k, v in judge_pairs(pages, read).items()}, flush=True)
    for share in (0.1, 1.0):
        results = judge_planted(pages, read, encoder, share=share, seed=0)
        print(f"a digit changed in {share:.0%} of the blocks:", results, flush=True)
    print(f"{time.process_time() - start:.0f} s of CPU time")


if __name__ == "__main__":
    main()
