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
from bilrp.collection.batch_encoder import Forward
from bilrp.collection.core import Collection, open
from bilrp.collection.ingest import Batch, embedded, read
from bilrp.collection.sources import Thing
from bilrp.encoder import Encoder
from bilrp.errors import InputError, printable, quiet, reason

TRIES = 3  # workers that one batch may cost
AHEAD = 2  # batches a worker that may be made before their turn to be committed

Job = tuple[Any, ...]


def ray() -> Any:
    try:
        import ray as found
    except ImportError:
        raise InputError("--engine ray needs the extra: pip install 'bilrp[ray]'") from None
    return found


class Worker:
    """What an actor does: one encoder, and whatever batch comes."""

    def __init__(self, encoder: Encoder) -> None:
        torch.set_num_threads(1)
        self.encoder, self.forward = encoder, Forward(encoder)
        self.found: Collection | None = None

    def ready(self) -> bool:
        return True

    def items(
        self, path: str, about: Mapping[str, Any], things: Sequence[Thing], known: set[str], broken: set[str]
    ) -> tuple[Batch, list[str]]:
        """Read and embed things, but for known ids: what came of each, and the fragments that hold the rows."""
        width = about["width"]
        reads = [read(self.encoder, thing, known) for thing in things]
        made = embedded(reads, self.forward, known=known, broken=broken, width=width)
        schema = tables.items_schema(width, about)
        fragments = tables.written(path, tables.ITEMS, made.rows, schema) if made.rows else []
        return Batch(made.outcomes, ()), fragments

    def parts(self, path: str, keys: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """Take items apart: the fragments that hold their parts, and what failed."""
        self.found = self.found or open(path, self.encoder)
        there = self.found.items.by_id
        rows, failed = self.found.taken_apart([there[key] for key in keys if key in there])
        return tables.written(path, tables.PARTS, rows, tables.parts_schema()) if rows else [], failed


@dataclass
class Workers:
    """Actors of a cluster, and what they are doing."""

    make: Callable[[], Any]
    count: int
    unstarted: int = 0  # since one last answered
    idle: list[Any] = field(default_factory=list)
    running: dict[Any, tuple[int | None, Any]] = field(
        default_factory=dict
    )  # promise → (job's number, actor)

    def start(self) -> None:
        """One more actor; it gets work when it has answered, so that one that finds no place holds up nothing."""
        actor = self.make()
        self.running[actor.ready.remote()] = None, actor

    def in_order(
        self,
        method: str,
        jobs: Sequence[Job],
        again: Callable[[Job, Any], Job | None] = lambda job, found: None,
    ) -> Iterator[Any]:
        """What `method` makes of each job, in the order of the jobs; `again` may ask for another one in its place."""
        waiting = deque(enumerate(jobs))
        asked, tries, found, turn = dict(enumerate(jobs)), [0] * len(jobs), {}, 0
        while turn < len(jobs):
            while turn in found:
                result = found.pop(turn)
                instead = again(asked[turn], result)
                if instead is not None:
                    asked[turn] = instead
                    waiting.appendleft((turn, instead))
                    break
                yield result
                turn += 1
            while self.idle and waiting and waiting[0][0] < turn + AHEAD * self.count:
                number, job = waiting.popleft()
                actor = self.idle.pop()
                self.running[getattr(actor, method).remote(*job)] = number, actor
            if turn < len(jobs) and turn not in found:
                number, result = self._next()
                if number is not None and result is LOST:
                    tries[number] += 1
                    if tries[number] >= TRIES:
                        raise InputError(
                            f"one batch cost {TRIES} workers: is there enough memory on the nodes?"
                        )
                    waiting.appendleft((number, asked[number]))
                elif number is not None:
                    found[number] = result

    def _next(self) -> tuple[int | None, Any]:
        """Wait for any actor: the number of its job and what came of it."""
        (promise, *_), _ = ray().wait(list(self.running), num_returns=1)
        number, actor = self.running.pop(promise)
        try:
            result = ray().get(promise)
        except ray().exceptions.RayTaskError as error:  # what the work itself raised
            raise InputError(f"a worker failed: {reason(error.cause)}") from None
        except ray().exceptions.RayError as error:  # the worker or its node is gone
            self.unstarted += number is None
            if self.unstarted >= max(TRIES, self.count):  # a lost node takes fewer along
                last = str(error).strip().splitlines() or [type(error).__name__]
                raise InputError(f"no worker can start: {printable(last[-1])}") from None
            self.start()
            return number, LOST
        self.unstarted = 0
        self.idle.append(actor)
        return number, result


LOST = object()


@contextmanager
def workers(encoder: Encoder, *, address: str | None, count: int | None = None) -> Iterator[Workers]:
    """Actors on the cluster at an address, or on this machine; one a processor of the cluster."""
    found = ray()
    mine = not found.is_initialized()
    if mine:
        here = {"num_cpus": count or os.cpu_count(), "include_dashboard": False}
        given = here if address is None else {"address": address}
        try:
            with quiet():  # Ray forks to start its processes, which open no collection
                found.init(**given, logging_level="error", log_to_driver=False)
        except Exception as error:
            if address is None:
                raise InputError(
                    f"Ray did not start on this machine ({reason(error)}): try again with fewer programs running, or index "
                    "without --engine ray"
                ) from None
            raise InputError(f"no Ray cluster at {address}: {reason(error)}") from None
    try:
        many = count or max(1, int(found.cluster_resources().get("CPU", 1)))
        shared, actor = found.put(encoder), found.remote(num_cpus=1)(Worker)
        pool = Workers(lambda: actor.remote(shared), many)
        for _ in range(many):
            pool.start()
        yield pool
    finally:
        if mine:
            found.shutdown()
