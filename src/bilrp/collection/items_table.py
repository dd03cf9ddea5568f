"""The items table of a collection: ids, names, sources and embeddings; exact and approximate top-k search."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from bilrp.collection import approximate_index, float16_index, tables
from bilrp.collection.approximate_index import ApproximateIndex
from bilrp.collection.embedding_norms import cosine_similarities, row_norms
from bilrp.collection.float16_index import Float16Index
from bilrp.collection.sources import encode_path
from bilrp.errors import InputError

if TYPE_CHECKING:
    from lance import LanceDataset

MAX_RESIDENT_BYTES = 512 * 2**20  # larger embeddings are read in blocks instead of kept in memory
# Of the items: reading more rows by number takes longer than reading all in order.
MAX_CANDIDATE_FRACTION = 0.05
LABEL_COLUMNS = ("id", "name", "group", "source")
HIDDEN_COLUMNS = ("stamp", "thumbnail", "view", "embedding", "failed")  # not meant for conditions


class ItemsTable:
    """The items table at one version.

    A position numbers the rows with an embedding; of rows with the same id (two processes may write it at once), the first.
    """

    def __init__(self, dataset: LanceDataset, width: int) -> None:
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
        """Numbers of the rows that have an embedding."""
        return np.flatnonzero([failed is None for failed in self._labels["failed"]])

    @cached_property
    def row_numbers(self) -> np.ndarray:
        """Row number of each position."""
        ids = np.array([self._labels["id"][row] for row in self._embedded_rows], dtype=str)
        return self._embedded_rows[np.sort(np.unique(ids, return_index=True)[1])]

    def __len__(self) -> int:
        return len(self.row_numbers)

    def label_values(self, column: str) -> list[str]:
        """Return one of `LABEL_COLUMNS` for every position."""
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
        """Return the position of an id or a file; None if it is not in the table."""
        if isinstance(query, str) and query in self.by_id:
            return self.by_id[query]
        try:
            return self.by_source.get(encode_path(os.path.realpath(query)))
        except (OSError, ValueError):  # not a valid file name
            return None

    @property
    def failed(self) -> list[tuple[str, str]]:
        """(source, error) of each input that could not be indexed."""
        rows = zip(*(self._labels[name] for name in ("source", "name", "failed")), strict=True)
        return [(source or name, error) for source, name, error in rows if error is not None]

    def groups(self) -> dict[str, list[int]]:
        """Return the positions of each group's items."""
        groups: dict[str, list[int]] = defaultdict(list)
        for position, group in enumerate(self.label_values("group")):
            groups[group].append(position)
        return dict(groups)

    def take(self, positions: Sequence[int], names: Sequence[str]) -> dict[str, list[Any]]:
        """Read some columns of some items."""
        columns = tables.take_rows(self.dataset, self.row_numbers[list(positions)], names)
        return {name: column.to_pylist() for name, column in columns.items()}

    def columns(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the values of some columns for every position."""
        if not names:
            return [()] * len(self)
        rows = list(zip(*tables.read_columns(self.dataset, names).values(), strict=True))
        return [rows[row] for row in self.row_numbers]

    def find(self, where: str) -> np.ndarray:
        """Return the positions of the items that match a SQL condition, ascending."""
        try:
            # In brackets, so that nothing after a condition (; LIMIT 1) is left out in silence. Inputs that failed are left
            # out below, since 1=1) OR (1=1 would find them whatever is added here.
            rows = self.dataset.to_table(columns=["id", "failed"], filter=f"({where})")
        except (OSError, ValueError, RuntimeError) as error:
            names = [name for name in self.dataset.schema.names if name not in HIDDEN_COLUMNS]
            raise InputError(
                f"the condition {where[:200]!r} cannot be used ({tables.error_message(error)}): compare columns with "
                f"values, as in \"lang = 'en' AND year > 2019\"; the columns are {', '.join(names)}"
            ) from None
        readable = rows.filter(rows.column("failed").is_null()).column("id").to_pylist()
        return np.unique(np.array([self.by_id[key] for key in readable], dtype=np.int64))

    # ------------------------------------------------------------ embeddings

    @property
    def fits_in_memory(self) -> bool:
        """Whether all embeddings are kept in memory."""
        return 4 * self.width * len(self) <= self.max_resident_bytes

    @cached_property
    def resident(self) -> Float[np.ndarray, "items h"]:
        """φ of every item, in memory."""
        embeddings, start = np.empty((len(self), self.width), np.float32), 0
        for block in self._read_blocks():
            embeddings[start : start + len(block)] = block
            start += len(block)
        return embeddings

    def _read_blocks(self) -> Iterator[np.ndarray]:
        is_item = np.isin(self._embedded_rows, self.row_numbers, assume_unique=True)
        start = 0
        for block in tables.iter_embedding_blocks(self.dataset, self.width):
            mask = is_item[start : start + len(block)]
            start += len(block)
            yield block if mask.all() else block[mask]

    def iter_blocks(self) -> Iterator[np.ndarray]:
        """Yield φ of every item in order, in blocks of bounded size."""
        if self.fits_in_memory:
            yield self.resident
        else:
            yield from self._read_blocks()

    def embeddings(self, positions: Sequence[int] | np.ndarray) -> Float[np.ndarray, "some h"]:
        """Return φ of some items."""
        if self.fits_in_memory:
            return self.resident[list(positions)]
        column = tables.take_rows(self.dataset, self.row_numbers[list(positions)], ["embedding"])["embedding"]
        return column.combine_chunks().flatten().to_numpy().reshape(-1, self.width).copy()  # writable

    @cached_property
    def float16_index(self) -> Float16Index | None:
        """Float16 copy of the embeddings; None if its file cannot be written."""
        return float16_index.open_or_build(self.dataset, self.width, len(self), self._read_blocks())

    @cached_property
    def norms(self) -> Float[np.ndarray, " items"]:
        """‖φ‖ of every item."""
        if not self.fits_in_memory and self.float16_index is not None:
            return self.float16_index.norm
        return np.concatenate([row_norms(block) for block in self.iter_blocks()])

    def index(self, similarity: str) -> ApproximateIndex | None:
        """Return the approximate index, built on first use; None if the search is exact."""
        index = self.index_or_reason(similarity)
        return index if isinstance(index, ApproximateIndex) else None

    def index_or_reason(self, similarity: str) -> ApproximateIndex | str:
        """Return the approximate index, built on first use, or the reason why the search is exact."""
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
            return f"the index was built for --similarity {index.similarity}"
        if index.recall < approximate_index.MIN_RECALL:
            return f"the index finds only {index.recall:.0%} of an item's ten nearest"
        return index

    def _true_neighbours(self, similarity: str) -> approximate_index.TrueNeighbours:
        """Return sampled items with the ids of their exact neighbours, reading all embeddings once."""
        count = approximate_index.RECALL_NEIGHBOURS
        sample = np.random.default_rng(0).permutation(len(self))[: approximate_index.RECALL_SAMPLE_ITEMS]
        vectors, start = self.embeddings(sample), 0
        best = [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in sample]
        for block in self.iter_blocks():
            positions = np.arange(start, start + len(block))
            for n, vector in enumerate(vectors):
                scores = self._score_block(block, positions, vector, cosine=similarity == "cosine")
                best[n] = _merge_top_k(best[n], (positions, scores), count + 1)
            start += len(block)
        return [
            (vector, {self.ids[i] for i in near[near != item][:count]})
            for item, vector, (near, _) in zip(sample, vectors, best, strict=True)
        ]

    def top_k(
        self, vector: np.ndarray, k: int, similarity: str = "dot", *, index: ApproximateIndex | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and scores of the k items with the largest ⟨v, φ⟩ or cosine, best first; ties by position.

        Args:
            vector, k: The query v, and the number of items.
            similarity: "dot" or "cosine".
            index: Rank only the candidates of this approximate index; by default the search is exact.
        """
        cosine = similarity == "cosine"
        if index is not None:
            candidates = {self.by_id[i] for i in index.candidates(vector, k) if i in self.by_id}
            if len(candidates) >= min(k, len(self)):
                return self.rank(np.array(sorted(candidates)), vector, k, similarity)
        if not self.fits_in_memory and self.float16_index is not None:
            with suppress(OSError):  # another process may have removed the file
                positions = self.float16_index.candidates(vector, k, cosine=cosine)
                if len(positions) <= MAX_CANDIDATE_FRACTION * len(self):
                    return self.rank(positions, vector, k, similarity)
        return self.top_k_many([vector], k, similarity)[0]

    def top_k_many(
        self, vectors: Sequence[np.ndarray], k: int, similarity: str = "dot"
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return positions and scores of the k best for each vector, exactly; embeddings are read once for all.

        Args:
            vectors: The queries.
            k: Number of items for each.
            similarity: "dot" or "cosine".
        """
        best = [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in vectors]
        start = 0
        for block in self.iter_blocks():
            rows = slice(start, start + len(block))
            for number, vector in enumerate(vectors):
                scores = self._score_block(block, rows, vector, cosine=similarity == "cosine")
                top = top_k_indices(scores, k)
                best[number] = _merge_top_k(best[number], (top + start, scores[top]), k)
            start += len(block)
        return best

    def scores(self, vector: np.ndarray, similarity: str = "dot") -> Float[np.ndarray, " items"]:
        """Return ⟨v, φ⟩ or cosine of every item."""
        blocks = [scores for _, scores in self._iter_scores(vector, cosine=similarity == "cosine")]
        return np.concatenate([np.zeros(0, np.float32), *blocks])

    def _iter_scores(self, vector: np.ndarray, *, cosine: bool) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the first position and the scores of each block."""
        start = 0
        for block in self.iter_blocks():
            yield start, self._score_block(block, slice(start, start + len(block)), vector, cosine=cosine)
            start += len(block)

    def rank(
        self, positions: np.ndarray, vector: np.ndarray, k: int, similarity: str = "dot"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the `top_k` among some positions; their embeddings are read in blocks.

        Args:
            positions: Candidates, ascending.
            vector, k, similarity: As for `top_k`.
        """
        rows, blocks = max(1, tables.BLOCK_BYTES // (4 * self.width)), [np.zeros(0, np.float32)]
        for start in range(0, len(positions), rows):
            some = positions[start : start + rows]
            blocks.append(
                self._score_block(self.embeddings(some), some, vector, cosine=similarity == "cosine")
            )
        scores = np.concatenate(blocks)
        top = top_k_indices(scores, k)
        return positions[top], scores[top]

    def _score_block(
        self, block: np.ndarray, positions: np.ndarray | slice, vector: np.ndarray, *, cosine: bool
    ) -> np.ndarray:
        return cosine_similarities(block, self.norms[positions], vector) if cosine else block @ vector


def _merge_top_k(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Merge two results (positions, scores) to the k best; ties in favour of `a`."""
    positions, scores = np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])
    top = top_k_indices(scores, k)
    return positions[top], scores[top]


def top_k_indices(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k largest scores, in descending order; ties by index.

    >>> top_k_indices(np.array([3.0, 7.0, 3.0, 9.0]), 3).tolist()
    [3, 1, 0]
    """
    if not 0 < 4 * k < len(scores):  # sorting all is cheaper than a partition
        return np.argsort(-scores, kind="stable")[:k]
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= threshold)
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
