"""A served collection: items by id, queries that clients uploaded, and a cache of recently used parts."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from bilrp.answers.http_shapes import Label, TextAnswer
from bilrp.app.request_handling import quote_sql
from bilrp.app.security import HTTPError
from bilrp.collection import Collection
from bilrp.collection.thumbnails import check_thumbnail
from bilrp.decomposition import Decomposition
from bilrp.encoder import read_item
from bilrp.encoders.text.reader import TextReader
from bilrp.errors import BilrpError, InputError, to_printable
from bilrp.inputs import Image, Item, Text, View
from bilrp.sparse_parts import SparseParts

MAX_PARTS_BYTES = 384 * 2**20  # of cached decompositions, including their images
MAX_SPARSE_PARTS_BYTES = 96 * 2**20  # of cached sparse copies, for queries by part
MAX_QUERIES = 24  # the most recent ones
MAX_QUERY_BYTES = 256 * 2**20  # of all queries: inputs, images, and the uploaded files with --add
MAX_IMAGE_SIDE_PIXELS = 1200
MAX_TEXT_CHARACTERS = 20_000
ITEMS_PER_PAGE = 200
MAX_LISTED_ITEMS = 200_000  # of a larger collection, values of columns are not listed
MAX_LISTED_VALUES = 60  # of a column

Value = TypeVar("Value")


class ByteLRU:
    """Least-recently-used cache limited by bytes. Concurrent requests for a missing key may both compute it.

    >>> cache = ByteLRU(10)
    >>> cache.get("a", lambda: "x", lambda value: 6), cache.get("b", lambda: "y", lambda value: 6), "a" in cache
    ('x', 'y', False)
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.nbytes = max_bytes, 0
        self._entries: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str, compute: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """Return the cached value, or compute and cache it.

        Args:
            key: name of the value.
            compute: returns the value if it is not cached.
            size: returns the bytes of a value.
        """
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        value = compute()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = (value, size(value))
                self.nbytes += size(value)
            while self.nbytes > self.max_bytes and len(self._entries) > 1:
                self.nbytes -= self._entries.popitem(last=False)[1][1]
        return value

    def drop(self, key: str) -> None:
        """Remove a key, if it is cached."""
        with self._lock:
            self.nbytes -= self._entries.pop(key, (None, 0))[1]


@dataclass(frozen=True, eq=False)
class Query:
    """An uploaded input. `raw` is its content, retained only if the server can add items."""

    item: Item
    name: str
    raw: bytes | str = b""

    @property
    def nbytes(self) -> int:
        return count_bytes(self.item.x, self.item.model_input, self.item.view) + len(self.raw)


