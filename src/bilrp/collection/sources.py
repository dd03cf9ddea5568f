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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from bilrp.collection.table_rows import Scalar, clean_name, iter_rows, parse_cells, read_id, to_scalar
from bilrp.encoder import Encoder, InputLike
from bilrp.encoders.image_files import SUFFIXES, check_image_file
from bilrp.encoders.text.reader import TextReader
from bilrp.errors import InputError, describe_error, wrap_errors
from bilrp.io.files import is_partial

DEFAULT_TEXT_COLUMNS = ("text", "sentence", "caption", "title")  # the first that a table has
TABLE_DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLE_SUFFIXES = (*TABLE_DELIMITERS, ".jsonl", ".ndjson", ".parquet")
FILE_COLUMNS = ("file", "path", "image")  # the first that a record has
MAX_CELL_CHARACTERS = 2**31 - 1
RECORD_STAMP = "record"  # first word of a record's stamp


@dataclass(frozen=True)
class SourceItem:
    """One input to index: its content for the encoder, its display name, its group, and its path (empty if none).

    A record also has an id of its own (`key`, empty if none), metadata, or an embedding.
    """

    content: InputLike
    name: str
    group: str
    source: str
    key: str = ""
    metadata: Mapping[str, Scalar] = field(default_factory=dict, compare=False)
    embedding: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def is_record(self) -> bool:
        return bool(self.key or self.metadata) or self.embedding is not None

    @cached_property
    def stamp(self) -> str:
        """Size and modification time of the file, or the hashes of a record; empty if there is neither."""
        if self.is_record:
            return self._record_stamp()
        if not isinstance(self.content, Path):
            return ""
        try:
            status = self.content.stat()
        except OSError:
            return ""
        return f"{status.st_size} {status.st_mtime_ns}"

    def _record_stamp(self) -> str:
        """Return "record CONTENT ROW": hashes of the content, and of everything that is stored; empty if unreadable."""
        try:
            content = self.content_hash()
        except (OSError, InputError):
            return ""
        vector = b"" if self.embedding is None else self.embedding.tobytes()
        labels = json.dumps([self.name, self.group, sorted(self.metadata.items())])
        row = hashlib.sha256(labels.encode("utf-8", "surrogatepass") + b"\0" + vector).hexdigest()[:32]
        return f"{RECORD_STAMP} {content} {row}"

    def content_id(self) -> str:
        """Return the id of the input: its own, or a hash of its content, independent of path and name."""
        if self.key and isinstance(self.content, Path):
            check_image_file(self.content)
        return self.key or self.content_hash()

    def content_hash(self) -> str:
        """Return a hash of the content."""
        if not isinstance(self.content, Path):
            return hashlib.sha256(_content_bytes(self.content)).hexdigest()[:32]
        check_image_file(self.content)
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]

    @property
    def encoded_path(self) -> str:
        """The path as valid UTF-8, see `encode_path`."""
        return encode_path(self.source)

    def make_failed_id(self) -> str:
        """Return the id of an input that failed, by path and name, because failed inputs may share a content."""
        return self.key or replace(self, content=f"{self.encoded_path} {self.name}").content_hash()


def parse_content_hash(key: str, stamp: str | None) -> str:
    """Return the hash of the content that was indexed: part of a record's stamp, else the id.

    >>> parse_content_hash("doc-1", "record 12ab 34cd"), parse_content_hash("12ab", "")
    ('12ab', '12ab')
    """
    words = (stamp or "").split(" ")
    return words[1] if len(words) == 3 and words[0] == RECORD_STAMP else key


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
        if _exists(path):
            yield from _from_path(path, texts, column)
        elif texts and isinstance(source, str) and not is_file_name(source):
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
    if _exists(path):
        yield from _from_path(path, texts, column)
    elif texts or not isinstance(entry, os.PathLike):
        yield _text_item(str(entry), "", "")
    else:
        yield SourceItem(path, path.name, "", str(path))  # reading it reports the missing file


def is_file_name(text: str) -> bool:
    """Return whether a text is the name of a file of texts, which is a mistake if there is no such file.

    >>> is_file_name("notes.txt"), is_file_name("I read notes.txt")
    (True, False)
    """
    return text.lower().endswith((".txt", *TABLE_SUFFIXES)) and not re.search(r"\s", text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # not a valid file name, such as a long text
        return False


def _text_item(text: str, group: str, source: str) -> SourceItem:
    return SourceItem(text, _shorten(text), group, source)


def _shorten(text: str) -> str:
    """Return the beginning of a text as a name."""
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:79] + "…"


