"""`bilrp samples`: write sample inputs, so that every first command has files to work on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

NEXT_COMMANDS = """
next:
  bilrp explain {0}/coffee-1.jpg {0}/coffee-2.jpg -o why.html
  bilrp explain {0}/table-1.png {0}/table-2.png -e bigram -o numbers.html
  bilrp index {0} -o samples.lance"""


def samples(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write them.")] = Path("samples"),
) -> None:
    """Write three photographs and two table pages to try commands on: bilrp samples"""
    from importlib.resources import files

    from bilrp.errors import InputError, describe_error
    from bilrp.io.files import write_bytes

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder, bilrp samples FOLDER")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {describe_error(error)}") from None
    sources = [
        path for path in files("bilrp").joinpath("samples").iterdir() if path.name.endswith((".jpg", ".png"))
    ]
    for source in sorted(sources, key=lambda path: path.name):
        target = folder / source.name
        content = source.read_bytes()
        if not target.exists():
            write_bytes(target, content)
        elif not target.is_file() or target.read_bytes() != content:
            raise InputError(
                f"{target} exists and is another file: name another folder, bilrp samples FOLDER"
            )
        print(target)
    print(NEXT_COMMANDS.format(shlex.quote(str(folder))))
