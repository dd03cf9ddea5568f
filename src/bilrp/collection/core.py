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

from bilrp.collection import packed_parts, parts_table, tables, thumbnails
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.description import check_encoder, check_origin, load_encoder, read_description
from bilrp.collection.items_table import ItemsTable
from bilrp.collection.packed_parts import PackedParts
from bilrp.collection.parts_table import PartsTable
from bilrp.collection.sources import SourceItem, decode_path
from bilrp.decomposition import Decomposition, decompose_item
from bilrp.encoder import Encoder, EncoderLike, InputLike, as_encoder, read_item
from bilrp.errors import BilrpError, InputError, MismatchError, wrap_errors
from bilrp.explanation import Explanation, pair
from bilrp.inputs import Item, View
from bilrp.progress import progress_bar
from bilrp.similarity import Similarity, resolve_similarity

if TYPE_CHECKING:
    from bilrp.collection.audit import Audit

PARTS_PER_COMMIT = 8  # parts that are kept with one commit
MAX_SPARSE_FRACTION = 0.25  # of the coordinates: where fewer are active, a product on these alone is faster


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
class MeanContrast:
    """What sets one group apart from another: the direction m₁ − m₂ between their mean embeddings."""

    direction: Float[Tensor, " h"]
    _share: Callable[[Any], Tensor] = field(repr=False)

    def share(self, query: InputLike) -> Float[Tensor, " regions"]:
        """⟨P_I, m₁ − m₂⟩: what region I of the query speaks for the first group and against the second."""
        return self._share(query)


