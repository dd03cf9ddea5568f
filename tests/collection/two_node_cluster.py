"""Index on a local Ray cluster of two nodes, one of which is killed on the way; say what came of it."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

import ray
from collection_helpers import CLUSTER_READY, tiny_encoder
from ray.cluster_utils import Cluster

from bilrp.collection import indexing, ray_backend, tables

indexing.ITEMS_PER_COMMIT = indexing.PARTS_PER_COMMIT = 2

if __name__ == "__main__":
    source, path = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        other = nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # no shared memory, no network: then there is nothing to test
        print(repr(error))
        sys.exit(77)
    print(CLUSTER_READY, flush=True)  # from here on nothing but the work can fail
    committed = tables.commit_fragments
    made: list[str] = []
    started: list[ray_backend.RayWorkerPool] = []

    def killing(place: str, name: str, fragments: list[str]) -> None:
        """After three commits, take a node away while both are at work."""
        committed(place, name, fragments)
        made.append(name)
        if len(made) == 3:
            nodes.remove_node(other, allow_graceful=False)

    tables.commit_fragments = killing
    begin = ray_backend.RayWorkerPool.start

    def counted(self: ray_backend.RayWorkerPool) -> None:
        """Two actors to begin with; any other replaces one that is lost."""
        started.append(self)
        begin(self)

    ray_backend.RayWorkerPool.start = counted
    start = time.perf_counter()
    built, report = indexing.build_with_report(source, tiny_encoder(), path, parts=True, backend="ray")
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "items": len(built), "parts": len(built.parts.ids), "added": report.added, "same": report.duplicates,
                "failed": len(report.failed), "commits": len(made), "lost": len(started) - 2, "seconds": seconds,
            }
        )
    )  # fmt: skip
    ray.shutdown()
    nodes.shutdown()
