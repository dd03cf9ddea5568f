"""On a cluster: the same collection as on one machine, also if a node is lost."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from collection_helpers import CLUSTER_READY, run_command, tiny_encoder, write_pictures

from bilrp import collection
from bilrp.collection import ray_backend
from bilrp.collection.indexing import build_with_report, make_missing_parts
from bilrp.errors import InputError

pytest.importorskip("lance", reason="collections need bilrp[collection]")
LONG = 400  # seconds: then it has not come up, or hangs


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs bilrp[ray]")
def test_a_node_that_is_killed_costs_nothing(tmp_path: Path) -> None:
    source, path = write_pictures(tmp_path / "in", 24), tmp_path / "x.lance"
    # in another batch than its original
    shutil.copy(source / "even" / "000.png", source / "odd" / "duplicate.png")
    (source / "even" / "empty.png").touch()
    paths = os.pathsep.join([str(Path(__file__).parent), *(p for p in sys.path if p)])
    command = [sys.executable, str(Path(__file__).parent / "two_node_cluster.py"), str(source), str(path)]
    env = os.environ | {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}
    code, out, err = run_command(command, env, seconds=LONG)
    if CLUSTER_READY not in out.splitlines():
        pytest.skip(f"no cluster of two nodes can be started here in {LONG} s: {out}")
    assert code == 0, "it hangs" if code is None else err[-2000:]
    counts = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    assert (counts["items"], counts["parts"], counts["added"], counts["same"], counts["failed"]) == (
        24,
        24,
        24,
        1,
        1,
    )
    # The node was taken away after three; it may have had nothing in hand just then.
    assert counts["commits"] > 3
    result, full = (
        collection.open(path, encoder=tiny_encoder()),
        collection.build(source, tiny_encoder(), tmp_path / "y.lance"),
    )
    assert result.ids == full.ids and np.allclose(result.embeddings, full.embeddings, rtol=1e-5, atol=1e-6)
    assert result.failed == full.failed
    assert np.allclose(result.relevance(2, 9), full.relevance(2, 9), rtol=0.02, atol=1e-4)


def test_a_backend_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the backend is one of local, ray, got spark"):
        build_with_report(tmp_path, tiny_encoder(), tmp_path / "x.lance", backend="spark")


class Here(ray_backend.RayWorkerPool):
    """The work of a cluster, done by one worker in this process."""

    def run_in_order(self, method: Any, jobs: Sequence[Any], retry: Any = None) -> Iterator[Any]:
        worker = ray_backend.RayWorker(tiny_encoder())
        yield from (method(worker, *job) for job in jobs)


def test_parts_where_the_first_items_cannot_be_taken_apart(tmp_path: Path) -> None:
    source, path = write_pictures(tmp_path / "in", 5), tmp_path / "x.lance"
    indexed = collection.build(source, tiny_encoder(), path)
    for gone in ("000.png", "002.png"):
        (source / "even" / gone).unlink()
    failed = make_missing_parts(indexed, Here(make_actor=tiny_encoder, count=1), progress=False)
    assert [Path(name).name for name, _ in failed] == ["000.png", "002.png"]
    assert indexed.parts.ids == set(indexed.ids[2:])


def test_workers_that_cannot_start_are_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(Exception):
        pass

    class Broken(Exception):
        pass

    def get(promise: object) -> None:
        raise Lost(
            "The actor died because of an error raised in its creation task\n  …\nMemoryError: no room"
        )

    actor = SimpleNamespace(ready=SimpleNamespace(remote=object))
    ray = SimpleNamespace(
        wait=lambda promises, num_returns: (promises[:1], promises[1:]), get=get,
        exceptions=SimpleNamespace(RayError=Lost, RayTaskError=Broken),
    )  # fmt: skip
    monkeypatch.setattr(ray_backend, "import_ray", lambda: ray)
    built = iter(range(50))  # more than that is for ever
    pool = ray_backend.RayWorkerPool(lambda: (next(built), actor)[1], 2)
    pool.start()
    pool.start()
    with pytest.raises(InputError, match="no worker can start: MemoryError: no room"):
        list(pool.run_in_order(ray_backend.RayWorker.ready, [()]))
    assert next(built) <= 2 + ray_backend.MAX_ATTEMPTS
