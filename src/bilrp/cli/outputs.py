"""Output files of the commands: checks before the work, drawing options, and writing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bilrp.cli.console import print_safe
from bilrp.errors import InputError, describe_error, to_printable
from bilrp.io.files import PAGE_SUFFIX, VIEWABLE_SUFFIXES, match_suffix

if TYPE_CHECKING:
    from bilrp.explanation import Explanation


@dataclass(frozen=True)
class DrawOptions:
    """How figures and pages are drawn.

    Args:
        link_preset, palette, special_tokens, show: the options of these names.
        title: the option --title; None: the command's default.
    """

    link_preset: str = "auto"
    palette: str = "paper"
    title: str | None = None
    special_tokens: bool = False
    show: str = "matches"

    def __post_init__(self) -> None:
        """Reject unknown names before the work."""
        from bilrp.render import styles

        styles.resolve_style(self.link_preset)
        styles.resolve_palette(self.palette)
        styles.check_show(self.show)


def check_outputs(
    paths: Sequence[str],
    *,
    formats: Collection[str],
    inputs: Sequence[str] = (),
    open_output: bool = False,
    page_only: bool = False,
) -> list[Path]:
    """Return the output paths; raise before the work if one cannot be written or would overwrite an input.

    Args:
        paths: the values of --output.
        formats: the suffixes that the command can write.
        inputs: input files.
        open_output: the option --open: at least one output must be viewable.
        page_only: the command writes several explanations, which only an .html page can contain.
    """
    outputs = [Path(path) for path in paths]
    for path in outputs:
        if len(os.fsencode(path.name)) > 255:
            raise InputError(f"--output {path.name[:40]}…: the name is too long")
        if any(path.exists() and os.path.exists(item) and path.samefile(item) for item in inputs):
            raise InputError(f"--output {path}: this is an input, it would be overwritten")
        if match_suffix(path, formats) is None:
            raise InputError(f"--output {path}: the suffix must be one of {', '.join(formats)}")
        if path.is_dir():
            raise InputError(f"--output {path}: a folder has this name")
        if not path.parent.is_dir():
            raise InputError(f"--output {path}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise InputError(f"--output {path}: the folder {path.parent} cannot be written to")
        if page_only and path.suffix.lower() != PAGE_SUFFIX:
            raise InputError(
                f"--output {path}: several explanations are written as one page, give a .html name"
            )
    if open_output and not any(path.suffix.lower() in VIEWABLE_SUFFIXES for path in outputs):
        raise InputError(
            f"--open shows a page or figure: add -o why.html (or {', '.join(VIEWABLE_SUFFIXES[1:])})"
        )
    return outputs


def write_outputs(
    explanation: Explanation,
    outputs: Sequence[Path],
    draw: DrawOptions,
    *,
    names: tuple[str, str] | None,
    open_output: bool = False,
    quiet: bool = False,
) -> None:
    """Write an explanation to every output, in the format of its suffix.

    Args:
        explanation, names: the explanation, and the names of its inputs.
        outputs, draw: the files to write, and how to draw them.
        open_output, quiet: as for `write_each`.
    """

    shown: dict[str, Any] = {} if draw.show == "matches" else {"show": draw.show}

    def write(path: Path) -> None:
        explanation.save(
            path,
            names=names,
            style=draw.link_preset,
            palette=draw.palette,
            title=draw.title,
            special_tokens=draw.special_tokens,
            **shown,
        )

    write_each(write, outputs, open_output=open_output, quiet=quiet)


def write_each(
    write: Callable[[Path], object],
    outputs: Sequence[Path],
    *,
    open_output: bool = False,
    quiet: bool = False,
) -> None:
    """Write every output; an error is printed, the others are still written, and the exit code is 2.

    Args:
        write: writes one file.
        outputs: the files to write.
        open_output: open the first page or figure.
        quiet: print only errors.
    """
    written = []
    for path in outputs:
        try:
            write(path)
        except Exception as error:  # the next output may still succeed
            message = str(error) if str(path) in str(error) else f"{path}: {describe_error(error)}"
            print_safe(f"bilrp: {to_printable(message)}", file=sys.stderr)
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
        print_safe(f"bilrp: no browser found to open {to_printable(first)}", file=sys.stderr)
