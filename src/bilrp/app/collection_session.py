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

from bilrp.app.security import Refused
from bilrp.collection import Collection
from bilrp.collection.packed_parts import spread
from bilrp.collection.thumbnails import check_thumbnail
from bilrp.decomposition import Decomposition
from bilrp.encoder import read_item
from bilrp.encoders.text.reader import Reader
from bilrp.errors import BilrpError, InputError, printable
from bilrp.inputs import Image, Item, Text, View

HELD_BYTES = 384 * 2**20  # of parts in memory, with the pictures that show them
ACTIVE_BYTES = 96 * 2**20  # of those that were pointed at, on the coordinates that they have
QUERIES = 24  # that visitors brought, the latest
QUERY_BYTES = 256 * 2**20  # of these: inputs, pictures, and their files where they may be added
LONGEST = 1200  # pixels of a picture on the screen
MOST_LETTERS = 20_000
PAGE = 200  # items of one answer

Made = TypeVar("Made")


class Lately:
    """The latest of what was made, up to so many bytes. Who asks for the same at the same time may make it twice.

    >>> kept = Lately(10)
    >>> kept.get("a", lambda: "x", lambda made: 6), kept.get("b", lambda: "y", lambda made: 6), "a" in kept
    ('x', 'y', False)
    """

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0
        self._held: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def get(self, key: str, make: Callable[[], Made], size: Callable[[Made], int]) -> Made:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
        made = make()
        with self._lock:
            if key not in self._held:
                self._held[key] = (made, size(made))
                self.bytes += size(made)
            while self.bytes > self.most and len(self._held) > 1:
                self.bytes -= self._held.popitem(last=False)[1][1]
        return made

    def drop(self, key: str) -> None:
        """Forget one, where it is held."""
        with self._lock:
            self.bytes -= self._held.pop(key, (None, 0))[1]


@dataclass(frozen=True, eq=False)
class Active:
    """Parts on the coordinates that any region has: after a ReLU these are few, and a brush sums no others."""

    columns: np.ndarray
    values: np.ndarray
    width: int

    @staticmethod
    def of(parts: np.ndarray) -> Active:
        columns = np.flatnonzero(parts.any(0))
        return Active(columns, parts.take(columns, 1), parts.shape[1])  # row by row in memory

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes + self.values.nbytes

    def sum(self, regions: Sequence[int]) -> np.ndarray:
        """Σ P_I of these regions.

        >>> Active.of(np.array([[0.0, 1.0, 2.0], [0.0, 5.0, 0.0]])).sum([0, 1]).tolist()
        [0.0, 6.0, 2.0]
        """
        if 4 * len(regions) < self.count:
            return spread(self.columns, self.values[list(regions)].sum(0), self.width)
        wanted = np.zeros(
            self.count, self.values.dtype
        )  # many: a product with all is faster than to gather them
        wanted[list(regions)] = 1
        return spread(self.columns, wanted @ self.values, self.width)


@dataclass(frozen=True, eq=False)
class Query:
    """Something a visitor brought: read, not added; `raw` is held where it may be added when asked."""

    item: Item
    name: str
    raw: bytes | str = b""

    @property
    def nbytes(self) -> int:
        return count_bytes(self.item.x, self.item.given, self.item.view) + len(self.raw)


