"""Errors that users see: one printable line that says what is wrong and what to do."""

from __future__ import annotations

import importlib
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# Control characters, line breaks, changes of writing direction, and lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class BilrpError(Exception):
    """Base class of all errors of bilrp; the command line prints it as one line without a traceback."""

    def __str__(self) -> str:
        return to_printable(super().__str__())


class InputError(BilrpError):
    """An input that cannot be explained: wrong shape, NaN, an unreadable file, an empty region."""


class TapeError(BilrpError):
    """The model did something that the tape cannot record."""


class RuleError(BilrpError):
    """A step has no rule, or a rule does not fit its step."""


class MismatchError(BilrpError):
    """Two decompositions of different encoders, layers, rules or projections."""


def to_printable(text: object) -> str:
    """Return text as one line that is safe to print: control characters and invalid bytes are escaped.

    >>> to_printable("cat" + chr(27) + "[2J.jpg"), to_printable(chr(0xDCFF))
    ('cat\\\\x1b[2J.jpg', '\\\\xff')
    """
    return _UNPRINTABLE.sub(lambda match: _escape(ord(match[0])), str(text))


def describe_error(error: BaseException, max_chars: int = 160) -> str:
    """Return the message of another library's error as one short line."""
    lines = str(getattr(error, "strerror", None) or error).strip().splitlines()
    return to_printable(lines[0])[:max_chars] if lines else type(error).__name__


@contextmanager
def wrap_errors(prefix: str) -> Iterator[None]:
    """Convert any other error raised inside the block to one line that begins with `prefix`.

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
        raise InputError(f"{prefix} ({describe_error(error)})") from error


def import_optional(module: str, extra: str, feature: str) -> ModuleType:
    """Import a module of an optional dependency; raise `InputError` with the pip command if it is missing.

    Args:
        module: the module to import.
        extra: the extra of bilrp that installs it.
        feature: what needs it, plural, for the error message.

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
    """Warning filters are process-wide: the first thread to enter sets them, the last to leave restores them."""

    def __init__(self) -> None:
        self.lock, self.depth = threading.Lock(), 0

    def __enter__(self) -> None:
        with self.lock:
            self.depth += 1
            if self.depth == 1:
                self.saved_filters = warnings.catch_warnings()
                self.saved_filters.__enter__()
                for message in ("There is a performance drop", "lance is not fork-safe"):  # torch.vmap, Lance
                    warnings.filterwarnings("ignore", message=message)
                warnings.filterwarnings("ignore", module=r"PIL\.")  # malformed image metadata

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self.saved_filters.__exit__(None, None, None)


_suppressor = _WarningSuppressor()


def suppress_warnings() -> _WarningSuppressor:
    """Silence harmless warnings (vmap fallback, Pillow metadata, Lance after fork); thread-safe."""
    return _suppressor


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
