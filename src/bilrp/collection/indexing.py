"""Index a source: read, embed in batches, commit; what is there already is left alone, what is broken is kept as failed."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.collection import tables
from bilrp.collection.batch_encoder import Forward
from bilrp.collection.core import TOGETHER, Collection, open
from bilrp.collection.ingest import Batch, Read, read
from bilrp.collection.sources import Thing, meant, things
from bilrp.collection.index_session import State
from bilrp.encoder import Encoder, Model, as_encoder
from bilrp.encoders import registry
from bilrp.progress import Progress, tracking
from bilrp.errors import InputError, printable

if TYPE_CHECKING:
    from bilrp.collection.ray_backend import Workers

ENGINES = ("here", "ray")
NOTED = {  # one line for all texts of a kind
    "truncated": "{count} longer than this encoder reads: the rest is left out",
    "unknown": "{count} for the most part of words that the tokenizer does not know: all the same to the model",
}
log = logging.getLogger("bilrp")
COMMIT = 64  # items of one commit: what a kill can cost at most


@dataclass(frozen=True)
class Report:
    """What indexing did: how many are new, were there before, are the same as another, and which are broken, and why.

    `truncated` counts new texts that are longer than the encoder reads.
    """

    added: int = 0
    known: int = 0
    same: int = 0
    removed: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    truncated: int = 0
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
    engine: str = "here",
    address: str | None = None,
) -> tuple[Collection, Report]:
    """What `build` does, and a report of it; `asked` is what else the encoder's name needs to make it again (size, fit)."""
    if engine not in ENGINES:
        raise InputError(f"the engine is one of {', '.join(ENGINES)}, got {engine}")
    tables.lance()  # is it there? Better asked before anything is worked out for it
    start = time.perf_counter()
    chosen = registry.load(encoder) if isinstance(encoder, str) else as_encoder(encoder)
    path = str(path)
    listed = list(things(source, chosen, column=column))
    if not listed:
        raise InputError(f"nothing to index in {_called(source)}: no files or texts that {chosen.name} reads")
    state = State.of(path, asked or {})
    tally = state.tally
    forward, done = Forward(chosen), 0
    state.check_name(chosen)
    known: list[Thing] = []
    fresh: list[Thing] = []
    for thing in listed:
        (known if state.knows(thing) else fresh).append(thing)
    for thing in known:  # another encoder is noticed before anything is done
        if not state.described:
            state.describe(chosen, [read(chosen, thing)], forward)
    with tracking(progress) as bar, _workers(chosen, engine, address) as crew:
        bar.start("indexing", len(fresh))
        while done < len(fresh):  # on a cluster, until it is known what the collection says of itself
            if crew is not None and state.described:
                _by(crew, state, fresh[done:], bar)
                break
            some = fresh[done:] if crew is None else fresh[done : done + COMMIT]
            _here(state, chosen, forward, some, bar)
            done += len(some)
        while state.orphans:  # what was the same as something that has changed since
            alone, state.orphans = state.orphans, set()
            _here(state, chosen, forward, [thing for thing in fresh if thing.place in alone], bar)
        places, scope = {thing.place: thing for thing in listed}, _paths(source) if prune else []
        state.move(
            places, lambda place: place not in places and (_within(place, scope) or not _lies(path, place))
        )
        if prune:
            tally.removed = _prune(path, scope, listed)
        if state.about is not None and parts:
            tally.failed += take_apart(open(path, encoder=chosen), crew, progress)
    if state.about is None:
        first = tally.failed[0] if tally.failed else ("", "nothing could be read")
        raise InputError(f"nothing was indexed: {printable(first[0])}: {first[1]}")
    tables.compact(path)
    found = open(path, encoder=chosen)
    seconds = time.perf_counter() - start
    for kind, count in tally.notes.items():
        log.warning("%s", NOTED[kind].format(count="1 text is" if count == 1 else f"{count} texts are"))
    counts = tally.added, tally.known, tally.same, tally.removed
    return found, Report(*counts, tuple(tally.failed), tally.notes["truncated"], seconds)


