"""Does a search by a column of numbers find the pages that share them? python benchmarks/tables_search.py FOLDER

FOLDER has scans in images/ and transcriptions in data/. For some pages, several columns are used as queries; precision is
the fraction of the first five results that are among the five best pages by the transcriptions, counted once by pairs of
neighbouring digits (what the encoder counts) and once by whole numbers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bilrp import collection
from bilrp.cli.search import find_regions_in_box
from bilrp.encoders.image_files import open_image
from bilrp_studies.tables.alignment import Transcription, count_bigrams, read_transcription
from bilrp_studies.tables.page_layout import LAYOUT_SCALE
from bilrp_studies.tables.pages import Page, find_pages, read_page

RESULTS_PER_QUERY = 5
DIGIT_MARGIN_PIXELS = 5  # of the encoder's input, around the centre of a digit
COLUMN_STEP = 3  # every third column is a query


def column_box(page: Page, column: int, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return X, Y, W, H of a column in pixels of the scan: rotated back from the straightened page, and scaled."""
    layout, digits = page.layout, page.digits.select(page.digits.column == column)
    (left, right), (top, bottom) = (
        (v.min() - DIGIT_MARGIN_PIXELS, v.max() + DIGIT_MARGIN_PIXELS) for v in (digits.x, digits.y)
    )
    corners = LAYOUT_SCALE * np.array([(y, x) for y in (top, bottom) for x in (left, right)])
    middle = (np.array(layout.ink.shape) - 1) / 2
    angle = np.deg2rad(layout.angle)
    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    scan = ((corners - middle) @ rotation.T + middle) * (np.array(size[::-1]) / layout.ink.shape)
    (y0, x0), (y1, x1) = scan.min(0), scan.max(0)
    return x0, y0, x1 - x0, y1 - y0


def score_by_bigrams(column: Sequence[str], pages: Sequence[Transcription]) -> np.ndarray:
    """Return ⟨counts of the column, counts of the page⟩ / ‖counts of the page‖."""
    counts = np.stack([count_bigrams([c for row in page.values for c in row]) for page in pages]).astype(
        float
    )
    return counts @ count_bigrams(list(column)) / np.linalg.norm(counts, axis=1)


def score_by_numbers(column: Sequence[str], pages: Sequence[Transcription]) -> np.ndarray:
    """Count the cells of each page that have a number of the column."""
    numbers = set(column)
    return np.array([sum(c in numbers for row in page.values for c in row) for page in pages], float)


def rank_pages(scores: np.ndarray, without: int) -> list[int]:
    """Return the best pages except the query."""
    return [int(i) for i in np.argsort(-scores, kind="stable") if i != without][:RESULTS_PER_QUERY]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep", type=Path, help="store the collection here")
    parser.add_argument("--ask", type=int, default=8, help="number of pages used as queries")
    args = parser.parse_args()
    files = find_pages(args.folder)
    texts = [read_transcription(text) for _, text in files]
    hits: dict[str, list[list[float]]] = {"pairs of digits": [], "numbers": []}
    with tempfile.TemporaryDirectory() as temporary:
        index = collection.build(
            [image for image, _ in files], "bigram", args.keep or Path(temporary) / "x.lance"
        )
        positions = [index.position(image) for image, _ in files]
        for number in range(min(args.ask, len(files))):
            page, size = read_page(*files[number]), open_image(files[number][0]).size
            decomposition = index.decomposition(positions[number])
            for column in range(1, page.transcription.shape[1], COLUMN_STEP):
                regions = find_regions_in_box(
                    decomposition, ",".join(f"{n:.1f}" for n in column_box(page, column, size))
                )
                numbers = [row[column] for row in page.transcription.values]
                answers = [
                    [
                        positions.index(n.position)
                        for n in index.nearest(
                            positions[number], RESULTS_PER_QUERY + 1, part=part, similarity="cosine"
                        )
                    ]
                    for part in (regions, None)
                ]
                for name, truth in (("pairs of digits", score_by_bigrams), ("numbers", score_by_numbers)):
                    relevant = set(rank_pages(truth(numbers, texts), number))
                    answers_without_query = [
                        [i for i in answer if i != number][:RESULTS_PER_QUERY] for answer in answers
                    ]
                    hits[name].append(
                        [
                            len(relevant & set(results)) / RESULTS_PER_QUERY
                            for results in answers_without_query
                        ]
                    )
            print(
                f"{page.name}: "
                + ", ".join(f"{name} {np.mean(h, axis=0).round(2)}" for name, h in hits.items()),
                flush=True,
            )
    print(
        f"{len(files)} pages, {len(hits['numbers'])} columns; by chance {RESULTS_PER_QUERY / (len(files) - 1):.2f}"
    )
    for name, values in hits.items():
        part, whole = np.mean(values, axis=0)
        print(f"precision at {RESULTS_PER_QUERY} by {name}: the box {part:.2f}, the whole page {whole:.2f}")


if __name__ == "__main__":
    main()
