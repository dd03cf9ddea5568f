"""A made corpus: pages of tables in five editions, which copy blocks from earlier editions, with errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from bilrp_studies.corpus.settings import CorpusSettings

DIGITS = 4  # of a number
MIN_BLOCK_CELLS = 3  # rows and columns of a copied block
MARGIN_PIXELS = 44
HEADER_PIXELS = 46


@dataclass(frozen=True)
class Edition:
    """When and where a set of pages was printed, in which type, and how large and wide its tables are set."""

    year: int
    place: str
    typeface: str
    rows: int
    columns: int
    digit_height: int
    row_pixels: int
    gap_digits: float


EDITIONS = (
    Edition(1551, "Wittenberg", "DejaVuSerif.ttf", 6, 6, 22, 36, 2.0),
    Edition(1564, "Paris", "cmr10.ttf", 7, 5, 24, 42, 2.6),
    Edition(1580, "Venice", "STIXGeneral.ttf", 5, 7, 23, 40, 2.2),
    Edition(1597, "Leiden", "DejaVuSans.ttf", 8, 4, 21, 34, 2.4),
    Edition(1620, "Cologne", "DejaVuSansMono.ttf", 6, 6, 24, 44, 2.0),
)


@dataclass(frozen=True)
class Copy:
    """A block of a page that was copied from another: (row, column) here for each (row, column) there."""

    source: int
    cells: dict[tuple[int, int], tuple[int, int]]
    changed: frozenset[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class MadePage:
    """A page: its edition, its numbers, what it copied, and the page that first had each of its numbers."""

    edition: int
    numbers: list[list[str]]
    origins: list[list[int]]
    copies: list[Copy] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.numbers), len(self.numbers[0])


def make_corpus(settings: CorpusSettings) -> list[MadePage]:
    """Make the numbers of all pages, edition by edition."""
    rng = np.random.default_rng(settings.seed)
    pages: list[MadePage] = []
    for number, edition in enumerate(EDITIONS):
        earlier = len(pages)
        count = settings.pages // len(EDITIONS) + (number < settings.pages % len(EDITIONS))
        for _ in range(count):
            position = len(pages)
            digits = rng.integers(0, 10, (edition.rows, edition.columns, DIGITS))
            numbers = [["".join(map(str, cell)) for cell in row] for row in digits]
            page = MadePage(number, numbers, [[position] * edition.columns for _ in range(edition.rows)])
            if earlier and 100 * rng.random() < settings.copied_percent:
                _copy_block(page, pages, int(rng.integers(earlier)), settings.changed_percent / 100, rng)
            pages.append(page)
    return pages


def _copy_block(
    page: MadePage, pages: Sequence[MadePage], source: int, changed_share: float, rng: np.random.Generator
) -> None:
    """Copy a block of a source page to a random place of a page, some numbers with one digit changed."""
    given = pages[source]
    most = [min(here, there) for here, there in zip(page.shape, given.shape, strict=True)]
    high, wide = (int(rng.integers(MIN_BLOCK_CELLS, size + 1)) for size in most)
    here = [int(rng.integers(size - n + 1)) for size, n in zip(page.shape, (high, wide), strict=True)]
    there = [int(rng.integers(size - n + 1)) for size, n in zip(given.shape, (high, wide), strict=True)]
    cells, changed = {}, set()
    for r in range(high):
        for c in range(wide):
            row, column = here[0] + r, here[1] + c
            text = given.numbers[there[0] + r][there[1] + c]
            if rng.random() < changed_share:
                at = int(rng.integers(DIGITS))
                text = text[:at] + str((int(text[at]) + int(rng.integers(1, 10))) % 10) + text[at + 1 :]
                changed.add((row, column))
            page.numbers[row][column] = text
            page.origins[row][column] = given.origins[there[0] + r][there[1] + c]
            cells[row, column] = (there[0] + r, there[1] + c)
    page.copies.append(Copy(source, cells, frozenset(changed)))


@cache
def load_typeface(name: str, digit_height: float) -> ImageFont.FreeTypeFont:
    """Return one of matplotlib's typefaces at the size at which its digits have this height.

    Args:
        name: File of the typeface.
        digit_height: In pixels.
    """
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
    _, top, _, bottom = ImageFont.truetype(path, 1000).getbbox("0")
    return ImageFont.truetype(path, round(1000 * digit_height / (bottom - top)))


def draw_page(page: MadePage, number: int, rng: np.random.Generator) -> tuple[Image.Image, np.ndarray]:
    """Draw a page as a scan, and return it with the centre (x, y) of each number [rows, columns, 2] in pixels.

    Args:
        page: The page.
        number: Printed above the table.
        rng: Source of rotation, paper and noise.
    """
    edition = EDITIONS[page.edition]
    face = load_typeface(edition.typeface, edition.digit_height)
    pitch = face.getlength("0")
    column_pixels = pitch * (DIGITS + edition.gap_digits)
    width = round(2 * MARGIN_PIXELS + edition.columns * column_pixels)
    height = HEADER_PIXELS + MARGIN_PIXELS + edition.rows * edition.row_pixels + 20
    image = Image.new("L", (width, height), int(rng.integers(205, 240)))
    pen = ImageDraw.Draw(image)
    pen.text((width / 2, 40), f"TABULA {number}", font=face, fill=60, anchor="ms")
    centers = np.zeros((edition.rows, edition.columns, 2))
    for r, row in enumerate(page.numbers):
        for c, text in enumerate(row):
            x, y = MARGIN_PIXELS + c * column_pixels, HEADER_PIXELS + MARGIN_PIXELS + r * edition.row_pixels
            pen.text((x, y), text, font=face, fill=int(rng.integers(30, 70)), anchor="ls")
            centers[r, c] = x + pitch * DIGITS / 2, y - edition.digit_height / 2
    angle = rng.uniform(-0.5, 0.5)
    image = image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=225)
    image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.2, 0.8))))
    noisy = np.asarray(image, dtype=np.float32) + rng.normal(0, 6, (height, width))
    middle, turn = np.array([width, height]) / 2, np.radians(angle)
    matrix = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)), (centers - middle) @ matrix.T + middle
