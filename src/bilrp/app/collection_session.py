"""What the app holds of a collection: items by id, queries that visitors brought, and the parts asked for lately."""

from __future__ import annotations

import hashlib
import io
import re
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

from bilrp.app.security import HTTPError
from bilrp.collection import Collection
from bilrp.collection.packed_parts import SparseColumns
from bilrp.collection.thumbnails import check_thumbnail
from bilrp.decomposition import Decomposition
from bilrp.encoder import read_item
from bilrp.encoders.text.reader import TextReader
from bilrp.errors import BilrpError, InputError, to_printable
from bilrp.inputs import Image, Item, Text, View

MAX_PARTS_BYTES = 384 * 2**20  # of parts in memory, with the pictures that show them
MAX_SPARSE_PARTS_BYTES = 96 * 2**20  # of those that were pointed at, on the coordinates that they have
MAX_QUERIES = 24  # that visitors brought, the latest
MAX_QUERY_BYTES = 256 * 2**20  # of these: inputs, pictures, and their files where they may be added
MAX_IMAGE_SIDE_PIXELS = 1200  # pixels of a picture on the screen
MAX_TEXT_CHARACTERS = 20_000
ITEMS_PER_PAGE = 200  # items of one answer

Value = TypeVar("Value")


class ByteLRU:
    """The latest of what was made, up to so many bytes. Who asks for the same at the same time may make it twice.

    >>> kept = ByteLRU(10)
    >>> kept.get("a", lambda: "x", lambda made: 6), kept.get("b", lambda: "y", lambda made: 6), "a" in kept
    ('x', 'y', False)
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.nbytes = max_bytes, 0
        self._entries: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str, compute: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        made = compute()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = (made, size(made))
                self.nbytes += size(made)
            while self.nbytes > self.max_bytes and len(self._entries) > 1:
                self.nbytes -= self._entries.popitem(last=False)[1][1]
        return made

    def drop(self, key: str) -> None:
        """Forget one, where it is held."""
        with self._lock:
            self.nbytes -= self._entries.pop(key, (None, 0))[1]


@dataclass(frozen=True, eq=False)
class Query:
    """Something a visitor brought: read, not added; `raw` is held where it may be added when asked."""

    item: Item
    name: str
    raw: bytes | str = b""

    @property
    def nbytes(self) -> int:
        return count_bytes(self.item.x, self.item.model_input, self.item.view) + len(self.raw)


class CollectionSession:
    """A collection as the app's visitors see it. Everything is known by its id; no path comes in from outside.

    It never changes: where something is added, `with_collection` makes another, and who asked before is answered by
    this one.
    """

    def __init__(self, collection: Collection, *, retain_uploads: bool = False) -> None:
        self.collection, self.retain_uploads = collection, retain_uploads
        self._parts, self._sparse_parts = ByteLRU(MAX_PARTS_BYTES), ByteLRU(MAX_SPARSE_PARTS_BYTES)
        self._queries: OrderedDict[str, Query] = OrderedDict()
        self._lock = threading.Lock()

    def with_collection(self, collection: Collection) -> CollectionSession:
        """The collection as it is now, with the same queries, and parts in memory: an id is a hash of the content."""
        made = CollectionSession(collection, retain_uploads=self.retain_uploads)
        made._parts, made._sparse_parts = self._parts, self._sparse_parts
        made._queries, made._lock = self._queries, self._lock
        return made

    # ------------------------------------------------------------ what is there

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
        named = [""] * len(self.collection)
        for name, positions in self.groups.items():
            for position in positions:
                named[position] = name
        return named

    @cached_property
    def is_text(self) -> bool:
        return isinstance(self.collection.view(0), Text) if len(self.collection) else False

    @cached_property
    def _casefolded_names(self) -> list[str]:
        return [name.casefold() for name in self.collection.names]

    def describe(self) -> dict[str, Any]:
        found = self.collection
        groups = [{"name": name, "count": len(of)} for name, of in sorted(self.groups.items())]
        return {
            "name": Path(found.path).name,
            "count": len(found),
            "kind": "text" if self.is_text else "image",
            "encoder": found.description["encoder"],
            "rules": str(found.description["origin"].get("composite", "")),
            "similarity": found.resolve_similarity(None),
            "width": found.width,
            "groups": groups[:ITEMS_PER_PAGE],
            "failed": len(found.failed),
            "adds": self.retain_uploads,
        }

    def find_positions(self, *, group: str | None = None, words: str = "") -> Sequence[int]:
        """Positions of a group whose name holds these words."""
        if group is not None and group not in self.groups:
            raise HTTPError(404, "there is no such group")
        inside: Sequence[int] = range(len(self.collection)) if group is None else self.groups[group]
        wanted = words.casefold().strip()
        return [p for p in inside if wanted in self._casefolded_names[p]] if wanted else inside

    def label(self, position: int) -> dict[str, Any]:
        return {"id": self.ids[position], "name": self.names[position], "group": self.item_groups[position]}

    # ------------------------------------------------------------ one item or query

    def _look_up(self, key: str) -> int | Query:
        """An item's position or a query, looked up once: another visitor's query may push it out at any time."""
        query = self._queries.get(key)
        if query is not None:
            return query
        at = self.collection.position(key) if re.fullmatch(r"[0-9a-f]{8,64}", key) else None
        if at is None:
            raise HTTPError(
                404, "there is no such item: it may have been removed, or the server was restarted"
            )
        return at

    def get_query(self, key: str) -> Query:
        """What a visitor brought."""
        found = self._queries.get(key)
        if found is None:
            raise HTTPError(404, "there is no such query any more: bring it again")
        return found

    def position(self, key: str) -> int | None:
        """Where an item is, None for a query; anything else is unknown."""
        known = self._look_up(key)
        return None if isinstance(known, Query) else known

    def name(self, key: str) -> str:
        known = self._look_up(key)
        return known.name if isinstance(known, Query) else self.collection.names[known]

    def view(self, key: str) -> View | None:
        known = self._look_up(key)
        return known.item.view if isinstance(known, Query) else self.collection.view(known)

    def thumbnail(self, key: str) -> bytes:
        """A small picture as JPEG."""
        known = self._look_up(key)
        if not isinstance(known, Query):
            kept = self.collection.items.take([known], ["thumbnail"])["thumbnail"][0]
            if kept:
                with self.redact_paths():
                    return check_thumbnail(kept)
        view = self.view(key)
        if not isinstance(view, Image):
            raise HTTPError(404, "this item is a text")
        return _encode_jpeg(view.pixels, 320)

    def picture(self, key: str, max_side: int = MAX_IMAGE_SIDE_PIXELS) -> bytes:
        """The photograph itself where its file is still there, else the small picture that is kept."""
        view = self.full_view(key)
        if not isinstance(view, Image):
            raise HTTPError(404, "this item is a text")
        return _encode_jpeg(view.pixels, max_side)

    def full_view(self, key: str) -> View | None:
        """What people see, from the file where it is still there."""
        known = self._look_up(key)
        if isinstance(known, Query):
            return known.item.view
        try:
            return read_item(self.collection.encoder, self.collection.original_input(known)).view
        except InputError:  # gone or changed since: the small picture shows it
            return self.collection.view(known)

    def add_query(self, content: Path | str, name: str) -> tuple[str, str]:
        """Read a file or a text that a visitor brought, by the guarded reader of all files; its id and its name."""
        encoder = self.collection.encoder
        texts = isinstance(encoder.read, TextReader)
        if encoder.read is None or isinstance(content, str) is not texts:
            raise HTTPError(
                415, f"this collection holds {'texts' if texts else 'pictures'}: bring one of these"
            )
        if isinstance(content, str):
            if not content.strip() or len(content) > MAX_TEXT_CHARACTERS:
                raise HTTPError(413, f"a text has 1 to {MAX_TEXT_CHARACTERS} letters")
            raw, read = content.encode("utf-8", "replace"), encoder.read(content)
        else:
            raw = content.read_bytes()
            try:
                read = encoder.read(content)
            except InputError as error:
                raise HTTPError(422, str(error).replace(str(content), "this file")) from None
        item = read_item(encoder, read)
        line = (" ".join(to_printable(name).split()) or "your query")[:80]
        # Its name is a part of it: who brings the same under another name does not rename yours.
        named = hashlib.sha256(line.encode("utf-8", "replace")).digest()
        key = "q" + hashlib.sha256(named + raw).hexdigest()[:31]
        whole = content if isinstance(content, str) else raw
        self._store_query(key, Query(replace(item, name=line), line, whole if self.retain_uploads else b""))
        return key, line

    def _store_query(self, key: str, query: Query) -> None:
        """Keep a query; the oldest are dropped where there are too many, and their parts with them: nobody can ask again."""
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
        """Bytes in memory of what visitors brought."""
        return sum(query.nbytes for query in self._queries.values())

    @property
    def cached_bytes(self) -> int:
        """Bytes in memory of parts, and of what visitors brought."""
        return self._parts.nbytes + self._sparse_parts.nbytes + self.query_bytes

    def item(self, key: str) -> Item:
        """The input itself, read again where it is one of the collection."""
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
        """φ of an input: one run of the model, nothing is explained."""
        with torch.no_grad():
            return self.collection.encoder.forward_fn(item.model_input)(item.x).flatten().float().cpu()

    def has_cached_parts(self, key: str) -> bool:
        """Are its parts in memory?"""
        self.position(key)
        return key in self._parts

    def parts(self, key: str) -> Decomposition:
        """The decomposition of an item or query: in memory, kept on disk, or made now (and kept then)."""
        known = self._look_up(key)

        def make() -> Decomposition:
            with self.redact_paths():
                made = self.collection.decomposition(known.item if isinstance(known, Query) else known)
            return replace(made, parts=made.parts.float())

        return self._parts.get(key, make, _decomposition_bytes)

    def sparse_parts(self, key: str) -> SparseColumns:
        """The same parts, to be summed."""
        return self._sparse_parts.get(
            key, lambda: SparseColumns.from_dense(self.parts(key).parts.numpy()), lambda made: made.nbytes
        )

    @contextmanager
    def redact_paths(self) -> Iterator[None]:
        """What goes wrong is said of an item's or the collection's name: where they lie is no visitor's business."""
        try:
            yield
        except HTTPError:
            raise
        except BilrpError as error:
            said = str(error)
            for source, name in zip(self.collection.items.sources, self.collection.names, strict=True):
                if source and to_printable(source) in said:
                    said = said.replace(to_printable(source), to_printable(name))
            path = to_printable(self.collection.path)
            raise HTTPError(422, said.replace(path, Path(path).name)) from None


def count_bytes(*values: torch.Tensor | View | None) -> int:
    """Bytes in memory of tensors and views.

    >>> count_bytes(torch.zeros(2, 3), Image.from_image(np.zeros((4, 5, 3), np.uint8)), Text("a cat", ()), None)
    89
    """
    total = 0
    for one in values:
        if isinstance(one, torch.Tensor):
            total += one.numel() * one.element_size()
        elif isinstance(one, Image):
            total += one.pixels.nbytes
        elif one is not None:
            total += len(one.text)
    return total


def _decomposition_bytes(decomposition: Decomposition) -> int:
    """With its view: a photograph on the screen takes 100 times as much as the parts of a small network."""
    return count_bytes(
        decomposition.parts,
        decomposition.embedding,
        decomposition.reference,
        decomposition.regions.labels,
        decomposition.view,
    )


def _encode_jpeg(pixels: np.ndarray, max_side: int) -> bytes:
    from PIL import Image as Pillow

    picture, buffer = Pillow.fromarray(pixels), io.BytesIO()
    picture.thumbnail((max_side, max_side))
    picture.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
