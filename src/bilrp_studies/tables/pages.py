"""A page prepared for the network: deskewed ink and scan, and the position of every digit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bilrp.encoders.binarization import load_gray, resize_array
from bilrp.errors import InputError
from bilrp_studies.tables.alignment import Digits, Transcription, align_digits, read_transcription
from bilrp_studies.tables.page_layout import LAYOUT_SCALE, TableLayout, find_layout


@dataclass(frozen=True)
class Page:
    """One scanned table with its transcription: `ink` and `gray` are deskewed, at twice network scale."""

    name: str
    digest: str
    gray: np.ndarray
    layout: TableLayout
    transcription: Transcription
    digits: Digits

    @property
    def ink(self) -> np.ndarray:
        return self.layout.ink

    def network_ink(self) -> np.ndarray:
        """Return the ink of the whole page at network scale."""
        height, width = self.ink.shape
        return np.clip(resize_array(self.ink, (height // LAYOUT_SCALE, width // LAYOUT_SCALE)), 0, 1)


def file_digest(path: Path) -> str:
    """Return a short hash of a file's content, which identifies pages regardless of file names."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def read_page(image: Path, transcription: Path) -> Page:
    """Read, deskew and align one page; raise InputError with the reason if that fails.

    >>> read_page(Path("images/1.jpg"), Path("data/1.csv")).digits.value.shape  # doctest: +SKIP
    (3200,)
    """
    text = read_transcription(transcription)
    layout = find_layout(image)
    gray = straighten_gray(load_gray(image), layout)
    return Page(image.stem, file_digest(image), gray, layout, text, align_digits(layout, text))


def straighten_gray(gray: np.ndarray, layout: TableLayout) -> np.ndarray:
    """Scale and rotate the scan like the layout's ink."""
    from scipy import ndimage

    scaled = resize_array(gray, layout.ink.shape)
    turned = ndimage.rotate(scaled, layout.angle, reshape=False, order=1, mode="nearest")
    return np.clip(turned, 0, 1).astype(np.float32)


def find_pages(folder: Path) -> list[tuple[Path, Path]]:
    """Return the pairs of images/NAME.jpg and data/NAME.csv below a folder, sorted by name."""
    pairs = [(i, folder / "data" / f"{i.stem}.csv") for i in sorted((folder / "images").glob("*.jpg"))]
    pairs = [(i, t) for i, t in pairs if t.is_file()]
    if not pairs:
        raise InputError(f"no pages in {folder}: expected images/NAME.jpg and data/NAME.csv")
    return pairs
