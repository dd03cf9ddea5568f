"""An approximate index, Lance's own, for collections too large for memory; what it misses is measured, and said.

The index proposes candidates; their scores are those of float32 embeddings. So a score is never wrong, but an item may be
missing: `recall` is the mean share of the ten nearest that are found, of items of the collection, measured when the index
was made and kept with it. Items that came later are compared one by one until the next indexing takes them in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bilrp.collection import tables
from bilrp.errors import guarded

NAME, SAID = "nearest", "bilrp.nearest"  # the index, and what is said of it
BEST = 10  # neighbours whose recall is measured
ASKED = 32  # items that are asked for theirs
WANTED = 0.95  # recall: an index that finds less in all its partitions is not used
MORE = 4  # candidates for each neighbour wanted
ROWS, ROOM = 256, 2**30  # rows a partition whose middle is learnt from them, where they fit in so many bytes


@dataclass(frozen=True, eq=False)
class Index:
    """For one similarity, as Lance compares by one: `probes` partitions are looked into, which finds `recall`."""

    similarity: str
    probes: int
    recall: float
    asked: int
    dataset: Any = field(repr=False)

    def candidates(self, vector: np.ndarray, k: int) -> list[str]:
        """Ids of what may be among the k nearest; those that the index does not know yet are compared one by one."""
        return _near(self.dataset, vector, MORE * k, self.similarity, self.probes)


def opened(uri: str) -> Index | None:
    """The index of a table of items, with what was measured of it; None where there is none."""
    dataset = tables.lance().dataset(uri)
    said = dataset.config().get(SAID)
    if said is None or not dataset.has_index:
        return None
    with guarded(tables.DAMAGED):
        return Index(**json.loads(said), dataset=dataset)


def made(uri: str, similarity: str, asked: Sequence[tuple[np.ndarray, set[str]]]) -> Index:
    """Make the index, and measure it on these: vectors, and the ids that are truly nearest to each."""
    dataset = tables.lance().dataset(uri)
    partitions = max(1, round(dataset.count_rows("failed IS NULL") ** 0.5))
    rows = ROOM // (partitions * asked[0][0].nbytes)
    with guarded(f"cannot make an index in {uri}"):
        dataset.create_index(
            "embedding",
            "IVF_SQ",  # a byte a coordinate, whatever their number
            name=NAME,
            metric=similarity,
            num_partitions=partitions,
            sample_rate=min(ROWS, max(ROWS // 16, rows)),
            replace=True,
        )
        probes, recall = 0, 0.0
        while recall < WANTED and probes < partitions:
            probes = min(partitions, 2 * probes or 1)
            found = [set(_near(dataset, v, MORE * BEST, similarity, probes)) for v, _ in asked]
            recall = float(
                np.mean([len(f & t) / max(1, len(t)) for f, (_, t) in zip(found, asked, strict=True)])
            )
        index = Index(similarity, probes, recall, len(asked), dataset)
        said = {name: value for name, value in vars(index).items() if name != "dataset"}
        dataset.update_config({SAID: json.dumps(said)})
    return index


def _near(dataset: Any, vector: np.ndarray, count: int, similarity: str, probes: int) -> list[str]:
    with guarded(tables.DAMAGED):
        found = dataset.to_table(
            columns=["id", "_distance"],
            nearest={
                "column": "embedding",
                "q": np.asarray(vector, np.float32),
                "k": count,
                "metric": similarity,
                "nprobes": probes,
            },
        )
        return found.column("id").to_pylist()
