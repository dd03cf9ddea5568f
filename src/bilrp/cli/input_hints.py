"""Check command-line inputs before torch is imported: files that are missing, and inputs of a kind that cannot be read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from bilrp.encoders.image_files import SUFFIXES
from bilrp.encoders.registry import DEFAULT_IMAGE_ENCODER, DEFAULT_TEXT_ENCODER, input_kind
from bilrp.errors import InputError

ITEMS_TABLE = "items.lance"  # in every collection
WEB_ADDRESS = re.compile(r"(https?|ftp)://\S+", re.IGNORECASE)
TEXT_FILE_NAME = re.compile(r"\S+\.(txt|md)", re.IGNORECASE)
FILE_NAME = re.compile(r"\S*(/\S*|\.[A-Za-z0-9]{1,5})")  # a path, or a name with a suffix


def choose_encoders(inputs: Sequence[str], encoders: Sequence[str] | None) -> list[str]:
    """Return the encoders that were asked for, else the default for files, or for texts if no input is or names a file.

    >>> choose_encoders(["A cat sat.", "A dog ran."], None), choose_encoders(["a.jpg", "b.jpg"], None)
    (['minilm'], ['efficientnet'])
    """
    if encoders:
        return list(encoders)
    are_texts = all(_is_text(argument) for argument in inputs)
    return [DEFAULT_TEXT_ENCODER if are_texts else DEFAULT_IMAGE_ENCODER]


def check_inputs(inputs: Sequence[str], encoders: Sequence[str]) -> None:
    """Raise for an input that these encoders cannot read, and say what to do; encoders of the user's own read anything."""
    for name in encoders:
        kind = input_kind(name)
        for argument in inputs:
            if kind == "images":
                _check_image(argument, name)
            elif kind == "texts":
                _check_text(argument, name)


def check_collection(argument: str) -> None:
    """Raise unless an argument may name a collection, and say how to make one; an object store (s3://…) is not checked."""
    _refuse_web_address(argument)
    path = Path(argument)
    if (
        "://" in argument
        or (path.suffix.lower() == ".lance" and _exists(path))
        or _exists(path / ITEMS_TABLE)
    ):
        return
    name = _name_collection(path)
    if not _exists(path):
        raise InputError(f"{argument}: no collection there; make one with bilrp index FOLDER -o {name}")
    if path.is_dir():
        command = f"bilrp index {shlex.quote(argument)} -o {name}"
        raise InputError(f"{argument}: a folder, not a collection; index it first: {command}")
    raise InputError(
        f"{argument}: a file, not a collection, which is what bilrp index FOLDER -o NAME.lance writes"
    )


def _name_collection(path: Path) -> str:
    return shlex.quote(path.name if path.suffix == ".lance" else f"{path.name or 'photos'}.lance")


def check_query(argument: str) -> None:
    """Raise for a query that no collection can read: a web address, or a PDF."""
    _refuse_web_address(argument)
    if Path(argument).suffix.lower() == ".pdf" and " " not in argument:
        _refuse_pdf(argument)


def _refuse_pdf(argument: str) -> None:
    raise InputError(
        f"{argument}: a PDF; export a page as an image first, e.g. with "
        f"pdftoppm -r 150 -png -f 1 -l 1 {shlex.quote(argument)} page"
    )


def _check_image(argument: str, encoder: str) -> None:
    _refuse_web_address(argument)
    path = Path(argument)
    if path.suffix.lower() == ".pdf":
        _refuse_pdf(argument)
    if _exists(path):
        return
    hint = f"; {encoder} reads images, for texts use -e {DEFAULT_TEXT_ENCODER}" if _is_text(argument) else ""
    raise InputError(f"{argument}: no such file{hint}")


def _check_text(argument: str, encoder: str) -> None:
    _refuse_web_address(argument)
    if argument.startswith("@") and not _exists(Path(argument[1:])):
        raise InputError(
            f"{argument[1:]}: no such file (an argument that starts with @ names a file with a text)"
        )
    path = Path(argument)
    if not argument.startswith("@") and TEXT_FILE_NAME.fullmatch(argument) and not _exists(path):
        raise InputError(f"{argument}: no such file (a text is given in quotes, a file with a text as @FILE)")
    if " " in argument or path.suffix.lower() not in (*SUFFIXES, ".pdf"):
        return
    if path.suffix.lower() == ".pdf":
        raise InputError(
            f"{argument}: a PDF, and {encoder} reads texts: give its text, e.g. @page.txt by pdftotext"
        )
    raise InputError(
        f"{argument}: an image, and {encoder} reads texts: use an encoder for pictures, -e {DEFAULT_IMAGE_ENCODER}"
    )


def _refuse_web_address(argument: str) -> None:
    if WEB_ADDRESS.fullmatch(argument.strip()):
        raise InputError(f"{argument}: a web address; download it first and give the file")


def _is_text(argument: str) -> bool:
    """Return whether an argument is a text: - and @FILE, or what neither is nor looks like a file."""
    if argument == "-" or argument.startswith("@"):
        return True
    return not _exists(Path(argument)) and not FILE_NAME.fullmatch(argument)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a null byte: a text
        return False
