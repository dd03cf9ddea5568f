"""A collection: embeddings of many items, the parts of those that were asked for, and the questions people ask of them."""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from bilrp.collection import packing, previews, tables
from bilrp.collection.packing import Packed
from bilrp.decomposition import Decomposition, decompose_item, from_stored
from bilrp.decomposition import as_stored as stored_decomposition
from bilrp.encoder import Encoder, Model, Readable, as_encoder, differing, origin_at, read_item
from bilrp.encoders import families
from bilrp.engine.progress import tracking
from bilrp.errors import InputError, MismatchError, guarded
from bilrp.explanation import Explanation, pair
from bilrp.item import View
from bilrp.similarity import Similarity

if TYPE_CHECKING:
    from bilrp.collection.audit import Audit

RESIDENT = 512 * 2**20  # bytes of embeddings that are kept in memory; beyond, they are read block by block
GOOD = "failed IS NULL"


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


def open(path: str | Path, encoder: Model | str | None = None) -> Collection:
    """A collection that was built; its encoder is found by the name it was stored with, where it has one.

    >>> open("photographs.lance").nearest("cat.jpg", k=3)  # doctest: +SKIP
    """
    dataset = tables.opened(str(path), tables.ITEMS)
    if dataset is None:
        raise InputError(f"{path}: no collection there; make one with bilrp index or bilrp.collection.build")
    chosen = encoder if encoder is None or isinstance(encoder, str) else as_encoder(encoder)
    return Collection(str(path), dataset, tables.about(dataset), chosen)


