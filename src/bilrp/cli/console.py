"""Printing that is safe for file names with any bytes."""

from __future__ import annotations

import sys
from typing import Protocol, runtime_checkable

from bilrp.errors import to_printable


@runtime_checkable
class Stream(Protocol):
    """A text stream: a terminal or a file."""

    def write(self, text: str, /) -> object: ...


def print_safe(text: object, *, file: Stream | None = None) -> None:
    """Print lines with control characters and invalid characters escaped."""
    print("\n".join(map(to_printable, str(text).split("\n"))), file=file)


def print_warning(message: object, *_: object, **__: object) -> None:
    """Print a warning as one line on stderr, without Python's file name and source line."""
    print_safe(f"bilrp: {' '.join(str(message).split())}", file=sys.stderr)
