"""Several explanations on one HTML page: all pairs of some inputs, or one pair under several encoders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.errors import InputError, to_printable
from bilrp.findings.formatting import format_number
from bilrp.io import files
from bilrp.render import page
from bilrp.render.styles import Show, resolve_palette

if TYPE_CHECKING:
    from bilrp.explanation import Explanation

MAX_EXPLANATIONS = 28  # all pairs of eight inputs

_PAGE_CSS = """
:root{--paper:#fdfcfa;--ink:#1c1b1a;--soft:#625e58;--rule:#dcd8d1;--positive:#d7191c;--negative:#2166d1}
@media (prefers-color-scheme:dark){:root{--paper:#161514;--ink:#efece7;--soft:#aaa49b;--rule:#3a3733;--positive:#f0435a;--negative:#3f86f5}}
[data-palette=safe]{--positive:#d55e00;--negative:#0072b2}
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
h2{font:600 16px/1.3 inherit;margin:16px 0 8px}
.strip{display:flex;flex-wrap:wrap;gap:14px}
.strip figure{margin:0;flex:0 1 190px;min-width:130px}
.strip:not(:has(figure:nth-child(4))) figure{flex-basis:300px}
.strip svg{display:block;width:100%;height:auto}
.strip image{filter:grayscale(.8)}
.strip :is(b,span){display:block;font-size:13px;font-weight:500;overflow-wrap:anywhere}
.strip span{color:var(--soft);font-weight:400}
.strip figure:has(.tinted){flex-basis:320px}
.tinted{color:var(--ink);margin:0 0 6px;font-size:17px;line-height:1.7}
rect.positive{fill:var(--positive)}rect.negative{fill:var(--negative)}
mark{color:inherit;background:none;border-radius:3px;padding:1px 2px}
mark.positive{background:color-mix(in srgb,var(--positive) var(--tint),transparent)}
mark.negative{background:color-mix(in srgb,var(--negative) var(--tint),transparent)}
.scale{display:flex;flex-wrap:wrap;gap:4px 10px;align-items:center;font-size:13px;margin:14px 0}
.scale i{width:200px;height:10px;background:linear-gradient(90deg,var(--negative),transparent,var(--positive))}
.matrix{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:6px 0 18px}
caption{text-align:left;color:var(--soft);font-size:13px;padding-bottom:6px}
td,th{padding:8px 12px;text-align:right;max-width:160px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-weight:500}
th[scope=row]{text-align:left;padding-left:0}
tbody td{background:color-mix(in srgb,var(--positive) calc(var(--tint,0%) * .55),transparent)}
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
    show: Show = "matches",
    strips: Mapping[str, object] | None = None,
    matrix: Mapping[str, object] | None = None,
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
        show: What each explanation shows first: "matches" or "differences".
        strips: Rows of tinted inputs above the explanations (`bilrp.render.strips.serialize_strips`).
        matrix: Scores of all pairs above the explanations (`serialize_matrix`).
    """
    resolve_palette(palette)  # raises if unknown
    if not 1 <= len(entries) <= MAX_EXPLANATIONS:
        raise InputError(
            f"a page holds 1 to {MAX_EXPLANATIONS} explanations, got {len(entries)}: give fewer inputs"
        )
    payloads = [
        _build_payload(entry, style, special_tokens, show) | {"palette": palette, "compact": True}
        for entry in entries
    ]
    data = {
        "title": to_printable(title),
        "lead": to_printable(lead),
        "columns": columns,
        "chapters": payloads,
        "palette": palette,
        "strips": strips,
        "matrix": matrix,
    }
    return page.build_document(data, title=data["title"], entry="gallery", start=_START_SCRIPT, css=_PAGE_CSS)


def _build_payload(entry: GalleryEntry, style: str | None, special_tokens: bool, show: Show) -> dict:
    names = None if entry.names is None else (to_printable(entry.names[0]), to_printable(entry.names[1]))
    heading = to_printable(entry.heading)
    return page.build_payload(
        entry.explanation, title=heading, style=style, names=names, special_tokens=special_tokens, show=show
    )


def serialize_matrix(
    names: Sequence[str], scores: Mapping[tuple[int, int], float], *, caption: str
) -> dict[str, Any]:
    """Return the scores of pairs of inputs as a table; each cell leads to its explanation, in the order of `scores`.

    Args:
        names, scores: Names of the inputs, and the score of each pair (i, j).
        caption: What the scores are.
    """
    largest = max((abs(score) for score in scores.values()), default=0.0) or 1.0
    numbers = {pair: n for n, pair in enumerate(scores)}

    def cell(i: int, j: int) -> dict[str, Any] | None:
        pair = (min(i, j), max(i, j))
        if pair not in scores:
            return None
        strength = round(max(0.0, scores[pair]) / largest, 3)
        return {"text": format_number(scores[pair]), "strength": strength, "pair": numbers[pair]}

    every = range(len(names))
    cells = [[None if i == j else cell(i, j) for j in every] for i in every]
    return {"names": [to_printable(name) for name in names], "cells": cells, "caption": caption}


def write(
    entries: Sequence[GalleryEntry], path: str | os.PathLike[str], *, title: str, lead: str = "", columns: int = 1,
    style: str | None = None, palette: str = "paper", special_tokens: bool = False,
) -> Path:  # fmt: skip
    """Write the page to `path` atomically.

    Args:
        entries, path: The explanations, and the file to write.
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