class CollectionSession:
    """A collection as clients see it. Items and queries are identified by id; clients never send paths.

    A session is not changed when an item is added: `with_collection` returns a new one, and requests in progress finish
    with the old one.

    Args:
        collection: the collection to serve.
        retain_uploads: keep the content of queries, so that they can be added as items.
    """

    def __init__(self, collection: Collection, *, retain_uploads: bool = False) -> None:
        self.collection, self.retain_uploads = collection, retain_uploads
        self._parts, self._sparse_parts = ByteLRU(MAX_PARTS_BYTES), ByteLRU(MAX_SPARSE_PARTS_BYTES)
        self._queries: OrderedDict[str, Query] = OrderedDict()
        self._lock = threading.Lock()

    def with_collection(self, collection: Collection) -> CollectionSession:
        """Return a session of another version of the collection that shares queries and cached parts.

        Sharing is safe because an id is a hash of the content.
        """
        session = CollectionSession(collection, retain_uploads=self.retain_uploads)
        session._parts, session._sparse_parts = self._parts, self._sparse_parts
        session._queries, session._lock = self._queries, self._lock
        return session

    # ------------------------------------------------------------ the collection

    @cached_property
    def ids(self) -> list[str]:
        return self.collection.ids

    @cached_property
    def names(self) -> list[str]:
        return self.collection.names

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        return self.collection.groups()

    @cached_property
    def item_groups(self) -> list[str]:
        """The group of each item, by position."""
        group_of = [""] * len(self.collection)
        for name, positions in self.groups.items():
            for position in positions:
                group_of[position] = name
        return group_of

    @cached_property
    def is_text(self) -> bool:
        return isinstance(self.collection.view(0), Text) if len(self.collection) else False

    @cached_property
    def _casefolded_names(self) -> list[str]:
        return [name.casefold() for name in self.collection.names]

    def describe(self) -> dict[str, object]:
        """Return what the start page shows, as JSON values."""
        collection = self.collection
        groups = [{"name": name, "count": len(of)} for name, of in sorted(self.groups.items())]
        return {
            "name": Path(collection.path).name,
            "count": len(collection),
            "kind": "text" if self.is_text else "image",
            "encoder": collection.description["encoder"],
            "rules": str(collection.description["origin"].get("composite", "")),
            "similarity": collection.resolve_similarity(None),
            "width": collection.width,
            "groups": groups[:ITEMS_PER_PAGE],
            "columns": self.columns,
            "failed": len(collection.failed),
            "adds": self.retain_uploads,
        }

    @cached_property
    def filter_columns(self) -> dict[str, str]:
        """{column: type} that clients may filter by: the metadata and the group, never the source."""
        return {**self.collection.columns, "group": "string"}

    @cached_property
    def columns(self) -> list[dict[str, object]]:
        """The columns of the metadata; those of few texts with all their values, to choose from."""
        described = []
        for name, kind in self.collection.columns.items():
            values: set[str] = set()
            if kind == "string" and len(self.collection) <= MAX_LISTED_ITEMS:
                values = {value for (value,) in self.collection.items.columns([name]) if value}
            few = sorted(values) if len(values) <= MAX_LISTED_VALUES else []
            described.append({"name": name, "type": kind, "values": [value[:200] for value in few]})
        return described

    def find_positions(
        self, *, group: str | None = None, words: str = "", where: str | None = None
    ) -> Sequence[int]:
        """Return the positions of the items of a group that contain `words` in their whole text or name.

        Args:
            group: only items of this group.
            words: looked for without regard to case.
            where: a condition on the metadata, from `get_where`.
        """
        if group is not None and group not in self.groups:
            raise HTTPError(404, "no such group")
        positions: Sequence[int] = range(len(self.collection)) if group is None else self.groups[group]
        text = words.strip()
        if text and self.is_text:
            quoted = quote_sql(text.lower())
            condition = f"(contains(lower(text), {quoted}) OR contains(lower(name), {quoted}))"
            where = condition if where is None else f"{condition} AND {where}"
        elif text:
            folded = text.casefold()
            positions = [p for p in positions if folded in self._casefolded_names[p]]
        if where is None:
            return positions
        with self.redact_paths():
            matching = set(self.collection.items.find(where).tolist())
        return [p for p in positions if p in matching]

    def read_text(self, key: str) -> TextAnswer:
        """Return the whole text of an item or query, with its metadata; 404 for an image."""
        view, at = self.view(key), self.position(key)
        if not isinstance(view, Text):
            raise HTTPError(404, "this item is an image")
        metadata = {} if at is None else self.collection.read_rows([at])[0].metadata
        group = "" if at is None else self.item_groups[at]
        return {"id": key, "name": self.name(key), "group": group, "text": view.text, "metadata": metadata}

    def label(self, position: int) -> Label:
        return {"id": self.ids[position], "name": self.names[position], "group": self.item_groups[position]}

    # ------------------------------------------------------------ one item or query

    def _look_up(self, key: str) -> int | Query:
        """Return an item's position, or a query; call it once per request, since queries can be evicted at any time."""
        query = self._queries.get(key)
        if query is not None:
            return query
        at = self.collection.items.by_id.get(key)  # ids only, never a path
        if at is None:
            raise HTTPError(404, "no such item: it may have been removed, or the server was restarted")
        return at

    def get_query(self, key: str) -> Query:
        """Return a query; 404 if it was evicted."""
        query = self._queries.get(key)
        if query is None:
            raise HTTPError(404, "no such query: it was dropped, upload it again")
        return query

    def position(self, key: str) -> int | None:
        """Return an item's position, None for a query; 404 for an unknown id."""
        known = self._look_up(key)
        return None if isinstance(known, Query) else known

    def name(self, key: str) -> str:
        known = self._look_up(key)
        return known.name if isinstance(known, Query) else self.collection.names[known]

    def view(self, key: str) -> View | None:
        known = self._look_up(key)
        return known.item.view if isinstance(known, Query) else self.collection.view(known)

    def thumbnail(self, key: str) -> bytes:
        """Return a small image as JPEG."""
        known = self._look_up(key)
        if not isinstance(known, Query):
            thumbnail = self.collection.items.take([known], ["thumbnail"])["thumbnail"][0]
            if thumbnail:
                with self.redact_paths():
                    return check_thumbnail(thumbnail)
        view = self.view(key)
        if not isinstance(view, Image):
            raise HTTPError(404, "this item is a text")
        return _encode_jpeg(view.pixels, 320)

    def picture(self, key: str, max_side: int = MAX_IMAGE_SIDE_PIXELS) -> bytes:
        """Return the image from its file as JPEG, or the stored thumbnail if the file is gone."""
        view = self.full_view(key)
        if not isinstance(view, Image):
            raise HTTPError(404, "this item is a text")
        return _encode_jpeg(view.pixels, max_side)

    def full_view(self, key: str) -> View | None:
        """Return the view at full resolution, or the stored one if the file is gone or has changed."""
        known = self._look_up(key)
        if isinstance(known, Query):
            return known.item.view
        try:
            return read_item(self.collection.encoder, self.collection.original_input(known)).view
        except InputError:
            return self.collection.view(known)

    def add_query(self, content: Path | str, name: str) -> tuple[str, str]:
        """Read an uploaded file or text with the encoder's reader; return its id and its name.

        Args:
            content: the file's path, or the text.
            name: the name to show.
        """
        encoder = self.collection.encoder
        is_text = isinstance(encoder.read, TextReader)
        if encoder.read is None or isinstance(content, str) is not is_text:
            raise HTTPError(415, f"this collection contains only {'texts' if is_text else 'images'}")
        if isinstance(content, str):
            if not content.strip() or len(content) > MAX_TEXT_CHARACTERS:
                raise HTTPError(413, f"a text must have 1 to {MAX_TEXT_CHARACTERS} characters")
            raw, read = content.encode("utf-8", "replace"), encoder.read(content)
        else:
            raw = content.read_bytes()
            try:
                read = encoder.read(content)
            except InputError as error:
                raise HTTPError(422, str(error).replace(str(content), "this file")) from None
        item = read_item(encoder, read)
        line = (" ".join(to_printable(name).split()) or "your query")[:80]
        # The id depends on the name too, so that a client cannot rename another client's query.
        name_digest = hashlib.sha256(line.encode("utf-8", "replace")).digest()
        key = "q" + hashlib.sha256(name_digest + raw).hexdigest()[:31]
        original = content if isinstance(content, str) else raw
        self._store_query(
            key, Query(replace(item, name=line), line, original if self.retain_uploads else b"")
        )
        return key, line

    def _store_query(self, key: str, query: Query) -> None:
        """Store a query; the oldest ones beyond the limits are dropped together with their parts."""
        with self._lock:
            self._queries[key] = query
            self._queries.move_to_end(key)
            dropped = []
            while len(self._queries) > MAX_QUERIES or (
                self.query_bytes > MAX_QUERY_BYTES and len(self._queries) > 1
            ):
                dropped.append(self._queries.popitem(last=False)[0])
        for old in dropped:
            self._parts.drop(old)
            self._sparse_parts.drop(old)

    @property
    def query_bytes(self) -> int:
        """Bytes in memory of all queries."""
        return sum(query.nbytes for query in self._queries.values())

    @property
    def cached_bytes(self) -> int:
        """Bytes in memory of parts and queries."""
        return self._parts.nbytes + self._sparse_parts.nbytes + self.query_bytes

    def item(self, key: str) -> Item:
        """Return the input of a query, or of an item, which is read again from its source."""
        known = self._look_up(key)
        if isinstance(known, Query):
            return known.item
        with self.redact_paths():
            return read_item(self.collection.encoder, self.collection.original_input(known))

    def embedding(self, key: str) -> torch.Tensor:
        known = self._look_up(key)
        if not isinstance(known, Query):
            return self.collection.embedding(known)
        if key in self._parts:
            return self.parts(key).embedding.float()
        return self.embed(known.item)

    def embed(self, item: Item) -> torch.Tensor:
        """Return φ(x) from one forward pass."""
        with torch.no_grad():
            return self.collection.encoder.forward_fn(item.model_input)(item.x).flatten().float().cpu()

    def has_cached_parts(self, key: str) -> bool:
        """Return whether the parts are in memory; 404 for an unknown id."""
        self.position(key)
        return key in self._parts

    def parts(self, key: str) -> Decomposition:
        """Return the decomposition of an item or query: from memory, from disk, or computed and stored."""
        known = self._look_up(key)

        def load() -> Decomposition:
            with self.redact_paths():
                side = self.collection.decomposition(known.item if isinstance(known, Query) else known)
            return replace(side, parts=side.parts.float())

        return self._parts.get(key, load, _decomposition_bytes)

    def sparse_parts(self, key: str) -> SparseParts:
        """Return the parts without zero columns, for fast sums over regions."""
        return self._sparse_parts.get(
            key, lambda: SparseParts.from_dense(self.parts(key).parts), lambda parts: parts.nbytes
        )

    @contextmanager
    def redact_paths(self) -> Iterator[None]:
        """Replace file paths in error messages by item names: clients must not learn them."""
        try:
            yield
        except HTTPError:
            raise
        except BilrpError as error:
            message = str(error)
            for source, name in zip(self.collection.items.sources, self.collection.names, strict=True):
                if source and to_printable(source) in message:
                    message = message.replace(to_printable(source), to_printable(name))
            path = to_printable(self.collection.path)
            raise HTTPError(422, message.replace(path, Path(path).name)) from None


def count_bytes(*values: torch.Tensor | View | None) -> int:
    """Return the bytes in memory of tensors and views.

    >>> count_bytes(torch.zeros(2, 3), Image.from_image(np.zeros((4, 5, 3), np.uint8)), Text("a cat", ()), None)
    89
    """
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, Image):
            total += value.pixels.nbytes
        elif value is not None:
            total += len(value.text)
    return total


def _decomposition_bytes(decomposition: Decomposition) -> int:
    """Return the bytes of a decomposition with its view, which can be 100 times larger than the parts."""
    return count_bytes(
        decomposition.parts,
        decomposition.embedding,
        decomposition.reference,
        decomposition.regions.labels,
        decomposition.view,
    )


def _encode_jpeg(pixels: np.ndarray, max_side: int) -> bytes:
    from PIL import Image as Pillow

    image, buffer = Pillow.fromarray(pixels), io.BytesIO()
    image.thumbnail((max_side, max_side))
    image.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
