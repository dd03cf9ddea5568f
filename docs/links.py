"""Links inside a built site that lead nowhere: python docs/links.py out/docs"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places |= {value for key in ("id", "name") if (value := found.get(key))}
        self.links += [value for key in ("href", "src") if (value := found.get(key))]


def broken(site: Path) -> list[str]:
    """'page: link' for every link, picture or frame inside the site without its target."""
    pages = {
        path: Page(path.read_text()) for path in sorted(site.rglob("*.html")) if "live" not in path.parts
    }
    return [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in page.links
        if not _leads_somewhere(path, link, pages)
    ]


def _leads_somewhere(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # another site, or data
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return False
    place = unquote(parts.fragment)
    return not place or target not in pages or place in pages[target].places


if __name__ == "__main__":
    found = broken(Path(sys.argv[1]).resolve())
    print(*found, f"{len(found)} links lead nowhere", sep="\n")
    sys.exit(bool(found))
