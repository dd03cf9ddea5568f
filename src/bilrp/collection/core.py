"""A collection: embeddings of many items, the parts of those that were asked for, and the questions people ask of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.collection import parts_table, packed_parts, thumbnails, tables
from bilrp.collection.description import check_encoder, check_origin, load_encoder, read_description
from bilrp.collection.batch_encoder import Forward
from bilrp.collection.items_table import Items
from bilrp.collection.parts_table import Parts
from bilrp.collection.packed_parts import Packed
from bilrp.collection.sources import Thing, meant
from bilrp.decomposition import Decomposition, decompose_item
from bilrp.encoder import Encoder, Model, Readable, as_encoder, read_item
from bilrp.progress import tracking
from bilrp.errors import BilrpError, InputError, MismatchError, guarded
from bilrp.explanation import Explanation, found_at, pair
from bilrp.inputs import Item, View
from bilrp.similarity import Similarity

if TYPE_CHECKING:
    from bilrp.collection.audit import Audit

TOGETHER = 8  # parts that are kept with one commit
FEW = 0.25  # of the coordinates: where fewer are active, a product on these alone is faster


@dataclass(frozen=True, eq=False)
class Neighbour:
    """An item near a query: its score, and the share of each of the query's regions in it, worked out when asked for."""

    id: str
    name: str
    score: float
    position: int
    _share: Callable[[], Tensor] = field(repr=False)

    @cached_property
    def share(self) -> Float[Tensor, " regions"]:
        """⟨P_I, φ(x')⟩ for each region I of the query: with the unattributed they sum to the score."""
        return self._share()


@dataclass(frozen=True, eq=False)
class Contrast:
    """What sets one group apart from another: the direction m₁ − m₂ between their mean embeddings."""

    direction: Float[Tensor, " h"]
    share_of: Callable[[Any], Tensor] = field(repr=False)

    def share(self, query: Readable) -> Float[Tensor, " regions"]:
        """⟨P_I, m₁ − m₂⟩: what region I of the query speaks for the first group and against the second."""
        return self.share_of(query)


def open(
    path: str | Path, encoder: Model | str | None = None, *, weights: str | Path | None = None
) -> Collection:
    """A collection that was built; its encoder is found by the name it was stored with, where it has one.

    Opening runs nothing that the collection names: it may come from anybody.

    Args:
        path: what `build` or `bilrp index` made.
        encoder: the encoder that made it, where it is your own.
        weights: the file of weights that it was made with; the path of one in a collection is not followed.

    >>> open("photographs.lance").nearest("cat.jpg", k=3)  # doctest: +SKIP
    """
    dataset = tables.open_verified(str(path), tables.ITEMS)
    if dataset is None:
        raise InputError(f"{path}: no collection there; make one with bilrp index or bilrp.collection.build")
    chosen = encoder if encoder is None or isinstance(encoder, str) else as_encoder(encoder)
    return Collection(str(path), dataset, read_description(str(path), dataset), chosen, weights)


