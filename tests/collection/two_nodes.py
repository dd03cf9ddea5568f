"""Index on a local Ray cluster of two nodes, one of which is killed on the way; say what came of it."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

import ray
from making import UP, tiny
from ray.cluster_utils import Cluster

from bilrp.collection import ray_backend as engine
from bilrp.collection import indexing, tables

indexing.COMMIT = indexing.TOGETHER = 2

if __name__ == "__main__":
    source, path = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        other = nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # no shared memory, no network: then there is nothing to test
        print(repr(error))
        sys.exit(77)
    print(UP, flush=True)  # from here on nothing but the work can fail
    committed = tables.committed
    made: list[str] = []
    started: list[engine.Workers] = []

    def killing(place: str, name: str, fragments: list[str]) -> None:
        """After three commits, take a node away while both are at work."""
        committed(place, name, fragments)
        made.append(name)
        if len(made) == 3:
            nodes.remove_node(other, allow_graceful=False)

    tables.committed = killing
    begin = engine.Workers.start

    def counted(self: engine.Workers) -> None:
        """Two actors to begin with; any other stands in for one that is lost."""
        started.append(self)
        begin(self)

    engine.Workers.start = counted
    start = time.perf_counter()
    found, report = indexing.indexed(source, tiny(), path, parts=True, engine="ray")
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "items": len(found), "parts": len(found.parts.ids), "added": report.added, "same": report.same,
                "failed": len(report.failed), "commits": len(made), "lost": len(started) - 2, "seconds": seconds,
            }
        )
    )  # fmt: skip
    ray.shutdown()
    nodes.shutdown()
