"""Rows of tables: DataFrames, Arrow tables and Parquet files as dicts, names of columns, and values that can be filtered."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bilrp.collection.tables import RESERVED_COLUMNS
from bilrp.errors import InputError, import_optional

MAX_ID_CHARACTERS = 512
INTEGER, NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})"), re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?")
Scalar = bool | int | float | str | None


def is_table(source: object) -> bool:
    """Return whether a source is a DataFrame (pandas or polars) or an Arrow table."""
    return any(hasattr(source, each) for each in ("to_pylist", "to_dicts")) or (
        hasattr(source, "to_dict") and hasattr(source, "columns")
    )


def iter_rows(source: Any) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a DataFrame (pandas or polars), an Arrow table or a Parquet file as dicts."""
    if isinstance(source, str | os.PathLike):
        parquet = import_optional("pyarrow.parquet", "collection", "Parquet files")
        try:
            with parquet.ParquetFile(source) as file:
                for batch in file.iter_batches():
                    yield from batch.to_pylist()
        except (OSError, ValueError) as error:
            raise InputError(f"{source}: not a readable Parquet file ({str(error)[:80]})") from None
    elif hasattr(source, "to_pylist"):
        yield from source.to_pylist()
    else:
        yield from source.to_dicts() if hasattr(source, "to_dicts") else source.to_dict("records")


def read_id(value: object, number: int) -> str:
    """Return the id of a record as text; empty if it has none."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return ""
    key = escape_surrogates(str(value))
    if len(key) > MAX_ID_CHARACTERS:
        raise InputError(f"the id of record {number} has {len(key)} characters, at most {MAX_ID_CHARACTERS}")
    return key


def escape_surrogates(text: str) -> str:
    """Return a text as valid UTF-8: halves of characters, which JSON allows, are escaped.

    >>> escape_surrogates("caf" + chr(233) + chr(0xD800))
    'café\\\\ud800'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def clean_name(name: str) -> str:
    """Return the name of a column for filters: other characters become _, and names that a collection uses get a _.

    >>> clean_name("year"), clean_name("published at"), clean_name("source")
    ('year', 'published_at', 'source_')
    """
    cleaned = re.sub(r"\W", "_", name)[:64]
    cleaned = f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned
    return f"{cleaned}_" if cleaned.lower() in RESERVED_COLUMNS else cleaned


def to_scalar(value: object) -> Scalar:
    """Return a value as bool, int, float, text or None: dates as ISO text, lists and dicts as JSON, NaN as None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return escape_surrogates(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    try:
        return json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)
    except (TypeError, ValueError):
        return str(value)


def parse_cells(rows: Sequence[Mapping[str, object]], keep: Iterable[str] = ()) -> list[dict[str, object]]:
    """Return the rows of a text table with columns of numbers as numbers; empty cells are None.

    Args:
        rows: rows with texts.
        keep: columns that stay texts, such as ids, which may begin with zeros.

    >>> parse_cells([{"id": "01", "year": "2019"}, {"id": "02", "year": ""}], keep=["id"])
    [{'id': '01', 'year': 2019}, {'id': '02', 'year': None}]
    """
    parsed = [dict(row) for row in rows]
    for name in {name for row in rows for name in row} - set(keep):
        values = [row[name] for row in rows if row.get(name) not in (None, "")]
        convert: type[int | float | str] = str
        if values and all(isinstance(v, str) and INTEGER.fullmatch(v) for v in values):
            convert = int
        elif values and all(isinstance(v, str) and NUMBER.fullmatch(v) and v[:2] != "00" for v in values):
            convert = float
        for row in parsed:
            if isinstance(cell := row.get(name), str):
                row[name] = convert(cell) if cell else None
    return parsed
