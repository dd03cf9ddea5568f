"""What `bilrp explain` and `bilrp show` leave behind: every output is tried, and what fails is said beside what does not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bilrp.cli import terminal
from bilrp.cli.console import say
from bilrp.errors import InputError, printable, reason

if TYPE_CHECKING:
    from bilrp.explanation import Explanation

VIEWED = (".html", ".png", ".svg", ".pdf")


def check_open(outputs: Sequence[Path], wanted: bool) -> None:
    """Refuse --open before the work, where nothing that can be looked at will be written."""
    if wanted and not any(path.suffix.lower() in VIEWED for path in outputs):
        raise InputError(f"--open shows a page or a picture: add -o why.html (or {', '.join(VIEWED[1:])})")


def deliver(
    found: Explanation,
    outputs: Sequence[Path],
    *,
    names: tuple[str, str] | None,
    style: str,
    palette: str,
    title: str | None,
    marks: bool = False,
    show: bool = False,
    quiet: bool = False,
) -> None:
    """Write the explanation to every output."""

    def write(path: Path) -> None:
        terminal.write(found, path, names=names, style=style, palette=palette, title=title, marks=marks)

    try_each(write, outputs, show=show, quiet=quiet)


def try_each(
    write: Callable[[Path], object], outputs: Sequence[Path], *, show: bool = False, quiet: bool = False
) -> None:
    """Write every output; one that fails costs its own line and the exit code 2, never the others."""
    written = []
    for path in outputs:
        try:
            write(path)
        except Exception as error:  # whatever one output does, the next one is tried
            said = str(error) if str(path) in str(error) else f"{path}: {reason(error)}"
            say(f"bilrp: {printable(said)}", file=sys.stderr)
        else:
            written.append(path)
            if not quiet:
                say(f"  wrote {printable(path)}")
    if show:
        _open(written)
    if len(written) < len(outputs):
        raise typer.Exit(2)


def _open(written: Sequence[Path]) -> None:
    import webbrowser

    first = next((path for path in written if path.suffix.lower() in VIEWED), None)
    if first is not None and not webbrowser.open(first.resolve().as_uri()):
        say(f"bilrp: there is no browser here to open {printable(first)} with", file=sys.stderr)
