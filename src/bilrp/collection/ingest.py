"""From things to rows of the items' table: read, embed, and say of each what came of it. Knows no table."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from bilrp.collection import thumbnails
from bilrp.collection.batch_encoder import Forward
from bilrp.collection.sources import Thing
from bilrp.encoder import Encoder, read_item
from bilrp.errors import BilrpError, printable, reason
from bilrp.inputs import Item


@dataclass(frozen=True, eq=False)
class Read:
    """A thing as it was read, or why it could not be, or neither: then an item with its id is known."""

    thing: Thing
    id: str
    stamp: str
    item: Item | None = None
    failed: str | None = None


def read(encoder: Encoder, thing: Thing, known: Container[str] = ()) -> Read:
    """Read one thing; whatever is wrong with it is its own affair. What has a known id is not decoded."""
    stamp = thing.stamp
    try:
        key = thing.key()
        if key in known:
            return Read(thing, key, stamp)
        item = read_item(encoder, thing.content, quiet=True)
        return Read(thing, key, stamp, replace(item, view=thumbnails.smaller(item.view), cut=None))
    except OSError as error:
        why = reason(error)
    except BilrpError as error:
        why = str(error)
    except Exception as error:  # an encoder's own reader may raise anything
        why = f"{type(error).__name__}: {reason(error)}"
    return Read(thing, thing.place_key(), stamp, failed=why)


@dataclass(frozen=True)
class Outcome:
    """What came of one thing: `failed` says why it is broken; `same` that another has its content.

    `notes` are the kinds of what its reader noted.
    """

    id: str
    source: str
    place: str
    failed: str | None = None
    same: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Batch:
    """What came of some things, in their order, and the rows to keep: of what is new, and of what is broken."""

    outcomes: tuple[Outcome, ...]
    rows: tuple[dict[str, Any], ...]

    @property
    def ids(self) -> set[str]:
        """Whose embeddings are new."""
        return {each.id for each in self.outcomes if each.failed is None and not each.same}


def embedded(
    reads: Sequence[Read],
    forward: Forward,
    *,
    known: Container[str],
    broken: Container[str],
    width: int | None,
) -> Batch:
    """Embed what has no `known` id; an embedding of another width than the collection's is broken.

    What is still broken at a place that is known for it gets no row again.
    """
    new: dict[str, Read] = {}
    for each in reads:
        if each.item is not None and each.id not in known:
            new.setdefault(each.id, each)
    items = [each.item for each in new.values() if each.item is not None]
    found = dict(zip(new, forward.run(items), strict=True))
    outcomes, rows = [], []
    for each in reads:
        name = each.thing.source or each.thing.name
        embedding = found.get(each.id)
        failed = each.failed or _trouble(embedding, width)
        if failed is None and new.get(each.id) is not each:
            outcomes.append(Outcome(each.id, name, each.thing.place, same=True))
            continue
        key = each.id if failed is None else each.thing.place_key()
        numbers = embedding.float().numpy() if failed is None and isinstance(embedding, Tensor) else None
        notes = () if each.item is None else tuple(each.item.notes)
        outcomes.append(Outcome(key, name, each.thing.place, failed, notes=notes))
        if failed is None or each.thing.place not in broken:
            rows.append(_row(each, key, numbers, failed))
    return Batch(tuple(outcomes), tuple(rows))


def _trouble(embedding: Tensor | str | None, width: int | None) -> str | None:
    if isinstance(embedding, Tensor) and embedding.numel() != width:
        return f"its embedding has {embedding.numel()} coordinates, the collection's have {width}"
    return embedding if isinstance(embedding, str) else None


def _row(read: Read, key: str, embedding: np.ndarray | None, failed: str | None) -> dict[str, Any]:
    about = {"id": key, "stamp": read.stamp, "failed": failed, "embedding": embedding} | named(read.thing)
    return about if read.item is None else about | thumbnails.to_row(read.item.view)


def named(thing: Thing) -> dict[str, str]:
    """What a row says of where a thing lies and how it is called."""
    return {"name": printable(thing.name), "group": printable(thing.group), "source": thing.place}
