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
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.core import PARTS_PER_COMMIT, Collection, open
from bilrp.collection.index_session import IndexSession
from bilrp.collection.ingest import Batch, ReadResult, read_source_item
from bilrp.collection.sources import SourceItem, decode_path, iter_source_items
from bilrp.encoder import Encoder, EncoderLike, as_encoder
from bilrp.encoders import registry
from bilrp.errors import InputError, to_printable
from bilrp.progress import Progress, progress_bar

if TYPE_CHECKING:
    from bilrp.collection.ray_backend import RayWorkerPool

BACKENDS = ("local", "ray")
NOTE_MESSAGES = {  # one line for all texts of a kind
    "truncated": "{count} longer than this encoder reads: the rest is left out",
    "unknown": "{count} for the most part of words that the tokenizer does not know: all the same to the model",
}
log = logging.getLogger("bilrp")
ITEMS_PER_COMMIT = 64  # items of one commit: what a kill can cost at most


@dataclass(frozen=True)
class IndexReport:
    """What indexing did: how many are new, were there before, are the same as another, and which are broken, and why.

    `truncated` counts new texts that are longer than the encoder reads.
    """

    added: int = 0
    unchanged: int = 0
    duplicates: int = 0
    removed: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    truncated: int = 0
    seconds: float = 0.0


