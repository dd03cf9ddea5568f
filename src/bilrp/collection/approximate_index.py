"""Approximate nearest-neighbour index (Lance IVF) for collections larger than memory, with measured recall.

The index proposes candidates, which are then scored with their float32 embeddings: scores are exact, but an item may be
missing. `recall` is the mean fraction of an item's ten nearest that are returned, measured on items of the collection. It is
stored with the table and measured again when the table or the index changes. Items added later are compared one by one
until the next indexing run adds them to the index.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bilrp.collection import tables
from bilrp.collection.embedding_norms import normalize
from bilrp.errors import InputError, wrap_errors

if TYPE_CHECKING:
    from lance import LanceDataset

INDEX_NAME_PREFIX = "nearest by "  # followed by the similarity
CONFIG_KEY = "bilrp.nearest"  # key of the stored recall in the table's configuration
RECALL_NEIGHBOURS = 10  # neighbours whose recall is measured
RECALL_SAMPLE_ITEMS = 32  # items used as queries for the measurement
MIN_RECALL = 0.95  # an index below this, with all partitions probed, is not used
CANDIDATES_PER_NEIGHBOUR = 4  # candidates requested per neighbour
MAX_TRAINING_ROWS_PER_PARTITION = 256  # rows that train one partition's centroid, fewer if
MAX_TRAINING_BYTES = 2**30  # the training rows exceed this size
STORED_TYPES = {"similarity": str, "probes": int, "recall": float, "sample_size": int, "fingerprint": str}
MAX_BUILD_ATTEMPTS = 3  # another process may compact the table at the same time

TrueNeighbours: TypeAlias = Sequence[
    tuple[np.ndarray, set[str]]
]  # (query vector, ids of its exact neighbours)


@dataclass(frozen=True, eq=False)
class ApproximateIndex:
    """An index for one similarity: searching `probes` partitions gives `recall`."""

    similarity: str
    probes: int
    recall: float
    sample_size: int
    fingerprint: str
    dataset: LanceDataset = field(repr=False)

    def candidates(self, vector: np.ndarray, k: int) -> list[str]:
        """Return ids that may be among the k nearest; rows not yet in the index are compared one by one."""
        count = CANDIDATES_PER_NEIGHBOUR * max(k, RECALL_NEIGHBOURS)
        return _search(self.dataset, vector, count, self.similarity, self.probes)


def open_or_build(
    uri: str, similarity: str, true_neighbours: Callable[[], TrueNeighbours]
) -> ApproximateIndex:
    """Open the index of an items table; build it if there is none, measure its recall if the table changed.

    Args:
        uri: Location of the items table.
        similarity: "dot" or "cosine".
        true_neighbours: Returns sample queries with their exact neighbours; called only to measure recall.
    """
    dataset = tables.import_lance().dataset(uri)
    if not _index_ids(dataset):
        dataset = build_index(uri, similarity)
    fingerprint = _fingerprint(dataset)
    stored = _read_stored(dataset)
    if stored is not None and stored.fingerprint == fingerprint:
        return stored
    index_similarity = next(iter(_index_ids(dataset))).removeprefix(INDEX_NAME_PREFIX)
    if index_similarity != similarity:  # the caller does not use an index of another similarity
        return ApproximateIndex(index_similarity, 0, 0.0, 0, fingerprint, dataset)
    index = measure_recall(dataset, similarity, true_neighbours())
    with suppress(OSError, RuntimeError, ValueError):  # read-only, or another process stored the same
        dataset.update_config({CONFIG_KEY: json.dumps({name: getattr(index, name) for name in STORED_TYPES})})
        tables.record_checksums(os.path.dirname(uri), tables.ITEMS_TABLE)
    return index


def _read_stored(dataset: LanceDataset) -> ApproximateIndex | None:
    """Return the stored measurement; None if there is none or its values are invalid."""
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        stored = json.loads(dataset.config()[CONFIG_KEY])
        typed = all(type(stored[name]) is kind for name, kind in STORED_TYPES.items())
        in_range = typed and stored["similarity"] in ("dot", "cosine") and stored["probes"] >= 1
        if in_range and 0 <= stored["recall"] <= 1:
            return ApproximateIndex(**{name: stored[name] for name in STORED_TYPES}, dataset=dataset)
    return None


def _index_ids(dataset: LanceDataset) -> dict[str, str]:
    """Map the name of the index, if there is one, to its unique id."""
    with wrap_errors(tables.DAMAGED_MESSAGE):
        return {
            index.name: " ".join(sorted(segment.uuid for segment in index.segments))
            for index in dataset.describe_indices()
            if index.name.startswith(INDEX_NAME_PREFIX)
        }


def _fingerprint(dataset: LanceDataset) -> str:
    """Identify the rows and the index that a measurement belongs to."""
    return " ".join([tables.fingerprint(dataset), *sorted(_index_ids(dataset).values())])


def build_index(uri: str, similarity: str) -> LanceDataset:
    """Build the index and return the reopened table; if another process builds one first, that one is used."""
    for attempts_left in reversed(range(MAX_BUILD_ATTEMPTS)):
        dataset = tables.import_lance().dataset(uri)
        if _index_ids(dataset):
            break
        partitions = max(1, round(dataset.count_rows("failed IS NULL") ** 0.5))
        width = dataset.schema.field("embedding").type.list_size
        affordable_rows = MAX_TRAINING_BYTES // (4 * width * partitions)
        try:
            dataset.create_index(
                "embedding",
                "IVF_SQ",  # one byte per coordinate, for any width
                name=INDEX_NAME_PREFIX + similarity,
                metric=similarity,
                num_partitions=partitions,
                sample_rate=min(
                    MAX_TRAINING_ROWS_PER_PARTITION,
                    max(MAX_TRAINING_ROWS_PER_PARTITION // 16, affordable_rows),
                ),
            )
        except Exception as error:
            if not attempts_left or "conflict" not in str(error).lower():
                raise InputError(f"the index cannot be built ({tables.error_message(error)})") from error
    tables.record_checksums(os.path.dirname(uri), tables.ITEMS_TABLE)
    return tables.import_lance().dataset(uri)


def measure_recall(
    dataset: LanceDataset, similarity: str, true_neighbours: TrueNeighbours
) -> ApproximateIndex:
    """Measure recall, doubling the number of probed partitions until it reaches `MIN_RECALL` or all are probed.

    Args:
        dataset: The items table with its index.
        similarity: Similarity of the index, "dot" or "cosine".
        true_neighbours: Sample queries with their exact neighbours.
    """
    max_probes = 4 * max(1, dataset.count_rows()) ** 0.5  # Lance splits partitions that have grown
    probes, recall = 0, 0.0
    while recall < MIN_RECALL and probes < max_probes:
        probes = 2 * probes or 1
        fractions = []
        for vector, near in true_neighbours:
            ids = _search(dataset, vector, CANDIDATES_PER_NEIGHBOUR * RECALL_NEIGHBOURS, similarity, probes)
            fractions.append(len(near.intersection(ids)) / max(1, len(near)))
        recall = float(np.mean(fractions))
    return ApproximateIndex(similarity, probes, recall, len(true_neighbours), _fingerprint(dataset), dataset)


def _search(dataset: LanceDataset, vector: np.ndarray, count: int, similarity: str, probes: int) -> list[str]:
    with wrap_errors(tables.DAMAGED_MESSAGE):
        rows = dataset.to_table(
            columns=["id", "_distance"],
            nearest={
                "column": "embedding",
                "q": normalize(vector),
                "k": count,
                "metric": similarity,
                "nprobes": probes,
            },
        )
        return rows.column("id").to_pylist()
