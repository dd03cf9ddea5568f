"""Indexing on a Ray cluster: each actor has an encoder and writes fragments; the driver commits one batch at a time.

Fragments are invisible until they are committed, so the batch of a lost worker is simply given to another one. Files must
have the same path on every node.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

import torch

from bilrp.collection import tables
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.core import Collection, open
from bilrp.collection.description import Description
from bilrp.collection.ingest import Batch, embed, read_source_item
from bilrp.collection.sources import SourceItem
from bilrp.encoder import Encoder
from bilrp.errors import InputError, describe_error, suppress_warnings, to_printable

MAX_ATTEMPTS = 3  # workers that may be lost on one batch
BATCHES_AHEAD_PER_WORKER = 2  # batches per worker that may wait for an earlier one to be committed

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
EmbedJob: TypeAlias = tuple[str, Description, Sequence[SourceItem], set[str], set[str]]
"""The arguments of `RayWorker.embed_items`."""


def import_ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise InputError("--backend ray needs the extra: pip install 'bilrp[ray]'") from None
    return ray


class RayWorker:
    """The Ray actor: one encoder that embeds or decomposes batches."""

    def __init__(self, encoder: Encoder) -> None:
        torch.set_num_threads(1)
        self.encoder, self.batch_encoder = encoder, BatchEncoder(encoder)
        self.collection: Collection | None = None

    def ready(self) -> bool:
        return True

    def embed_items(
        self,
        path: str,
        description: Description,
        source_items: Sequence[SourceItem],
        known_ids: set[str],
        failed_paths: set[str],
    ) -> tuple[Batch, list[str]]:
        """Read and embed inputs, write their rows as fragments, and return the outcomes and the fragments.

        Args:
            path, description: The collection, and its description.
            source_items: The inputs.
            known_ids, failed_paths: As for `ingest.embed`.
        """
        width = description["width"]
        results = [read_source_item(self.encoder, each, known_ids) for each in source_items]
        batch = embed(
            results, self.batch_encoder, known_ids=known_ids, failed_paths=failed_paths, width=width
        )
        schema = tables.items_schema(width, description)
        return Batch(batch.outcomes, ()), tables.write_fragments(path, tables.ITEMS_TABLE, batch.rows, schema)

    def decompose_items(self, path: str, ids: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """Decompose items, write their parts as fragments, and return these and (source, error) of each failure."""
        self.collection = self.collection or open(path, self.encoder)
        by_id = self.collection.items.by_id
        rows, failed = self.collection.make_part_rows([by_id[key] for key in ids if key in by_id])
        return tables.write_fragments(path, tables.PARTS_TABLE, rows, tables.parts_schema()), failed


@dataclass
class RayWorkerPool:
    """The actors of a cluster and their running jobs."""

    make_actor: Callable[[], Any]
    count: int
    failed_starts: int = 0  # since an actor last responded
    idle: list[Any] = field(default_factory=list)
    running: dict[Any, tuple[int | None, Any]] = field(default_factory=dict)  # future → (job number, actor)

    def start(self) -> None:
        """Start an actor; it gets jobs after it has responded, so that an actor that cannot be placed blocks nothing."""
        actor = self.make_actor()
        self.running[actor.ready.remote()] = None, actor

    def run_in_order(
        self,
        method: Callable[[RayWorker, *Arguments], Result],
        jobs: Sequence[tuple[*Arguments]],
        retry: Callable[[tuple[*Arguments], Result], tuple[*Arguments] | None] = lambda job, result: None,
    ) -> Iterator[Result]:
        """Run a method of the actors on each job and yield the results in the order of the jobs.

        Args:
            method, jobs: The method, and the arguments of each call.
            retry: Returns a job to run instead of one whose result is not usable, else None.
        """
        current_jobs, waiting = list(jobs), deque(range(len(jobs)))
        attempts, results, turn = [0] * len(jobs), {}, 0
        while turn < len(jobs):
            while turn in results:
                result = results.pop(turn)
                new_job = retry(current_jobs[turn], result)
                if new_job is not None:
                    current_jobs[turn] = new_job
                    waiting.appendleft(turn)
                    break
                yield result
                turn += 1
            while self.idle and waiting and waiting[0] < turn + BATCHES_AHEAD_PER_WORKER * self.count:
                number, actor = waiting.popleft(), self.idle.pop()
                self.running[getattr(actor, method.__name__).remote(*current_jobs[number])] = number, actor
            if turn < len(jobs) and turn not in results:
                number, result = self._wait_for_next()
                if number is not None and result is LOST:
                    attempts[number] += 1
                    if attempts[number] >= MAX_ATTEMPTS:
                        raise InputError(
                            f"{MAX_ATTEMPTS} workers were lost on one batch: check the memory of the nodes"
                        )
                    waiting.appendleft(number)
                elif number is not None:
                    results[number] = result

    def _wait_for_next(self) -> tuple[int | None, Any]:
        """Wait for any actor; return its job number (None: it has started) and the result, or `LOST`."""
        ray = import_ray()
        (future, *_), _ = ray.wait(list(self.running), num_returns=1)
        number, actor = self.running.pop(future)
        try:
            result = ray.get(future)
        except ray.exceptions.RayTaskError as error:  # raised by the method itself
            raise InputError(f"a worker failed: {describe_error(error.cause)}") from None
        except ray.exceptions.RayError as error:  # the worker or its node is lost
            self.failed_starts += number is None
            if self.failed_starts >= max(MAX_ATTEMPTS, self.count):  # a lost node has fewer workers
                last = str(error).strip().splitlines() or [type(error).__name__]
                raise InputError(f"no worker can start: {to_printable(last[-1])}") from None
            self.start()
            return number, LOST
        self.failed_starts = 0
        self.idle.append(actor)
        return number, result


LOST = object()


@contextmanager
def open_worker_pool(encoder: Encoder, *, address: str | None) -> Iterator[RayWorkerPool]:
    """Start one actor per CPU of a Ray cluster.

    Args:
        encoder: The encoder, copied to every actor.
        address: Address of a running cluster; None starts Ray on this machine.
    """
    ray = import_ray()
    start_ray = not ray.is_initialized()
    if start_ray:
        local = {"num_cpus": os.cpu_count(), "include_dashboard": False}
        options = local if address is None else {"address": address}
        try:
            with suppress_warnings():  # about forks: the processes that Ray forks do not open a collection
                ray.init(**options, logging_level="error", log_to_driver=False)
        except Exception as error:
            if address is None:
                raise InputError(
                    f"Ray did not start on this machine ({describe_error(error)}): close other programs, or index "
                    "without --backend ray"
                ) from None
            raise InputError(f"no Ray cluster at {address}: {describe_error(error)}") from None
    try:
        count = max(1, int(ray.cluster_resources().get("CPU", 1)))
        shared_encoder, actor = ray.put(encoder), ray.remote(num_cpus=1)(RayWorker)
        pool = RayWorkerPool(lambda: actor.remote(shared_encoder), count)
        for _ in range(count):
            pool.start()
        yield pool
    finally:
        if start_ray:
            ray.shutdown()
