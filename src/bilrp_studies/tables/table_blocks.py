"""Blocks of cells cut from pages, and simulated re-photography: shift, scale, rotation, blur, noise, yellowing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from bilrp_studies.tables.alignment import count_bigrams
from bilrp_studies.tables.page_layout import LAYOUT_SCALE
from bilrp_studies.tables.pages import Page

ROW, COLUMN = 16.0, 43.7
"""Nominal distance of rows and columns in network pixels, used only to size windows."""


@dataclass(frozen=True)
class TableBlock:
    """Neighbouring cells of a page; `window` is (x0, y0, x1, y1) in network pixels."""

    page: Page
    rows: tuple[int, int]
    columns: tuple[int, int]
    window: tuple[float, float, float, float]

    @property
    def name(self) -> str:
        return f"{self.page.name} rows {self.rows[0] + 1}–{self.rows[1]} columns {self.columns[0] + 1}–{self.columns[1]}"

    def bigram_counts(self) -> np.ndarray:
        """Return the bigram counts of the block's transcription."""
        cells = [row[slice(*self.columns)] for row in self.page.transcription.values[slice(*self.rows)]]
        return count_bigrams([text for row in cells for text in row])

    def crop_scan(self, *, margin: float = 0.0) -> Image.Image:
        """Crop the block from the scan (twice network scale); outside the page the border is repeated."""
        x0, y0, x1, y1 = (round(v * LAYOUT_SCALE) for v in self.window)
        extra = round(margin * LAYOUT_SCALE)
        height, width = self.page.gray.shape
        rows = np.clip(np.arange(y0 - extra, y1 + extra), 0, height - 1)
        columns = np.clip(np.arange(x0 - extra, x1 + extra), 0, width - 1)
        return Image.fromarray((255 * self.page.gray[np.ix_(rows, columns)]).round().astype(np.uint8))


def cut_blocks(page: Page, *, rows: int, columns: int) -> list[TableBlock]:
    """Return all disjoint blocks of rows × columns value cells; a remainder at the edges is left out.

    Args:
        page: The page.
        rows: Rows of a block.
        columns: Columns of a block.
    """
    d = page.digits
    blocks = []
    for top in range(0, page.transcription.shape[0] - rows + 1, rows):
        for left in range(0, page.transcription.shape[1] - columns + 1, columns):
            inside = (d.row >= top) & (d.row < top + rows) & (d.column >= left) & (d.column < left + columns)
            if not inside.any():
                continue
            x, y = d.x[inside], d.y[inside]
            window = (x.min() - 6.5, y.min() - 8.5, x.max() + 6.5, y.max() + 8.5)
            blocks.append(TableBlock(page, (top, top + rows), (left, left + columns), window))
    return blocks


DISTORTIONS = ("shift", "scale", "rotation", "blur", "noise", "yellowing", "all")


def distort(block: TableBlock, kind: str, rng: np.random.Generator) -> Image.Image:
    """Simulate a new photograph of a block with one distortion, or with all of them.

    Shift by up to ±4 px (half a digit), scale by ±10 %, rotation by ±2°, blur, noise, or yellowing with a darker corner.

    Args:
        block: The block.
        kind: One of DISTORTIONS.
        rng: Source of randomness.
    """
    picture = block.crop_scan(margin=24).convert("RGB")
    on = {k: kind in (k, "all") for k in DISTORTIONS}
    scale = rng.uniform(0.9, 1.1) if on["scale"] else 1.0
    angle = rng.uniform(-2, 2) if on["rotation"] else 0.0
    shift = rng.uniform(-4, 4, size=2) * LAYOUT_SCALE if on["shift"] else np.zeros(2)
    picture = _transform_view(picture, block, scale, angle, shift)
    if on["blur"]:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.6, 1.4)))
    array = np.asarray(picture, dtype=np.float32) / 255
    if on["yellowing"]:
        array = _age_paper(array, rng)
    if on["noise"]:
        array = array + rng.normal(0, 0.05, array.shape[:2])[..., None]
    return Image.fromarray((255 * np.clip(array, 0, 1)).round().astype(np.uint8))


def _transform_view(
    image: Image.Image, block: TableBlock, scale: float, angle: float, shift: np.ndarray
) -> Image.Image:
    """Crop the block's window rotated, shifted and scaled; the surrounding page fills the corners."""
    x0, y0, x1, y1 = block.window
    width, height = round((x1 - x0) * LAYOUT_SCALE * scale), round((y1 - y0) * LAYOUT_SCALE * scale)
    cos, sin = np.cos(np.radians(angle)) / scale, np.sin(np.radians(angle)) / scale
    cx, cy = image.width / 2 + shift[0], image.height / 2 + shift[1]
    matrix = (
        cos, sin, cx - cos * width / 2 - sin * height / 2,
        -sin, cos, cy + sin * width / 2 - cos * height / 2,
    )  # fmt: skip
    return image.transform((width, height), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)


def _age_paper(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Simulate old paper: yellowed, and darker towards one corner."""
    height, width = array.shape[:2]
    corner = rng.integers(0, 2, size=2)
    y, x = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)[None]
    shade = 1 - 0.3 * np.abs(y - corner[0]) * np.abs(x - corner[1])
    return array * shade[..., None] * np.array([1.0, 0.9, 0.62], dtype=np.float32)
