"""Several explanations on one HTML page: all pairs of some inputs, or one pair under several encoders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bilrp.errors import InputError, to_printable
from bilrp.io import files
from bilrp.render import page
from bilrp.render.styles import resolve_palette

if TYPE_CHECKING:
    from bilrp.explanation import Explanation

MAX_EXPLANATIONS = 28  # all pairs of eight inputs

_PAGE_CSS = """
:root{--paper:#fdfcfa;--ink:#1c1b1a;--soft:#625e58;--rule:#dcd8d1}
@media (prefers-color-scheme:dark){:root{--paper:#161514;--ink:#efece7;--soft:#aaa49b;--rule:#3a3733}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 "Inter","Helvetica Neue","Segoe UI",system-ui,sans-serif}
header{max-width:1100px;margin:0 auto;padding:28px 24px 8px}
h1{font:600 26px/1.25 "Iowan Old Style","Charter","Georgia","DejaVu Serif",serif;margin:0 0 6px}
p{margin:0 0 14px;color:var(--soft)}
ol{margin:0;padding:0;list-style:none;display:grid;gap:0}
li{padding:10px 0;border-top:1px solid var(--rule);overflow-wrap:anywhere}
a{color:inherit;font-weight:600;text-underline-offset:3px}
li span{color:var(--soft);display:block}
section{display:block;min-height:720px;border-top:1px solid var(--rule);margin-top:24px;min-width:0}
section.drawn{min-height:0}
@media (min-width:1200px){.side{display:grid;grid-template-columns:repeat(2,minmax(0,1fr))}.side section+section{border-left:1px solid var(--rule)}}
noscript p{padding:40px}
"""  # noqa: E501
_START_SCRIPT = """
gallery(document.querySelector("main"), JSON.parse(document.querySelector("script[type='application/json']").textContent));
"""


@dataclass(frozen=True, eq=False)
class GalleryEntry:
    """One explanation of a gallery, its heading, and the names of its inputs."""

    explanation: Explanation
    heading: str
    names: tuple[str, str] | None = None


def render_html(
    entries: Sequence[GalleryEntry],
    *,
    title: str,
    lead: str = "",
    columns: int = 1,
    style: str | None = None,
    palette: str = "paper",
    special_tokens: bool = False,
) -> str:
    """Return the page as one string: all summaries first, then each explanation to explore.

    Args:
        entries: The explanations.
        title: Title of the page.
        lead: A paragraph below the title.
        columns: 2 puts consecutive entries side by side on wide screens.
        style: Link style (`bilrp.render.styles`).
        palette: "paper" or "safe".
        special_tokens: Draw special tokens of texts.

    >>> entry = GalleryEntry(explanation, "layer 17")  # doctest: +SKIP
    >>> Path("why.html").write_text(render_html([entry], title="Two layers"))  # doctest: +SKIP
    """
    resolve_palette(palette)  # raises if unknown
    if not 1 <= len(entries) <= MAX_EXPLANATIONS:
        raise InputError(
            f"a page holds 1 to {MAX_EXPLANATIONS} explanations, got {len(entries)}: give fewer inputs"
        )
    payloads = [
        _build_payload(entry, style, special_tokens) | {"palette": palette, "compact": True}
        for entry in entries
    ]
    data = {
        "title": to_printable(title),
        "lead": to_printable(lead),
        "columns": columns,
        "chapters": payloads,
    }
    return page.build_document(data, title=data["title"], entry="gallery", start=_START_SCRIPT, css=_PAGE_CSS)


def _build_payload(entry: GalleryEntry, style: str | None, special_tokens: bool) -> dict:
    names = None if entry.names is None else (to_printable(entry.names[0]), to_printable(entry.names[1]))
    heading = to_printable(entry.heading)
    return page.build_payload(
        entry.explanation, title=heading, style=style, names=names, special_tokens=special_tokens
    )


def write(
    entries: Sequence[GalleryEntry], path: str | os.PathLike[str], *, title: str, lead: str = "", columns: int = 1,
    style: str | None = None, palette: str = "paper", special_tokens: bool = False,
) -> Path:  # fmt: skip
    """Write the page to `path` atomically.

    Args:
        entries: The explanations.
        path: The file to write.
        title, lead, columns, style, palette, special_tokens: As for `render_html`.
    """
    text = render_html(
        entries,
        title=title,
        lead=lead,
        columns=columns,
        style=style,
        palette=palette,
        special_tokens=special_tokens,
    )
    return files.write_bytes(Path(path), text.encode("utf-8"))
