"""Failures that were found once: stored as small files, tried again by every run of the tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent / "cases"
MOST_BYTES = 100_000  # of a case worth keeping; a larger one is only named


def keep(kind: str, data: bytes, suffix: str) -> str:
    """Keep a case, under a name that says what attack it is of."""
    if len(data) > MOST_BYTES:
        return f"a file of {len(data)} bytes, too large to keep"
    path = FOLDER / kind / f"{hashlib.sha256(data).hexdigest()[:12]}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return f"cases/{kind}/{path.name}"


def stored_cases(kind: str) -> list[Path]:
    return sorted((FOLDER / kind).glob("*")) if (FOLDER / kind).is_dir() else []
