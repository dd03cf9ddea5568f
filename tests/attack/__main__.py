"""`make attack`: everything that was ever broken, tried again at random; prints trials, what was right, refused, and wrong.

One round is the same for the same seed. With --seconds, further rounds with the next seeds until the time is up.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from attack.table import Row, table

KINDS = (
    "images", "bombs", "stores", "collections", "caches", "nets", "names", "fetches", "kills", "fulldisk", "threads",
    "leaks", "fragments", "attention", "requests",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make attack", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="KIND", help=f"Of: {', '.join(KINDS)}.")
    parser.add_argument("--seconds", type=float, default=0.0, help="Go on with further rounds until then.")
    parser.add_argument("--seed", type=int, default=1, help="Of the first round.")
    parser.add_argument("--jobs", type=int, default=1, help="Attacks at a time.")
    given = parser.parse_args(arguments)
    for kind in given.kinds:
        importlib.import_module(f"attack.{kind}")  # once, before the processes part
    until, seed = time.monotonic() + given.seconds, given.seed
    rows: dict[str, Row] = {}
    while True:
        for row in run(list(given.kinds), seed, given.jobs):
            rows.setdefault(row.kind, Row(row.kind)).add(row)
            for failure in row.failures:
                print(f"{failure.what}: {row.kind}: {failure.description}", file=sys.stderr, flush=True)
        seed += 1
        if time.monotonic() >= until:
            break
    print(table(list(rows.values())))
    return int(any(row.failures for row in rows.values()))


def run(kinds: list[str], seed: int, jobs: int) -> list[Row]:
    """One round of every kind, each in a process of its own, so that one that dies takes no other with it."""
    waiting, running, done = list(kinds), dict[str, tuple[BaseProcess, Connection, Path]](), []
    fork = multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < jobs:
            kind = waiting.pop(0)
            here, there = fork.Pipe(duplex=False)
            path = Path(tempfile.mkdtemp(prefix="bilrp-attack-"))
            process = fork.Process(target=_one, args=(kind, seed, path, there))
            process.start()
            there.close()
            running[kind] = process, here, path
        for kind, (process, here, path) in list(running.items()):
            if here.poll(0.05):
                done += _receive(kind, here, process)
                process.join()
                shutil.rmtree(path, ignore_errors=True)
                del running[kind]
    return done


def _one(kind: str, seed: int, path: Path, there: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # what C libraries say about broken files is no news
    try:
        result = importlib.import_module(f"attack.{kind}").attack(seed, path)
        there.send(result if isinstance(result, list) else [result])
    except BaseException:
        row = Row(kind)
        row.failed(
            "unexpected error", f"seed {seed}: the attack itself failed: {traceback.format_exc()[-400:]}"
        )
        there.send([row])


def _receive(kind: str, here: Connection, process: BaseProcess) -> list[Row]:
    try:
        return here.recv()
    except EOFError:
        process.join()
        row = Row(kind)
        row.failed(
            "unexpected error", f"the process died ({process.exitcode}): try {kind} again with its seed"
        )
        return [row]


if __name__ == "__main__":
    sys.exit(main())
