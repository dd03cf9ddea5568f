"""What to index: folders of pictures, lists of files, texts line by line or from a column, with names and groups.

A .txt holds one text a line, whether it is given by itself or lies in a folder; a table (.csv, .tsv, .jsonl) one a row.
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

from bilrp.encoder import Encoder
from bilrp.encoders.image_files import SUFFIXES, check_image_file
from bilrp.encoders.text.reader import TextReader
from bilrp.errors import InputError, describe_error
from bilrp.io.files import is_partial

DEFAULT_TEXT_COLUMNS = ("text", "sentence", "caption", "title")  # of a table, where nobody says which
TABLE_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class SourceItem:
    """One thing to index: what the encoder reads, what people call it, the group it belongs to, and where it came from."""

    content: Any
    name: str
    group: str
    source: str

    @property
    def stamp(self) -> str:
        """Changes when the file does, without reading it; empty where there is no file."""
        if not isinstance(self.content, Path):
            return ""
        try:
            about = self.content.stat()
        except OSError:
            return ""
        return f"{about.st_size} {about.st_mtime_ns}"

    def content_id(self) -> str:
        """The id: a hash of the content, the same wherever it lies and whatever it is called."""
        if not isinstance(self.content, Path):
            return hashlib.sha256(_content_bytes(self.content)).hexdigest()[:32]
        check_image_file(self.content)
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]

    @property
    def encoded_path(self) -> str:
        """The source as text that any table can hold."""
        return encode_path(self.source)

    def failed_id(self) -> str:
        """The id of what is broken: there may be many with one content, such as none."""
        return replace(self, content=f"{self.encoded_path} {self.name}").content_id()


def encode_path(path: str) -> str:
    """A file's name as text that any table can hold: bytes that are no UTF-8 are spelled."""
    return path.encode("utf-8", "backslashreplace").decode()


def decode_path(encoded_path: str) -> str:
    """The way back from `encode_path`.

    >>> decode_path(encode_path("caf" + chr(0xDCE9))) == "caf" + chr(0xDCE9)
    True
    """
    return re.sub(r"\\udc([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), encoded_path)


def _content_bytes(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, Tensor):
        content = content.detach().cpu().contiguous().numpy()
    array = np.asarray(content)
    return repr((array.shape, str(array.dtype))).encode() + array.tobytes()


def iter_source_items(source: Any, encoder: Encoder, *, column: str | None = None) -> Iterator[SourceItem]:
    """Everything in a source: a folder, a file, a list of either, or any iterable of what the encoder reads.

    >>> [thing.name for thing in iter_source_items(["A cat.", "A dog."], Encoder(lambda x: x))]
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
    """One of a list: a text is a text where texts are read, unless a file of texts has that very name."""
    path = Path(entry)
    try:
        there = path.exists()
    except (OSError, ValueError):  # a text that no file could be called
        there = False
    if there:
        yield from _from_path(path, texts, column)
    elif texts or not isinstance(entry, os.PathLike):
        yield _text_item(str(entry), "", "")
    else:
        yield SourceItem(path, path.name, "", str(path))  # it will be said to be missing when it is read


def _text_item(text: str, group: str, source: str) -> SourceItem:
    line = " ".join(text.split())
    return SourceItem(text, line if len(line) <= 80 else line[:79] + "…", group, source)


def _from_path(path: Path, texts: bool, column: str | None) -> Iterator[SourceItem]:
    """The pictures or texts of a folder or a file; in a folder, a file of texts is read as it is when given itself."""
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
    """Each line or row of a file that is not empty; its group is what the row says, else the folder."""
    for number, (text, group) in enumerate(_read_texts(path, column)):
        if text.strip():
            yield _text_item(text.strip(), group or folder, f"{path.resolve()}#{number}")


def _walk(folder: Path, suffixes: Iterable[str]) -> Iterator[Path]:
    """Visible files by suffix, in a stable order; links to folders are not followed, so no loop is."""
    for here, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.startswith(".") or is_partial(name) or Path(name).suffix.lower() not in suffixes:
                continue
            file = Path(here) / name
            if (
                file.is_file() or file.is_symlink()
            ):  # a link to nothing is said to be broken; a pipe would wait for ever
                yield file


def _read_texts(path: Path, column: str | None) -> Iterator[tuple[str, str]]:
    """(text, group) of each row of a table, of each object of a .jsonl, of each line of any other file."""
    suffix = path.suffix.lower()
    if suffix in TABLE_DELIMITERS:
        rows = csv.DictReader(io.StringIO(_read_file(path)), delimiter=TABLE_DELIMITERS[suffix])
        yield from _select_column(path, rows, list(rows.fieldnames or ()), column)
    elif suffix in (".jsonl", ".ndjson"):
        try:
            objects = [json.loads(line) for line in _read_file(path).splitlines() if line.strip()]
        except ValueError as error:
            raise InputError(f"{path}: not one JSON object a line ({error})") from None
        if not all(isinstance(o, dict) for o in objects):
            raise InputError(f"{path}: not one JSON object a line")
        yield from _select_column(path, objects, list(objects[0]) if objects else [], column)
    else:
        yield from ((line, "") for line in _read_file(path).splitlines())


def _select_column(
    path: Path, rows: Iterable[dict[str, Any]], names: list[str], column: str | None
) -> Iterator[tuple[str, str]]:
    wanted = column if column is not None else next((c for c in DEFAULT_TEXT_COLUMNS if c in names), None)
    if wanted is None or wanted not in names:
        raise InputError(
            f"{path}: say which column holds the texts with --column; there are {', '.join(names)}"
        )
    for row in rows:
        yield str(row.get(wanted) or ""), str(row.get("group") or "")


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {describe_error(error)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8") from None
