"""The Lance tables of a collection: items with embeddings, and what is computed of them. Every write is one atomic commit.

Two processes may append at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bilrp.collection import file_checksums
from bilrp.errors import InputError, describe_error, import_optional, wrap_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

Row: TypeAlias = Mapping[str, object]
"""What is written to a row, by column; missing columns are null."""

FORMAT_VERSION = 1
RESERVED_COLUMNS = frozenset(
    {"id", "name", "group", "source", "stamp", "text", "thumbnail", "view", "embedding", "failed"}
)
COLUMN_TYPES = ("bool", "int64", "double", "string")  # of metadata
METADATA_KEY = b"bilrp"
BLOCK_BYTES = 16 * 2**20  # embeddings read at once
ITEMS_TABLE, PARTS_TABLE, NUMBERS_TABLE = "items.lance", "parts.lance", "numbers.lance"
DERIVED_TABLES = (PARTS_TABLE, NUMBERS_TABLE)  # computed of items, again when needed
ROWS_PER_FRAGMENT = {ITEMS_TABLE: 2**14, PARTS_TABLE: 2**10, NUMBERS_TABLE: 2**12}  # after compaction
MIN_FRAGMENTS_TO_COMPACT = 32
VERSION_RETENTION = timedelta(days=1)  # so long readers can use a version they opened
DAMAGED_MESSAGE = "the collection is damaged: run bilrp check NAME.lance to find out where"
REINDEX_HINT = "index it again under another name"


def import_lance() -> ModuleType:
    return import_optional("lance", "collection", "collections")


def items_schema(width: int, description: Mapping[str, Any]) -> pa.Schema:
    """Return the Arrow schema of the items table, with the description as metadata."""
    import pyarrow as pa

    types = {"bool": pa.bool_(), "int64": pa.int64(), "double": pa.float64(), "string": pa.string()}
    columns = description.get("columns") or {}
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
            *((name, types[kind]) for name, kind in columns.items()),
        ],
        metadata={METADATA_KEY: json.dumps(dict(description)).encode()},
    )


def parts_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.string()),
            ("columns", pa.binary()),
            # compression saves a sixth of the space and makes reading three times slower
            pa.field("values", pa.binary(), metadata={"lance-encoding:compression": "none"}),
            ("error", pa.float64()),
            ("frame", pa.binary()),
        ]
    )


def numbers_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.string()),
            ("numbers", pa.string()),  # separated by spaces
            ("boxes", pa.binary()),  # int32 [numbers, 4]: top, left, bottom, right
            ("confidence", pa.binary()),  # uint8 [numbers], 255: certain; empty: the encoder does not say
            ("height", pa.int32()),
            ("width", pa.int32()),
        ]
    )


def open_table(path: str, name: str) -> LanceDataset | None:
    """Open a table at its latest version; None if it does not exist."""
    location = table_path(path, name)
    if "://" not in location and not os.path.isdir(location):
        return None
    with wrap_errors(f"{path} is not a readable collection"):
        try:
            return import_lance().dataset(location)
        except ValueError as error:
            if "not found" in str(error).lower():
                return None
            raise


def open_verified(path: str, name: str, verified_files: set[str] | None = None) -> LanceDataset | None:
    """Open a table at its latest version after verifying its files; None if it does not exist.

    Checksums are compared up to `file_checksums.MAX_VERIFIED_BYTES`, for larger tables only sizes and the version file
    (`bilrp check` reads everything). Files without a checksum, left by a killed run, are accepted.

    Args:
        path, name: The collection, and the table.
        verified_files: Files that need not be verified again; newly verified files are added.
    """
    if "://" in path or not os.path.isdir(table_path(path, name)):
        return open_table(path, name)
    file_checksums.refuse_special_files(table_path(path, name))
    checksums = file_checksums.read(path)[0]  # before opening the table, since a concurrent commit adds lines
    version, latest = file_checksums.latest_version(name, checksums)
    if latest is not None:  # before Lance reads it
        _raise_damaged(path, file_checksums.compare(path, {latest: None}, checksums, compare_content=True))
    dataset = open_table(path, name)
    if dataset is None:
        return None
    verified_files = set() if verified_files is None else verified_files
    with wrap_errors(DAMAGED_MESSAGE):
        file_sizes = {
            file: size
            for file, size in file_checksums.list_files(name, dataset).items()
            if file not in verified_files
        }
    compare_content = sum(size or 0 for size in file_sizes.values()) <= file_checksums.MAX_VERIFIED_BYTES
    if latest is not None and dataset.version < version:
        _raise_damaged(path, [(latest, "an earlier version was opened")])
    _raise_damaged(path, file_checksums.compare(path, file_sizes, checksums, compare_content=compare_content))
    verified_files |= file_sizes.keys()
    return dataset


def _raise_damaged(path: str, damages: Iterable[tuple[str, str]]) -> None:
    for file, problem in damages:
        raise InputError(f"{path} is damaged: {file}: {problem}; run bilrp check {path}")


def record_checksums(path: str, name: str) -> None:
    """Add the checksums of new files of a table."""
    dataset = None if "://" in path else open_table(path, name)
    if dataset is not None:
        file_checksums.record(path, file_checksums.list_files(name, dataset))


def append_rows(path: str, name: str, rows: Sequence[Row], schema: pa.Schema) -> None:
    """Append rows to a table, created if necessary, in one commit.

    Args:
        path, name: The collection, and the table.
        rows: The rows.
        schema: Arrow schema of the table.
    """
    table, location = _to_arrow(rows, schema), table_path(path, name)
    with _wrap_write_errors(path):
        if open_table(path, name) is not None or not _create_table(path, name, table):
            import_lance().write_dataset(table, location, mode="append")
    record_checksums(path, name)


def _create_table(path: str, name: str, table: pa.Table) -> bool:
    """Create a table with its first rows; return whether this process did, false if another one was faster.

    Lance's own mode "create" replaces a table that appears between its check and its commit, and loses the rows of the
    other process. A commit on top of version 0 is refused then.
    """
    lance, location = import_lance(), table_path(path, name)
    if "://" not in path:
        file_checksums.remove_table(path, name)
    fragment = lance.fragment.LanceFragment.create(location, table, fragment_id=0)  # not committed yet
    operation = lance.LanceOperation.Overwrite(table.schema, [fragment])
    try:
        lance.LanceDataset.commit(location, operation, read_version=0, max_retries=0)
    except (OSError, RuntimeError, ValueError):
        if open_table(path, name) is None:
            raise
        return False
    return True


def write_fragments(path: str, name: str, rows: Sequence[Row], schema: pa.Schema) -> list[str]:
    """Write rows as fragments of an existing table, invisible until `commit_fragments`; return them as JSON.

    Args:
        path, name, rows, schema: As for `append_rows`.
    """
    if not rows:
        return []
    with _wrap_write_errors(path):
        fragments = import_lance().fragment.write_fragments(
            _to_arrow(rows, schema), table_path(path, name), mode="append"
        )
        return [json.dumps(each.to_json()) for each in fragments]


def commit_fragments(path: str, name: str, fragments: Sequence[str]) -> None:
    """Add the fragments of `write_fragments` to their table in one commit.

    Args:
        path, name, fragments: The collection, the table, and its fragments as JSON.
    """
    if fragments:
        dataset, lance = open_table(path, name), import_lance()
        if dataset is None:
            raise InputError(DAMAGED_MESSAGE)
        with _wrap_write_errors(path):
            metadata = [lance.fragment.FragmentMetadata.from_json(each) for each in fragments]
            append = lance.LanceOperation.Append(metadata)
            lance.LanceDataset.commit(dataset.uri, append, read_version=dataset.version)
        record_checksums(path, name)


def compact(path: str) -> None:
    """Merge small fragments if there are many, and add new rows to the approximate index.

    If another process writes at the same time, this is left to the next run. Old versions stay for `VERSION_RETENTION`.
    """
    for name, rows in ROWS_PER_FRAGMENT.items():
        dataset = open_table(path, name)
        with suppress(OSError, RuntimeError, ValueError):
            if dataset is not None and len(dataset.get_fragments()) >= MIN_FRAGMENTS_TO_COMPACT:
                dataset.optimize.compact_files(target_rows_per_fragment=rows)
                dataset.cleanup_old_versions(older_than=VERSION_RETENTION)
            if dataset is not None and dataset.has_index:
                dataset.optimize.optimize_indices()
        record_checksums(path, name)  # also for commits of a run that was killed before it wrote them


def _to_arrow(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    return pa.table([pa.array([row.get(f.name) for row in rows], f.type) for f in schema], schema=schema)


def error_message(error: BaseException) -> str:
    """Return the message of a Lance error without its source location.

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
    """Delete the rows of an id in one commit.

    Args:
        path, name, key: The collection, the table, and the id.
    """
    dataset = open_table(path, name)
    if dataset is not None:
        with wrap_errors(f"cannot write {path}"):
            # escape the id, which is not trusted, so that it cannot extend the condition
            escaped = key.replace("'", "''")
            dataset.delete(f"id = '{escaped}'")
        record_checksums(path, name)


