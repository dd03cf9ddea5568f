"""Kill a process at random moments while it indexes and while it merges fragments, and see what is left.

Run by hand for more: python tests/collection/kill_indexing.py 30. Children are forked, so that each starts at once;
only they
import Lance, which is not made for a fork.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from collection_helpers import tiny_encoder, write_pictures

from bilrp.collection import core, indexing, tables
from type_asserts import assert_not_none

NUM_ITEMS = 24
COMMIT_ITEMS = 2  # items of a commit


def index(source: Path, path: Path, *, merge: bool = True) -> None:
    """Everything an index run does, in small commits, and fragments merged soon."""
    indexing.ITEMS_PER_COMMIT = core.PARTS_PER_COMMIT = COMMIT_ITEMS
    tables.MIN_FRAGMENTS_TO_COMPACT = COMMIT_ITEMS + 1 if merge else 10**9
    indexing.build(source, tiny_encoder(), path, parts=True)


def merge(path: Path) -> None:
    tables.MIN_FRAGMENTS_TO_COMPACT = 2
    tables.compact(str(path))


def read_state(path: Path) -> dict[str, Any]:
    """What the collection holds: ids in their order, embeddings and parts, as hashes."""
    if tables.open_table(str(path), tables.ITEMS_TABLE) is None:
        return {"ids": [], "embeddings": [], "parts": {}}
    result = core.open(path, tiny_encoder())
    stored = sorted(result.parts.ids)
    parts = {
        key: _hash(assert_not_none(packed).bits.tobytes())
        for key, packed in zip(stored, result.parts.read_parts(stored), strict=True)
    }
    return {"ids": result.ids, "embeddings": [_hash(e.tobytes()) for e in result.embeddings], "parts": parts}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def run_forked(work: Callable[[], Any], *, kill_after: float | None = None) -> tuple[bool, Any]:
    """(was it killed, its result) of a child that does this work; killed by its own hand, wherever it is then."""
    with tempfile.TemporaryDirectory() as path:
        result_file = Path(path) / "result.json"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if kill_after is not None:
                    threading.Timer(kill_after, os.kill, (os.getpid(), signal.SIGKILL)).start()
                result_file.write_text(json.dumps(work()))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return True, None
        assert status == 0, "a run that was not killed failed"
        return False, json.loads(result_file.read_text())


def measure_seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def contains_all(less: dict[str, Any], more: dict[str, Any]) -> bool:
    """Is everything that was committed still there?"""
    return set(less["ids"]) <= set(more["ids"]) and less["parts"].items() <= more["parts"].items()


def kill_while_indexing(kills: int, folder: Path, rng: random.Random) -> dict[str, int]:
    """Killed and begun again until it is done, over and over; each time it must hold what an uninterrupted run holds."""
    source = write_pictures(folder / "in", NUM_ITEMS)
    _, seconds = run_forked(lambda: measure_seconds(lambda: index(source, folder / "whole.lance")))
    _, full = run_forked(lambda: read_state(folder / "whole.lance"))
    assert len(full["ids"]) == len(full["parts"]) == NUM_ITEMS
    done = partly = finished = 0
    before: dict[str, Any] = {"ids": [], "embeddings": [], "parts": {}}
    while True:
        path = folder / f"{finished}.lance"
        limit = rng.uniform(0, seconds) if done < kills else None
        killed, _ = run_forked(lambda path=path: index(source, path), kill_after=limit)
        _, after = run_forked(lambda path=path: read_state(path))
        assert contains_all(before, after), "a committed batch is gone"
        done, partly = (
            done + killed,
            partly + (killed and 0 < len(after["ids"]) + len(after["parts"]) < 2 * NUM_ITEMS),
        )
        before = after
        if not killed:
            assert after == full, "what was begun again is another than the uninterrupted"
            finished, before = finished + 1, {"ids": [], "embeddings": [], "parts": {}}
            if done >= kills:
                return {"kills": done, "half way": partly, "finished and equal": finished}


def kill_while_merging(kills: int, folder: Path, rng: random.Random) -> dict[str, int]:
    """Killed while fragments are merged: readers see all of it before and after, and merging again ends."""
    source, apart = write_pictures(folder / "also in", NUM_ITEMS), folder / "apart.lance"
    run_forked(lambda: index(source, apart, merge=False))
    _, full = run_forked(lambda: read_state(apart))
    assert len(full["ids"]) == len(full["parts"]) == NUM_ITEMS
    shutil.copytree(apart, folder / "timed.lance")
    _, seconds = run_forked(lambda: measure_seconds(lambda: merge(folder / "timed.lance")))
    done = tried = 0
    while done < kills and tried < 4 * kills:
        path, tried = folder / f"merged {tried}.lance", tried + 1
        shutil.copytree(apart, path)
        killed, _ = run_forked(lambda path=path: merge(path), kill_after=rng.uniform(0, seconds))
        assert run_forked(lambda path=path: read_state(path))[1] == full, (
            "a kill while merging lost something"
        )
        run_forked(lambda path=path: merge(path))
        assert run_forked(lambda path=path: read_state(path))[1] == full, "merging again lost something"
        done += killed
        shutil.rmtree(path)
    return {"kills": done, "tried": tried}


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as made:
        for name, work in (("indexing", kill_while_indexing), ("merging", kill_while_merging)):
            print(name, json.dumps(work(wanted, Path(made), random.Random(seed))), flush=True)
