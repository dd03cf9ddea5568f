"""A query becomes an item because somebody asked for it, where the server allows that (`bilrp serve --add`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bilrp.app.security import Refused
from bilrp.app.collection_session import Query, Shelf
from bilrp.collection import Collection, open, tables
from bilrp.collection.batch_encoder import Forward
from bilrp.collection.ingest import read
from bilrp.collection.sources import Thing
from bilrp.collection.index_session import State
from bilrp.io import files
from bilrp.errors import InputError

GROUP = "added in the app"
FOLDER = "app/added"  # in the collection, so that both move together; names without a suffix are no photographs to index
MOST_BYTES = 2**30  # of everything that was added


def check(found: Collection) -> None:
    """Refuse to add to what cannot be written to: a collection in a cloud is only looked at."""
    if not (os.path.isdir(found.path) and os.access(found.path, os.W_OK)):
        raise InputError(f"{found.path} cannot be written to: serve it without --add")


def wanted(shelf: Shelf, key: str) -> Query:
    """The query that somebody wants to add."""
    if not shelf.keep_raw:
        raise Refused(403, "this server adds nothing: start it with bilrp serve --add")
    return shelf.query(key)


def added(shelf: Shelf, query: Query) -> tuple[str, Collection | None]:
    """Append one query to the collection: its id, and the collection as it is now; None where it was an item before.

    Rows are appended and none is changed, so that no item is renamed. Of a picture, the file is kept by its content.
    """
    found, raw = shelf.found, query.raw
    key = hashlib.sha256(raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw).hexdigest()[
        :32
    ]
    if key in found.items.by_id:
        return key, None
    if _used(found) + len(raw) > MOST_BYTES:
        raise Refused(413, f"{MOST_BYTES // 2**20} MB were added by now: index a folder with bilrp index")
    with shelf.discreet():
        if isinstance(raw, str):
            _append(found, Thing(raw, query.name, GROUP, ""), key)
        else:
            with _file(Path(found.path) / FOLDER / key, raw) as file:
                _append(found, Thing(file, query.name, GROUP, f"{FOLDER}/{key}"), key)
        tables.compact(found.path)
        now = open(found.path, found.encoder)
        if now.items.fits:
            now.items.norms  # noqa: B018  read now, so that no visitor waits for it
    return key, now


def _used(found: Collection) -> int:
    """Bytes of what was added: files, texts, embeddings."""
    folder = Path(found.path) / FOLDER
    kept = [file.stat().st_size for file in folder.iterdir()] if folder.is_dir() else []
    mine = found.groups().get(GROUP, [])
    texts = found.items.take(mine, ["text"])["text"] if mine else []
    return sum(kept) + sum(len(text.encode()) for text in texts if text) + 4 * found.width * len(mine)


@contextmanager
def _file(place: Path, raw: bytes) -> Iterator[Path]:
    """A file with this content; where it is new and what follows fails, it is gone again."""
    new = not place.exists()
    if new:
        files.write_bytes(place, raw)
    try:
        yield place
    except BaseException:
        if new:
            place.unlink(missing_ok=True)
        raise


def _append(found: Collection, thing: Thing, key: str) -> None:
    """Read, embed and commit one thing; what is broken leaves no row."""
    state, forward = State.of(found.path, {}), Forward(found.encoder)
    if state.about is None:
        raise InputError(f"{found.path} is gone")
    one = read(found.encoder, thing, state.ids)
    if one.failed is None and one.id != key:
        raise InputError(f"{thing.source} has another content: remove it")
    state.describe(found.encoder, [one], forward)
    batch = state.embedded([one], forward)
    failed = batch.outcomes[0].failed
    if failed is not None:
        raise InputError(f"{thing.name} cannot be added: {failed}")
    state.commit(batch)
