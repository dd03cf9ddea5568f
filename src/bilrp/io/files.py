"""Atomic file writes and bounded reads: an interrupted run or a full disk never leaves a partial file."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from bilrp.errors import InputError, describe_error

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
PAGE_SUFFIX = ".html"
NUMBER_SUFFIXES = (".npz", ".safetensors")
JSON_SUFFIX = ".json"
ANNOTATION_SUFFIXES = (".jsonld", ".iiif.json", ".csv")
VIEWABLE_SUFFIXES = (PAGE_SUFFIX, *FIGURE_SUFFIXES)

PARTIAL_PREFIX = ".bilrp-partial-"  # of temporary files; hidden, so that image listings skip them
STALE_AFTER_SECONDS = 86_400.0  # a temporary file this old is stale even where file locks do not work


def match_suffix(path: str | Path, suffixes: Iterable[str]) -> str | None:
    """Return the longest of these suffixes that a name ends with, or None.

    >>> match_suffix("why.iiif.json", [".json", ".iiif.json"])
    '.iiif.json'
    """
    name = Path(path).name.lower()
    matching = [suffix for suffix in suffixes if name.endswith(suffix) and name != suffix]
    return max(matching, key=len, default=None)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; rename it to `path` on success, delete it on failure.

    The temporary file is locked while it is written. A file that a killed run left behind has no lock, and the next
    write into its folder removes it.

    >>> with atomic_write("out/why.png") as temporary:
    ...     figure.savefig(temporary)
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # refuse an invalid name before the work
            path.lstat()
        remove_stale(path.parent)
        handle, temporary = _create_locked_file(path.parent, path.suffix[:16])
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {path}: {describe_error(error)}") from None
    try:
        yield temporary
        os.fsync(handle)  # the content must be on disk before the name
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {describe_error(error)}") from None
    finally:
        os.close(handle)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write `text` as UTF-8 atomically; lone surrogates are escaped."""
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write `data` atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


@contextmanager
def open_regular(
    path: str | Path, *, max_bytes: int | None = None, follow_symlinks: bool = True
) -> Iterator[BufferedReader]:
    """Open a file for reading; raise OSError if it is not a regular file.

    The file is opened without blocking (a pipe without a writer would block forever) and checked through its
    descriptor, so that it cannot be replaced between the check and the opening.

    Args:
        path: The file.
        max_bytes: Raise OSError if the file is larger.
        follow_symlinks: False refuses a symbolic link, so that nothing outside the folder is read.
    """
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    handle = os.open(path, flags | (0 if follow_symlinks else getattr(os, "O_NOFOLLOW", 0)))
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if max_bytes is not None and status.st_size > max_bytes:
            raise OSError(_size_limit_message(max_bytes))
        file = os.fdopen(handle, "rb", closefd=False)
        with file:
            yield file
    finally:
        os.close(handle)


def read_bytes(path: str | Path, *, max_bytes: int, follow_symlinks: bool = True) -> bytes:
    """Return the content of a regular file (see `open_regular`).

    Args:
        path, max_bytes, follow_symlinks: As for `open_regular`.
    """
    with open_regular(path, max_bytes=max_bytes, follow_symlinks=follow_symlinks) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:  # it has grown since it was opened
        raise OSError(_size_limit_message(max_bytes))
    return data


def read_text(path: str | Path, *, kind: str, max_bytes: int) -> str:
    """Return the UTF-8 text of a regular file of at most `max_bytes` bytes.

    Args:
        path: The file.
        kind: What the file should be, for the error message.
        max_bytes: Refuse larger files, so that a sparse file cannot fill the memory.
    """
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as {kind}: {describe_error(error)}") from None


def _size_limit_message(max_bytes: int) -> str:
    return f"longer than {max_bytes / 1e6:g} MB"


def is_partial(path: str | Path) -> bool:
    """Return whether this is the name of a temporary file that is still being written."""
    return os.path.basename(path).startswith(PARTIAL_PREFIX)


def remove_stale(folder: str | Path) -> None:
    """Remove the temporary files that killed runs left in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_partial(entry.name) and entry.is_file(follow_symlinks=False):
                with _lock_if_stale(entry.path) as is_stale, suppress(OSError):
                    if is_stale:
                        os.unlink(entry.path)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new temporary folder and delete it afterwards; folders of killed runs are deleted by the next call."""
    for old in Path(tempfile.gettempdir()).glob(f"{PARTIAL_PREFIX}folder-*"):
        with _lock_if_stale(old / PARTIAL_PREFIX) as is_stale:
            if is_stale and not old.is_symlink():
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{PARTIAL_PREFIX}folder-", ignore_cleanup_errors=True) as name:
        handle, lock = _create_locked_file(Path(name), "")
        try:
            with suppress(OSError):  # Windows cannot rename an open file
                # locked before it has this name, so that no other process takes the folder for a stale one
                lock.rename(Path(name) / PARTIAL_PREFIX)
            yield Path(name)
        finally:
            os.close(handle)


def _create_locked_file(folder: Path, suffix: str) -> tuple[int, Path]:
    """Create a locked file with a random name and the permissions that the umask allows."""
    for _ in range(100):
        path = folder / f"{PARTIAL_PREFIX}{secrets.token_hex(8)}{suffix}"
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o666)
        except FileExistsError:
            continue
        # another process may have removed it as stale before it was locked
        if _try_lock(handle) is not False and path.exists():
            return handle, path
        os.close(handle)
    raise OSError("cannot create a temporary file")


def _try_lock(handle: int) -> bool | None:
    """Lock the file until it is closed or the process ends.

    False: another process has the lock. None: locks are not supported (Windows, some file systems).
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


@contextmanager
def _lock_if_stale(path: str | Path) -> Iterator[bool]:
    """Yield whether the file has no writer (free lock, or a day old), and hold its lock meanwhile."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        yield False
        return
    try:
        yield _try_lock(handle) is True or time.time() - os.stat(handle).st_mtime > STALE_AFTER_SECONDS
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Flush the folder entry to disk, where the system supports it."""
    with suppress(OSError):  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
