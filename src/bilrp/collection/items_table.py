"""The items of a collection: what they are called, where they came from, and their embeddings, read block by block."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from bilrp.collection import approximate_index, float16_index, tables
from bilrp.collection.approximate_index import ApproximateIndex
from bilrp.collection.embedding_norms import cosine_similarities, row_norms
from bilrp.collection.float16_index import Float16Index
from bilrp.collection.sources import encode_path
from bilrp.errors import InputError

MAX_RESIDENT_BYTES = (
    512 * 2**20
)  # bytes of embeddings that are kept in memory; beyond, they are read block by block
MAX_CANDIDATE_FRACTION = (
    0.05  # of the items: to pick more of them out of the table takes longer than to read it
)
LABEL_COLUMNS = ("id", "name", "group", "source")


class ItemsTable:
    """The table of items at one version; a position counts those that are whole, and of one id the first.

    Two processes may write one id at once, so that it is there twice.
    """

    def __init__(self, dataset: Any, width: int) -> None:
        self.dataset, self.width, self.max_resident_bytes = dataset, width, MAX_RESIDENT_BYTES
        self._index: ApproximateIndex | None = None
        self._index_lock = threading.Lock()

    @cached_property
    def _labels(self) -> dict[str, list[Any]]:
        rows = tables.read_columns(self.dataset, [*LABEL_COLUMNS, "failed"])
        for name in LABEL_COLUMNS:
            if None in rows[name]:
                raise InputError(f"{tables.DAMAGED_MESSAGE} (row {rows[name].index(None)} has no {name})")
        return rows

    @cached_property
    def _embedded_rows(self) -> np.ndarray:
        """Rows that have an embedding."""
        return np.flatnonzero([failed is None for failed in self._labels["failed"]])

    @cached_property
    def row_numbers(self) -> np.ndarray:
        """The row of each position."""
        ids = np.array([self._labels["id"][row] for row in self._embedded_rows], dtype=str)
        return self._embedded_rows[np.sort(np.unique(ids, return_index=True)[1])]

    def __len__(self) -> int:
        return len(self.row_numbers)

    def label_values(self, column: str) -> list[str]:
        """One of `LABEL_COLUMNS`, for every position."""
        values = self._labels[column]
        return [values[row] for row in self.row_numbers]

    @cached_property
    def ids(self) -> list[str]:
        return self.label_values("id")

    @cached_property
    def names(self) -> list[str]:
        return self.label_values("name")

    @cached_property
    def sources(self) -> list[str]:
        return self.label_values("source")

    @cached_property
    def by_id(self) -> dict[str, int]:
        return {key: position for position, key in enumerate(self.ids)}

    @cached_property
    def by_source(self) -> dict[str, int]:
        return {source: position for position, source in enumerate(self.sources) if source}

    def position(self, query: str | os.PathLike[str]) -> int | None:
        """Where an id or a file is; None where it is not here."""
        if isinstance(query, str) and query in self.by_id:
            return self.by_id[query]
        try:
            return self.by_source.get(encode_path(os.path.realpath(query)))
        except (OSError, ValueError):  # a text that no file could be called
            return None

    @property
    def failed(self) -> list[tuple[str, str]]:
        """What could not be indexed, and why."""
        rows = zip(*(self._labels[name] for name in ("source", "name", "failed")), strict=True)
        return [(source or name, why) for source, name, why in rows if why is not None]

    def groups(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for position, group in enumerate(self.label_values("group")):
            found[group].append(position)
        return dict(found)

    def take(self, positions: Sequence[int], names: Sequence[str]) -> dict[str, list[Any]]:
        """These columns of these items, and nothing else of the table."""
        found = tables.take_rows(self.dataset, self.row_numbers[list(positions)], names)
        return {name: column.to_pylist() for name, column in found.items()}

    # ------------------------------------------------------------ embeddings

    @property
    def fits_in_memory(self) -> bool:
        """Are the embeddings few enough to be kept in memory?"""
        return 4 * self.width * len(self) <= self.max_resident_bytes

    @cached_property
    def resident(self) -> Float[np.ndarray, "items h"]:
        embeddings, start = np.empty((len(self), self.width), np.float32), 0
        for block in self._read_blocks():
            embeddings[start : start + len(block)] = block
            start += len(block)
        return embeddings

    def _read_blocks(self) -> Iterator[np.ndarray]:
        counts = np.isin(self._embedded_rows, self.row_numbers, assume_unique=True)
        start = 0
        for block in tables.iter_embedding_blocks(self.dataset, self.width):
            mask = counts[start : start + len(block)]
            start += len(block)
            yield block if mask.all() else block[mask]

    def iter_blocks(self) -> Iterator[np.ndarray]:
        """φ of every item, in order, in blocks of bounded size."""
        if self.fits_in_memory:
            yield self.resident
        else:
            yield from self._read_blocks()

    def embeddings(self, positions: Sequence[int] | np.ndarray) -> Float[np.ndarray, "some h"]:
        if self.fits_in_memory:
            return self.resident[list(positions)]
        found = tables.take_rows(self.dataset, self.row_numbers[list(positions)], ["embedding"])["embedding"]
        return found.combine_chunks().flatten().to_numpy().reshape(-1, self.width).copy()  # to be written to

    @cached_property
    def float16_index(self) -> Float16Index | None:
        """φ of every item in half precision, in a file of its own; None where that cannot be had."""
        return float16_index.open_or_build(self.dataset, self.width, len(self), self._read_blocks())

    @cached_property
    def norms(self) -> Float[np.ndarray, " items"]:
        """‖φ‖ of every item."""
        if not self.fits_in_memory and self.float16_index is not None:
            return self.float16_index.norm
        return np.concatenate([row_norms(block) for block in self.iter_blocks()])

    def index(self, similarity: str) -> ApproximateIndex | None:
        """The approximate index, made on first use; None where search is exact all the same."""
        found = self.index_or_reason(similarity)
        return found if isinstance(found, ApproximateIndex) else None

    def index_or_reason(self, similarity: str) -> ApproximateIndex | str:
        """The approximate index, made on first use; or why search is exact all the same."""
        if self.fits_in_memory:
            return "all embeddings fit in memory"
        with self._index_lock:
            if self._index is None:
                try:
                    self._index = approximate_index.open_or_build(
                        self.dataset.uri, similarity, lambda: self._true_neighbours(similarity)
                    )
                except InputError as error:
                    return str(error)
            index = self._index
        if index.similarity != similarity:
            return f"its index was made for --similarity {index.similarity}"
        if index.recall < approximate_index.MIN_RECALL:
            return f"its index finds no more than {index.recall:.0%} of an item's ten nearest"
        return index

    def _true_neighbours(self, similarity: str) -> approximate_index.TrueNeighbours:
        """Some items, and the ids of their true neighbours, from one reading of all embeddings."""
        some = np.random.default_rng(0).permutation(len(self))[: approximate_index.RECALL_SAMPLE_ITEMS]
        vectors, start = self.embeddings(some), 0
        best, near = [np.zeros(0, np.float32) for _ in some], [np.zeros(0, np.int64) for _ in some]
        for block in self.iter_blocks():
            here = np.arange(start, start + len(block))
            for n, vector in enumerate(vectors):
                scores = self._score_block(block, here, vector, cosine=similarity == "cosine")
                scores, positions = np.concatenate([best[n], scores]), np.concatenate([near[n], here])
                kept = top_k_indices(scores, approximate_index.RECALL_NEIGHBOURS + 1)
                best[n], near[n] = scores[kept], positions[kept]
            start += len(block)
        return [
            (vector, {self.ids[i] for i in found[found != at][: approximate_index.RECALL_NEIGHBOURS]})
            for at, vector, found in zip(some, vectors, near, strict=True)
        ]

    def top_k(
        self, vector: np.ndarray, k: int, similarity: str = "dot", *, index: ApproximateIndex | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions and scores of the k items with the largest ⟨v, φ⟩, or cosine: the best first, of equal ones the first.

        Where embeddings are not held in memory, halves say which may be among them, and these are read. With an index,
        of those that it proposes: what it misses is missing.
        """
        cosine = similarity == "cosine"
        if index is not None:
            proposed = {self.by_id[i] for i in index.candidates(vector, k) if i in self.by_id}
            if len(proposed) >= min(k, len(self)):
                return self.rank(np.array(sorted(proposed)), vector, k, similarity)
        if not self.fits_in_memory and self.float16_index is not None:
            with suppress(OSError):  # another process may have replaced the file by a newer one
                some = self.float16_index.candidates(vector, k, cosine=cosine)
                if len(some) <= MAX_CANDIDATE_FRACTION * len(self):  # else reading all in order is faster
                    return self.rank(some, vector, k, similarity)
        positions, scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
        for start, found in self._iter_scores(vector, cosine=cosine):
            near = top_k_indices(found, k)
            if not start:  # mostly there is no other block
                positions, scores = near, found[near]
                continue
            positions, scores = (
                np.concatenate(p) for p in ((positions, near + start), (scores, found[near]))
            )
            kept = top_k_indices(scores, k)  # of equal ones, those of earlier blocks
            positions, scores = positions[kept], scores[kept]
        return positions, scores

    def scores(self, vector: np.ndarray, similarity: str = "dot") -> Float[np.ndarray, " items"]:
        """⟨v, φ⟩ of every item, or cosine."""
        found = [scores for _, scores in self._iter_scores(vector, cosine=similarity == "cosine")]
        return np.concatenate([np.zeros(0, np.float32), *found])

    def _iter_scores(self, vector: np.ndarray, *, cosine: bool) -> Iterator[tuple[int, np.ndarray]]:
        """Of one block after the other: the position of its first item, and the scores of all."""
        start = 0
        for block in self.iter_blocks():
            yield start, self._score_block(block, slice(start, start + len(block)), vector, cosine=cosine)
            start += len(block)

    def rank(
        self, positions: np.ndarray, vector: np.ndarray, k: int, similarity: str = "dot"
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `top_k` gives, of these positions alone; their embeddings are read a block at a time."""
        rows, found = max(1, tables.BLOCK_BYTES // (4 * self.width)), [np.zeros(0, np.float32)]
        for start in range(0, len(positions), rows):
            few = positions[start : start + rows]
            found.append(self._score_block(self.embeddings(few), few, vector, cosine=similarity == "cosine"))
        scores = np.concatenate(found)
        kept = top_k_indices(scores, k)
        return positions[kept], scores[kept]

    def _score_block(
        self, block: np.ndarray, positions: np.ndarray | slice, vector: np.ndarray, *, cosine: bool
    ) -> np.ndarray:
        return cosine_similarities(block, self.norms[positions], vector) if cosine else block @ vector


def top_k_indices(scores: np.ndarray, k: int) -> np.ndarray:
    """Where the k largest are, largest first, and of equal ones the first.

    >>> top_k_indices(np.array([3.0, 7.0, 3.0, 9.0]), 3).tolist()
    [3, 1, 0]
    """
    if not 0 < 4 * k < len(scores):  # none, or few others: to set them apart first would cost more
        return np.argsort(-scores, kind="stable")[:k]
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= least)
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
