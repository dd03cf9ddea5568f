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
from bilrp.collection.embedding_norms import unit
from bilrp.errors import InputError, guarded

NAME, SAID = (
    "nearest by ",
    "bilrp.nearest",
)  # how the index is called, before its similarity; what is said of it
BEST = 10  # neighbours whose recall is measured
ASKED = 32  # items that are asked for theirs
WANTED = 0.95  # recall: an index that finds less in all its partitions is not used
MORE = 4  # candidates for each neighbour wanted
ROWS, ROOM = 256, 2**30  # rows a partition whose middle is learnt from them, where they fit in so many bytes
KEPT_TYPES = {"similarity": str, "probes": int, "recall": float, "asked": int, "state": str}
TRIES = 3  # to make it: another process may compact meanwhile

Truth: TypeAlias = Sequence[
    tuple[np.ndarray, set[str]]
]  # vectors, and the ids that are truly nearest to each


@dataclass(frozen=True, eq=False)
class Index:
    """For one similarity, as Lance compares by one: `probes` partitions are looked into, which finds `recall`."""

    similarity: str
    probes: int
    recall: float
    asked: int
    state: str
    dataset: Any = field(repr=False)

    def candidates(self, vector: np.ndarray, k: int) -> list[str]:
        """Ids of what may be among the k nearest; those that the index does not know yet are compared one by one."""
        return _near(self.dataset, vector, MORE * max(k, BEST), self.similarity, self.probes)


def opened(uri: str, similarity: str, truth: Callable[[], Truth]) -> Index:
    """The index of a table of items, made for this similarity where there is none, and measured where it has changed."""
    dataset = tables.lance().dataset(uri)
    if not _indices(dataset):
        dataset = made(uri, similarity)
    state = _state(dataset)
    said = _said(dataset)
    if said is not None and said.state == state:
        return said
    made_for = next(iter(_indices(dataset))).removeprefix(NAME)
    if made_for != similarity:  # it will not be asked
        return Index(made_for, 0, 0.0, 0, state, dataset)
    index = measured(dataset, similarity, truth())
    said = {name: value for name, value in vars(index).items() if name != "dataset"}
    with suppress(
        OSError, RuntimeError, ValueError
    ):  # another says the same, or nobody may: it is known here
        dataset.update_config({SAID: json.dumps(said)})
        tables.record(os.path.dirname(uri), tables.ITEMS)
    return index


def _said(dataset: Any) -> Index | None:
    """What was measured and is kept with the table; None where nothing was, or by another version, or by anybody."""
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        stored = json.loads(dataset.config()[SAID])
        typed = all(type(stored[name]) is kind for name, kind in KEPT_TYPES.items())
        in_range = typed and stored["similarity"] in ("dot", "cosine") and stored["probes"] >= 1
        if in_range and 0 <= stored["recall"] <= 1:
            return Index(**{name: stored[name] for name in KEPT_TYPES}, dataset=dataset)
    return None


def _indices(dataset: Any) -> dict[str, str]:
    """The index by its name, and what tells it from any other, if there is one."""
    with guarded(tables.DAMAGED):
        return {
            each.name: " ".join(sorted(segment.uuid for segment in each.segments))
            for each in dataset.describe_indices()
            if each.name.startswith(NAME)
        }


def _state(dataset: Any) -> str:
    """Which rows, and which index: what was measured is true of these."""
    return " ".join([tables.state(dataset), *sorted(_indices(dataset).values())])


def made(uri: str, similarity: str) -> Any:
    """The table with an index; where two make one at once, with that of the first."""
    for left in reversed(range(TRIES)):
        dataset = tables.lance().dataset(uri)
        if _indices(dataset):
            break
        partitions = max(1, round(dataset.count_rows("failed IS NULL") ** 0.5))
        width = dataset.schema.field("embedding").type.list_size
        try:
            dataset.create_index(
                "embedding",
                "IVF_SQ",  # a byte a coordinate, whatever their number
                name=NAME + similarity,
                metric=similarity,
                num_partitions=partitions,
                sample_rate=min(ROWS, max(ROWS // 16, ROOM // (4 * width * partitions))),
            )
        except Exception as error:
            if not left or "conflict" not in str(error).lower():
                raise InputError(f"no index can be made there ({tables.why(error)})") from error
    tables.record(os.path.dirname(uri), tables.ITEMS)
    return tables.lance().dataset(uri)


def measured(dataset: Any, similarity: str, truth: Truth) -> Index:
    """Look into twice as many partitions until enough of what is truly near is found."""
    all_of_them = 4 * max(1, dataset.count_rows()) ** 0.5  # a partition that has grown is divided
    probes, recall = 0, 0.0
    while recall < WANTED and probes < all_of_them:
        probes = 2 * probes or 1
        found = [set(_near(dataset, vector, MORE * BEST, similarity, probes)) for vector, _ in truth]
        shares = [len(f & near) / max(1, len(near)) for f, (_, near) in zip(found, truth, strict=True)]
        recall = float(np.mean(shares))
    return Index(similarity, probes, recall, len(truth), _state(dataset), dataset)


def _near(dataset: Any, vector: np.ndarray, count: int, similarity: str, probes: int) -> list[str]:
    with guarded(tables.DAMAGED):
        found = dataset.to_table(
            columns=["id", "_distance"],
            nearest={
                "column": "embedding",
                "q": unit(vector),
                "k": count,
                "metric": similarity,
                "nprobes": probes,
            },
        )
        return found.column("id").to_pylist()
