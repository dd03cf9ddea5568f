"""The app's own files, read from the package once: a name is looked up in a table, never joined to a path."""

from __future__ import annotations

from functools import cache
from importlib import resources

KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
ROOMS = {"web": "bilrp.app", "page": "bilrp.render"}  # as the browser calls them


@cache
def table() -> dict[str, tuple[bytes, str]]:
    """(content, kind) of every file that a browser may ask for, by its address.

    >>> sorted(table())[0]
    '/page/account.js'
    """
    found = {}
    for name, package in ROOMS.items():
        for file in resources.files(package).joinpath("web").iterdir():
            suffix = file.name[file.name.rfind(".") :]
            if suffix in KINDS and file.name != "page.html":
                found[f"/{name}/{file.name}"] = (file.read_bytes(), f"{KINDS[suffix]}; charset=utf-8")
    return found
