"""What the command line prints, whatever the names of files hold."""

from __future__ import annotations

import sys
from typing import Protocol, runtime_checkable

from bilrp.errors import to_printable


@runtime_checkable
class Stream(Protocol):
    """Where lines go: a terminal, a file, or what stands for one."""

    def write(self, text: str, /) -> object: ...


def print_safe(text: object, *, file: Stream | None = None) -> None:
    """Print lines; what would move the cursor or is no character is escaped."""
    print("\n".join(map(to_printable, str(text).split("\n"))), file=file)


def print_warning(message: object, *_: object, **__: object) -> None:
    """A warning as one line on stderr, in place of Python's two with a path."""
    print_safe(f"bilrp: {' '.join(str(message).split())}", file=sys.stderr)
