"""The command line: words only. It parses, calls the library and prints; nothing imports it."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Any

from bilrp.cli.console import print_safe, print_warning
from bilrp.errors import BilrpError


def main() -> None:
    """Entry point: every expected failure becomes one line on stderr and exit code 2; a surprise exits with 1."""
    for stream in (sys.stdout, sys.stderr):
        # file names may hold bytes no terminal can show: print them escaped rather than fail
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    warnings.showwarning = print_warning
    try:
        # Here, so that Ctrl-C while modules load is as quiet as later.
        from bilrp.cli.commands import app

        app()
    except BilrpError as error:
        if os.environ.get("BILRP_DEBUG"):
            raise
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _exit_interrupted()
    except SystemExit as stopped:
        if stopped.code == 130:  # typer turns Ctrl-C into this, without a word
            _exit_interrupted()
        raise
    except BrokenPipeError:
        # the reader of our output went away (bilrp … | head): not an error, and nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("BILRP_DEBUG"):
            raise
        reason = " ".join(str(error).split()) or "no message"
        _fail(f"{type(error).__name__}: {reason[:400]} (BILRP_DEBUG=1 shows where)", 1)


def _exit_interrupted() -> None:
    # Python waits for worker threads before it ends: a second Ctrl-C then ends it at once, without a traceback.
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
