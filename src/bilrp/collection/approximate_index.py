"""An approximate index, Lance's own, for collections too large for memory; what it misses is measured, and said.

The index proposes candidates; their scores are those of float32 embeddings. So a score is never wrong, but an item may be
missing: `recall` is the mean share of the ten nearest that are found, of whole items of the collection. It is kept with the
table, and measured again when that or the index has changed since. Items that came later are compared one by one until the
next indexing takes them in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from bilrp.collection import tables
from bilrp.collection.embedding_norms import normalize
from bilrp.errors import InputError, wrap_errors

INDEX_NAME_PREFIX, CONFIG_KEY = (
    "nearest by ",
    "bilrp.nearest",
)  # how the index is called, before its similarity; what is said of it
RECALL_NEIGHBOURS = 10  # neighbours whose recall is measured
RECALL_SAMPLE_ITEMS = 32  # items that are asked for theirs
MIN_RECALL = 0.95  # recall: an index that finds less in all its partitions is not used
CANDIDATES_PER_NEIGHBOUR = 4  # candidates for each neighbour wanted
MAX_TRAINING_ROWS_PER_PARTITION, MAX_TRAINING_BYTES = (
    256,
    2**30,
)  # rows a partition whose middle is learnt from them, where they fit in so many bytes
STORED_TYPES = {"similarity": str, "probes": int, "recall": float, "sample_size": int, "fingerprint": str}
MAX_BUILD_ATTEMPTS = 3  # to make it: another process may compact meanwhile

TrueNeighbours: TypeAlias = Sequence[
    tuple[np.ndarray, set[str]]
]  # vectors, and the ids that are truly nearest to each


@dataclass(frozen=True, eq=False)
class ApproximateIndex:
    """For one similarity, as Lance compares by one: `probes` partitions are looked into, which finds `recall`."""

    similarity: str
    probes: int
    recall: float
    sample_size: int
    fingerprint: str
    dataset: Any = field(repr=False)

    def candidates(self, vector: np.ndarray, k: int) -> list[str]:
        """Ids of what may be among the k nearest; those that the index does not know yet are compared one by one."""
        return _search(
            self.dataset,
            vector,
            CANDIDATES_PER_NEIGHBOUR * max(k, RECALL_NEIGHBOURS),
            self.similarity,
            self.probes,
        )


def open_or_build(
    uri: str, similarity: str, true_neighbours: Callable[[], TrueNeighbours]
) -> ApproximateIndex:
    """The index of a table of items, made for this similarity where there is none, and measured where it has changed."""
    dataset = tables.import_lance().dataset(uri)
    if not _index_ids(dataset):
        dataset = build_index(uri, similarity)
    state = _fingerprint(dataset)
    said = _read_stored(dataset)
    if said is not None and said.fingerprint == state:
        return said
    made_for = next(iter(_index_ids(dataset))).removeprefix(INDEX_NAME_PREFIX)
    if made_for != similarity:  # it will not be asked
        return ApproximateIndex(made_for, 0, 0.0, 0, state, dataset)
    index = measure_recall(dataset, similarity, true_neighbours())
    said = {name: value for name, value in vars(index).items() if name != "dataset"}
    with suppress(
        OSError, RuntimeError, ValueError
    ):  # another says the same, or nobody may: it is known here
        dataset.update_config({CONFIG_KEY: json.dumps(said)})
        tables.record_checksums(os.path.dirname(uri), tables.ITEMS_TABLE)
    return index


def _read_stored(dataset: Any) -> ApproximateIndex | None:
    """What was measured and is kept with the table; None where nothing was, or by another version, or by anybody."""
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        stored = json.loads(dataset.config()[CONFIG_KEY])
        typed = all(type(stored[name]) is kind for name, kind in STORED_TYPES.items())
        in_range = typed and stored["similarity"] in ("dot", "cosine") and stored["probes"] >= 1
        if in_range and 0 <= stored["recall"] <= 1:
            return ApproximateIndex(**{name: stored[name] for name in STORED_TYPES}, dataset=dataset)
    return None


def _index_ids(dataset: Any) -> dict[str, str]:
    """The index by its name, and what tells it from any other, if there is one."""
    with wrap_errors(tables.DAMAGED_MESSAGE):
        return {
            each.name: " ".join(sorted(segment.uuid for segment in each.segments))
            for each in dataset.describe_indices()
            if each.name.startswith(INDEX_NAME_PREFIX)
        }


def _fingerprint(dataset: Any) -> str:
    """Which rows, and which index: what was measured is true of these."""
    return " ".join([tables.fingerprint(dataset), *sorted(_index_ids(dataset).values())])


def build_index(uri: str, similarity: str) -> Any:
    """The table with an index; where two make one at once, with that of the first."""
    for left in reversed(range(MAX_BUILD_ATTEMPTS)):
        dataset = tables.import_lance().dataset(uri)
        if _index_ids(dataset):
            break
        partitions = max(1, round(dataset.count_rows("failed IS NULL") ** 0.5))
        width = dataset.schema.field("embedding").type.list_size
        try:
            dataset.create_index(
                "embedding",
                "IVF_SQ",  # a byte a coordinate, whatever their number
                name=INDEX_NAME_PREFIX + similarity,
                metric=similarity,
                num_partitions=partitions,
                sample_rate=min(
                    MAX_TRAINING_ROWS_PER_PARTITION,
                    max(
                        MAX_TRAINING_ROWS_PER_PARTITION // 16, MAX_TRAINING_BYTES // (4 * width * partitions)
                    ),
                ),
            )
        except Exception as error:
            if not left or "conflict" not in str(error).lower():
                raise InputError(f"no index can be made there ({tables.error_message(error)})") from error
    tables.record_checksums(os.path.dirname(uri), tables.ITEMS_TABLE)
    return tables.import_lance().dataset(uri)


def measure_recall(dataset: Any, similarity: str, true_neighbours: TrueNeighbours) -> ApproximateIndex:
    """Look into twice as many partitions until enough of what is truly near is found."""
    all_of_them = 4 * max(1, dataset.count_rows()) ** 0.5  # a partition that has grown is divided
    probes, recall = 0, 0.0
    while recall < MIN_RECALL and probes < all_of_them:
        probes = 2 * probes or 1
        found = [
            set(_search(dataset, vector, CANDIDATES_PER_NEIGHBOUR * RECALL_NEIGHBOURS, similarity, probes))
            for vector, _ in true_neighbours
        ]
        shares = [
            len(f & near) / max(1, len(near)) for f, (_, near) in zip(found, true_neighbours, strict=True)
        ]
        recall = float(np.mean(shares))
    return ApproximateIndex(similarity, probes, recall, len(true_neighbours), _fingerprint(dataset), dataset)


def _search(dataset: Any, vector: np.ndarray, count: int, similarity: str, probes: int) -> list[str]:
    with wrap_errors(tables.DAMAGED_MESSAGE):
        found = dataset.to_table(
            columns=["id", "_distance"],
            nearest={
                "column": "embedding",
                "q": normalize(vector),
                "k": count,
                "metric": similarity,
                "nprobes": probes,
            },
        )
        return found.column("id").to_pylist()
