"""The app's own files, read from the package once: a name is looked up in a table, never joined to a path."""

from __future__ import annotations

from functools import cache
from importlib import resources

MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
ASSET_PACKAGES = {"web": "bilrp.app", "page": "bilrp.render"}  # as the browser calls them


@cache
def load_static_files() -> dict[str, tuple[bytes, str]]:
    """(content, kind) of every file that a browser may ask for, by its address.

    >>> sorted(load_static_files())[0]
    '/page/actions.js'
    """
    found = {}
    for name, package in ASSET_PACKAGES.items():
        for file in resources.files(package).joinpath("web").iterdir():
            suffix = file.name[file.name.rfind(".") :]
            if suffix in MEDIA_TYPES and file.name != "page.html":
                found[f"/{name}/{file.name}"] = (file.read_bytes(), f"{MEDIA_TYPES[suffix]}; charset=utf-8")
    return found