def build(
    source: Any,
    encoder: EncoderLike | str,
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
    return build_with_report(
        source, encoder, path, parts=parts, progress=progress, column=column, prune=prune
    )[0]


def build_with_report(
    source: Any,
    encoder: EncoderLike | str,
    path: str | Path,
    *,
    parts: bool = False,
    progress: bool = False,
    column: str | None = None,
    prune: bool = False,
    encoder_options: Mapping[str, Any] | None = None,
    backend: str = "local",
    address: str | None = None,
) -> tuple[Collection, IndexReport]:
    """What `build` does, and a report of it; `encoder_options` is what else the encoder's name needs to make it again
    (size, resize).
    """
    if backend not in BACKENDS:
        raise InputError(f"the backend is one of {', '.join(BACKENDS)}, got {backend}")
    tables.import_lance()  # is it there? Better asked before anything is worked out for it
    start = time.perf_counter()
    chosen = registry.load(encoder) if isinstance(encoder, str) else as_encoder(encoder)
    path = str(path)
    listed = list(iter_source_items(source, chosen, column=column))
    if not listed:
        raise InputError(
            f"nothing to index in {_describe_source(source)}: no files or texts that {chosen.name} reads"
        )
    state = IndexSession.open(path, encoder_options or {})
    tally = state.tally
    forward, done = BatchEncoder(chosen), 0
    state.check_encoder_name(chosen)
    known: list[SourceItem] = []
    fresh: list[SourceItem] = []
    for thing in listed:
        (known if state.is_known(thing) else fresh).append(thing)
    for thing in known:  # another encoder is noticed before anything is done
        if not state.described:
            state.describe(chosen, [read_source_item(chosen, thing)], forward)
    with progress_bar(progress) as bar, _open_workers(chosen, backend, address) as crew:
        bar.start("indexing", len(fresh))
        while done < len(fresh):  # on a cluster, until it is known what the collection says of itself
            if crew is not None and state.described:
                _index_on_workers(crew, state, fresh[done:], bar)
                break
            some = fresh[done:] if crew is None else fresh[done : done + ITEMS_PER_COMMIT]
            _index_locally(state, chosen, forward, some, bar)
            done += len(some)
        while state.orphaned_paths:  # what was the same as something that has changed since
            alone, state.orphaned_paths = state.orphaned_paths, set()
            _index_locally(
                state, chosen, forward, [thing for thing in fresh if thing.encoded_path in alone], bar
            )
        places, scope = (
            {thing.encoded_path: thing for thing in listed},
            _source_paths(source) if prune else [],
        )
        state.apply_renames(
            places,
            lambda place: place not in places and (_is_within(place, scope) or not _exists(path, place)),
        )
        if prune:
            tally.removed = _prune(path, scope, listed)
        if state.description is not None and parts:
            tally.failed += make_missing_parts(open(path, encoder=chosen), crew, progress)
    if state.description is None:
        first = tally.failed[0] if tally.failed else ("", "nothing could be read")
        raise InputError(f"nothing was indexed: {to_printable(first[0])}: {first[1]}")
    tables.compact(path)
    found = open(path, encoder=chosen)
    seconds = time.perf_counter() - start
    for kind, count in tally.notes.items():
        log.warning(
            "%s", NOTE_MESSAGES[kind].format(count="1 text is" if count == 1 else f"{count} texts are")
        )
    counts = tally.added, tally.unchanged, tally.duplicates, tally.removed
    return found, IndexReport(*counts, tuple(tally.failed), tally.notes["truncated"], seconds)


@contextmanager
def _open_workers(encoder: Encoder, backend: str, address: str | None) -> Iterator[RayWorkerPool | None]:
    """The workers of a cluster, where that is the backend."""
    if backend == "local":
        yield None
        return
    from bilrp.collection.ray_backend import open_worker_pool

    with open_worker_pool(encoder, address=address) as found:
        yield found


def _index_locally(
    session: IndexSession,
    encoder: Encoder,
    batch_encoder: BatchEncoder,
    source_items: Sequence[SourceItem],
    bar: Progress,
) -> None:
    with ThreadPoolExecutor(2) as pool:
        for reads in _read_ahead(source_items, encoder, session, pool):
            session.describe(encoder, reads, batch_encoder)
            session.commit(session.embed(reads, batch_encoder))
            bar.advance(len(reads))


def _index_on_workers(
    workers: RayWorkerPool, session: IndexSession, source_items: Sequence[SourceItem], bar: Progress
) -> None:
    """By the workers of a cluster. Two of them may meet one content: then the later batch is made again without it."""
    jobs = [
        (
            session.path,
            session.description,
            few,
            set(),
            {thing.encoded_path for thing in few} & session.failed.keys(),
        )
        for few in split_batches(source_items, ITEMS_PER_COMMIT)
    ]

    def again(job: tuple[Any, ...], found: tuple[Batch, list[str]]) -> tuple[Any, ...] | None:
        twice = found[0].ids & session.ids
        return (*job[:3], job[3] | twice, job[4]) if twice else None

    for batch, fragments in workers.run_in_order("embed_items", jobs, again):
        session.commit(batch, fragments)
        bar.advance(len(batch.outcomes))


def make_missing_parts(
    collection: Collection, workers: RayWorkerPool | None, progress: bool
) -> list[tuple[str, str]]:
    """Make the parts that are missing; on a cluster here until there is a table of them. What failed, and why."""
    if workers is None:
        return collection.make_parts(progress=progress)
    missing, failed = [collection.ids[position] for position in collection.positions_without_parts()], []
    while missing and not collection.parts.ids:
        failed += collection.make_parts([collection.items.by_id[missing.pop(0)]])
    jobs = [(collection.path, few) for few in split_batches(missing, PARTS_PER_COMMIT)]
    with progress_bar(progress) as bar:
        bar.start("parts", len(missing))
        for fragments, broken in workers.run_in_order("decompose_items", jobs):
            tables.commit_fragments(collection.path, tables.PARTS_TABLE, fragments)
            failed += broken
            bar.advance(PARTS_PER_COMMIT)
    return failed


def _read_ahead(
    source_items: Sequence[SourceItem], encoder: Encoder, session: IndexSession, pool: ThreadPoolExecutor
) -> Iterator[list[ReadResult]]:
    """Things read ahead of their turn, a commit's worth at a time, in the order of the source."""
    left = iter(source_items)
    waiting: list[Future[ReadResult]] = []
    while True:
        more = islice(left, 2 * ITEMS_PER_COMMIT - len(waiting))
        waiting += [pool.submit(read_source_item, encoder, thing, session.ids) for thing in more]
        if not waiting:
            return
        now, waiting = waiting[:ITEMS_PER_COMMIT], waiting[ITEMS_PER_COMMIT:]
        yield [each.result() for each in now]


def _source_paths(source: Any) -> list[Path]:
    """The folders and files of a source."""
    several = [source] if isinstance(source, str | os.PathLike) else source
    return [
        Path(each).resolve()
        for each in several
        if isinstance(each, str | os.PathLike) and os.path.exists(each)  # else it is a text
    ]


def _is_within(encoded_path: str, scope: Sequence[Path]) -> bool:
    """Does a file, or the file that a line is of, lie in one of these folders, or is it one of these files?"""
    files = (
        Path(decode_path(encoded_path)),
        Path(decode_path(encoded_path.rpartition("#")[0] or encoded_path)),
    )
    return any(file.is_relative_to(path) for path in scope for file in files)


def _exists(path: str, encoded_path: str) -> bool:
    """Is the file there, or the one whose line it is? What came from no file is not gone either.

    What the app added lies inside the collection at `path`.
    """
    files = (encoded_path, encoded_path.rpartition("#")[0])
    return not encoded_path or any(
        os.path.lexists(os.path.join(path, decode_path(file))) for file in files if file
    )


def _prune(path: str, scope: Sequence[Path], source_items: Sequence[SourceItem]) -> int:
    """Remove items of these folders and files that are no longer there; a text is there where any line or row has it."""
    dataset = tables.open_table(path, tables.ITEMS_TABLE)
    if dataset is None:
        return 0
    there = {thing.encoded_path for thing in source_items if isinstance(thing.content, Path)}
    texts = {thing.content_id() for thing in source_items if isinstance(thing.content, str)}
    broken = {thing.failed_id() for thing in source_items}
    rows = tables.read_columns(dataset, ["id", "source"])
    gone = [
        key
        for key, source in zip(rows["id"], rows["source"], strict=True)
        if source not in there and key not in texts and key not in broken and _is_within(source, scope)
    ]
    for each in gone:
        tables.delete_rows(path, tables.ITEMS_TABLE, each)
        tables.delete_rows(path, tables.PARTS_TABLE, each)
    return len(gone)


def split_batches(sequence: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Pieces of a size, the last may be smaller.

    >>> split_batches([1, 2, 3, 4, 5], 2)
    [[1, 2], [3, 4], [5]]
    """
    return [sequence[at : at + size] for at in range(0, len(sequence), size)]


def _describe_source(source: Any) -> str:
    return to_printable(str(source)) if isinstance(source, str | Path) else json.dumps(type(source).__name__)
