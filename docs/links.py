"""List the broken links inside a built site: python docs/links.py out/docs"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := values.get(key))}
        self.links += [value for key in ("href", "src") if (value := values.get(key))]


def find_broken(site: Path) -> list[str]:
    """Return 'page: link' for every link, image or frame inside the site whose target does not exist."""
    pages = {
        path: Page(path.read_text()) for path in sorted(site.rglob("*.html")) if "live" not in path.parts
    }
    return [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in page.links
        if not _has_target(path, link, pages)
    ]


def _has_target(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # another site, or data
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in pages or anchor in pages[target].anchors


if __name__ == "__main__":
    broken = find_broken(Path(sys.argv[1]).resolve())
    print(*broken, f"{len(broken)} broken links", sep="\n")
    sys.exit(bool(broken))