@contextmanager
def _workers(encoder: Encoder, engine: str, address: str | None) -> Iterator[Workers | None]:
    """The workers of a cluster, where that is the engine."""
    if engine == "here":
        yield None
        return
    from bilrp.collection.ray_backend import workers

    with workers(encoder, address=address) as found:
        yield found


def _here(state: State, encoder: Encoder, forward: Forward, some: Sequence[Thing], bar: Progress) -> None:
    with ThreadPoolExecutor(2) as pool:
        for reads in _windows(some, encoder, state, pool):
            state.describe(encoder, reads, forward)
            state.commit(state.embedded(reads, forward))
            bar.advance(len(reads))


def _by(crew: Workers, state: State, some: Sequence[Thing], bar: Progress) -> None:
    """By the workers of a cluster. Two of them may meet one content: then the later batch is made again without it."""
    jobs = [
        (state.path, state.about, few, set(), {thing.place for thing in few} & state.failed.keys())
        for few in batched(some, COMMIT)
    ]

    def again(job: tuple[Any, ...], found: tuple[Batch, list[str]]) -> tuple[Any, ...] | None:
        twice = found[0].ids & state.ids
        return (*job[:3], job[3] | twice, job[4]) if twice else None

    for batch, fragments in crew.in_order("items", jobs, again):
        state.commit(batch, fragments)
        bar.advance(len(batch.outcomes))


def take_apart(found: Collection, crew: Workers | None, progress: bool) -> list[tuple[str, str]]:
    """Make the parts that are missing; on a cluster here until there is a table of them. What failed, and why."""
    if crew is None:
        return found.make_parts(progress=progress)
    missing, failed = [found.ids[position] for position in found.without_parts()], []
    while missing and not found.parts.ids:
        failed += found.make_parts([found.items.by_id[missing.pop(0)]])
    jobs = [(found.path, few) for few in batched(missing, TOGETHER)]
    with tracking(progress) as bar:
        bar.start("parts", len(missing))
        for fragments, broken in crew.in_order("parts", jobs):
            tables.committed(found.path, tables.PARTS, fragments)
            failed += broken
            bar.advance(TOGETHER)
    return failed


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


def _paths(source: Any) -> list[Path]:
    """The folders and files of a source."""
    several = [source] if isinstance(source, str | os.PathLike) else source
    return [
        Path(each).resolve()
        for each in several
        if isinstance(each, str | os.PathLike) and os.path.exists(each)  # else it is a text
    ]


def _within(place: str, scope: Sequence[Path]) -> bool:
    """Does a file, or the file that a line is of, lie in one of these folders, or is it one of these files?"""
    files = (Path(meant(place)), Path(meant(place.rpartition("#")[0] or place)))
    return any(file.is_relative_to(path) for path in scope for file in files)


def _lies(path: str, place: str) -> bool:
    """Is the file there, or the one whose line it is? What came from no file is not gone either.

    What the app added lies inside the collection at `path`.
    """
    files = (place, place.rpartition("#")[0])
    return not place or any(os.path.lexists(os.path.join(path, meant(file))) for file in files if file)


def _prune(path: str, scope: Sequence[Path], listed: Sequence[Thing]) -> int:
    """Remove items of these folders and files that are no longer there; a text is there where any line or row has it."""
    dataset = tables.opened(path, tables.ITEMS)
    if dataset is None:
        return 0
    there = {thing.place for thing in listed if isinstance(thing.content, Path)}
    texts = {thing.key() for thing in listed if isinstance(thing.content, str)}
    broken = {thing.place_key() for thing in listed}
    rows = tables.columns(dataset, ["id", "source"])
    gone = [
        key
        for key, source in zip(rows["id"], rows["source"], strict=True)
        if source not in there and key not in texts and key not in broken and _within(source, scope)
    ]
    for each in gone:
        tables.deleted(path, tables.ITEMS, each)
        tables.deleted(path, tables.PARTS, each)
    return len(gone)


def batched(some: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Pieces of a size, the last may be smaller.

    >>> batched([1, 2, 3, 4, 5], 2)
    [[1, 2], [3, 4], [5]]
    """
    return [some[at : at + size] for at in range(0, len(some), size)]


def _called(source: Any) -> str:
    return printable(str(source)) if isinstance(source, str | Path) else json.dumps(type(source).__name__)
