"""What `bilrp explain` and `bilrp show` leave behind: every output is tried, and what fails is said beside what does not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bilrp.cli import terminal
from bilrp.cli.console import print_safe
from bilrp.errors import InputError, describe_error, to_printable

if TYPE_CHECKING:
    from bilrp.explanation import Explanation

VIEWABLE_SUFFIXES = (".html", ".png", ".svg", ".pdf")


def check_open(outputs: Sequence[Path], open_output: bool) -> None:
    """Refuse --open before the work, where nothing that can be looked at will be written."""
    if open_output and not any(path.suffix.lower() in VIEWABLE_SUFFIXES for path in outputs):
        raise InputError(
            f"--open shows a page or a picture: add -o why.html (or {', '.join(VIEWABLE_SUFFIXES[1:])})"
        )


def write_outputs(
    explanation: Explanation,
    outputs: Sequence[Path],
    *,
    names: tuple[str, str] | None,
    link_preset: str,
    palette: str,
    title: str | None,
    special_tokens: bool = False,
    open_output: bool = False,
    quiet: bool = False,
) -> None:
    """Write the explanation to every output."""

    def write(path: Path) -> None:
        terminal.write_output(
            explanation,
            path,
            names=names,
            link_preset=link_preset,
            palette=palette,
            title=title,
            special_tokens=special_tokens,
        )

    write_each(write, outputs, open_output=open_output, quiet=quiet)


def write_each(
    write: Callable[[Path], object],
    outputs: Sequence[Path],
    *,
    open_output: bool = False,
    quiet: bool = False,
) -> None:
    """Write every output; one that fails costs its own line and the exit code 2, never the others."""
    written = []
    for path in outputs:
        try:
            write(path)
        except Exception as error:  # whatever one output does, the next one is tried
            said = str(error) if str(path) in str(error) else f"{path}: {describe_error(error)}"
            print_safe(f"bilrp: {to_printable(said)}", file=sys.stderr)
        else:
            written.append(path)
            if not quiet:
                print_safe(f"  wrote {to_printable(path)}")
    if open_output:
        _open_first(written)
    if len(written) < len(outputs):
        raise typer.Exit(2)


def _open_first(paths: Sequence[Path]) -> None:
    import webbrowser

    first = next((path for path in paths if path.suffix.lower() in VIEWABLE_SUFFIXES), None)
    if first is not None and not webbrowser.open(first.resolve().as_uri()):
        print_safe(f"bilrp: there is no browser here to open {to_printable(first)} with", file=sys.stderr)
