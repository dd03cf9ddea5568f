"""From things to rows of the items' table: read, embed, and say of each what came of it. Knows no table."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from bilrp.collection import thumbnails
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.sources import SourceItem
from bilrp.encoder import Encoder, read_item
from bilrp.errors import BilrpError, describe_error, to_printable
from bilrp.inputs import Item


@dataclass(frozen=True, eq=False)
class ReadResult:
    """A thing as it was read, or why it could not be, or neither: then an item with its id is known."""

    source_item: SourceItem
    id: str
    stamp: str
    item: Item | None = None
    failed: str | None = None


def read_source_item(encoder: Encoder, source_item: SourceItem, known_ids: Container[str] = ()) -> ReadResult:
    """Read one thing; whatever is wrong with it is its own affair. What has a known id is not decoded."""
    stamp = source_item.stamp
    try:
        key = source_item.content_id()
        if key in known_ids:
            return ReadResult(source_item, key, stamp)
        item = read_item(encoder, source_item.content, quiet=True)
        return ReadResult(
            source_item, key, stamp, replace(item, view=thumbnails.downscale(item.view), segment=None)
        )
    except OSError as error:
        why = describe_error(error)
    except BilrpError as error:
        why = str(error)
    except Exception as error:  # an encoder's own reader may raise anything
        why = f"{type(error).__name__}: {describe_error(error)}"
    return ReadResult(source_item, source_item.failed_id(), stamp, failed=why)


@dataclass(frozen=True)
class Outcome:
    """What came of one thing: `failed` says why it is broken; `is_duplicate` that another has its content.

    `notes` are the kinds of what its reader noted.
    """

    id: str
    source: str
    encoded_path: str
    failed: str | None = None
    is_duplicate: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Batch:
    """What came of some things, in their order, and the rows to keep: of what is new, and of what is broken."""

    outcomes: tuple[Outcome, ...]
    rows: tuple[dict[str, Any], ...]

    @property
    def ids(self) -> set[str]:
        """Whose embeddings are new."""
        return {each.id for each in self.outcomes if each.failed is None and not each.is_duplicate}


def embed(
    results: Sequence[ReadResult],
    batch_encoder: BatchEncoder,
    *,
    known_ids: Container[str],
    failed_paths: Container[str],
    width: int | None,
) -> Batch:
    """Embed what has none of the `known_ids`; an embedding of another width than the collection's is broken.

    What is still broken at a place that is known for it gets no row again.
    """
    new: dict[str, ReadResult] = {}
    for each in results:
        if each.item is not None and each.id not in known_ids:
            new.setdefault(each.id, each)
    items = [each.item for each in new.values() if each.item is not None]
    found = dict(zip(new, batch_encoder.encode(items), strict=True))
    outcomes, rows = [], []
    for each in results:
        name = each.source_item.source or each.source_item.name
        embedding = found.get(each.id)
        failed = each.failed or _embedding_error(embedding, width)
        if failed is None and new.get(each.id) is not each:
            outcomes.append(Outcome(each.id, name, each.source_item.encoded_path, is_duplicate=True))
            continue
        key = each.id if failed is None else each.source_item.failed_id()
        numbers = embedding.float().numpy() if failed is None and isinstance(embedding, Tensor) else None
        notes = () if each.item is None else tuple(each.item.notes)
        outcomes.append(Outcome(key, name, each.source_item.encoded_path, failed, notes=notes))
        if failed is None or each.source_item.encoded_path not in failed_paths:
            rows.append(_to_row(each, key, numbers, failed))
    return Batch(tuple(outcomes), tuple(rows))


def _embedding_error(embedding: Tensor | str | None, width: int | None) -> str | None:
    if isinstance(embedding, Tensor) and embedding.numel() != width:
        return f"its embedding has {embedding.numel()} coordinates, the collection's have {width}"
    return embedding if isinstance(embedding, str) else None


def _to_row(result: ReadResult, key: str, embedding: np.ndarray | None, failed: str | None) -> dict[str, Any]:
    about = {"id": key, "stamp": result.stamp, "failed": failed, "embedding": embedding} | label_columns(
        result.source_item
    )
    return about if result.item is None else about | thumbnails.to_row(result.item.view)


def label_columns(source_item: SourceItem) -> dict[str, str]:
    """What a row says of where a thing lies and how it is called."""
    return {
        "name": to_printable(source_item.name),
        "group": to_printable(source_item.group),
        "source": source_item.encoded_path,
    }
