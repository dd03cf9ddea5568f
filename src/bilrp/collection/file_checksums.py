"""Checksums of a collection's files: what was written once never changes, so that a byte that differs is damage.

`NAME.lance/sha256sums` has a line for each data file, deletion file and version of the tables, as `sha256sum` writes it.
Lines are added after each commit; the last line of a file counts.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bilrp.errors import InputError, describe_error
from bilrp.io import files

FILENAME = "sha256sums"
MAX_CHECKSUM_FILE_BYTES = 256_000_000  # of the checksums themselves: those of two million files
MAX_VERIFIED_BYTES = 256_000_000  # of a table that is verified whenever it is opened: 0.2 s at 1.3 GB/s
LINE_PATTERN = re.compile(r"([0-9a-f]{64})  ([a-z]+\.lance/[^\n]+)")
MAX_VERSION = 2**64 - 1  # Lance counts the names of versions down from here, so that the latest comes first


def list_files(name: str, dataset: Any) -> dict[str, int | None]:
    """The files that the table `name` is made of at this version, and their sizes where the table knows them."""
    found: dict[str, int | None] = {}
    for fragment in dataset.get_fragments():
        for each in fragment.data_files():
            found[f"{name}/data/{each.path}"] = each.file_size_bytes
        if fragment.deletion_file():
            found[f"{name}/{fragment.deletion_file()}"] = None
    return found | {manifest_path(name, dataset.uri, dataset.version): None}


def manifest_path(name: str, uri: str, version: int) -> str:
    """The file of a version: which files the table is made of, and what the collection says of itself."""
    old = f"_versions/{version}.manifest"
    return (
        f"{name}/{old if (Path(uri) / old).exists() else f'_versions/{MAX_VERSION - version:020}.manifest'}"
    )


def read(path: str) -> tuple[dict[str, str], list[int]]:
    """(checksum of each file, numbers of lines that are none)."""
    try:
        text = files.read_bytes(
            Path(path) / FILENAME, max_bytes=MAX_CHECKSUM_FILE_BYTES, follow_symlinks=False
        ).decode("utf-8", "replace")
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        raise InputError(f"{path}/{FILENAME} cannot be read: {describe_error(error)}") from None
    lines = [LINE_PATTERN.fullmatch(line) for line in text.split("\n")]
    odd = [number for number, line in enumerate(lines[:-1], 1) if line is None]
    return {line[2]: line[1] for line in lines if line is not None}, odd


def record(path: str, file_names: Iterable[str]) -> None:
    """Add the checksums of those files that have none, in one write: two processes may do so at once.

    Where nothing can be written the commit stands all the same, and `bilrp check` says that a checksum is missing.
    """
    known = read(path)[0]
    found = {each: digest(Path(path) / each) for each in file_names if each not in known}
    # a file that another process has removed meanwhile has none
    lines = [f"{sum_}  {each}\n" for each, sum_ in found.items() if sum_]
    if not lines:
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    with suppress(OSError):
        handle = os.open(Path(path) / FILENAME, flags, 0o666)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # by a kill or a full disk
            os.write(handle, ("\n" * torn + "".join(lines)).encode())
        finally:
            os.close(handle)


def remove_table(path: str, name: str) -> None:
    """Drop the checksums of a table that is made anew: its versions are counted from one again."""
    known = read(path)[0]
    kept = {each: sum_ for each, sum_ in known.items() if not each.startswith(f"{name}/")}
    if kept != known:
        files.write_text(Path(path) / FILENAME, "".join(f"{sum_}  {each}\n" for each, sum_ in kept.items()))


def digest(path: Path) -> str:
    """sha256 of a regular file; empty where it cannot be read."""
    try:
        with files.open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def compare(
    path: str, file_sizes: Mapping[str, int | None], checksums: Mapping[str, str], *, compare_content: bool
) -> Iterator[tuple[str, str]]:
    """(file, what is wrong with it) for each damaged file.

    Args:
        path: The collection.
        file_sizes: Its files and their sizes, where known (see `list_files`).
        checksums: The checksums (see `read`).
        compare_content: False compares sizes alone, of all but the version.
    """
    for each, size in file_sizes.items():
        place = Path(path) / each
        if not place.is_file():
            yield each, "it is missing"
        elif size is not None and place.stat().st_size != size:
            yield each, f"it has {place.stat().st_size} bytes, {size} were written"
        elif (
            (compare_content or each.endswith(".manifest"))
            and each in checksums
            and digest(place) != checksums[each]
        ):
            yield each, "its bytes are not the ones that were written"


def latest_version(name: str, file_names: Iterable[str]) -> tuple[int, str | None]:
    """The latest version of a table that has a checksum, and its file; 0 where there is none."""
    found: tuple[int, str | None] = (0, None)
    for each in file_names:
        number = re.fullmatch(rf"{re.escape(name)}/_versions/([0-9]{{1,20}})\.manifest", each)
        if number:
            found = max(found, (min(int(number[1]), MAX_VERSION - int(number[1])), each))
    return found


def refuse_special_files(path: str) -> None:
    """Refuse a table with a pipe or a device in it: who reads one may wait for ever."""
    for here, folders, names in os.walk(path):
        for each in folders:
            place = os.path.join(here, each)
            if os.path.islink(place):  # what lies behind it is not looked at here
                raise InputError(f"{place} is a link to a folder: put the folder itself there")
        for each in names:
            place = os.path.join(here, each)
            with suppress(OSError):  # a link to nothing is missing, nothing worse
                if not stat.S_ISREG(os.stat(place).st_mode):
                    raise InputError(
                        f"{place} is no regular file: remove it, or index again under another name"
                    )
