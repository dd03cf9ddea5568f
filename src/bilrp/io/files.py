"""Writing files so that a reader, an interrupted run or a full disk never leaves half of one."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from bilrp.errors import InputError, describe_error

PARTIAL_PREFIX = ".bilrp-partial-"  # how every unfinished file's name begins: hidden, so no reader takes it for a photograph
STALE_AFTER_SECONDS = 86_400.0  # an unfinished file this old has no writer, also where locks don't work


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it becomes `path`, on failure it is removed.

    The temporary file is locked while it is written, so one that a killed run left behind is known by its missing lock,
    and removed by the next write into its folder.

    >>> with atomic_write("out/why.png") as temporary:
    ...     figure.savefig(temporary)
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a name that no file can have is found out before the work
            path.lstat()
        remove_stale(path.parent)
        handle, temporary = _create_locked_file(path.parent, path.suffix[:16])
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {path}: {describe_error(error)}") from None
    try:
        yield temporary
        os.fsync(handle)  # the name must not be there before the content
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {describe_error(error)}") from None
    finally:
        os.close(handle)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write `text` as UTF-8, whole or not at all; what UTF-8 cannot say (half a surrogate pair) is escaped."""
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write `data`, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


@contextmanager
def open_regular(
    path: str | Path, *, max_bytes: int | None = None, follow_symlinks: bool = True
) -> Iterator[BufferedReader]:
    """Open a stored file for reading; anything but a regular file is an OSError, before it can block.

    The file is opened without waiting (a pipe without a writer would wait for ever) and then asked what it is, so that
    nothing can take its place between the check and the opening.

    Args:
        path: The file.
        most: Bytes it may have at most.
        follow: False refuses a symbolic link: nothing outside of its folder is read.
    """
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    handle = os.open(path, flags | (0 if follow_symlinks else getattr(os, "O_NOFOLLOW", 0)))
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError("it is no regular file")
        if max_bytes is not None and about.st_size > max_bytes:
            raise OSError(_size_limit_message(max_bytes))
        file = os.fdopen(handle, "rb", closefd=False)
        with file:
            yield file
    finally:
        os.close(handle)


def read_bytes(path: str | Path, *, max_bytes: int, follow_symlinks: bool = True) -> bytes:
    """The content of a regular file of at most `max_bytes` bytes; else an OSError (see `open_regular`)."""
    with open_regular(path, max_bytes=max_bytes, follow_symlinks=follow_symlinks) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:  # it has grown since
        raise OSError(_size_limit_message(max_bytes))
    return data


def read_text(path: str | Path, *, kind: str, max_bytes: int) -> str:
    """The UTF-8 of a regular file of at most so many bytes: a pipe could block for ever, a sparse file fill the memory.

    >>> read_text("model/config.json", kind="JSON", max_bytes=16_000_000)
    """
    try:
        return read_bytes(path, max_bytes=max_bytes).decode("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as {kind}: {describe_error(error)}") from None


def _size_limit_message(max_bytes: int) -> str:
    return f"it is longer than {max_bytes / 1e6:g} MB"


def is_partial(path: str | Path) -> bool:
    """Is this an unfinished file, that no reader should open?

    >>> is_partial("out/.bilrp-partial-1f0c.png")
    True
    """
    return os.path.basename(path).startswith(PARTIAL_PREFIX)


def remove_stale(folder: str | Path) -> None:
    """Remove what killed runs left in a folder: unfinished files that nobody is writing."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_partial(entry.name) and entry.is_file(follow_symlinks=False):
                with _lock_if_stale(entry.path) as gone, suppress(OSError):
                    if gone:
                        os.unlink(entry.path)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder in the system's temporary one that goes when it is left; those of killed runs go with the next."""
    home = Path(tempfile.gettempdir())
    for old in home.glob(f"{PARTIAL_PREFIX}folder-*"):
        with _lock_if_stale(old / PARTIAL_PREFIX) as gone:
            if gone and not old.is_symlink():
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{PARTIAL_PREFIX}folder-", ignore_cleanup_errors=True) as name:
        handle, lock = _create_locked_file(Path(name), "")
        try:
            with suppress(OSError):  # Windows renames no open file
                lock.rename(
                    Path(name) / PARTIAL_PREFIX
                )  # only now can others take it for a folder of a killed run
            yield Path(name)
        finally:
            os.close(handle)


def _create_locked_file(folder: Path, suffix: str) -> tuple[int, Path]:
    """A new locked file, with the permissions that the user's umask allows."""
    for _ in range(100):
        path = folder / f"{PARTIAL_PREFIX}{secrets.token_hex(8)}{suffix}"
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o666)
        except FileExistsError:
            continue
        if (
            _try_lock(handle) is not False and path.exists()
        ):  # else another took it for abandoned before it was locked
            return handle, path
        os.close(handle)
    raise OSError("no temporary name is free")


def _try_lock(handle: int) -> bool | None:
    """Take the file for this process, which gives it up when it ends, however it ends.

    False: somebody else has it; None: nobody can have it (Windows, a file system without locks).
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
    """Does nobody write it: is its lock free, or is it a day old? The lock is held meanwhile, so nobody begins to."""
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
    """Have the new name written too, where the system can."""
    with suppress(OSError):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
