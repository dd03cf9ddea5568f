"""The JSON Schemas of the answers, as files of this package."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from bilrp.errors import InputError

NAMES = ("explain", "explain-many", "sets", "highlight", "search", "contrast", "audit")


@cache
def load_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an answer.

    >>> load_schema("highlight")["title"]
    'HighlightAnswer'
    """
    if name not in NAMES:
        raise InputError(f"there is no schema {name!r}: choose one of {', '.join(NAMES)}")
    return _read_file(f"{name}.json")


@cache
def load_components() -> dict[str, Any]:
    """Return the schemas of requests and answers of the HTTP API, by name."""
    return _read_file("http.json")


def _read_file(name: str) -> dict[str, Any]:
    path = resources.files("bilrp.answers").joinpath("schemas", name)
    return json.loads(path.read_text(encoding="utf-8"))
