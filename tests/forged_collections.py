"""Forged collections, and modules that record that they were imported."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bilrp.collection import tables

CANARIES = ("vgg16", "bigram", "sentence", "vision", "clip", "minilm", "canary", "evil")


def write_forged_collection(
    path: Path, description: Mapping[str, Any] | bytes, rows: Sequence[Mapping[str, Any]], width: int
) -> Path:
    """A collection that says this of itself, with these rows."""
    raw = description if isinstance(description, bytes) else json.dumps(dict(description)).encode()
    schema = tables.items_schema(width, {}).with_metadata({tables.METADATA_KEY: raw})
    shutil.rmtree(path, ignore_errors=True)
    tables.append_rows(str(path), tables.ITEMS_TABLE, rows, schema)
    return path


def write_canary_modules(folder: Path) -> None:
    """Modules and a pipe in a folder: importing one leaves a file, reading the pipe blocks for ever."""
    for name in CANARIES:
        (folder / f"{name}.py").write_text(
            f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\ndef run(*_): ...\nevil = run\n"
        )
    os.mkfifo(folder / "pipe")
