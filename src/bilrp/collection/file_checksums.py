"""Checksums of a collection's files. Lance never changes a written file, so a different byte means damage.

`NAME.lance/sha256sums` has one line, in the format of `sha256sum`, for each data file, deletion file and version of the
tables. Lines are added after each commit; if a file has several, the last one is valid.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bilrp.errors import InputError, describe_error
from bilrp.io import files

if TYPE_CHECKING:
    from lance import LanceDataset

FILENAME = "sha256sums"
MAX_CHECKSUM_FILE_BYTES = 256_000_000  # two million lines
MAX_VERIFIED_BYTES = 256_000_000  # smaller tables are verified on opening: 0.2 s at 1.3 GB/s
LINE_PATTERN = re.compile(r"([0-9a-f]{64})  ([a-z]+\.lance/[^\n]+)")
MAX_VERSION = 2**64 - 1  # Lance names versions counting down from here, so that the latest sorts first


def list_files(name: str, dataset: LanceDataset) -> dict[str, int | None]:
    """Return the files of the table `name` at this version, with their sizes where the table stores them."""
    sizes: dict[str, int | None] = {}
    for fragment in dataset.get_fragments():
        for each in fragment.data_files():
            sizes[f"{name}/data/{each.path}"] = each.file_size_bytes
        if fragment.deletion_file():
            sizes[f"{name}/{fragment.deletion_file()}"] = None
    return sizes | {manifest_path(name, dataset.uri, dataset.version): None}


def manifest_path(name: str, uri: str, version: int) -> str:
    """Return the manifest file of a version, which lists the table's files and holds the description.

    Args:
        name, uri, version: Name and folder of the table, and the version number.
    """
    ascending = f"_versions/{version}.manifest"  # naming scheme of older Lance releases
    descending = f"_versions/{MAX_VERSION - version:020}.manifest"
    return f"{name}/{ascending if (Path(uri) / ascending).exists() else descending}"


def read(path: str) -> tuple[dict[str, str], list[int]]:
    """Return the checksum of each file, and the numbers of invalid lines."""
    try:
        text = files.read_bytes(
            Path(path) / FILENAME, max_bytes=MAX_CHECKSUM_FILE_BYTES, follow_symlinks=False
        ).decode("utf-8", "replace")
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        raise InputError(f"{path}/{FILENAME} cannot be read: {describe_error(error)}") from None
    texts = text.split("\n")
    lines = [LINE_PATTERN.fullmatch(line) for line in texts]
    # an empty line is left by a writer that saw another one's write half done
    invalid = [number for number, line in enumerate(lines[:-1], 1) if line is None and texts[number - 1]]
    return {line[2]: line[1] for line in lines if line is not None}, invalid


def record(path: str, file_names: Iterable[str]) -> None:
    """Append the checksums of files that have none, in one write, so that two processes may do so at once.

    A failed write does not undo the commit; `bilrp check` reports the missing checksum.
    """
    known = read(path)[0]
    new = {each: digest(Path(path) / each) for each in file_names if each not in known}
    # the digest is empty if another process has removed the file meanwhile
    lines = [f"{checksum}  {each}\n" for each, checksum in new.items() if checksum]
    if not lines:
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    with suppress(OSError):
        handle = os.open(Path(path) / FILENAME, flags, 0o666)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # by a killed process or a full disk
            os.write(handle, ("\n" * torn + "".join(lines)).encode())
        finally:
            os.close(handle)


def remove_table(path: str, name: str) -> None:
    """Remove the checksums of a table that is created again, because its versions restart at one."""
    known = read(path)[0]
    rest = {each: checksum for each, checksum in known.items() if not each.startswith(f"{name}/")}
    if rest != known:
        lines = [f"{checksum}  {each}\n" for each, checksum in rest.items()]
        files.write_text(Path(path) / FILENAME, "".join(lines))


def digest(path: Path) -> str:
    """Return the SHA-256 of a regular file; empty if it cannot be read."""
    try:
        with files.open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def compare(
    path: str, file_sizes: Mapping[str, int | None], checksums: Mapping[str, str], *, compare_content: bool
) -> Iterator[tuple[str, str]]:
    """Yield (file, problem) for each damaged file.

    Args:
        path: The collection.
        file_sizes: Its files and their sizes, see `list_files`.
        checksums: The checksums, see `read`.
        compare_content: False compares only sizes, except for the version file.
    """
    for each, size in file_sizes.items():
        file = Path(path) / each
        read_content = each in checksums and (compare_content or each.endswith(".manifest"))
        if not file.is_file():
            yield each, "it is missing"
        elif size is not None and file.stat().st_size != size:
            yield each, f"it has {file.stat().st_size} bytes, {size} were written"
        elif read_content and digest(file) != checksums[each]:
            yield each, "its bytes differ from those that were written"


def latest_version(name: str, file_names: Iterable[str]) -> tuple[int, str | None]:
    """Return the latest version of a table that has a checksum, and its file; (0, None) if there is none."""
    latest: tuple[int, str | None] = (0, None)
    for each in file_names:
        number = re.fullmatch(rf"{re.escape(name)}/_versions/([0-9]{{1,20}})\.manifest", each)
        if number:
            latest = max(latest, (min(int(number[1]), MAX_VERSION - int(number[1])), each))
    return latest


def refuse_special_files(path: str) -> None:
    """Raise if a table contains a pipe or a device (reading one may block) or a linked folder."""
    for parent, folders, names in os.walk(path):
        for each in folders:
            folder = os.path.join(parent, each)
            if os.path.islink(folder):  # os.walk does not check its content
                raise InputError(f"{folder} is a link to a folder: replace it by the folder itself")
        for each in names:
            file = os.path.join(parent, each)
            with suppress(OSError):  # a broken link is reported as a missing file
                if not stat.S_ISREG(os.stat(file).st_mode):
                    raise InputError(
                        f"{file} is not a regular file: remove it, or index again under another name"
                    )
