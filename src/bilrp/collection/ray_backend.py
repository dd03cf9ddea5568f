"""The same work on a Ray cluster: one encoder an actor, batches in, fragments out, one commit a batch.

An actor writes fragments, which nobody sees before the one driver commits them; so a lost worker leaves nothing half
done, its batch goes to another, and nothing is there twice. Files must lie at the same place on every node.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from bilrp.collection import tables
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.core import Collection, open
from bilrp.collection.ingest import Batch, embed, read_source_item
from bilrp.collection.sources import SourceItem
from bilrp.encoder import Encoder
from bilrp.errors import InputError, describe_error, suppress_warnings, to_printable

MAX_ATTEMPTS = 3  # workers that one batch may cost
BATCHES_AHEAD_PER_WORKER = 2  # batches a worker that may be made before their turn to be committed

Job = tuple[Any, ...]


def import_ray() -> Any:
    try:
        import ray as found
    except ImportError:
        raise InputError("--backend ray needs the extra: pip install 'bilrp[ray]'") from None
    return found


class RayWorker:
    """What an actor does: one encoder, and whatever batch comes."""

    def __init__(self, encoder: Encoder) -> None:
        torch.set_num_threads(1)
        self.encoder, self.batch_encoder = encoder, BatchEncoder(encoder)
        self.collection: Collection | None = None

    def ready(self) -> bool:
        return True

    def embed_items(
        self,
        path: str,
        description: Mapping[str, Any],
        source_items: Sequence[SourceItem],
        known_ids: set[str],
        failed_paths: set[str],
    ) -> tuple[Batch, list[str]]:
        """Read and embed things, but for known ids: what came of each, and the fragments that hold the rows."""
        width = description["width"]
        reads = [read_source_item(self.encoder, thing, known_ids) for thing in source_items]
        made = embed(reads, self.batch_encoder, known_ids=known_ids, failed_paths=failed_paths, width=width)
        schema = tables.items_schema(width, description)
        fragments = tables.write_fragments(path, tables.ITEMS_TABLE, made.rows, schema) if made.rows else []
        return Batch(made.outcomes, ()), fragments

    def decompose_items(self, path: str, ids: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """Take items apart: the fragments that hold their parts, and what failed."""
        self.collection = self.collection or open(path, self.encoder)
        there = self.collection.items.by_id
        rows, failed = self.collection.make_part_rows([there[key] for key in ids if key in there])
        return tables.write_fragments(
            path, tables.PARTS_TABLE, rows, tables.parts_schema()
        ) if rows else [], failed


@dataclass
class RayWorkerPool:
    """Actors of a cluster, and what they are doing."""

    make_actor: Callable[[], Any]
    count: int
    failed_starts: int = 0  # since one last answered
    idle: list[Any] = field(default_factory=list)
    running: dict[Any, tuple[int | None, Any]] = field(
        default_factory=dict
    )  # promise → (job's number, actor)

    def start(self) -> None:
        """One more actor; it gets work when it has answered, so that one that finds no place holds up nothing."""
        actor = self.make_actor()
        self.running[actor.ready.remote()] = None, actor

    def run_in_order(
        self,
        method: str,
        jobs: Sequence[Job],
        retry: Callable[[Job, Any], Job | None] = lambda job, found: None,
    ) -> Iterator[Any]:
        """What `method` makes of each job, in the order of the jobs; `retry` may ask for another one in its place."""
        waiting = deque(enumerate(jobs))
        asked, tries, found, turn = dict(enumerate(jobs)), [0] * len(jobs), {}, 0
        while turn < len(jobs):
            while turn in found:
                result = found.pop(turn)
                instead = retry(asked[turn], result)
                if instead is not None:
                    asked[turn] = instead
                    waiting.appendleft((turn, instead))
                    break
                yield result
                turn += 1
            while self.idle and waiting and waiting[0][0] < turn + BATCHES_AHEAD_PER_WORKER * self.count:
                number, job = waiting.popleft()
                actor = self.idle.pop()
                self.running[getattr(actor, method).remote(*job)] = number, actor
            if turn < len(jobs) and turn not in found:
                number, result = self._wait_for_next()
                if number is not None and result is LOST:
                    tries[number] += 1
                    if tries[number] >= MAX_ATTEMPTS:
                        raise InputError(
                            f"one batch cost {MAX_ATTEMPTS} workers: is there enough memory on the nodes?"
                        )
                    waiting.appendleft((number, asked[number]))
                elif number is not None:
                    found[number] = result

    def _wait_for_next(self) -> tuple[int | None, Any]:
        """Wait for any actor: the number of its job and what came of it."""
        (promise, *_), _ = import_ray().wait(list(self.running), num_returns=1)
        number, actor = self.running.pop(promise)
        try:
            result = import_ray().get(promise)
        except import_ray().exceptions.RayTaskError as error:  # what the work itself raised
            raise InputError(f"a worker failed: {describe_error(error.cause)}") from None
        except import_ray().exceptions.RayError as error:  # the worker or its node is gone
            self.failed_starts += number is None
            if self.failed_starts >= max(MAX_ATTEMPTS, self.count):  # a lost node takes fewer along
                last = str(error).strip().splitlines() or [type(error).__name__]
                raise InputError(f"no worker can start: {to_printable(last[-1])}") from None
            self.start()
            return number, LOST
        self.failed_starts = 0
        self.idle.append(actor)
        return number, result


LOST = object()


@contextmanager
def open_worker_pool(
    encoder: Encoder, *, address: str | None, count: int | None = None
) -> Iterator[RayWorkerPool]:
    """Actors on the cluster at an address, or on this machine; one a processor of the cluster."""
    found = import_ray()
    mine = not found.is_initialized()
    if mine:
        here = {"num_cpus": count or os.cpu_count(), "include_dashboard": False}
        given = here if address is None else {"address": address}
        try:
            with suppress_warnings():  # Ray forks to start its processes, which open no collection
                found.init(**given, logging_level="error", log_to_driver=False)
        except Exception as error:
            if address is None:
                raise InputError(
                    f"Ray did not start on this machine ({describe_error(error)}): try again with fewer "
                    f"programs running, or index "
                    "without --backend ray"
                ) from None
            raise InputError(f"no Ray cluster at {address}: {describe_error(error)}") from None
    try:
        many = count or max(1, int(found.cluster_resources().get("CPU", 1)))
        shared, actor = found.put(encoder), found.remote(num_cpus=1)(RayWorker)
        pool = RayWorkerPool(lambda: actor.remote(shared), many)
        for _ in range(many):
            pool.start()
        yield pool
    finally:
        if mine:
            found.shutdown()
