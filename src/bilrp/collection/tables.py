"""The two tables of a collection, kept by Lance: items with their embeddings, and parts. Every write is one commit.

A commit is whole or not there, whatever happens to the process that makes it; two processes may append at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import numpy as np

from bilrp.collection import file_checksums
from bilrp.errors import InputError, describe_error, import_optional, wrap_errors

FORMAT_VERSION = 1
METADATA_KEY = b"bilrp"
BLOCK_BYTES = 16 * 2**20  # bytes of embeddings read at once
ITEMS_TABLE, PARTS_TABLE = "items.lance", "parts.lance"
ROWS_PER_FRAGMENT = {ITEMS_TABLE: 2**14, PARTS_TABLE: 2**10}  # rows of a large fragment
MIN_FRAGMENTS_TO_COMPACT = 32  # fragments: so many are merged
VERSION_RETENTION = timedelta(days=1)
DAMAGED_MESSAGE = "the collection is damaged: bilrp check NAME.lance says where"


def import_lance() -> Any:
    return import_optional("lance", "collection", "collections")


def items_schema(width: int, description: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("group", pa.string()),
            ("source", pa.string()),
            ("stamp", pa.string()),
            ("text", pa.string()),
            ("thumbnail", pa.binary()),
            ("view", pa.string()),
            ("embedding", pa.list_(pa.float32(), width)),
            ("failed", pa.string()),
        ],
        metadata={METADATA_KEY: json.dumps(dict(description)).encode()},
    )


def parts_schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.string()),
            ("columns", pa.binary()),
            # compressed they would be a sixth smaller, and three times as slow to read
            pa.field("values", pa.binary(), metadata={"lance-encoding:compression": "none"}),
            ("error", pa.float64()),
            ("frame", pa.binary()),
        ]
    )


def open_table(path: str, name: str) -> Any | None:
    """The table at its latest version; None where there is none."""
    place = table_path(path, name)
    if "://" not in place and not os.path.isdir(place):
        return None
    with wrap_errors(f"{path} is not a readable collection"):
        try:
            return import_lance().dataset(place)
        except ValueError as error:
            if "not found" in str(error).lower():
                return None
            raise


def open_verified(path: str, name: str, verified_files: set[str] | None = None) -> Any | None:
    """The table at its latest version, after its files were compared with their checksums; None where there is none.

    Contents are compared up to `file_checksums.MAX_VERIFIED_BYTES` of a table, of a larger one sizes and the version:
    `bilrp check`
    reads all of it. Files without a checksum, of earlier versions of this program, are taken as they are.

    Args:
        path: The collection.
        name: The table.
        verified_files: Files that need not be read again; those that were read now are added.
    """
    if "://" in path or not os.path.isdir(
        table_path(path, name)
    ):  # parts that somebody removed are made again
        return open_table(path, name)
    file_checksums.refuse_special_files(table_path(path, name))
    known = file_checksums.read(path)[0]  # before the table is opened: a commit meanwhile may only add to it
    version, latest = file_checksums.latest_version(name, known)
    if latest is not None:  # before Lance reads it
        _raise_damaged(path, file_checksums.compare(path, {latest: None}, known, compare_content=True))
    dataset = open_table(path, name)
    if dataset is None:
        return None
    verified_files = set() if verified_files is None else verified_files
    with wrap_errors(DAMAGED_MESSAGE):
        made_of = {
            each: size
            for each, size in file_checksums.list_files(name, dataset).items()
            if each not in verified_files
        }
    content = sum(size or 0 for size in made_of.values()) <= file_checksums.MAX_VERIFIED_BYTES
    if latest is not None and dataset.version < version:
        _raise_damaged(path, [(latest, "an earlier version was opened")])
    _raise_damaged(path, file_checksums.compare(path, made_of, known, compare_content=content))
    verified_files |= made_of.keys()
    return dataset


def _raise_damaged(path: str, damages: Iterable[tuple[str, str]]) -> None:
    for file, what in damages:
        raise InputError(f"{path} is damaged: {file}: {what}; run bilrp check {path}")


def record_checksums(path: str, name: str) -> None:
    """Write down the checksums of what was committed to a table."""
    dataset = None if "://" in path else open_table(path, name)
    if dataset is not None:
        file_checksums.record(path, file_checksums.list_files(name, dataset))


def append_rows(path: str, name: str, rows: Sequence[Mapping[str, Any]], schema: Any) -> None:
    """The table with these rows at its end, committed; it is made where there is none."""
    table, place = _to_arrow(rows, schema), table_path(path, name)
    with _wrap_write_errors(path):
        there = open_table(path, name) is not None
        try:
            if not there and "://" not in path:
                file_checksums.remove_table(path, name)
            import_lance().write_dataset(table, place, mode="append" if there else "create")
        except OSError as error:
            if "already exists" not in str(error):
                raise
            import_lance().write_dataset(table, place, mode="append")  # another process made it meanwhile
    record_checksums(path, name)


def write_fragments(path: str, name: str, rows: Sequence[Mapping[str, Any]], schema: Any) -> list[str]:
    """Rows as fragments of a table that is there; nobody sees them before they are committed."""
    with _wrap_write_errors(path):
        made = import_lance().fragment.write_fragments(
            _to_arrow(rows, schema), table_path(path, name), mode="append"
        )
        return [json.dumps(each.to_json()) for each in made]


def commit_fragments(path: str, name: str, fragments: Sequence[str]) -> None:
    """Fragments that `write_fragments` made become part of the table, in one commit."""
    if fragments:
        dataset, found = open_table(path, name), import_lance()
        if dataset is None:
            raise InputError(DAMAGED_MESSAGE)
        with _wrap_write_errors(path):
            made = [found.fragment.FragmentMetadata.from_json(each) for each in fragments]
            append = found.LanceOperation.Append(made)
            found.LanceDataset.commit(dataset.uri, append, read_version=dataset.version)
        record_checksums(path, name)


def compact(path: str) -> None:
    """Merge small fragments into large ones, where they are many; readers keep what they opened for a day at least.

    An approximate index takes in what is new. Another process may write or compact meanwhile: then all this is left to the
    next run.
    """
    for name, rows in ROWS_PER_FRAGMENT.items():
        dataset = open_table(path, name)
        with suppress(OSError, RuntimeError, ValueError):
            if dataset is not None and len(dataset.get_fragments()) >= MIN_FRAGMENTS_TO_COMPACT:
                dataset.optimize.compact_files(target_rows_per_fragment=rows)
                dataset.cleanup_old_versions(older_than=VERSION_RETENTION)
            if dataset is not None and dataset.has_index:
                dataset.optimize.optimize_indices()
        record_checksums(
            path, name
        )  # also of what was committed by a run that was killed before it wrote them down


def _to_arrow(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    import pyarrow as pa

    return pa.table([pa.array([row.get(f.name) for row in rows], f.type) for f in schema], schema=schema)


def error_message(error: BaseException) -> str:
    """What Lance says, without the line of its source that says it.

    >>> error_message(OSError("LanceError(IO): Permission denied (os error 13), /home/lance/rust/src/store.rs:1013:21"))
    'Permission denied (os error 13)'
    """
    return re.sub(r"^LanceError\(\w+\): |, \S+\.rs:[\d:]+$", "", describe_error(error, 400))[:160]


@contextmanager
def _wrap_write_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"cannot write {path}: {error_message(error)}") from None


def delete_rows(path: str, name: str, key: str) -> None:
    """Take the rows of an id out of a table, committed."""
    dataset = open_table(path, name)
    if dataset is not None:
        with wrap_errors(f"cannot write {path}"):
            # An id may come from anybody: it must not be read as a condition.
            escaped = key.replace("'", "''")
            dataset.delete(f"id = '{escaped}'")
        record_checksums(path, name)


def update_rows(path: str, name: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Some columns of the rows with these ids anew, in one commit; the other columns stay."""
    import pyarrow as pa

    dataset = open_table(path, name) if rows else None
    if dataset is not None:
        with _wrap_write_errors(path):
            dataset.merge_insert("id").when_matched_update_all().execute(pa.Table.from_pylist(list(rows)))
        record_checksums(path, name)