class Shelf:
    """A collection as the app's visitors see it. Everything is known by its id; no path comes in from outside.

    It never changes: where something is added, `reopened` makes another, and who asked before is answered by this one.
    """

    def __init__(self, found: Collection, *, keep_raw: bool = False) -> None:
        self.found, self.keep_raw = found, keep_raw
        self._parts, self._active = Lately(HELD_BYTES), Lately(ACTIVE_BYTES)
        self._queries: OrderedDict[str, Query] = OrderedDict()
        self._lock = threading.Lock()

    def reopened(self, found: Collection) -> Shelf:
        """The collection as it is now, with the same queries, and parts in memory: an id is a hash of the content."""
        made = Shelf(found, keep_raw=self.keep_raw)
        made._parts, made._active = self._parts, self._active
        made._queries, made._lock = self._queries, self._lock
        return made

    # ------------------------------------------------------------ what is there

    @cached_property
    def ids(self) -> list[str]:
        return self.found.ids

    @cached_property
    def names(self) -> list[str]:
        return self.found.names

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        return self.found.groups()

    @cached_property
    def group_of(self) -> list[str]:
        named = [""] * len(self.found)
        for name, positions in self.groups.items():
            for position in positions:
                named[position] = name
        return named

    @cached_property
    def is_text(self) -> bool:
        return isinstance(self.found.view(0), Text) if len(self.found) else False

    @cached_property
    def _folded(self) -> list[str]:
        return [name.casefold() for name in self.found.names]

    def about(self) -> dict[str, Any]:
        found = self.found
        groups = [{"name": name, "count": len(of)} for name, of in sorted(self.groups.items())]
        return {
            "name": Path(found.path).name,
            "count": len(found),
            "kind": "text" if self.is_text else "image",
            "encoder": found.about["encoder"],
            "rules": str(found.about["origin"].get("rules", "")),
            "width": found.width,
            "groups": groups[:PAGE],
            "failed": len(found.failed),
            "adds": self.keep_raw,
        }

    def listed(self, *, group: str | None = None, words: str = "") -> Sequence[int]:
        """Positions of a group whose name holds these words."""
        if group is not None and group not in self.groups:
            raise Refused(404, "there is no such group")
        inside: Sequence[int] = range(len(self.found)) if group is None else self.groups[group]
        wanted = words.casefold().strip()
        return [p for p in inside if wanted in self._folded[p]] if wanted else inside

    def label(self, at: int) -> dict[str, Any]:
        return {"id": self.ids[at], "name": self.names[at], "group": self.group_of[at]}

    # ------------------------------------------------------------ one item or query

    def _known(self, key: str) -> int | Query:
        """An item's position or a query, looked up once: another visitor's query may push it out at any time."""
        query = self._queries.get(key)
        if query is not None:
            return query
        at = self.found.position(key) if re.fullmatch(r"[0-9a-f]{8,64}", key) else None
        if at is None:
            raise Refused(404, "there is no such item: it may have been removed, or the server was restarted")
        return at

    def query(self, key: str) -> Query:
        """What a visitor brought."""
        found = self._queries.get(key)
        if found is None:
            raise Refused(404, "there is no such query any more: bring it again")
        return found

    def position(self, key: str) -> int | None:
        """Where an item is, None for a query; anything else is unknown."""
        known = self._known(key)
        return None if isinstance(known, Query) else known

    def name(self, key: str) -> str:
        known = self._known(key)
        return known.name if isinstance(known, Query) else self.found.names[known]

    def view(self, key: str) -> View | None:
        known = self._known(key)
        return known.item.view if isinstance(known, Query) else self.found.view(known)

    def thumbnail(self, key: str) -> bytes:
        """A small picture as JPEG."""
        known = self._known(key)
        if not isinstance(known, Query):
            kept = self.found.items.take([known], ["thumbnail"])["thumbnail"][0]
            if kept:
                with self.discreet():
                    return check_thumbnail(kept)
        view = self.view(key)
        if not isinstance(view, Image):
            raise Refused(404, "this item is a text")
        return _jpeg(view.pixels, 320)

    def picture(self, key: str, longest: int = LONGEST) -> bytes:
        """The photograph itself where its file is still there, else the small picture that is kept."""
        view = self.sharp(key)
        if not isinstance(view, Image):
            raise Refused(404, "this item is a text")
        return _jpeg(view.pixels, longest)

    def sharp(self, key: str) -> View | None:
        """What people see, from the file where it is still there."""
        known = self._known(key)
        if isinstance(known, Query):
            return known.item.view
        try:
            return read_item(self.found.encoder, self.found.original(known)).view
        except InputError:  # gone or changed since: the small picture shows it
            return self.found.view(known)

    def bring(self, content: Path | str, name: str) -> tuple[str, str]:
        """Read a file or a text that a visitor brought, by the guarded reader of all files; its id and its name."""
        encoder = self.found.encoder
        texts = isinstance(encoder.read, Reader)
        if encoder.read is None or isinstance(content, str) is not texts:
            raise Refused(
                415, f"this collection holds {'texts' if texts else 'pictures'}: bring one of these"
            )
        if isinstance(content, str):
            if not content.strip() or len(content) > MOST_LETTERS:
                raise Refused(413, f"a text has 1 to {MOST_LETTERS} letters")
            raw, read = content.encode("utf-8", "replace"), encoder.read(content)
        else:
            raw = content.read_bytes()
            try:
                read = encoder.read(content)
            except InputError as error:
                raise Refused(422, str(error).replace(str(content), "this file")) from None
        item = read_item(encoder, read)
        line = (" ".join(printable(name).split()) or "your query")[:80]
        # Its name is a part of it: who brings the same under another name does not rename yours.
        named = hashlib.sha256(line.encode("utf-8", "replace")).digest()
        key = "q" + hashlib.sha256(named + raw).hexdigest()[:31]
        whole = content if isinstance(content, str) else raw
        self._hold(key, Query(replace(item, name=line), line, whole if self.keep_raw else b""))
        return key, line

    def _hold(self, key: str, query: Query) -> None:
        """Keep a query; the oldest are dropped where there are too many, and their parts with them: nobody can ask again."""
        with self._lock:
            self._queries[key] = query
            self._queries.move_to_end(key)
            dropped = []
            while len(self._queries) > QUERIES or (self.query_bytes > QUERY_BYTES and len(self._queries) > 1):
                dropped.append(self._queries.popitem(last=False)[0])
        for old in dropped:
            self._parts.drop(old)
            self._active.drop(old)

    @property
    def query_bytes(self) -> int:
        """Bytes in memory of what visitors brought."""
        return sum(query.nbytes for query in self._queries.values())

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of parts, and of what visitors brought."""
        return self._parts.bytes + self._active.bytes + self.query_bytes

    def item(self, key: str) -> Item:
        """The input itself, read again where it is one of the collection."""
        known = self._known(key)
        if isinstance(known, Query):
            return known.item
        with self.discreet():
            return read_item(self.found.encoder, self.found.original(known))

    def embedding(self, key: str) -> torch.Tensor:
        known = self._known(key)
        if not isinstance(known, Query):
            return self.found.embedding(known)
        if key in self._parts:
            return self.parts(key).embedding.float()
        return self.run(known.item)

    def run(self, item: Item) -> torch.Tensor:
        """φ of an input: one run of the model, nothing is explained."""
        with torch.no_grad():
            return self.found.encoder.running(item.given)(item.x).flatten().float().cpu()

    def is_ready(self, key: str) -> bool:
        """Are its parts in memory?"""
        self.position(key)
        return key in self._parts

    def parts(self, key: str) -> Decomposition:
        """The decomposition of an item or query: in memory, kept on disk, or made now (and kept then)."""
        known = self._known(key)

        def make() -> Decomposition:
            with self.discreet():
                made = self.found.decomposition(known.item if isinstance(known, Query) else known)
            return replace(made, parts=made.parts.float())

        return self._parts.get(key, make, _decomposition_bytes)

    def active(self, key: str) -> Active:
        """The same parts, to be summed."""
        return self._active.get(
            key, lambda: Active.of(self.parts(key).parts.numpy()), lambda made: made.nbytes
        )

    @contextmanager
    def discreet(self) -> Iterator[None]:
        """What goes wrong is said of an item's or the collection's name: where they lie is no visitor's business."""
        try:
            yield
        except Refused:
            raise
        except BilrpError as error:
            said = str(error)
            for source, name in zip(self.found.items.sources, self.found.names, strict=True):
                if source and printable(source) in said:
                    said = said.replace(printable(source), printable(name))
            path = printable(self.found.path)
            raise Refused(422, said.replace(path, Path(path).name)) from None


def count_bytes(*held: torch.Tensor | View | None) -> int:
    """Bytes in memory of tensors and views.

    >>> count_bytes(torch.zeros(2, 3), Image.of(np.zeros((4, 5, 3), np.uint8)), Text("a cat", ()), None)
    89
    """
    total = 0
    for one in held:
        if isinstance(one, torch.Tensor):
            total += one.numel() * one.element_size()
        elif isinstance(one, Image):
            total += one.pixels.nbytes
        elif one is not None:
            total += len(one.text)
    return total


def _decomposition_bytes(made: Decomposition) -> int:
    """With its view: a photograph on the screen takes 100 times as much as the parts of a small network."""
    return count_bytes(made.parts, made.embedding, made.reference, made.regions.labels, made.view)


def _jpeg(pixels: np.ndarray, longest: int) -> bytes:
    from PIL import Image as Pillow

    picture, buffer = Pillow.fromarray(pixels), io.BytesIO()
    picture.thumbnail((longest, longest))
    picture.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
