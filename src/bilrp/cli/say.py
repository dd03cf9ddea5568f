"""What the command line prints, whatever the names of files hold."""

from __future__ import annotations

import sys
from typing import IO

from bilrp.errors import printable


def say(text: object, *, file: IO[str] | None = None) -> None:
    """Print lines; what would move the cursor or is no character is escaped."""
    print("\n".join(map(printable, str(text).split("\n"))), file=file)


def note(message: object, *_: object, **__: object) -> None:
    """A warning as one line on stderr, in place of Python's two with a path."""
    say(f"bilrp: {' '.join(str(message).split())}", file=sys.stderr)
