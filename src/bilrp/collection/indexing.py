"""Build a collection: read inputs, embed them in batches and commit; known items are skipped, failures are recorded."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import ArrayLike
from torch import Tensor

from bilrp.collection import iiif, records, tables
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.core import PARTS_PER_COMMIT, Collection, open
from bilrp.collection.index_session import IndexReport, IndexSession
from bilrp.collection.ingest import Batch, ReadResult, read_source_item
from bilrp.collection.ray_backend import EmbedJob, RayWorker, RayWorkerPool, open_worker_pool
from bilrp.collection.sources import SourceItem, decode_path, iter_source_items, make_source_item
from bilrp.collection.table_rows import is_table, iter_rows
from bilrp.encoder import Encoder, EncoderLike, InputLike, as_encoder
from bilrp.encoders import registry
from bilrp.encoders.text.reader import TextReader
from bilrp.errors import InputError, to_printable
from bilrp.progress import Progress, progress_bar

T = TypeVar("T")
BACKENDS = ("local", "ray")
NOTE_MESSAGES = {  # one warning for all texts of a kind
    "truncated": "{count} longer than this encoder reads: the rest is left out",
    "unknown": "{count} mostly made of words unknown to the tokenizer: the model cannot tell these words apart",
}
log = logging.getLogger("bilrp")
ITEMS_PER_COMMIT = 64  # lost at most if the process is killed


def build(
    source: InputLike | Iterable[InputLike],
    encoder: EncoderLike | str,
    path: str | Path,
    *,
    parts: bool = False,
    progress: bool = False,
    column: str | None = None,
    prune: bool = False,
    embeddings: ArrayLike | Tensor | None = None,
) -> Collection:
    """Index a folder, files, texts, records or an iterable of inputs; on an existing collection, what is new or changed.

    Args:
        source: A folder, a file, a list of them, texts, or any iterable of what the encoder reads. Records are dicts, or
            rows of a .csv, .tsv, .jsonl or .parquet file, a DataFrame or an Arrow table: `text` or `file`; `id`, `name`
            and `group` if there are any; other columns are metadata. A record whose id is known replaces the stored one.
            A IIIF manifest (.json, or its address) gives its canvases; downloaded images are stored in NAME.images.
        encoder: An encoder, its name, or a model.
        path: The collection to write, NAME.lance.
        parts: Also compute and store the parts of every item.
        progress: Show a progress bar.
        column: Column of a .csv, .tsv or .jsonl that contains the texts.
        prune: Remove items of the source's folders and files that no longer exist.
        embeddings: Vectors [n, h] that you have already, one row for each record or text; the first rows are compared with
            the encoder's. A column `embedding` of the records does the same.

    >>> import tempfile, torch
    >>> images = [image for image in torch.rand(5, 1, 3, 8, 8)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(build(images, torch.nn.Flatten(), f"{folder}/noise.lance"))
    5
    """
    return build_with_report(
        source,
        encoder,
        path,
        parts=parts,
        progress=progress,
        column=column,
        prune=prune,
        embeddings=embeddings,
    )[0]


def build_with_report(
    source: InputLike | Iterable[InputLike],
    encoder: EncoderLike | str,
    path: str | Path,
    *,
    parts: bool = False,
    progress: bool = False,
    column: str | None = None,
    prune: bool = False,
    embeddings: ArrayLike | Tensor | None = None,
    encoder_options: Mapping[str, object] | None = None,
    backend: str = "local",
    address: str | None = None,
) -> tuple[Collection, IndexReport]:
    """Build a collection and return it with a report; see `build` for the other arguments.

    Args:
        encoder_options: Options that load the encoder by its name (size, resize, weights), stored in the collection.
        backend: "local" or "ray".
        address: Address of a Ray cluster; by default Ray starts on this machine.
    """
    if backend not in BACKENDS:
        raise InputError(f"the backend is one of {', '.join(BACKENDS)}, got {backend}")
    tables.import_lance()  # fail before any work if it is missing
    start = time.perf_counter()
    encoder = registry.load(encoder) if isinstance(encoder, str) else as_encoder(encoder)
    path = str(path)
    source_items = _list_source_items(source, encoder, column, embeddings, Path(path).with_suffix(".images"))
    if not source_items:
        raise InputError(
            f"nothing to index in {_describe_source(source)}: no files or texts that {encoder.name} reads"
        )
    session, batch_encoder = IndexSession.open(path, encoder_options or {}), BatchEncoder(encoder)
    report = session.report
    session.check_encoder_name(encoder)
    records.check_records(source_items, encoder, batch_encoder)
    source_items = session.convert_metadata(source_items)
    known: list[SourceItem] = []
    new: list[SourceItem] = []
    for each in source_items:
        (known if session.is_known(each) else new).append(each)
    for each in known:  # detects another encoder before anything is written
        if not session.described:
            session.describe(encoder, [read_source_item(encoder, each)], batch_encoder)
    with progress_bar(progress) as bar, _open_workers(encoder, backend, address) as workers:
        bar.start("indexing", len(new))
        _index_new(session, encoder, batch_encoder, new, workers, bar)
        scope = _source_paths(source) if prune else []
        by_path = {each.encoded_path: each for each in source_items}
        session.apply_renames(
            by_path, lambda p: p not in by_path and (_is_within(p, scope) or not _exists(path, p))
        )
        if prune:
            report.removed = _prune(path, scope, source_items)
        if session.description is not None and parts:
            report.failed += make_missing_parts(open(path, encoder=encoder), workers, progress)
    if session.description is None:
        name, error = report.failed[0] if report.failed else ("", "nothing could be read")
        raise InputError(f"nothing was indexed: {to_printable(name)}: {error}")
    tables.compact(path)
    collection = open(path, encoder=encoder)
    for kind, count in report.notes.items():
        subject = "1 text is" if count == 1 else f"{count} texts are"
        log.warning("%s", NOTE_MESSAGES[kind].format(count=subject))
    report.seconds = time.perf_counter() - start
    return collection, report


def _index_new(
    session: IndexSession,
    encoder: Encoder,
    batch_encoder: BatchEncoder,
    new: list[SourceItem],
    workers: RayWorkerPool | None,
    bar: Progress,
) -> None:
    """Index new items on workers, if there are any, else locally; then items whose path another item took over."""
    done = 0
    while done < len(new):
        if workers is not None and session.described and not session.changed_ids:
            _index_on_workers(workers, session, new[done:], bar)
            break
        # workers need the description, so the first batches run locally
        batch = new[done:] if workers is None else new[done : done + ITEMS_PER_COMMIT]
        _index_locally(session, encoder, batch_encoder, batch, bar)
        done += len(batch)
    while session.orphaned_paths:
        orphans, session.orphaned_paths = session.orphaned_paths, set()
        batch = [each for each in new if each.encoded_path in orphans]
        _index_locally(session, encoder, batch_encoder, batch, bar)


def _list_source_items(
    source: Any,
    encoder: Encoder,
    column: str | None,
    embeddings: ArrayLike | Tensor | None,
    image_folder: Path,
) -> list[SourceItem]:
    """Return the inputs of a source, with the rows of `embeddings`; images of IIIF manifests are downloaded."""
    entries = source if isinstance(source, list | tuple) else [source]
    if not isinstance(encoder.read, TextReader) and any(map(iiif.is_manifest, entries)):
        source_items = []
        for each in entries:
            source_items += (
                iiif.iter_manifest(each, image_folder)
                if iiif.is_manifest(each)
                else iter_source_items(each, encoder, column=column)
            )
        return source_items if embeddings is None else records.attach_embeddings(source_items, embeddings)
    if is_table(source):
        source = list(iter_rows(source))
    entries = [source] if isinstance(source, Mapping | str | os.PathLike) else source
    if isinstance(entries, Iterable) and not hasattr(entries, "shape"):
        entries = list(entries)
        rows = [each for each in entries if isinstance(each, Mapping)]
        if rows and len(rows) == len(entries):
            source_items = [make_source_item(row, n, column=column) for n, row in enumerate(rows)]
        else:
            whole = source if isinstance(source, str | os.PathLike) else entries
            source_items = list(iter_source_items(whole, encoder, column=column))
    else:
        source_items = list(iter_source_items(source, encoder, column=column))
    return source_items if embeddings is None else records.attach_embeddings(source_items, embeddings)


@contextmanager
def _open_workers(encoder: Encoder, backend: str, address: str | None) -> Iterator[RayWorkerPool | None]:
    """Open the workers of a Ray cluster; None for the local backend."""
    if backend == "local":
        yield None
        return
    with open_worker_pool(encoder, address=address) as workers:
        yield workers


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
    """Index on a cluster. If two workers embed the same content, the later batch is computed again without it."""
    assert session.description is not None
    jobs: list[EmbedJob] = []
    for batch in split_batches(source_items, ITEMS_PER_COMMIT):
        failed_paths = {each.encoded_path for each in batch} & session.failed.keys()
        jobs.append((session.path, session.description, batch, set(), failed_paths))

    def without_duplicates(job: EmbedJob, result: tuple[Batch, list[str]]) -> EmbedJob | None:
        duplicates = result[0].ids & session.ids
        return (*job[:3], job[3] | duplicates, job[4]) if duplicates else None

    for batch, fragments in workers.run_in_order(RayWorker.embed_items, jobs, without_duplicates):
        session.commit(batch, fragments)
        bar.advance(len(batch.outcomes))


def make_missing_parts(
    collection: Collection, workers: RayWorkerPool | None, progress: bool
) -> list[tuple[str, str]]:
    """Compute missing parts, on a cluster if there are workers; return (source, error) of each failure.

    Args:
        collection: The collection.
        workers: Workers of a Ray cluster; None computes locally.
        progress: Show a progress bar.
    """
    if workers is None:
        return collection.make_parts(progress=progress)
    missing, failed = [collection.ids[position] for position in collection.positions_without_parts()], []
    while missing and not collection.parts.ids:  # workers append to a table that exists
        failed += collection.make_parts([collection.items.by_id[missing.pop(0)]])
    jobs = [(collection.path, batch) for batch in split_batches(missing, PARTS_PER_COMMIT)]
    with progress_bar(progress) as bar:
        bar.start("parts", len(missing))
        for fragments, failures in workers.run_in_order(RayWorker.decompose_items, jobs):
            tables.commit_fragments(collection.path, tables.PARTS_TABLE, fragments)
            failed += failures
            bar.advance(PARTS_PER_COMMIT)
    return failed


def _read_ahead(
    source_items: Sequence[SourceItem], encoder: Encoder, session: IndexSession, pool: ThreadPoolExecutor
) -> Iterator[list[ReadResult]]:
    """Yield inputs in order, one commit at a time, while threads read the next ones."""
    remaining = iter(source_items)
    waiting: list[Future[ReadResult]] = []
    while True:
        more = islice(remaining, 2 * ITEMS_PER_COMMIT - len(waiting))
        waiting += [pool.submit(read_source_item, encoder, each, session.indexed_ids) for each in more]
        if not waiting:
            return
        batch, waiting = waiting[:ITEMS_PER_COMMIT], waiting[ITEMS_PER_COMMIT:]
        yield [each.result() for each in batch]


def _source_paths(source: Any) -> list[Path]:
    """Return the folders and files of a source."""
    entries = [source] if isinstance(source, str | os.PathLike) else source
    return [
        Path(each).resolve()
        for each in entries
        if isinstance(each, str | os.PathLike) and os.path.exists(each)  # other strings are texts
    ]


def _is_within(encoded_path: str, scope: Sequence[Path]) -> bool:
    """Return whether a file, or the file of a line `FILE#NUMBER`, is one of these files or inside these folders."""
    files = (
        Path(decode_path(encoded_path)),
        Path(decode_path(encoded_path.rpartition("#")[0] or encoded_path)),
    )
    return any(file.is_relative_to(path) for path in scope for file in files)


def _exists(path: str, encoded_path: str) -> bool:
    """Return whether a file, or the file of a line, exists; true for items that did not come from a file.

    Files added in the app are relative to the collection at `path`.
    """
    files = (encoded_path, encoded_path.rpartition("#")[0])
    return not encoded_path or any(
        os.path.lexists(os.path.join(path, decode_path(file))) for file in files if file
    )


def _prune(path: str, scope: Sequence[Path], source_items: Sequence[SourceItem]) -> int:
    """Remove items of these folders and files that no longer exist; a text exists if any line or row contains it."""
    dataset = tables.open_table(path, tables.ITEMS_TABLE)
    if dataset is None:
        return 0
    paths = {each.encoded_path for each in source_items if isinstance(each.content, Path)}
    ids = {each.content_id() for each in source_items if isinstance(each.content, str)}
    ids |= {each.make_failed_id() for each in source_items}
    rows = tables.read_columns(dataset, ["id", "source"])
    gone = [
        key
        for key, source in zip(rows["id"], rows["source"], strict=True)
        if source not in paths and key not in ids and _is_within(source, scope)
    ]
    for each in gone:
        for name in (tables.ITEMS_TABLE, *tables.DERIVED_TABLES):
            tables.delete_rows(path, name, each)
    return len(gone)


def split_batches(sequence: Sequence[T], size: int) -> list[Sequence[T]]:
    """Split a sequence into batches of a size; the last may be smaller.

    >>> split_batches([1, 2, 3, 4, 5], 2)
    [[1, 2], [3, 4], [5]]
    """
    return [sequence[start : start + size] for start in range(0, len(sequence), size)]


def _describe_source(source: object) -> str:
    return to_printable(str(source)) if isinstance(source, str | Path) else json.dumps(type(source).__name__)
