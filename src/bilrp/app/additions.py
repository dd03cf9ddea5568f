"""Add a query to the collection as an item, if the server allows it (`bilrp serve --add`)."""

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
# Inside the collection, so that both move together. The files have no suffix: `bilrp index` ignores them.
ADDED_FOLDER = "app/added"
MAX_ADDED_BYTES = 2**30  # of all added items together


def check_writable(collection: Collection) -> None:
    """Raise if the collection cannot be written to, e.g. because it is in an object store."""
    if not (os.path.isdir(collection.path) and os.access(collection.path, os.W_OK)):
        raise InputError(f"{collection.path} cannot be written to: serve it without --add")


def get_addable_query(session: CollectionSession, key: str) -> Query:
    """Return the query to add; 403 if the server does not add items."""
    if not session.retain_uploads:
        raise HTTPError(403, "this server does not add items: start it with bilrp serve --add")
    return session.get_query(key)


def append_query(session: CollectionSession, query: Query) -> tuple[str, Collection | None]:
    """Append a query to the collection. Return its id and the new collection, or None if the item was already there.

    Existing rows do not change, so items keep their positions and ids. An image file is stored by its content hash.
    """
    collection, raw = session.collection, query.raw
    content = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
    key = hashlib.sha256(content).hexdigest()[:32]
    if key in collection.items.by_id:
        return key, None
    if _count_added_bytes(collection) + len(raw) > MAX_ADDED_BYTES:
        limit = MAX_ADDED_BYTES // 2**20
        raise HTTPError(
            413, f"the limit of {limit} MB for added items is reached: add a folder with bilrp index"
        )
    with session.redact_paths():
        if isinstance(raw, str):
            _append_item(collection, SourceItem(raw, query.name, ADDED_GROUP, ""), key)
        else:
            with _write_or_roll_back(Path(collection.path) / ADDED_FOLDER / key, raw) as file:
                source_item = SourceItem(file, query.name, ADDED_GROUP, f"{ADDED_FOLDER}/{key}")
                _append_item(collection, source_item, key)
        tables.compact(collection.path)
        updated = open(collection.path, collection.encoder)
        if updated.items.fits_in_memory:
            updated.items.norms  # noqa: B018  computed here, so that the next request does not wait for it
    return key, updated


def _count_added_bytes(collection: Collection) -> int:
    """Return the bytes of all added files, texts and embeddings."""
    folder = Path(collection.path) / ADDED_FOLDER
    file_bytes = sum(file.stat().st_size for file in folder.iterdir()) if folder.is_dir() else 0
    positions = collection.groups().get(ADDED_GROUP, [])
    texts = collection.items.take(positions, ["text"])["text"] if positions else []
    text_bytes = sum(len(text.encode()) for text in texts if text)
    return file_bytes + text_bytes + 4 * collection.width * len(positions)


@contextmanager
def _write_or_roll_back(path: Path, raw: bytes) -> Iterator[Path]:
    """Write a file; remove it again if it is new and the body of the `with` fails."""
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
    """Read, embed and commit one item; nothing is written if a step fails."""
    state, forward = IndexSession.open(collection.path, {}), BatchEncoder(collection.encoder)
    if state.description is None:
        raise InputError(f"{collection.path} does not exist any more")
    item = read_source_item(collection.encoder, source_item, state.ids)
    if item.failed is None and item.id != key:
        raise InputError(f"{source_item.source} exists with another content: remove it")
    state.describe(collection.encoder, [item], forward)
    batch = state.embed([item], forward)
    failed = batch.outcomes[0].failed
    if failed is not None:
        raise InputError(f"{source_item.name} cannot be added: {failed}")
    state.commit(batch)