def open(
    path: str | Path, encoder: EncoderLike | str | None = None, *, weights: str | Path | None = None
) -> Collection:
    """A collection that was built; its encoder is found by the name it was stored with, where it has one.

    Opening runs nothing that the collection names: it may come from anybody.

    Args:
        path: what `build` or `bilrp index` made.
        encoder: the encoder that made it, where it is your own.
        weights: the file of weights that it was made with; the path of one in a collection is not followed.

    >>> open("photographs.lance").nearest("cat.jpg", k=3)  # doctest: +SKIP
    """
    dataset = tables.open_verified(str(path), tables.ITEMS_TABLE)
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
        description: dict[str, Any],
        encoder: Encoder | str | None,
        weights: str | Path | None = None,
    ) -> None:
        self.path, self.description, self.weights = path, description, weights
        self.items, self.parts = (
            ItemsTable(dataset, description["width"]),
            PartsTable(path, description["width"]),
        )
        self._given_encoder, self._encoder_checked, self._parts_lock = encoder, False, threading.Lock()

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
        return self.description["width"]

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that made the collection, by its stored name where none was given."""
        return load_encoder(self.path, self.description, self._given_encoder, self.weights)

    @property
    def embeddings(self) -> Float[np.ndarray, "items h"]:
        """φ of every item, in order."""
        return (
            self.items.resident
            if self.items.fits_in_memory
            else np.concatenate(list(self.items.iter_blocks()))
        )

    # ------------------------------------------------------------ one item

    def position(self, query: InputLike) -> int | None:
        """Where a query is in the collection; None where it is none of it."""
        if isinstance(query, int | np.integer):
            if not -len(self) <= query < len(self):
                raise InputError(f"there is no item {query}: the collection has {len(self)}")
            return int(query) % len(self)
        return self.items.position(query) if isinstance(query, str | os.PathLike) else None

    def embedding(self, query: InputLike) -> Float[Tensor, " h"]:
        """φ of a query: kept, or worked out."""
        at = self.position(query)
        if at is None:
            return self._embed_query(query)
        return torch.from_numpy(self.items.embeddings([at])[0])

    def _embed_query(self, query: InputLike) -> Tensor:
        """φ of what is not in the collection: one forward pass."""
        if isinstance(query, Decomposition):
            return self.decomposition(query).embedding.float()
        item = read_item(self.encoder, query)
        self._check_encoder(item)
        found = BatchEncoder(self.encoder).encode([item])[0]
        if isinstance(found, str):
            raise InputError(found)
        return found.float()

    def view(self, query: InputLike, *, full: bool = False) -> View | None:
        """What people see of an item without its file; `full`: from its file, where that is unchanged."""
        at = self.position(query)
        if at is None:
            return query.view if isinstance(query, Decomposition) else read_item(self.encoder, query).view
        row = self.items.take([at], ["thumbnail", "text", "view", "stamp"])
        path = self._file_path(at)
        if (
            full
            and row["thumbnail"][0]
            and path
            and SourceItem(Path(path), "", "", "").stamp == row["stamp"][0]
        ):
            return read_item(self.encoder, Path(path)).view
        with wrap_errors(f"what {self.path} shows of {self.names[at]} is damaged"):
            return thumbnails.from_row(row["thumbnail"][0], row["text"][0], row["view"][0])

    def decomposition(self, query: InputLike) -> Decomposition:
        """The parts of an item as they are kept (made on first use, and kept then), or of any other query, exact."""
        at = self.position(query)
        if at is None:
            if isinstance(query, Decomposition):
                check_origin(self.path, self.description, query.origin)
                return query
            return self._decompose_checked(read_item(self.encoder, query))
        return self._restore_decomposition(at, self._load_or_make_parts([at])[0])

    def _restore_decomposition(self, position: int, packed: PackedParts) -> Decomposition:
        """A decomposition as it was, from its parts and everything else that is kept of it."""
        self._check_given_encoder()
        with wrap_errors(f"the parts of {self.names[position]} in {self.path} are damaged"):
            found = parts_table.restore_decomposition(
                packed, self.parts.read_frame(self.ids[position]), self.embedding(position)
            )
        return replace(found, view=self.view(position), name=self.names[position])

    def relevance(self, i: InputLike, j: InputLike) -> Float[Tensor, "regions_a regions_b"]:
        """R = P P'ᵀ of two items from what is kept, on the coordinates that are active in both."""
        at = [p for p in (self.position(i), self.position(j)) if p is not None]
        return (
            packed_parts.compute_relevance(*self._load_or_make_parts(at))
            if len(at) == 2
            else self.explain(i, j).relevance
        )

    def make_parts(
        self, positions: Iterable[int] | None = None, *, progress: bool = False
    ) -> list[tuple[str, str]]:
        """Make and keep the parts of these items, or of all; those that are kept already stay. What failed, and why."""
        wanted, failed = self.positions_without_parts(positions), []
        with progress_bar(progress) as bar:
            bar.start("parts", len(wanted))
            for start in range(0, len(wanted), PARTS_PER_COMMIT):
                some = wanted[start : start + PARTS_PER_COMMIT]
                rows, broken = self.make_part_rows(some)
                self.parts.add(rows)
                failed += broken
                bar.advance(len(some))
        return failed

    def make_part_rows(self, positions: Sequence[int]) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        """Rows of the table of parts, made from the files or texts; and what failed, and why."""
        rows, failed = [], []
        for position in positions:
            try:
                rows.append(parts_table.to_row(self.ids[position], self._decompose_at(position)))
            except MismatchError:
                raise
            except BilrpError as error:
                failed.append((self.items.sources[position] or self.names[position], str(error)))
        return rows, failed

    def positions_without_parts(self, positions: Iterable[int] | None = None) -> list[int]:
        """Those of these items, or of all, whose parts are not kept yet."""
        there = self.parts.ids
        asked = range(len(self)) if positions is None else positions
        return [p for p in dict.fromkeys(asked) if self.ids[p] not in there]

    def _load_or_make_parts(self, positions: Sequence[int]) -> list[PackedParts]:
        """The parts of these items as they are kept; what is missing is made first, by one thread at a time."""
        keys = [self.ids[p] for p in positions]
        found = self.parts.read_parts(keys)
        if None in found:
            with self._parts_lock:
                rows, failed = self.make_part_rows(self.positions_without_parts(positions))
                self.parts.add_or_cache(rows)
            if failed:
                raise InputError(failed[0][1])
            found = self.parts.read_parts(keys)
        return [packed for packed in found if packed is not None]

    def _decompose_at(self, position: int) -> Decomposition:
        """Decompose an item from its file or text."""
        return self._decompose_checked(read_item(self.encoder, self.original_input(position)))

    def _decompose_checked(self, item: Item) -> Decomposition:
        found = decompose_item(self.encoder, item)[None]
        self._check_encoder(item, found.origin)
        return found

    def original_input(self, position: int) -> Any:
        """What the encoder reads again: the text that is kept, or the file it came from, if it is still the same."""
        text = self.items.take([position], ["text"])["text"][0]
        if text is not None:
            return text
        source = self.items.sources[position]
        for name in (source, decode_path(source)):
            path = os.path.join(self.path, name)
            if name and os.path.isfile(path):
                if SourceItem(Path(path), "", "", path).content_id() != self.ids[position]:
                    raise InputError(f"{self.names[position]}: its file has changed since: index it again")
                return Path(path)
        raise InputError(
            f"{self.names[position]}: its file is gone, and its parts were not kept: index with parts, or put it back"
        )

    def _file_path(self, position: int) -> str:
        """Where its file lies, or lay; empty where it came from none. What the app added lies inside the collection."""
        source = decode_path(self.items.sources[position])
        return os.path.join(self.path, source) if source else ""

    def _check_given_encoder(self) -> None:
        """An encoder that was handed over may be another than the collection's: one run tells."""
        if self._given_encoder is not None and not self._encoder_checked:
            item = self._first_readable
            if item is not None:
                self._check_encoder(item)
            else:  # what is kept can be told; the rest when the encoder is first run
                check_origin(
                    self.path, self.description, self.description["origin"] | {"encoder": self.encoder.name}
                )

    @cached_property
    def _first_readable(self) -> Item | None:
        """The first item that can be read again, if any."""
        for position in range(len(self)):
            if position == 0 or os.path.isfile(self._file_path(position)):  # texts can all be read
                with suppress(BilrpError, OSError):
                    return read_item(self.encoder, self.original_input(position))
        return None

    def _check_encoder(self, item: Item, origin: Mapping[str, Any] | None = None) -> None:
        """Refuse an encoder that is not the collection's; what it says of one item holds for all."""
        if not self._encoder_checked:
            check_encoder(self.path, self.description, self.encoder, item, origin)
            self._encoder_checked = True

    # ------------------------------------------------------------ questions

    def nearest(
        self,
        query: InputLike,
        k: int = 10,
        *,
        part: Sequence[int] | None = None,
        without: Sequence[int] | None = None,
        similarity: str | None = None,
        approximate: bool = False,
    ) -> list[Neighbour]:
        """The k items with the largest ⟨φ(x), φ(x')⟩; by a part, ⟨Σ_{I ∈ part} P_I, φ(x')⟩; without one, the rest of it.

        `approximate`: from an index where there are too many for memory; `recall` says how many it finds.
        """
        if k < 1:
            raise InputError(f"k is a number of neighbours, got {k}")
        similarity = self.resolve_similarity(similarity)
        at = self.position(query)
        if at is None and not (part is None and without is None):
            query = self.decomposition(query)
        vector = self._query_vector(query, part, without).numpy()
        index = self.items.index(similarity) if approximate else None
        scale = float(np.linalg.norm(vector)) or 1.0 if similarity == "cosine" else None
        parts = cache(lambda: self._active_parts(query))
        return [
            Neighbour(
                self.ids[i],
                self.names[i],
                float(score),
                int(i),
                partial(self._share_with, parts, int(i), scale),
            )
            for i, score in zip(*self.items.top_k(vector, k, similarity, index=index), strict=True)
        ]

    def resolve_similarity(self, similarity: str | None) -> str:
        """Return "dot" or "cosine", by which items are ranked; None is the similarity of the collection's encoder."""
        name = resolve_similarity(similarity, self.description["origin"].get("similarity")).name
        if name not in ("dot", "cosine"):
            raise InputError(f"neighbours are ranked by dot or cosine, got {name!r}: give similarity=")
        return name

    def recall(self, similarity: str | None = None) -> float:
        """The share of a whole item's ten nearest that `approximate` finds, as measured on this table; 1: it is exact."""
        index = self.items.index(self.resolve_similarity(similarity))
        return 1.0 if index is None else index.recall

    def _query_vector(
        self, query: InputLike, part: Sequence[int] | None, without: Sequence[int] | None
    ) -> Tensor:
        if part is None and without is None:
            return self.embedding(query)
        columns, values = self._active_parts(query)
        for chosen in (part, without):
            if chosen is not None and not all(0 <= r < len(values) for r in chosen):
                raise InputError(
                    f"regions of this query are numbered 0 … {len(values) - 1}, got {list(chosen)}"
                )
        if part is not None:
            left = [r for r in part if without is None or r not in set(without)]
            return torch.from_numpy(packed_parts.scatter_columns(columns, values[left].sum(0), self.width))
        gone = packed_parts.scatter_columns(columns, values[list(without or ())].sum(0), self.width)
        return self.embedding(query) - torch.from_numpy(gone)

    def _active_parts(self, query: InputLike) -> tuple[np.ndarray, np.ndarray]:
        """(coordinates, [regions, coordinates]): the parts of a query where they are not zero."""
        at = self.position(query)
        if at is not None:
            self._check_given_encoder()
            packed = self._load_or_make_parts([at])[0]
            return packed.columns, packed.values()
        parts = self.decomposition(query).parts.float().numpy()
        columns = np.flatnonzero(parts.any(0))
        return columns, parts[:, columns]

    def _share_with(
        self, parts: Callable[[], tuple[np.ndarray, np.ndarray]], position: int, query_norm: float | None
    ) -> Tensor:
        """⟨P_I, φ(x')⟩, for cosine (where the query's norm is given) divided by both norms."""
        columns, values = parts()
        scale = 1.0 if query_norm is None else query_norm * (float(self.items.norms[position]) or 1.0)
        return torch.from_numpy(values @ self.items.embeddings([position])[0][columns] / np.float32(scale))

    def share(
        self, query: InputLike, against: Sequence[int] | None = None, *, similarity: str | None = None
    ) -> Float[Tensor, "regions items"]:
        """⟨P_I, φ(x')⟩ of each region of the query with each item: a heat map against everything, in one product.

        For cosine, each is divided by ‖φ(x)‖‖φ(x')‖.
        """
        columns, values = self._active_parts(query)
        norms = np.ones(len(self), np.float32)
        if self.resolve_similarity(similarity) == "cosine":
            values = values / (float(self.embedding(query).norm()) or 1.0)
            norms = np.where(self.items.norms > 0, self.items.norms, 1).astype(np.float32)
        if against is not None:
            positions = [p for p in map(self.position, against) if p is not None]
            return torch.from_numpy(
                values @ self.items.embeddings(positions)[:, columns].T / norms[positions]
            )
        found, start = np.empty((len(self), len(values)), np.float32), 0
        if len(columns) > MAX_SPARSE_FRACTION * self.width:
            columns, values = slice(None), packed_parts.scatter_columns(columns, values, self.width)
        for block in self.items.iter_blocks():
            np.matmul(block[:, columns], values.T, out=found[start : start + len(block)])
            start += len(block)
        found /= norms[:, None]
        return torch.from_numpy(found).T

    def explain(
        self, i: InputLike, j: InputLike, *, similarity: str | Similarity | None = None
    ) -> Explanation:
        """Which parts of two items make them similar, from parts that are kept; the storage error is in each side."""
        at = [p for p in (self.position(i), self.position(j)) if p is not None]
        similarity = resolve_similarity(similarity, self.description["origin"].get("similarity"))
        if len(at) < 2 or similarity.name not in ("dot", "cosine"):
            return pair(self.decomposition(i), self.decomposition(j), similarity=similarity)
        packed = self._load_or_make_parts(at)
        sides = [self._restore_decomposition(*each) for each in zip(at, packed, strict=True)]
        return pair(
            *sides,
            similarity=similarity,
            coordinates=torch.from_numpy(packed_parts.intersect_columns(*packed)[0]).long(),
        )

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
        for block in self.items.iter_blocks():
            total += block[wanted[start : start + len(block)]].sum(0, dtype=np.float64)
            start += len(block)
        return torch.from_numpy(total / len(set(group))).float()

    def contrast(
        self, g: str | Sequence[int], h: str | Sequence[int], *, similarity: str | None = None
    ) -> MeanContrast:
        """What sets group g apart from group h: regions are weighed by ⟨P_I, m_g − m_h⟩.

        For cosine, the means are divided by their norms, and P by ‖φ(x)‖.
        """
        cosine, means = self.resolve_similarity(similarity) == "cosine", [self.mean(g), self.mean(h)]
        if cosine:
            means = [mean / (float(mean.norm()) or 1.0) for mean in means]
        direction = means[0] - means[1]

        def share(query: InputLike) -> Tensor:
            found = self.decomposition(query)
            scale = float(found.embedding.float().norm()) or 1.0 if cosine else 1.0
            return found.parts.float() @ direction / scale

        return MeanContrast(direction, share)

    def audit(
        self, *, sample: int = 64, seed: int = 0, similarity: str | None = None, progress: bool = False
    ) -> Audit:
        """Where does the similarity of near neighbours sit, and does it look like a shortcut?"""
        from bilrp.collection.audit import audit_collection

        return audit_collection(self, sample=sample, seed=seed, similarity=similarity, progress=progress)

    def widget(self) -> Any:
        """The collection to wander in, in a notebook (`bilrp[notebook]`): `widget.selected` is {id, part, without}."""
        from bilrp.app import widgets

        return widgets.make_collection_widget(self)

    def remove(self, queries: Sequence[InputLike]) -> int:
        """Take items out, with their parts; how many there were. What is no item is an error, and nothing is removed."""
        positions = {self._require_position(query) for query in queries}
        for key in {self.ids[p] for p in positions}:
            for name in (tables.ITEMS_TABLE, tables.PARTS_TABLE):
                tables.delete_rows(self.path, name, key)
        # what was read before is no longer true
        self.__dict__ = open(self.path, self._given_encoder, weights=self.weights).__dict__
        return len(positions)

    def _require_position(self, query: InputLike) -> int:
        """The position of an item; a name is none, as several may share it."""
        at = self.position(query)
        if at is None:
            same = [p for p, name in enumerate(self.names) if name == query]
            hint = f"; that name has {', '.join(self.ids[p] for p in same[:3])}" if same else ""
            raise InputError(f"{query} is no item of {self.path}: give a position, an id or a file{hint}")
        return at

    def __repr__(self) -> str:
        return f"Collection({len(self)} items, {self.width} coordinates, {self.description['encoder']})"
