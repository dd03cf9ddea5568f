"""The command line: parses options, calls the library and prints. It may import every package; none may import it."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Any

from bilrp.cli.console import print_safe, print_warning
from bilrp.errors import BilrpError


def main() -> None:
    """Run the command line. Expected errors become one line on stderr and exit code 2, unexpected ones exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        # file names may contain bytes that cannot be printed: escape them
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    warnings.showwarning = print_warning
    try:
        # imported here, so that Ctrl-C while modules load is handled too
        from bilrp.cli.commands import app

        app()
    except BilrpError as error:
        if os.environ.get("BILRP_DEBUG"):
            raise
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _exit_interrupted()
    except SystemExit as stop:
        if stop.code == 130:  # typer turns Ctrl-C into this, without a message
            _exit_interrupted()
        raise
    except BrokenPipeError:
        # the reader of the output has closed it (bilrp … | head): not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("BILRP_DEBUG"):
            raise
        reason = " ".join(str(error).split()) or "no message"
        _fail(f"{type(error).__name__}: {reason[:400]} (BILRP_DEBUG=1 shows where)", 1)


def _exit_interrupted() -> None:
    # Python waits for worker threads at exit: let a second Ctrl-C end the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _fail("interrupted", 130)


def _fail(reason: str, code: int) -> None:
    print_safe(f"bilrp: {' '.join(reason.split())}", file=sys.stderr)
    sys.exit(code)


def __getattr__(name: str) -> Any:
    if name == "app":
        from bilrp.cli.commands import app

        return app
    raise AttributeError(f"module 'bilrp.cli' has no attribute {name!r}")
