"""A query becomes an item because somebody asked for it, where the server allows that (`bilrp serve --add`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bilrp.app.collection_session import CollectionSession, Query
from bilrp.app.security import HTTPError
from bilrp.collection import Collection, open, tables
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.index_session import IndexSession
from bilrp.collection.ingest import read_source_item
from bilrp.collection.sources import SourceItem
from bilrp.errors import InputError
from bilrp.io import files

ADDED_GROUP = "added in the app"
# in the collection, so that both move together; names without a suffix are no photographs to index
ADDED_FOLDER = "app/added"
MAX_ADDED_BYTES = 2**30  # of everything that was added


def check_writable(collection: Collection) -> None:
    """Refuse to add to what cannot be written to: a collection in a cloud is only looked at."""
    if not (os.path.isdir(collection.path) and os.access(collection.path, os.W_OK)):
        raise InputError(f"{collection.path} cannot be written to: serve it without --add")


def get_addable_query(session: CollectionSession, key: str) -> Query:
    """The query that somebody wants to add."""
    if not session.retain_uploads:
        raise HTTPError(403, "this server adds nothing: start it with bilrp serve --add")
    return session.get_query(key)


def append_query(session: CollectionSession, query: Query) -> tuple[str, Collection | None]:
    """Append one query to the collection: its id, and the collection as it is now; None where it was an item before.

    Rows are appended and none is changed, so that no item is renamed. Of a picture, the file is kept by its content.
    """
    found, raw = session.collection, query.raw
    key = hashlib.sha256(raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw).hexdigest()[
        :32
    ]
    if key in found.items.by_id:
        return key, None
    if _count_added_bytes(found) + len(raw) > MAX_ADDED_BYTES:
        raise HTTPError(
            413, f"{MAX_ADDED_BYTES // 2**20} MB were added by now: index a folder with bilrp index"
        )
    with session.redact_paths():
        if isinstance(raw, str):
            _append_item(found, SourceItem(raw, query.name, ADDED_GROUP, ""), key)
        else:
            with _write_or_roll_back(Path(found.path) / ADDED_FOLDER / key, raw) as file:
                _append_item(found, SourceItem(file, query.name, ADDED_GROUP, f"{ADDED_FOLDER}/{key}"), key)
        tables.compact(found.path)
        now = open(found.path, found.encoder)
        if now.items.fits_in_memory:
            now.items.norms  # noqa: B018  read now, so that no visitor waits for it
    return key, now


def _count_added_bytes(collection: Collection) -> int:
    """Bytes of what was added: files, texts, embeddings."""
    folder = Path(collection.path) / ADDED_FOLDER
    kept = [file.stat().st_size for file in folder.iterdir()] if folder.is_dir() else []
    mine = collection.groups().get(ADDED_GROUP, [])
    texts = collection.items.take(mine, ["text"])["text"] if mine else []
    return sum(kept) + sum(len(text.encode()) for text in texts if text) + 4 * collection.width * len(mine)


@contextmanager
def _write_or_roll_back(path: Path, raw: bytes) -> Iterator[Path]:
    """A file with this content; where it is new and what follows fails, it is gone again."""
    new = not path.exists()
    if new:
        files.write_bytes(path, raw)
    try:
        yield path
    except BaseException:
        if new:
            path.unlink(missing_ok=True)
        raise


def _append_item(collection: Collection, source_item: SourceItem, key: str) -> None:
    """Read, embed and commit one thing; what is broken leaves no row."""
    state, forward = IndexSession.open(collection.path, {}), BatchEncoder(collection.encoder)
    if state.description is None:
        raise InputError(f"{collection.path} is gone")
    one = read_source_item(collection.encoder, source_item, state.ids)
    if one.failed is None and one.id != key:
        raise InputError(f"{source_item.source} has another content: remove it")
    state.describe(collection.encoder, [one], forward)
    batch = state.embed([one], forward)
    failed = batch.outcomes[0].failed
    if failed is not None:
        raise InputError(f"{source_item.name} cannot be added: {failed}")
    state.commit(batch)