def upsert_rows(path: str, name: str, rows: Sequence[Row], schema: pa.Schema) -> None:
    """Replace the rows with these ids, or append those that are new, in one commit.

    Args:
        path, name, rows, schema: As for `append_rows`; the table exists.
    """
    dataset = open_table(path, name)
    if dataset is None:
        raise InputError(DAMAGED_MESSAGE)
    with _wrap_write_errors(path):
        merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(_to_arrow(rows, schema))
    record_checksums(path, name)


def update_rows(path: str, name: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Update some columns of the rows with these ids, in one commit.

    Args:
        path, name: The collection, and the table.
        rows: Rows with `id` and the columns to change.
    """
    import pyarrow as pa

    dataset = open_table(path, name) if rows else None
    if dataset is not None:
        with _wrap_write_errors(path):
            dataset.merge_insert("id").when_matched_update_all().execute(pa.Table.from_pylist(list(rows)))
        record_checksums(path, name)


def check_columns(dataset: LanceDataset, schema: pa.Schema) -> None:
    """Raise `InputError` if a column of the schema is missing or has another type."""
    for field in schema:
        index = dataset.schema.get_field_index(field.name)
        if index < 0 or dataset.schema.field(index).type != field.type:
            raise InputError(f"the column {field.name} is not of type {field.type}")


def fingerprint(dataset: LanceDataset) -> str:
    """Return a hash of the list of a table's files, which identifies its rows because files never change."""
    fragments = json.dumps([each.metadata.to_json() for each in dataset.get_fragments()], sort_keys=True)
    return hashlib.blake2b(fragments.encode(), digest_size=12).hexdigest()


def table_path(path: str, name: str) -> str:
    return f"{str(path).rstrip('/')}/{name}"


def read_columns(dataset: LanceDataset, names: Sequence[str]) -> dict[str, list[Any]]:
    """Read columns of all rows of a table."""
    with wrap_errors(DAMAGED_MESSAGE):
        table = dataset.to_table(columns=list(names))
        return {name: table.column(name).to_pylist() for name in names}


def take_rows(
    dataset: LanceDataset, row_numbers: Sequence[int] | np.ndarray, names: Sequence[str]
) -> dict[str, pa.ChunkedArray]:
    """Return columns of the rows with these numbers, in this order, as Arrow arrays.

    Args:
        dataset: The table.
        row_numbers: Numbers of the rows, in the order of the result.
        names: Columns to read.
    """
    with wrap_errors(DAMAGED_MESSAGE):
        table = dataset.take([int(row) for row in row_numbers], columns=list(names))
        return {name: table.column(name) for name in names}


def iter_embedding_blocks(dataset: LanceDataset, width: int) -> Iterator[np.ndarray]:
    """Yield the embeddings in order, in blocks of bounded size; rows without an embedding are skipped."""
    with wrap_errors(DAMAGED_MESSAGE):
        scanner = dataset.scanner(
            columns=["embedding", "failed"],
            batch_size=max(1, BLOCK_BYTES // (4 * width)),
            scan_in_order=True,
            batch_readahead=2,
            fragment_readahead=1,
            io_buffer_size=2 * BLOCK_BYTES,  # the default reads gigabytes ahead of a slow consumer
        )
        for batch in scanner.to_batches():
            if not batch.column(0).is_valid().equals(batch.column(1).is_null()):  # positions would shift
                raise InputError(f"{DAMAGED_MESSAGE} (an item has no embedding)")
            yield batch.column(0).flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
