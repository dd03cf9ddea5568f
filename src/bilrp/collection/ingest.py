"""Read and embed inputs and build rows of the items table, without access to the table itself."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bilrp.collection import thumbnails
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.sources import SourceItem
from bilrp.collection.tables import Row
from bilrp.encoder import Encoder, read_item
from bilrp.errors import BilrpError, describe_error, to_printable
from bilrp.inputs import Item


@dataclass(frozen=True, eq=False)
class ReadResult:
    """An input as read; `failed` is the error message. Both `item` and `failed` are None if its id is already known."""

    source_item: SourceItem
    id: str
    stamp: str
    item: Item | None = None
    failed: str | None = None


def read_source_item(encoder: Encoder, source_item: SourceItem, known_ids: Container[str] = ()) -> ReadResult:
    """Read one input; errors are returned, not raised.

    Args:
        encoder: The encoder whose reader is used.
        source_item: The input.
        known_ids: Inputs with these ids are not decoded.
    """
    stamp = source_item.stamp
    try:
        key = source_item.content_id()
        if key in known_ids:
            return ReadResult(source_item, key, stamp)
        item = read_item(encoder, source_item.content, quiet=True)
        item = replace(item, view=thumbnails.downscale(item.view), segment=None)
        return ReadResult(source_item, key, stamp, item)
    except OSError as error:
        failed = describe_error(error)
    except BilrpError as error:
        failed = str(error)
    except Exception as error:  # an encoder's own reader may raise anything
        failed = f"{type(error).__name__}: {describe_error(error)}"
    return ReadResult(source_item, source_item.make_failed_id(), stamp, failed=failed)


@dataclass(frozen=True)
class Outcome:
    """Result for one input: error message, kinds of its reader's notes, and whether another has the same content."""

    id: str
    source: str
    encoded_path: str
    failed: str | None = None
    is_duplicate: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Batch:
    """Outcomes of some inputs, in order, and the rows to store: of new items and of failures."""

    outcomes: tuple[Outcome, ...]
    rows: tuple[Row, ...]

    @property
    def ids(self) -> set[str]:
        """Ids of the new items."""
        return {each.id for each in self.outcomes if each.failed is None and not each.is_duplicate}


def embed(
    results: Sequence[ReadResult],
    batch_encoder: BatchEncoder,
    *,
    known_ids: Container[str],
    failed_paths: Container[str],
    width: int | None,
) -> Batch:
    """Embed inputs that are new.

    Args:
        results: The inputs as read.
        batch_encoder: Runs the encoder.
        known_ids: Ids that are already indexed.
        failed_paths: Paths that already have a row for a failure, which is not repeated.
        width: Width of the collection's embeddings; another width is a failure.
    """
    new: dict[str, ReadResult] = {}
    for each in results:
        if each.item is not None and each.id not in known_ids:
            new.setdefault(each.id, each)
    given = {key: each.source_item.embedding for key, each in new.items()}
    items = {key: each.item for key, each in new.items() if each.item is not None and given[key] is None}
    computed = dict(zip(items, batch_encoder.encode(list(items.values())), strict=True))
    embeddings = computed | {key: torch.from_numpy(v.copy()) for key, v in given.items() if v is not None}
    outcomes, rows = [], []
    for each in results:
        name = each.source_item.source or each.source_item.name
        embedding = embeddings.get(each.id)
        failed = each.failed or _embedding_error(embedding, width)
        if failed is None and new.get(each.id) is not each:
            outcomes.append(Outcome(each.id, name, each.source_item.encoded_path, is_duplicate=True))
            continue
        key = each.id if failed is None else each.source_item.make_failed_id()
        values = embedding.float().numpy() if failed is None and isinstance(embedding, Tensor) else None
        notes = () if each.item is None else tuple(each.item.notes)
        outcomes.append(Outcome(key, name, each.source_item.encoded_path, failed, notes=notes))
        if failed is None or each.source_item.encoded_path not in failed_paths:
            rows.append(_to_row(each, key, values, failed))
    return Batch(tuple(outcomes), tuple(rows))


def _embedding_error(embedding: Tensor | str | None, width: int | None) -> str | None:
    if isinstance(embedding, Tensor) and embedding.numel() != width:
        return f"its embedding has {embedding.numel()} coordinates, the collection's have {width}"
    return embedding if isinstance(embedding, str) else None


def _to_row(result: ReadResult, key: str, embedding: np.ndarray | None, failed: str | None) -> Row:
    row: dict[str, object] = {"id": key, "stamp": result.stamp, "failed": failed, "embedding": embedding}
    row |= result.source_item.metadata
    view = None if result.item is None else result.item.view
    return row | label_columns(result.source_item) | thumbnails.to_row(view)


def label_columns(source_item: SourceItem) -> dict[str, str]:
    """Return the columns with the name, group and path of an input."""
    return {
        "name": to_printable(source_item.name),
        "group": to_printable(source_item.group),
        "source": source_item.encoded_path,
    }
