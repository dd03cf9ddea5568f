"""Other files in a collection's folder are untrusted: each is read as a bounded regular file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from server_helpers import tiny_encoder

from bilrp import collection
from bilrp.answers.http_shapes import MapAnswer
from bilrp.app import cached_results
from bilrp.app.collection_session import CollectionSession


@pytest.mark.parametrize("kind", ["pipe", "device", "long"])
def test_no_file_next_to_the_tables_blocks_the_app(writable_path: Path, kind: str) -> None:
    """A pipe without a writer, a device without an end, a sparse file of a terabyte: each counts as absent."""
    path = writable_path / cached_results.CACHE_FOLDER / "map.json"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/tty" if os.path.exists("/dev/tty") else "/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(2**40)
    answers: list[MapAnswer] = []
    session = CollectionSession(collection.open(writable_path, tiny_encoder()))
    worker = threading.Thread(target=lambda: answers.append(cached_results.get_map(session)), daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive(), "the worker waits for a pipe"
    assert set(answers[0]) == {"by", "clusters", "holds", "places"}
    assert path.is_file() and not path.is_symlink(), "what was made is kept in its place"
