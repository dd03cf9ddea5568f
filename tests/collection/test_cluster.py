"""On a cluster: the same collection, whoever made it, though a node is lost on the way."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from making import pictures, tiny

from bilrp import collection
from bilrp.collection.indexing import indexed
from bilrp.errors import InputError

pytest.importorskip("lance", reason="collections need bilrp[collection]")
LONG = 400  # seconds, after which a cluster that has not come up is not waited for


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs bilrp[ray]")
def test_a_node_that_is_killed_costs_nothing(tmp_path: Path) -> None:
    source, path = pictures(tmp_path / "in", 24), tmp_path / "x.lance"
    shutil.copy(source / "even" / "000.png", source / "odd" / "twin.png")  # in another batch than its twin
    (source / "even" / "empty.png").touch()
    paths = os.pathsep.join([str(Path(__file__).parent), *(p for p in sys.path if p)])
    try:
        run = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "two_nodes.py"), str(source), str(path)],
            env=os.environ | {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True, text=True, timeout=LONG,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip(f"no cluster of two nodes came up here in {LONG} s")
    if run.returncode == 77:
        pytest.skip(f"no cluster of two nodes can be started here: {run.stdout}")
    assert run.returncode == 0, run.stderr[-2000:]
    said = json.loads(next(line for line in run.stdout.splitlines() if line.startswith("{")))
    assert (said["items"], said["parts"], said["added"], said["same"], said["failed"]) == (24, 24, 24, 1, 1)
    assert said["lost"] >= 1
    found, whole = (
        collection.open(path, encoder=tiny()),
        collection.build(source, tiny(), tmp_path / "y.lance"),
    )
    assert found.ids == whole.ids and np.allclose(found.embeddings, whole.embeddings, rtol=1e-5, atol=1e-6)
    assert found.failed == whole.failed
    assert np.allclose(found.relevance(2, 9), whole.relevance(2, 9), rtol=0.02, atol=1e-4)


def test_an_engine_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the engine is one of here, ray, got spark"):
        indexed(tmp_path, tiny(), tmp_path / "x.lance", engine="spark")
