"""List the inputs of a source: image folders, files, and texts by line or table column, with names and groups.

A .txt file contains one text per line, a table (.csv, .tsv, .jsonl) one per row.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bilrp.encoder import Encoder, InputLike
from bilrp.encoders.image_files import SUFFIXES, check_image_file
from bilrp.encoders.text.reader import TextReader
from bilrp.errors import InputError, describe_error
from bilrp.io.files import is_partial

DEFAULT_TEXT_COLUMNS = ("text", "sentence", "caption", "title")  # the first that a table has
TABLE_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class SourceItem:
    """One input to index: its content for the encoder, its display name, its group, and its path (empty if none)."""

    content: InputLike
    name: str
    group: str
    source: str

    @property
    def stamp(self) -> str:
        """Size and modification time of the file; empty if there is no file."""
        if not isinstance(self.content, Path):
            return ""
        try:
            status = self.content.stat()
        except OSError:
            return ""
        return f"{status.st_size} {status.st_mtime_ns}"

    def content_id(self) -> str:
        """Return the id of the input: a hash of its content, independent of path and name."""
        if not isinstance(self.content, Path):
            return hashlib.sha256(_content_bytes(self.content)).hexdigest()[:32]
        check_image_file(self.content)
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]

    @property
    def encoded_path(self) -> str:
        """The path as valid UTF-8, see `encode_path`."""
        return encode_path(self.source)

    def failed_id(self) -> str:
        """Return the id of an input that failed, by path and name, because failed inputs may share a content."""
        return replace(self, content=f"{self.encoded_path} {self.name}").content_id()


def encode_path(path: str) -> str:
    """Return a path as valid UTF-8: other bytes are escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def decode_path(encoded_path: str) -> str:
    """Invert `encode_path`.

    >>> decode_path(encode_path("caf" + chr(0xDCE9))) == "caf" + chr(0xDCE9)
    True
    """
    return re.sub(r"\\udc([89a-f][0-9a-f])", lambda match: chr(0xDC00 + int(match[1], 16)), encoded_path)


def _content_bytes(content: InputLike) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, Tensor):
        content = content.detach().cpu().contiguous().numpy()
    array = np.asarray(content)
    return repr((array.shape, str(array.dtype))).encode() + array.tobytes()


def iter_source_items(
    source: InputLike | Iterable[InputLike], encoder: Encoder, *, column: str | None = None
) -> Iterator[SourceItem]:
    """Yield the inputs of a source.

    Args:
        source: A folder, a file, a list of them, texts, or any iterable of what the encoder reads.
        encoder: The encoder, which reads images or texts.
        column: Column of a table that contains the texts.

    >>> [item.name for item in iter_source_items(["A cat.", "A dog."], Encoder(lambda x: x))]
    ['A cat.', 'A dog.']
    """
    texts = isinstance(encoder.read, TextReader)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.exists():
            yield from _from_path(path, texts, column)
        elif texts and isinstance(source, str):
            yield _text_item(source, "", "")
        else:
            raise InputError(f"{path}: no such file or folder")
    elif isinstance(source, Iterable) and not isinstance(source, Tensor | np.ndarray):
        for number, each in enumerate(source):
            if isinstance(each, str | os.PathLike):
                yield from _from_list_entry(each, texts, column)
            else:
                yield SourceItem(each, f"item {number}", "", "")
    else:
        yield SourceItem(source, "item 0", "", "")


def _from_list_entry(entry: str | os.PathLike[str], texts: bool, column: str | None) -> Iterator[SourceItem]:
    """Yield the inputs of one list entry: a path if it exists, else a text if the encoder reads texts."""
    path = Path(entry)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # not a valid file name
        exists = False
    if exists:
        yield from _from_path(path, texts, column)
    elif texts or not isinstance(entry, os.PathLike):
        yield _text_item(str(entry), "", "")
    else:
        yield SourceItem(path, path.name, "", str(path))  # reading it reports the missing file


def _text_item(text: str, group: str, source: str) -> SourceItem:
    line = " ".join(text.split())
    return SourceItem(text, line if len(line) <= 80 else line[:79] + "…", group, source)


def _from_path(path: Path, texts: bool, column: str | None) -> Iterator[SourceItem]:
    """Yield the images or texts of a folder or a file."""
    if path.is_dir():
        for file in _walk(path, (".txt",) if texts else SUFFIXES):
            group = str(file.parent.relative_to(path))
            group = "" if group == "." else group
            if texts:
                yield from _text_items(file, column, group)
            else:
                yield SourceItem(file, file.name, group, str(file.resolve()))
    elif texts:
        yield from _text_items(path, column, "")
    else:
        yield SourceItem(path, path.name, path.parent.name, str(path.resolve()))


def _text_items(path: Path, column: str | None, folder: str) -> Iterator[SourceItem]:
    """Yield each text of a file that is not empty; its group is that of its row, else the folder."""
    for number, (text, group) in enumerate(_read_texts(path, column)):
        if text.strip():
            yield _text_item(text.strip(), group or folder, f"{path.resolve()}#{number}")


def _walk(folder: Path, suffixes: Iterable[str]) -> Iterator[Path]:
    """Yield visible files by suffix in a stable order; links to folders are not followed, to avoid loops."""
    for parent, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.startswith(".") or is_partial(name) or Path(name).suffix.lower() not in suffixes:
                continue
            file = Path(parent) / name
            if file.is_file() or file.is_symlink():  # reports broken links; skips pipes, which may block
                yield file


def _read_texts(path: Path, column: str | None) -> Iterator[tuple[str, str]]:
    """Yield (text, group) of each row of a table, object of a .jsonl, or line of any other file."""
    suffix = path.suffix.lower()
    if suffix in TABLE_DELIMITERS:
        rows = csv.DictReader(io.StringIO(_read_file(path)), delimiter=TABLE_DELIMITERS[suffix])
        yield from _select_column(path, rows, list(rows.fieldnames or ()), column)
    elif suffix in (".jsonl", ".ndjson"):
        try:
            objects = [json.loads(line) for line in _read_file(path).splitlines() if line.strip()]
        except ValueError as error:
            raise InputError(f"{path}: each line must be a JSON object ({error})") from None
        if not all(isinstance(o, dict) for o in objects):
            raise InputError(f"{path}: each line must be a JSON object")
        yield from _select_column(path, objects, list(objects[0]) if objects else [], column)
    else:
        yield from ((line, "") for line in _read_file(path).splitlines())


def _select_column(
    path: Path, rows: Iterable[dict[str, Any]], names: list[str], column: str | None
) -> Iterator[tuple[str, str]]:
    if column is None:
        column = next((name for name in DEFAULT_TEXT_COLUMNS if name in names), None)
    if column is None or column not in names:
        raise InputError(
            f"{path}: choose the column with the texts with --column; there are {', '.join(names)}"
        )
    for row in rows:
        yield str(row.get(column) or ""), str(row.get("group") or "")


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {describe_error(error)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not valid UTF-8 text: convert it to UTF-8") from None
