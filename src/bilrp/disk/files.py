"""Writing files so that a reader, or an interrupted run, never sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bilrp.errors import InputError


@contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it becomes `path`, on failure it is removed.

    >>> with whole("out/why.png") as temporary:
    ...     figure.savefig(temporary)
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem[:32]}-", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files only their owner can read; a finished file gets what the user's umask allows
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write `text` as UTF-8, whole or not at all."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write `data`, whole or not at all."""
    with whole(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def _umask() -> int:
    """The process's umask; the only portable way to read it is to set it and set it back."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