def check_columns(dataset: Any, schema: Any) -> None:
    """Refuse a table that has not every column of a schema, each of its type."""
    for field in schema:
        at = dataset.schema.get_field_index(field.name)
        if at < 0 or dataset.schema.field(at).type != field.type:
            raise InputError(f"the column {field.name} is not of type {field.type}")


def fingerprint(dataset: Any) -> str:
    """Which files a table is made of, as a short word; these never change, and other rows are in others."""
    made_of = json.dumps([each.metadata.to_json() for each in dataset.get_fragments()], sort_keys=True)
    return hashlib.blake2b(made_of.encode(), digest_size=12).hexdigest()


def table_path(path: str, name: str) -> str:
    return f"{str(path).rstrip('/')}/{name}"


def read_columns(dataset: Any, names: Sequence[str], where: str | None = None) -> dict[str, list[Any]]:
    with wrap_errors(DAMAGED_MESSAGE):
        found = dataset.to_table(columns=list(names), filter=where)
        return {name: found.column(name).to_pylist() for name in names}


def take_rows(dataset: Any, row_numbers: Sequence[int] | np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """These columns of these rows, by their place in the table, in the order asked for, as Arrow holds them."""
    with wrap_errors(DAMAGED_MESSAGE):
        found = dataset.take([int(row) for row in row_numbers], columns=list(names))
        return {name: found.column(name) for name in names}


def iter_embedding_blocks(dataset: Any, width: int) -> Iterator[np.ndarray]:
    """The embeddings in order, a block of rows at a time, so that memory stays bounded; rows without one are left out."""
    at_once = max(1, BLOCK_BYTES // (4 * width))
    with wrap_errors(DAMAGED_MESSAGE):
        scanned = dataset.scanner(
            columns=["embedding", "failed"],
            batch_size=at_once,
            scan_in_order=True,
            batch_readahead=2,
            fragment_readahead=1,
            io_buffer_size=2 * BLOCK_BYTES,  # else a slow reader finds gigabytes read ahead of it
        )
        for batch in scanned.to_batches():
            if (
                not batch.column(0).is_valid().equals(batch.column(1).is_null())
            ):  # positions would be those of others
                raise InputError(f"{DAMAGED_MESSAGE} (an item has no embedding)")
            yield batch.column(0).flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
