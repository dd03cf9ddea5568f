"""Search by a box around a column of numbers: does it find the pages that share them? Judged by the transcriptions.

python benchmarks/tables_search.py FOLDER, with scans in FOLDER/images and transcriptions in FOLDER/data. Some pages are
asked for several of their columns; precision is how many of the first five pages found are among the five best by the
transcriptions, once by pairs of neighbouring digits (what the encoder counts), once by whole numbers.
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

FIRST = 5
REACH = 5  # pixels of the network around a digit's middle
EVERY = 3  # columns: every third is asked for


def box(page: Page, column: int, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """X, Y, W, H of a column in pixels of the scan, from the straightened page: turned back, and on the scan's scale."""
    layout, digits = page.layout, page.digits.select(page.digits.column == column)
    (left, right), (top, bottom) = ((v.min() - REACH, v.max() + REACH) for v in (digits.x, digits.y))
    corners = LAYOUT_SCALE * np.array([(y, x) for y in (top, bottom) for x in (left, right)])
    middle = (np.array(layout.ink.shape) - 1) / 2
    angle = np.deg2rad(layout.angle)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    scan = ((corners - middle) @ turn.T + middle) * (np.array(size[::-1]) / layout.ink.shape)
    (y0, x0), (y1, x1) = scan.min(0), scan.max(0)
    return x0, y0, x1 - x0, y1 - y0


def by_pairs(column: Sequence[str], pages: Sequence[Transcription]) -> np.ndarray:
    """⟨counts of the column, counts of the page⟩ / ‖counts of the page‖."""
    counts = np.stack([count_bigrams([c for row in page.values for c in row]) for page in pages]).astype(
        float
    )
    return counts @ count_bigrams(list(column)) / np.linalg.norm(counts, axis=1)


def by_numbers(column: Sequence[str], pages: Sequence[Transcription]) -> np.ndarray:
    """How many cells of each page hold a number of the column."""
    wanted = set(column)
    return np.array([sum(c in wanted for row in page.values for c in row) for page in pages], float)


def best(scores: np.ndarray, without: int) -> list[int]:
    return [int(i) for i in np.argsort(-scores, kind="stable") if i != without][:FIRST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep", type=Path, help="where the collection goes; default: nowhere")
    parser.add_argument("--ask", type=int, default=8, help="so many pages are asked for their columns")
    chosen = parser.parse_args()
    files = find_pages(chosen.folder)
    texts = [read_transcription(text) for _, text in files]
    hits: dict[str, list[list[float]]] = {"pairs of digits": [], "numbers": []}
    with tempfile.TemporaryDirectory() as made:
        found = collection.build(
            [image for image, _ in files], "bigram", chosen.keep or Path(made) / "x.lance"
        )
        place = [found.position(image) for image, _ in files]
        for number in range(min(chosen.ask, len(files))):
            page, size = read_page(*files[number]), open_image(files[number][0]).size
            taken = found.decomposition(place[number])
            for column in range(1, page.transcription.shape[1], EVERY):
                regions = find_regions_in_box(taken, ",".join(f"{n:.1f}" for n in box(page, column, size)))
                asked = [row[column] for row in page.transcription.values]
                answers = [
                    [
                        place.index(n.position)
                        for n in found.nearest(place[number], FIRST + 1, part=part, similarity="cosine")
                    ]
                    for part in (regions, None)
                ]
                for name, truth in (("pairs of digits", by_pairs), ("numbers", by_numbers)):
                    right = set(best(truth(asked, texts), number))
                    firsts = [[i for i in answer if i != number][:FIRST] for answer in answers]
                    hits[name].append([len(right & set(first)) / FIRST for first in firsts])
            print(
                f"{page.name}: "
                + ", ".join(f"{name} {np.mean(h, axis=0).round(2)}" for name, h in hits.items()),
                flush=True,
            )
    print(f"{len(files)} pages, {len(hits['numbers'])} columns; by chance {FIRST / (len(files) - 1):.2f}")
    for name, values in hits.items():
        part, whole = np.mean(values, axis=0)
        print(f"precision at {FIRST} by {name}: the box {part:.2f}, the whole page {whole:.2f}")


if __name__ == "__main__":
    main()