def make_source_item(
    record: Mapping[str, object],
    number: int,
    *,
    column: str | None = None,
    source: str = "",
    group: str = "",
    folder: Path | None = None,
) -> SourceItem:
    """Return a record as an input to index.

    Args:
        record: `text` (or `column`), or `file`; `id`, `name` and `group` if there are any; `embedding`; other columns are
            metadata.
        number: its number, for messages.
        column: the column that contains the text.
        source: path of the table and row, if it comes from a file.
        group: the group, where the record has none.
        folder: what file names are relative to; None: the working folder.
    """
    names = (column,) if column else DEFAULT_TEXT_COLUMNS
    text_column = next((name for name in names if record.get(name) is not None), None)
    file_column = next((name for name in FILE_COLUMNS if record.get(name) is not None), None)
    if text_column is None and file_column is None:
        raise InputError(
            f"record {number} has neither a text nor a file: give {' or '.join(map(repr, names))}, or "
            f"{FILE_COLUMNS[0]!r}; its columns are {', '.join(map(str, record))}"
        )
    used = {text_column or file_column, "id", "name", "group", "embedding"}
    metadata: dict[str, Scalar] = {}
    for name, value in record.items():
        if name not in used:
            cleaned = clean_name(str(name))
            if cleaned in metadata:
                raise InputError(f"two columns are stored as {cleaned}, one is {str(name)!r}: rename it")
            metadata[cleaned] = to_scalar(value)
    if text_column is not None:
        content = str(record[text_column])
        shown = _shorten(content)
    else:
        content = Path(folder or "", str(record[file_column or ""]))
        shown, source = content.name, str(content.resolve())
    embedding = record.get("embedding")
    with wrap_errors(f"the embedding of record {number} is not a list of numbers"):
        vector = None if embedding is None else np.asarray(embedding, dtype=np.float32)
    return SourceItem(
        content,
        str(record.get("name") or shown),
        str(record.get("group") or group),
        source,
        key=read_id(record.get("id"), number),
        metadata=metadata,
        embedding=vector,
    )


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
    elif path.suffix.lower() in TABLE_SUFFIXES:
        for number, row in enumerate(_read_rows(path)):
            yield make_source_item(row, number, folder=path.parent)
    else:
        yield SourceItem(path, path.name, path.parent.name, str(path.resolve()))


def _text_items(path: Path, column: str | None, folder: str) -> Iterator[SourceItem]:
    """Yield each text of a file that is not empty; its group is that of its row, else the folder."""
    source = path.resolve()
    if path.suffix.lower() not in TABLE_SUFFIXES:
        for number, line in enumerate(_read_file(path).splitlines()):
            if line.strip():
                yield _text_item(line.strip(), folder, f"{source}#{number}")
        return
    rows = _read_rows(path)
    if not rows:
        return
    names = list(rows[0])
    column = column or next((name for name in DEFAULT_TEXT_COLUMNS if name in names), None)
    if column is None or column not in names:
        raise InputError(
            f"{path}: choose the column with the texts with --column; there are {', '.join(map(str, names))}"
        )
    for number, row in enumerate(rows):
        text = str(row.get(column) or "").strip()
        if text:
            record = {**row, column: text}
            yield make_source_item(record, number, column=column, source=f"{source}#{number}", group=folder)


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


def _read_rows(path: Path) -> list[dict[str, object]]:
    """Return the rows of a .csv, .tsv, .jsonl or .parquet file."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return [dict(row) for row in iter_rows(path)]
    if suffix in TABLE_DELIMITERS:
        rows = _read_cells(path, TABLE_DELIMITERS[suffix])
        return parse_cells(rows, keep=("id", "name", "group", *DEFAULT_TEXT_COLUMNS))
    try:
        objects = [json.loads(line) for line in _read_file(path).splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: each line must be a JSON object ({error})") from None
    if not all(isinstance(o, dict) for o in objects):
        raise InputError(f"{path}: each line must be a JSON object")
    return objects


def _read_cells(path: Path, delimiter: str) -> list[dict[str, str | None]]:
    """Return the rows of a text table; cells beyond the header have no name, and are left out."""
    # strict: else a quotation mark that is never closed makes one cell of all that follows
    reader = csv.DictReader(io.StringIO(_read_file(path), newline=""), delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(MAX_CELL_CHARACTERS)
    try:
        names = list(reader.fieldnames or ())
        twice = next((name for name in names if name and names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{path}: two columns are called {twice!r}: rename one")
        return [{name: row.get(name) for name in names} for row in reader]
    except csv.Error as error:
        raise InputError(
            f"{path}, after line {reader.line_num}: {error}: check the quotation marks there"
        ) from None
    finally:
        csv.field_size_limit(limit)


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets write a mark first
    except OSError as error:
        raise InputError(f"{path}: {describe_error(error)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not valid UTF-8 text: convert it to UTF-8") from None
