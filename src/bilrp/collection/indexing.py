"""Index a source: read, embed in batches, commit; what is there already is left alone, what is broken is kept as failed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bilrp.collection import tables
from bilrp.collection.forward import Forward
from bilrp.collection.holding import Collection, open
from bilrp.collection.reading import Read, read
from bilrp.collection.sources import Thing, things
from bilrp.collection.state import State
from bilrp.encoder import Encoder, Model, as_encoder
from bilrp.encoders import families
from bilrp.engine.progress import tracking
from bilrp.errors import InputError, printable

COMMIT = 64  # items of one commit: what a kill can cost at most


@dataclass(frozen=True)
class Report:
    """What indexing did: how many are new, were there before, are the same as another, and which are broken, and why."""

    added: int = 0
    known: int = 0
    same: int = 0
    removed: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0


def build(
    source: Any,
    encoder: Model | str,
    path: str | Path,
    *,
    parts: bool = False,
    progress: bool = False,
    column: str | None = None,
    prune: bool = False,
) -> Collection:
    """Index a folder, files, texts or any iterable of what the encoder reads; adding again does what is new or changed.

    >>> import tempfile, torch
    >>> images = [image for image in torch.rand(5, 1, 3, 8, 8)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(build(images, torch.nn.Flatten(), f"{folder}/noise.lance"))
    5
    """
    return indexed(source, encoder, path, parts=parts, progress=progress, column=column, prune=prune)[0]


def indexed(
    source: Any,
    encoder: Model | str,
    path: str | Path,
    *,
    parts: bool = False,
    progress: bool = False,
    column: str | None = None,
    prune: bool = False,
    asked: Mapping[str, Any] | None = None,
) -> tuple[Collection, Report]:
    """What `build` does, and a report of it; `asked` is what else the encoder's name needs to make it again (size, fit)."""
    start = time.perf_counter()
    chosen = families.load(encoder) if isinstance(encoder, str) else as_encoder(encoder)
    path = str(path)
    listed = list(things(source, chosen, column=column))
    if not listed:
        raise InputError(f"nothing to index in {_called(source)}: no files or texts that {chosen.name} reads")
    state = State.of(path, asked or {})
    tally = state.tally
    fresh = [thing for thing in listed if not state.knows(thing)]
    with tracking(progress) as bar, ThreadPoolExecutor(2) as pool:
        bar.start("indexing", len(fresh))
        forward = Forward(chosen)
        for reads in _windows(fresh, chosen, state, pool):
            state.describe(chosen, reads, forward)
            state.commit(state.embedded(reads, forward))
            bar.advance(len(reads))
        if state.orphans:  # what was the same as something that has changed since
            again = [read(chosen, thing) for thing in fresh if thing.place in state.orphans]
            state.commit(state.embedded(again, forward))
    if state.about is None:
        first = tally.failed[0] if tally.failed else ("", "nothing could be read")
        raise InputError(f"nothing was indexed: {printable(first[0])}: {first[1]}")
    if prune:
        tally.removed = _prune(path, source, {thing.place for thing in listed})
    found = open(path, encoder=chosen)
    if parts:
        found.make_parts(progress=progress)
    tables.compact(path)
    seconds = time.perf_counter() - start
    return found, Report(tally.added, tally.known, tally.same, tally.removed, tuple(tally.failed), seconds)


def _windows(
    fresh: Sequence[Thing], encoder: Encoder, state: State, pool: ThreadPoolExecutor
) -> Iterator[list[Read]]:
    """Things read ahead of their turn, a commit's worth at a time, in the order of the source."""
    left = iter(fresh)
    waiting: list[Future[Read]] = []
    while True:
        more = islice(left, 2 * COMMIT - len(waiting))
        waiting += [pool.submit(read, encoder, thing, state.ids) for thing in more]
        if not waiting:
            return
        now, waiting = waiting[:COMMIT], waiting[COMMIT:]
        yield [each.result() for each in now]


def _prune(path: str, source: Any, there: set[str]) -> int:
    """Remove items of these folders whose files are gone."""
    folders = [Path(s) for s in ([source] if isinstance(source, str | Path) else source) if Path(s).is_dir()]
    dataset = tables.opened(path, tables.ITEMS)
    if dataset is None:
        return 0
    rows = tables.columns(dataset, ["id", "source"])
    gone = [
        i
        for i, source in zip(rows["id"], rows["source"], strict=True)
        if source not in there and any(Path(source).is_relative_to(f.resolve()) for f in folders)
    ]
    for each in gone:
        tables.deleted(path, tables.ITEMS, each)
        tables.deleted(path, tables.PARTS, each)
    return len(gone)


def _called(source: Any) -> str:
    return printable(str(source)) if isinstance(source, str | Path) else json.dumps(type(source).__name__)