class Collection:
    """Items, their embeddings, and the parts of those that were asked for.

    A query is a position, an id, a path, anything the encoder reads, or its decomposition: then it is worked out once for
    many questions.
    """

    def __init__(
        self,
        path: str,
        dataset: Any,
        about: dict[str, Any],
        encoder: Encoder | str | None,
        weights: str | Path | None = None,
    ) -> None:
        self.path, self.about, self.weights = path, about, weights
        self.items, self.parts = Items(dataset, about["width"]), Parts(path, about["width"])
        self._given, self._checked, self._making = encoder, False, threading.Lock()

    # ------------------------------------------------------------ what is there

    def __len__(self) -> int:
        return len(self.items)

    @property
    def ids(self) -> list[str]:
        return self.items.ids

    @property
    def names(self) -> list[str]:
        return self.items.names

    @property
    def failed(self) -> list[tuple[str, str]]:
        """What could not be indexed, and why."""
        return self.items.failed

    def groups(self) -> dict[str, list[int]]:
        """The positions of each group's items: folders, or a column of a table."""
        return self.items.groups()

    @property
    def width(self) -> int:
        """Coordinates of an embedding."""
        return self.about["width"]

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that made the collection, by its stored name where none was given."""
        return load_encoder(self.path, self.about, self._given, self.weights)

    @property
    def embeddings(self) -> Float[np.ndarray, "items h"]:
        """φ of every item, in order."""
        return self.items.resident if self.items.fits else np.concatenate(list(self.items.blocks()))

    # ------------------------------------------------------------ one item

    def position(self, query: Readable) -> int | None:
        """Where a query is in the collection; None where it is none of it."""
        if isinstance(query, int | np.integer):
            if not -len(self) <= query < len(self):
                raise InputError(f"there is no item {query}: the collection has {len(self)}")
            return int(query) % len(self)
        return self.items.position(query) if isinstance(query, str | os.PathLike) else None

    def embedding(self, query: Readable) -> Float[Tensor, " h"]:
        """φ of a query: kept, or worked out."""
        at = self.position(query)
        if at is None:
            return self._run(query)
        return torch.from_numpy(self.items.embeddings([at])[0])

    def _run(self, query: Readable) -> Tensor:
        """φ of what is not in the collection: one forward pass."""
        if isinstance(query, Decomposition):
            return self.decomposition(query).embedding.float()
        item = read_item(self.encoder, query)
        self._check(item)
        found = Forward(self.encoder).run([item])[0]
        if isinstance(found, str):
            raise InputError(found)
        return found.float()

    def view(self, query: Readable, *, full: bool = False) -> View | None:
        """What people see of an item without its file; `full`: from its file, where that is unchanged."""
        at = self.position(query)
        if at is None:
            return query.view if isinstance(query, Decomposition) else read_item(self.encoder, query).view
        row = self.items.take([at], ["thumbnail", "text", "view", "stamp"])
        path = self._file(at)
        if full and row["thumbnail"][0] and path and Thing(Path(path), "", "", "").stamp == row["stamp"][0]:
            return read_item(self.encoder, Path(path)).view
        with guarded(f"what {self.path} shows of {self.names[at]} is damaged"):
            return thumbnails.from_row(row["thumbnail"][0], row["text"][0], row["view"][0])

    def decomposition(self, query: Readable) -> Decomposition:
        """The parts of an item as they are kept (made on first use, and kept then), or of any other query, exact."""
        at = self.position(query)
        if at is None:
            if isinstance(query, Decomposition):
                check_origin(self.path, self.about, query.origin)
                return query
            return self._taken_apart(read_item(self.encoder, query))
        return self._whole(at, self._packed([at])[0])

    def _whole(self, at: int, packed: Packed) -> Decomposition:
        """A decomposition as it was, from its parts and everything else that is kept of it."""
        self._check_given()
        with guarded(f"the parts of {self.names[at]} in {self.path} are damaged"):
            found = parts_table.decomposition(packed, self.parts.frame(self.ids[at]), self.embedding(at))
        return replace(found, view=self.view(at), name=self.names[at])

    def relevance(self, i: Readable, j: Readable) -> Float[Tensor, "regions_a regions_b"]:
        """R = P P'ᵀ of two items from what is kept, on the coordinates that are active in both."""
        at = [p for p in (self.position(i), self.position(j)) if p is not None]
        return packed_parts.relevance(*self._packed(at)) if len(at) == 2 else self.explain(i, j).relevance

    def make_parts(
        self, positions: Iterable[int] | None = None, *, progress: bool = False
    ) -> list[tuple[str, str]]:
        """Make and keep the parts of these items, or of all; those that are kept already stay. What failed, and why."""
        wanted, failed = self.without_parts(positions), []
        with tracking(progress) as bar:
            bar.start("parts", len(wanted))
            for start in range(0, len(wanted), TOGETHER):
                some = wanted[start : start + TOGETHER]
                rows, broken = self.taken_apart(some)
                self.parts.add(rows)
                failed += broken
                bar.advance(len(some))
        return failed

    def taken_apart(self, positions: Sequence[int]) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        """Rows of the table of parts, made from the files or texts; and what failed, and why."""
        rows, failed = [], []
        for position in positions:
            try:
                rows.append(parts_table.row(self.ids[position], self._decomposed(position)))
            except MismatchError:
                raise
            except BilrpError as error:
                failed.append((self.items.sources[position] or self.names[position], str(error)))
        return rows, failed

    def without_parts(self, positions: Iterable[int] | None = None) -> list[int]:
        """Those of these items, or of all, whose parts are not kept yet."""
        there = self.parts.ids
        asked = range(len(self)) if positions is None else positions
        return [p for p in dict.fromkeys(asked) if self.ids[p] not in there]

    def _packed(self, positions: Sequence[int]) -> list[Packed]:
        """The parts of these items as they are kept; what is missing is made first, by one thread at a time."""
        keys = [self.ids[p] for p in positions]
        found = self.parts.packed(keys)
        if None in found:
            with self._making:
                rows, failed = self.taken_apart(self.without_parts(positions))
                self.parts.keep(rows)
            if failed:
                raise InputError(failed[0][1])
            found = self.parts.packed(keys)
        return [packed for packed in found if packed is not None]

    def _decomposed(self, position: int) -> Decomposition:
        """Decompose an item from its file or text."""
        return self._taken_apart(read_item(self.encoder, self.original(position)))

    def _taken_apart(self, item: Item) -> Decomposition:
        found = decompose_item(self.encoder, item)[None]
        self._check(item, found.origin)
        return found

    def original(self, position: int) -> Any:
        """What the encoder reads again: the text that is kept, or the file it came from, if it is still the same."""
        text = self.items.take([position], ["text"])["text"][0]
        if text is not None:
            return text
        source = self.items.sources[position]
        for name in (source, meant(source)):
            path = os.path.join(self.path, name)
            if name and os.path.isfile(path):
                if Thing(Path(path), "", "", path).key() != self.ids[position]:
                    raise InputError(f"{self.names[position]}: its file has changed since: index it again")
                return Path(path)
        raise InputError(
            f"{self.names[position]}: its file is gone, and its parts were not kept: index with parts, or put it back"
        )

    def _file(self, position: int) -> str:
        """Where its file lies, or lay; empty where it came from none. What the app added lies inside the collection."""
        source = meant(self.items.sources[position])
        return os.path.join(self.path, source) if source else ""

    def _check_given(self) -> None:
        """An encoder that was handed over may be another than the collection's: one run tells."""
        if self._given is not None and not self._checked:
            item = self._readable
            if item is not None:
                self._check(item)
            else:  # what is kept can be told; the rest when the encoder is first run
                check_origin(self.path, self.about, self.about["origin"] | {"encoder": self.encoder.name})

    @cached_property
    def _readable(self) -> Item | None:
        """The first item that can be read again, if any."""
        for position in range(len(self)):
            if position == 0 or os.path.isfile(self._file(position)):  # texts can all be read
                with suppress(BilrpError, OSError):
                    return read_item(self.encoder, self.original(position))
        return None

    def _check(self, item: Item, origin: Mapping[str, Any] | None = None) -> None:
        """Refuse an encoder that is not the collection's; what it says of one item holds for all."""
        if not self._checked:
            check_encoder(self.path, self.about, self.encoder, item, origin)
            self._checked = True

    # ------------------------------------------------------------ questions

    def nearest(
        self,
        query: Readable,
        k: int = 10,
        *,
        part: Sequence[int] | None = None,
        without: Sequence[int] | None = None,
        similarity: str = "dot",
        approximate: bool = False,
    ) -> list[Neighbour]:
        """The k items with the largest ⟨φ(x), φ(x')⟩; by a part, ⟨Σ_{I ∈ part} P_I, φ(x')⟩; without one, the rest of it.

        `approximate`: from an index where there are too many for memory; `recall` says how many it finds.
        """
        if k < 1:
            raise InputError(f"k is a number of neighbours, got {k}")
        if similarity not in ("dot", "cosine"):
            raise InputError(f"neighbours are ranked by dot or cosine, got {similarity!r}")
        at = self.position(query)
        if at is None and not (part is None and without is None):
            query = self.decomposition(query)
        vector = self._vector(query, part, without).numpy()
        index = self.items.index(similarity) if approximate else None
        parts = cache(lambda: self._active(query))
        return [
            Neighbour(
                self.ids[i], self.names[i], float(score), int(i), partial(self._share_of, parts, int(i))
            )
            for i, score in zip(*self.items.best(vector, k, similarity, index=index), strict=True)
        ]

    def recall(self, similarity: str = "dot") -> float:
        """The share of a whole item's ten nearest that `approximate` finds, as measured on this table; 1: it is exact."""
        index = self.items.index(similarity)
        return 1.0 if index is None else index.recall

    def _vector(self, query: Readable, part: Sequence[int] | None, without: Sequence[int] | None) -> Tensor:
        if part is None and without is None:
            return self.embedding(query)
        columns, values = self._active(query)
        for chosen in (part, without):
            if chosen is not None and not all(0 <= r < len(values) for r in chosen):
                raise InputError(
                    f"regions of this query are numbered 0 … {len(values) - 1}, got {list(chosen)}"
                )
        if part is not None:
            left = [r for r in part if without is None or r not in set(without)]
            return torch.from_numpy(packed_parts.spread(columns, values[left].sum(0), self.width))
        gone = packed_parts.spread(columns, values[list(without or ())].sum(0), self.width)
        return self.embedding(query) - torch.from_numpy(gone)

    def _active(self, query: Readable) -> tuple[np.ndarray, np.ndarray]:
        """(coordinates, [regions, coordinates]): the parts of a query where they are not zero."""
        at = self.position(query)
        if at is not None:
            self._check_given()
            packed = self._packed([at])[0]
            return packed.columns, packed.values()
        parts = self.decomposition(query).parts.float().numpy()
        columns = np.flatnonzero(parts.any(0))
        return columns, parts[:, columns]

    def _share_of(self, parts: Callable[[], tuple[np.ndarray, np.ndarray]], position: int) -> Tensor:
        columns, values = parts()
        return torch.from_numpy(values @ self.items.embeddings([position])[0][columns])

    def share(self, query: Readable, against: Sequence[int] | None = None) -> Float[Tensor, "regions items"]:
        """⟨P_I, φ(x')⟩ of each region of the query with each item: a heat map against everything, in one product."""
        columns, values = self._active(query)
        if against is not None:
            positions = [p for p in map(self.position, against) if p is not None]
            return torch.from_numpy(values @ self.items.embeddings(positions)[:, columns].T)
        found, start = np.empty((len(self), len(values)), np.float32), 0
        if len(columns) > FEW * self.width:
            columns, values = slice(None), packed_parts.spread(columns, values, self.width)
        for block in self.items.blocks():
            np.matmul(block[:, columns], values.T, out=found[start : start + len(block)])
            start += len(block)
        return torch.from_numpy(found).T

    def explain(self, i: Readable, j: Readable, *, similarity: str | Similarity = "dot") -> Explanation:
        """Which parts of two items make them similar, from parts that are kept; the storage error is in each side."""
        at = [p for p in (self.position(i), self.position(j)) if p is not None]
        if len(at) < 2 or similarity not in ("dot", "cosine"):
            return pair(self.decomposition(i), self.decomposition(j), similarity=similarity)
        packed = self._packed(at)
        sides = [self._whole(*each) for each in zip(at, packed, strict=True)]
        return pair(*sides, similarity=similarity, among=torch.from_numpy(packed_parts.joint(*packed)[0]).long())

    def mean(self, group: str | Sequence[int]) -> Float[Tensor, " h"]:
        """The mean embedding of a group: ⟨P_I, m⟩ is what region I shares with it on average."""
        if isinstance(group, str):
            found = self.groups()
            if group not in found:
                raise InputError(f"there is no group {group!r}: there are {', '.join(sorted(found)[:12])}")
            group = found[group]
        if not len(group):
            raise InputError("a group needs at least one item")
        total, start, wanted = np.zeros(self.width), 0, np.zeros(len(self), dtype=bool)
        wanted[list(group)] = True
        for block in self.items.blocks():
            total += block[wanted[start : start + len(block)]].sum(0, dtype=np.float64)
            start += len(block)
        return torch.from_numpy(total / len(set(group))).float()

    def contrast(self, g: str | Sequence[int], h: str | Sequence[int]) -> Contrast:
        """What sets group g apart from group h: regions are weighed by ⟨P_I, m_g − m_h⟩."""
        direction = self.mean(g) - self.mean(h)
        return Contrast(direction, lambda query: self.decomposition(query).parts.float() @ direction)

    def audit(self, *, sample: int = 64, seed: int = 0, progress: bool = False) -> Audit:
        """Where does the similarity of near neighbours sit, and does it look like a shortcut?"""
        from bilrp.collection.audit import audit

        return audit(self, sample=sample, seed=seed, progress=progress)

    def widget(self) -> Any:
        """The collection to wander in, in a notebook (`bilrp[notebook]`): `widget.selected` is {id, part, without}."""
        return found_at("bilrp.app.widgets:of_collection")(self)

    def remove(self, queries: Sequence[Readable]) -> int:
        """Take items out, with their parts; how many there were. What is no item is an error, and nothing is removed."""
        positions = {self._item(query) for query in queries}
        for key in {self.ids[p] for p in positions}:
            for name in (tables.ITEMS, tables.PARTS):
                tables.deleted(self.path, name, key)
        # what was read before is no longer true
        self.__dict__ = open(self.path, self._given, weights=self.weights).__dict__
        return len(positions)

    def _item(self, query: Readable) -> int:
        """The position of an item; a name is none, as several may share it."""
        at = self.position(query)
        if at is None:
            same = [p for p, name in enumerate(self.names) if name == query]
            hint = f"; that name has {', '.join(self.ids[p] for p in same[:3])}" if same else ""
            raise InputError(f"{query} is no item of {self.path}: give a position, an id or a file{hint}")
        return at

    def __repr__(self) -> str:
        return f"Collection({len(self)} items, {self.width} coordinates, {self.about['encoder']})"
