"""Numbers of scanned tables: read once for each page, stored with the collection, and compared between pages.

Reading a page needs its digit maps only, no decomposition: about a second for a page with 800 numbers, where its parts take
twenty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from bilrp.collection import tables
from bilrp.encoder import choose_regions
from bilrp.errors import BilrpError, InputError, MismatchError, wrap_errors
from bilrp.findings.number_copies import PageNumbers
from bilrp.findings.number_matches import are_numbers
from bilrp.progress import progress_bar
from bilrp.regions import NUMBERS

if TYPE_CHECKING:
    from torch import Tensor

    from bilrp.collection.core import Collection
    from bilrp.encoder import Encoder
    from bilrp.inputs import Item
    from bilrp.regions import Regions

PAGES_PER_COMMIT = 64
MAX_NUMBERS = 10_000  # of a stored page: a collection is not trusted
MAX_SIDE_PIXELS = 2**20
NO_NUMBER = "-"  # a region of the page that is not a number


def has_numbers(collection: Collection) -> bool:
    """Return whether the items of a collection are pages whose regions are numbers, as `bigram` reads them."""
    return str(collection.description.get("regions", "")).startswith(NUMBERS)


def read_numbers(collection: Collection, *, progress: bool = False) -> list[PageNumbers]:
    """Return the numbers of every page, none of an unreadable one; pages that were not read before are read and stored."""
    if not has_numbers(collection):
        raise InputError(
            f"{collection.path} has no pages with numbers: index scanned tables with the encoder bigram"
        )
    pages = _load_pages(collection.path)
    missing = [p for p in range(len(collection)) if collection.ids[p] not in pages]
    with progress_bar(progress) as bar:
        bar.start("reading numbers", len(missing))
        for start in range(0, len(missing), PAGES_PER_COMMIT):
            batch = missing[start : start + PAGES_PER_COMMIT]
            new = {collection.ids[p]: _read_page(collection, p) for p in batch}
            rows = [_to_row(key, page) for key, page in new.items()]
            tables.append_rows(collection.path, tables.NUMBERS_TABLE, rows, tables.numbers_schema())
            pages |= new
            bar.advance(len(batch))
    return [pages[key] for key in collection.ids]


def _read_page(collection: Collection, position: int) -> PageNumbers:
    try:
        return find_numbers(collection.encoder, collection.read_original(position))
    except MismatchError:
        raise
    except BilrpError:
        return PageNumbers((), np.zeros((0, 4)), (1, 1))


def find_numbers(encoder: Encoder, item: Item) -> PageNumbers:
    """Return the numbers of a page, as an encoder of tables reads them; none for a page without, or with too many."""
    regions = choose_regions(encoder, item)
    shape = (int(item.x.shape[2]), int(item.x.shape[3]))
    bounds = regions.bounds
    if not are_numbers(regions) or bounds is None:
        return PageNumbers((), np.zeros((0, 4)), shape)
    names = tuple(name if name.isdecimal() else "" for name in regions.names or ())
    confidence = _measure_confidence(encoder, item.x, regions)
    return PageNumbers(names, bounds.cpu().numpy().astype(float), shape, confidence)


def _measure_confidence(encoder: Encoder, x: Tensor, regions: Regions) -> np.ndarray | None:
    """Return the encoder's own confidence in each region, its mean; None if it has none."""
    if encoder.reliability is None:
        return None
    weights = encoder.reliability(x).clamp(0, 1).double().flatten().cpu()
    labels = regions.labels.flatten().cpu()
    weights, labels = weights[labels >= 0], labels[labels >= 0]
    sums = torch.bincount(labels, weights, minlength=regions.count)
    return (sums / torch.bincount(labels, minlength=regions.count)).numpy()


def _to_row(key: str, page: PageNumbers) -> tables.Row:
    return {
        "id": key,
        "numbers": " ".join(name or NO_NUMBER for name in page.numbers),
        "boxes": page.boxes.astype("<i4").tobytes(),
        "confidence": b"" if page.confidence is None else _to_bytes(page.confidence),
        "height": page.shape[0],
        "width": page.shape[1],
    }


def _load_pages(path: str) -> dict[str, PageNumbers]:
    """Return the stored pages by id."""
    dataset = tables.open_verified(path, tables.NUMBERS_TABLE)
    if dataset is None:
        return {}
    with wrap_errors(f"numbers in {path} are damaged: {tables.REINDEX_HINT}"):
        tables.check_columns(dataset, tables.numbers_schema())
        rows = tables.read_columns(dataset, ["id", "numbers", "boxes", "confidence", "height", "width"])
        return {key: _from_row(*row) for key, *row in zip(*rows.values(), strict=True)}


def _to_bytes(confidence: np.ndarray) -> bytes:
    return (255 * confidence).round().astype(np.uint8).tobytes()


def _from_row(numbers: str, boxes: bytes, confidence: bytes, height: int, width: int) -> PageNumbers:
    """Invert `_to_row`; raise `ValueError` for a row that it does not write."""
    names: Sequence[str] = numbers.split()
    places = np.frombuffer(boxes, dtype="<i4").reshape(-1, 4).astype(float)
    if len(names) != len(places) or len(names) > MAX_NUMBERS or len(confidence) not in (0, len(names)):
        raise ValueError(f"{len(names)} numbers with {len(places)} places")
    if not (0 < height < MAX_SIDE_PIXELS and 0 < width < MAX_SIDE_PIXELS):
        raise ValueError(f"a page of {height}×{width} px")
    if not all(name == NO_NUMBER or (name.isascii() and name.isdigit()) for name in names):
        raise ValueError("a number has other characters than digits")
    trust = np.frombuffer(confidence, np.uint8) / 255 if confidence else None
    return PageNumbers(
        tuple("" if name == NO_NUMBER else name for name in names), places, (height, width), trust
    )