def check_origin(path: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse an encoder with other weights or rules than the collection's, and say what differs."""
    found = differing(ours, theirs)
    if found:
        raise MismatchError(f"{path} was made by another encoder: they differ in {found}")


class Collection:
    """Items, their embeddings, and the parts of those that were asked for.

    A query is a position, an id, a path, or anything the encoder reads.
    """

    def __init__(self, path: str, dataset: Any, about: dict[str, Any], encoder: Encoder | str | None) -> None:
        self.path, self.dataset, self.about = path, dataset, about
        self._given, self._checked = encoder, False

    # ------------------------------------------------------------ what is there

    @cached_property
    def _rows(self) -> dict[str, list[Any]]:
        """Names of everything that is not broken; of rows with one id, which two processes may write at once, the first."""
        return tables.columns(self.dataset, ["id", "name", "group", "source", "stamp"], GOOD)

    @cached_property
    def _first(self) -> np.ndarray:
        """Which rows count: the first of each id."""
        _, first = np.unique(np.array(self._rows["id"], dtype=object).astype(str), return_index=True)
        return np.sort(first)

    def _column(self, name: str) -> list[Any]:
        return [self._rows[name][i] for i in self._first]

    def __len__(self) -> int:
        return len(self._first)

    @cached_property
    def ids(self) -> list[str]:
        return self._column("id")

    @cached_property
    def names(self) -> list[str]:
        return self._column("name")

    @cached_property
    def _sources(self) -> list[str]:
        return self._column("source")

    @property
    def failed(self) -> list[tuple[str, str]]:
        """What could not be indexed, and why."""
        rows = tables.columns(self.dataset, ["source", "name", "failed"], "failed IS NOT NULL")
        return [(s or n, why) for s, n, why in zip(rows["source"], rows["name"], rows["failed"], strict=True)]

    def groups(self) -> dict[str, list[int]]:
        """The positions of each group's items: folders, or a column of a table."""
        found: dict[str, list[int]] = defaultdict(list)
        for position, group in enumerate(self._column("group")):
            found[group].append(position)
        return dict(found)

    @property
    def width(self) -> int:
        """Coordinates of an embedding."""
        return self.about["width"]

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that made the collection, by its stored name where none was given."""
        if self._given is None:
            return families.load(self.about["encoder"], **self.about.get("asked", {}))
        return families.load(self._given) if isinstance(self._given, str) else self._given

    @property
    def embeddings(self) -> Float[np.ndarray, "items h"]:
        """φ of every item, in order."""
        return self._resident if self._fits else np.concatenate(list(self._blocks()))

    @property
    def _fits(self) -> bool:
        return 4 * self.width * len(self) <= RESIDENT

    @cached_property
    def _resident(self) -> np.ndarray:
        found = list(tables.blocks(self.dataset, self.width, GOOD))
        return np.ascontiguousarray(np.concatenate(found)[self._first])

    def _blocks(self) -> Iterator[np.ndarray]:
        """The embeddings in blocks of bounded size."""
        if self._fits:
            yield self._resident
            return
        start, counts = 0, np.zeros(len(self._rows["id"]), dtype=bool)
        counts[self._first] = True
        for block in tables.blocks(self.dataset, self.width, GOOD):
            yield block[counts[start : start + len(block)]]
            start += len(block)

    # ------------------------------------------------------------ one item

    def position(self, query: Readable) -> int | None:
        """Where a query is in the collection; None where it is none of it."""
        if isinstance(query, int | np.integer):
            if not -len(self) <= query < len(self):
                raise InputError(f"there is no item {query}: the collection has {len(self)}")
            return int(query) % len(self)
        if isinstance(query, str) and query in self._positions:
            return self._positions[query]
        if isinstance(query, str | os.PathLike):
            return self._by_source.get(os.path.realpath(query))
        return None

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {key: position for position, key in enumerate(self.ids)}

    @cached_property
    def _by_source(self) -> dict[str, int]:
        return {source: position for position, source in enumerate(self._sources) if source}

    def embedding(self, query: Readable) -> Float[Tensor, " h"]:
        """φ of a query: kept, or worked out."""
        at = self.position(query)
        if at is None:
            return self.decomposition(query).embedding.float()
        return torch.from_numpy(self._embeddings([at])[0])

    def view(self, query: Readable) -> View | None:
        """What people see of an item without its file."""
        at = self.position(query)
        if at is None:
            return read_item(self.encoder, query).view
        row = self._take([at], ["thumbnail", "text", "view"])
        return previews.from_row(row["thumbnail"][0], row["text"][0], row["view"][0])

    def _take(self, positions: Sequence[int], names: Sequence[str]) -> dict[str, list[Any]]:
        wanted = [self.ids[p] for p in positions]
        said = ", ".join(f"'{key}'" for key in wanted)
        found = tables.columns(self.dataset, ["id", *names], f"id IN ({said}) AND {GOOD}")
        at = {key: number for number, key in enumerate(found["id"])}
        return {name: [found[name][at[key]] for key in wanted] for name in names}

    def _embeddings(self, positions: Sequence[int]) -> np.ndarray:
        if self._fits:
            return self._resident[list(positions)]
        return np.array(self._take(positions, ["embedding"])["embedding"], dtype=np.float32)

    def decomposition(self, query: Readable) -> Decomposition:
        """The parts of an item as they are kept (made on first use, and kept then), or of any other query, exact."""
        at = self.position(query)
        if at is None:
            item = read_item(self.encoder, query)
            found = decompose_item(self.encoder, item)[None]
            self._check(found.origin)
            return found
        self._check_given()
        packed, frame = self._packed(at)
        return self._unpacked(at, packed, frame)

    def relevance(self, i: Readable, j: Readable) -> Float[Tensor, "regions_a regions_b"]:
        """R = P P'ᵀ of two items from what is kept, on the coordinates that are active in both."""
        positions = [self.position(i), self.position(j)]
        if positions[0] is None or positions[1] is None:
            return self.explain(i, j).relevance
        return packing.relevance(*(self._packed(p)[0] for p in positions if p is not None))

    def make_parts(self, positions: Iterable[int] | None = None, *, progress: bool = False) -> None:
        """Make and keep the parts of these items, or of all; those that are kept already stay."""
        kept = set(self._kept_ids())
        wanted = [
            p for p in (range(len(self)) if positions is None else positions) if self.ids[p] not in kept
        ]
        with tracking(progress) as bar:
            bar.start("parts", len(wanted))
            for position in wanted:
                self._make(position)
                bar.advance()

    def _kept_ids(self) -> list[str]:
        dataset = tables.opened(self.path, tables.PARTS)
        return [] if dataset is None else tables.columns(dataset, ["id"])["id"]

    def _packed(self, position: int) -> tuple[Packed, bytes]:
        key = self.ids[position]
        dataset = tables.opened(self.path, tables.PARTS)
        if dataset is not None:
            found = tables.rows(dataset, key)
            if found:
                row = found[0]
                with guarded(f"the parts of {self.names[position]} in {self.path} are damaged"):
                    made = packing.from_bytes(
                        row["columns"], row["values"], width=self.width, error=row["error"]
                    )
                return made, row["frame"]
        return self._make(position)

    def _make(self, position: int) -> tuple[Packed, bytes]:
        """Decompose an item from its file or text, and keep the parts."""
        item = read_item(self.encoder, self._original(position))
        found = decompose_item(self.encoder, item)[None]
        self._check(found.origin)
        packed = packing.pack(found.parts)
        tensors, words = stored_decomposition(replace(found, view=None))
        frame = {name: tensor for name, tensor in tensors.items() if name not in ("parts", "embedding")}
        kept = zlib.compress(to_safetensors(frame | _spelled(words)), 3)
        columns, values = packing.to_bytes(packed)
        row = {
            "id": self.ids[position],
            "columns": columns,
            "values": values,
            "error": packed.error,
            "frame": kept,
        }
        tables.appended(self.path, tables.PARTS, [row], tables.parts_schema())
        return packed, kept

    def _original(self, position: int) -> Any:
        """What the encoder reads again: the text that is kept, or the file it came from."""
        text = self._take([position], ["text"])["text"][0]
        if text is not None:
            return text
        source = self._sources[position]
        if source and os.path.isfile(source):
            return Path(source)
        raise InputError(
            f"{self.names[position]}: its file is gone, and its parts were not kept: index with parts, or put it back"
        )

    def _unpacked(self, position: int, packed: Packed, frame: bytes) -> Decomposition:
        with guarded(f"the parts of {self.names[position]} in {self.path} are damaged"):
            stored = from_safetensors(zlib.decompress(frame))
            tensors, words = {n: t for n, t in stored.items() if not n.startswith(WORD)}, _read(stored)
            tensors |= {"parts": packed.dense(), "embedding": self.embedding(position)}
            found = from_stored(tensors, words | {"storage_error": packed.error.hex()})
        return replace(found, view=self.view(position), name=self.names[position])

    def _check_given(self) -> None:
        """An encoder that was handed over may be another than the collection's: one run tells."""
        if self._given is not None and not self._checked:
            self._check(origin_at(self.encoder, read_item(self.encoder, self._original(0))))

    def _check(self, origin: Any) -> None:
        if not self._checked:
            check_origin(self.path, self.about["origin"], dict(origin))
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
    ) -> list[Neighbour]:
        """The k items with the largest ⟨φ(x), φ(x')⟩; by a part, ⟨Σ_{I ∈ part} P_I, φ(x')⟩; without one, the rest of it."""
        if k < 1:
            raise InputError(f"k is a number of neighbours, got {k}")
        vector = self._vector(query, part, without)
        scores = self._scores(vector.numpy(), similarity)
        order = np.argsort(-scores, kind="stable")[:k]
        parts = _Once(lambda: self.decomposition(query).parts)
        return [
            Neighbour(self.ids[i], self.names[i], float(scores[i]), int(i), self._share_of(parts, int(i)))
            for i in order
        ]

    def _vector(self, query: Readable, part: Sequence[int] | None, without: Sequence[int] | None) -> Tensor:
        if part is None and without is None:
            return self.embedding(query)
        found = self.decomposition(query)
        for chosen in (part, without):
            if chosen is not None and not all(0 <= r < found.regions.count for r in chosen):
                raise InputError(
                    f"regions of this query are numbered 0 … {found.regions.count - 1}, got {list(chosen)}"
                )
        vector = found.embedding if part is None else found.parts[list(part)].sum(0)
        left_out = [] if without is None else [r for r in without if part is None or r in set(part)]
        return (vector - found.parts[left_out].sum(0)).float()

    def _scores(self, vector: np.ndarray, similarity: str) -> np.ndarray:
        if similarity not in ("dot", "cosine"):
            raise InputError(f"neighbours are ranked by dot or cosine, got {similarity!r}")
        scores = []
        for block in self._blocks():
            found = block @ vector
            if similarity == "cosine":
                found = found / (np.linalg.norm(block, axis=1) * (np.linalg.norm(vector) or 1.0))
            scores.append(found)
        return np.concatenate(scores)

    def _share_of(self, parts: _Once, position: int) -> Callable[[], Tensor]:
        return lambda: parts().float() @ self.embedding(position)

    def share(self, query: Readable, against: Sequence[int] | None = None) -> Float[Tensor, "regions items"]:
        """⟨P_I, φ(x')⟩ of each region of the query with each item: a heat map against everything, in one product."""
        parts = self.decomposition(query).parts.float().numpy()
        if against is not None:
            positions = [p for p in map(self.position, against) if p is not None]
            return torch.from_numpy(parts @ self._embeddings(positions).T)
        return torch.from_numpy(np.concatenate([parts @ block.T for block in self._blocks()], axis=1))

    def explain(self, i: Readable, j: Readable, *, similarity: str | Similarity = "dot") -> Explanation:
        """Which parts of two items make them similar, from parts that are kept; the storage error is in each side."""
        return pair(self.decomposition(i), self.decomposition(j), similarity=similarity)

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
        for block in self._blocks():
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

    def remove(self, queries: Sequence[Readable]) -> int:
        """Take items out, with their parts; how many there were."""
        positions = [p for p in map(self.position, queries) if p is not None]
        for key in {self.ids[p] for p in positions}:
            for name in (tables.ITEMS, tables.PARTS):
                tables.deleted(self.path, name, key)
        self.__dict__ = open(self.path, self._given).__dict__  # what was read before is no longer true
        return len(set(positions))

    def __repr__(self) -> str:
        return f"Collection({len(self)} items, {self.width} coordinates, {self.about['encoder']})"


class _Once:
    """A value that is worked out when it is first asked for."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self.make, self.made = make, None

    def __call__(self) -> Tensor:
        if self.made is None:
            self.made = self.make()
        return self.made


WORD = "word "  # how the name of a tensor begins that is a text


def _spelled(words: dict[str, str]) -> dict[str, Tensor]:
    return {
        WORD + n: torch.frombuffer(bytearray(w.encode()), dtype=torch.uint8) for n, w in words.items() if w
    }


def _read(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {n[len(WORD) :]: t.numpy().tobytes().decode() for n, t in tensors.items() if n.startswith(WORD)}
