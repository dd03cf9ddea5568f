"""Collections that somebody forged, and modules that tell on whoever imports them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bilrp.collection import tables

CANARIES = ("vgg16", "bigram", "sentence", "vision", "clip", "minilm", "canary", "evil")


def forge(path: Path, said: Mapping[str, Any] | bytes, rows: Sequence[Mapping[str, Any]], width: int) -> Path:
    """A collection that says this of itself, with these rows."""
    raw = said if isinstance(said, bytes) else json.dumps(dict(said)).encode()
    schema = tables.items_schema(width, {}).with_metadata({tables.ABOUT: raw})
    shutil.rmtree(path, ignore_errors=True)
    tables.appended(str(path), tables.ITEMS, rows, schema)
    return path


def plant_canaries(folder: Path) -> None:
    """Modules and a pipe in a folder: whoever imports one leaves a file, whoever reads the pipe waits for ever."""
    for name in CANARIES:
        (folder / f"{name}.py").write_text(
            f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\ndef run(*_): ...\nevil = run\n"
        )
    os.mkfifo(folder / "pipe")
