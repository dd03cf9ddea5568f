"""Static files of the app, read from the package once and looked up by URL path, so that no path is ever joined."""

from __future__ import annotations

from functools import cache
from importlib import resources

MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
ASSET_PACKAGES = {"web": "bilrp.app", "page": "bilrp.render"}  # by the first part of the URL path


@cache
def load_static_files() -> dict[str, tuple[bytes, str]]:
    """Return (content, media type) of every static file by its URL path."""
    contents = {}
    for name, package in ASSET_PACKAGES.items():
        for file in resources.files(package).joinpath("web").iterdir():
            suffix = file.name[file.name.rfind(".") :]
            if suffix in MEDIA_TYPES and file.name != "page.html":
                contents[f"/{name}/{file.name}"] = (
                    file.read_bytes(),
                    f"{MEDIA_TYPES[suffix]}; charset=utf-8",
                )
    return contents
