"""Errors that users see: one clear line that says what happened and what to do, whatever a file's name holds."""

from __future__ import annotations

import importlib
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# What moves a cursor, breaks a line, turns the direction of writing, or is no character at all.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class BilrpError(Exception):
    """Base of everything bilrp raises on purpose; the command line prints it as one line, no traceback."""

    def __str__(self) -> str:
        return to_printable(super().__str__())


class InputError(BilrpError):
    """An input that cannot be explained: wrong shape, NaN, an unreadable file, an empty region."""


class TapeError(BilrpError):
    """The model did something that the tape cannot see."""


class RuleError(BilrpError):
    """A step has no rule, or a rule does not fit its step."""


class MismatchError(BilrpError):
    """Two decompositions that do not belong to the same encoder, layer, rules or projection."""


def to_printable(text: object) -> str:
    """Text of any origin as one line that a terminal, a picture or a page can show: what is no character is escaped.

    >>> to_printable("cat" + chr(27) + "[2J.jpg"), to_printable(chr(0xDCFF))
    ('cat\\\\x1b[2J.jpg', '\\\\xff')
    """
    return _UNPRINTABLE.sub(lambda found: _escape(ord(found[0])), str(text))


def describe_error(error: BaseException, max_chars: int = 160) -> str:
    """What a foreign error says, in one short line."""
    said = str(getattr(error, "strerror", None) or error).strip().splitlines()
    return to_printable(said[0])[:max_chars] if said else type(error).__name__


@contextmanager
def wrap_errors(prefix: str, error_type: type[BilrpError] = InputError) -> Iterator[None]:
    """Whatever a decoder, a store or a font raises inside becomes one line that begins with `prefix`.

    >>> with wrap_errors("cat.jpg: damaged or unreadable image"):
    ...     {}["tile"]
    Traceback (most recent call last):
    bilrp.errors.InputError: cat.jpg: damaged or unreadable image ('tile')
    """
    try:
        yield
    except BilrpError:
        raise
    except Exception as error:
        raise error_type(f"{prefix} ({describe_error(error)})") from error


def import_optional(module: str, extra: str, feature: str) -> Any:
    """A module that comes with an extra of the package, or one line that says how to install it.

    >>> import_optional("json", "text", "sentences").dumps([])
    '[]'
    >>> import_optional("no_such_module", "text", "sentences")
    Traceback (most recent call last):
    bilrp.errors.InputError: sentences need no_such_module: pip install 'bilrp[text]' (No module named 'no_such_module')
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise InputError(
            f"{feature} need {name}: pip install 'bilrp[{extra}]' ({describe_error(error)})"
        ) from None


class _WarningSuppressor:
    """Python's warning filters belong to the whole process: the first to ask sets them, the last to leave puts them back."""

    def __init__(self) -> None:
        self.lock, self.depth = threading.Lock(), 0

    def __enter__(self) -> None:
        with self.lock:
            self.depth += 1
            if self.depth == 1:
                self.saved_filters = warnings.catch_warnings()
                self.saved_filters.__enter__()
                warnings.filterwarnings(
                    "ignore", message="There is a performance drop"
                )  # torch, where it loops
                warnings.filterwarnings("ignore", module=r"PIL\.")  # oddities in a picture's metadata
                warnings.filterwarnings(
                    "ignore", message="lance is not fork-safe"
                )  # of a child that opens none

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self.saved_filters.__exit__(None, None, None)


_suppressor = _WarningSuppressor()


def suppress_warnings() -> _WarningSuppressor:
    """Without warnings that are no news: torch's of a loop, Pillow's of metadata, Lance's of a fork; from any thread."""
    return _suppressor


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte of a file's name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
