"""Write a report as report.md, report.html, results.json and figures."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from bilrp.errors import to_printable
from bilrp.io import files


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text, escaped in HTML and Markdown."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table: numbers with four significant digits, None as a dash.

    >>> Table(("layer", "accuracy"), [(17, 0.62), (31, 0.19)], caption="SVM on the layer")
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure: `name` is its file, `content` a matplotlib figure, PNG/SVG bytes or text of that file.

    >>> Picture("pair-1.png", figure, caption="Two birds, matched by their eyes.")
    """

    name: str
    content: Any
    caption: str = ""
    link: str = ""


@dataclass(frozen=True)
class Section:
    """A heading and the blocks under it."""

    title: str
    blocks: Sequence[Paragraph | Table | Picture] = ()


@dataclass(frozen=True)
class Report:
    """A report.

    Args:
        title: Heading of the report.
        summary: A paragraph below it.
        sections: The content.
        results: Numbers, written as results.json.
        attachments: Other files to write, by name.

    >>> report = Report("Photographs", "Which parts match?", sections, results={"layer": {"31": 0.4}})
    >>> report.write("out/photos")  # out/photos/report.html and its companions
    """

    title: str
    summary: str
    sections: Sequence[Section] = ()
    results: Mapping[str, Any] = field(default_factory=dict)
    attachments: Mapping[str, str | bytes] = field(default_factory=dict)

    def write(self, out: str | Path) -> Path:
        """Write the report into folder `out` and return the path of report.html.

        Everything is rendered before the first file is written, and results.json is written last: if it exists, the
        report is complete.
        """
        out = Path(out)
        contents: dict[str, bytes] = {name: _encode(value) for name, value in self.attachments.items()}
        for picture in self._pictures():
            contents[picture.name] = _render_picture(picture)
        contents["report.md"] = _encode(to_markdown(self))
        contents["report.html"] = _encode(to_html(self))
        contents["results.json"] = _encode(
            json.dumps(to_jsonable(self.results), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        )
        for name, data in contents.items():
            files.write_bytes(out / name, data)
        return out / "report.html"

    def write_page(self, path: str | Path) -> Path:
        """Write the report as one page with its pictures in it, and return its path."""
        pictures = {picture.name: _render_picture(picture) for picture in self._pictures()}
        return files.write_bytes(Path(path), _encode(to_html(self, pictures=pictures)))

    def _pictures(self) -> list[Picture]:
        return [block for part in self.sections for block in part.blocks if isinstance(block, Picture)]


def to_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [f"# {_escape_markdown(report.title)}", "", _escape_markdown(report.summary), ""]
    for section in report.sections:
        lines += [f"## {_escape_markdown(section.title)}", ""]
        for block in section.blocks:
            lines += [_markdown_block(block), ""]
    return "\n".join(lines)


def to_html(report: Report, *, pictures: Mapping[str, bytes] | None = None) -> str:
    """Return the report as an HTML page without scripts.

    Args:
        report: The report.
        pictures: Its figures by name, to put into the page; None: they are separate files.
    """
    body = [
        f"<h1>{_escape_html(report.title)}</h1>",
        f"<p class='summary'>{_escape_html(report.summary)}</p>",
    ]
    for section in report.sections:
        body += ["<section>", f"<h2>{_escape_html(section.title)}</h2>"]
        body += [_html_block(block, pictures) for block in section.blocks]
        body += ["</section>"]
    content = "\n".join(body)
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{_escape_html(report.title)}</title><style>{_STYLE}</style></head>\n<body><main>\n{content}\n"
        "</main></body></html>\n"
    )


def to_jsonable(value: Any) -> Any:
    """Convert a value for JSON: tensors and arrays to lists, NaN and infinities to null."""
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # tensors, arrays and numpy scalars
        return to_jsonable(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def format_cell(value: Any) -> str:
    """Format a cell of a table.

    >>> format_cell(0.123456), format_cell(12), format_cell(None)
    ('0.1235', '12', '–')
    """
    if value is None:
        return "–"
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "–"
    return str(value)


def _render_picture(picture: Picture) -> bytes:
    content = picture.content
    if hasattr(content, "savefig"):
        buffer = BytesIO()
        kind = Path(picture.name).suffix.lstrip(".") or "png"
        # without date and version, so that equal numbers give equal bytes
        metadata = {"png": {"Software": None}, "svg": {"Date": None}}.get(kind)
        content.savefig(buffer, format=kind, metadata=metadata)
        return buffer.getvalue()
    return _encode(content)


def _encode(value: str | bytes) -> bytes:
    """Encode as UTF-8; lone surrogates, as in file names that are not UTF-8, are escaped."""
    return value.encode("utf-8", "backslashreplace") if isinstance(value, str) else bytes(value)


def _markdown_block(block: Paragraph | Table | Picture) -> str:
    if isinstance(block, Paragraph):
        return _escape_markdown(block.text)
    caption = _escape_markdown(block.caption)
    if isinstance(block, Picture):
        image = f"![{caption or _escape_markdown(block.name)}]({_quote_url(block.name)})"
        image = f"[{image}]({_quote_url(block.link)})" if block.link else image
        return f"{image}\n\n*{caption}*" if caption else image
    escape: Callable[[str], str] = lambda cell: _escape_markdown(to_printable(cell)).replace("|", "\\|")  # noqa: E731
    rows = [" | ".join(escape(format_cell(cell)) for cell in row) for row in block.rows]
    head = [" | ".join(map(escape, block.header)), " | ".join("---" for _ in block.header)]
    table = "\n".join(f"| {row} |" for row in head + rows)
    return f"{table}\n\n*{caption}*" if caption else table


def _escape_markdown(text: str) -> str:
    """Escape text for Markdown: no tags, links, code or formulas."""
    printable = "\n".join(map(to_printable, text.split("\n")))
    return re.sub(r"([\\`\[\]$])", r"\\\1", printable.replace("&", "&amp;").replace("<", "&lt;"))


def _html_block(block: Paragraph | Table | Picture, pictures: Mapping[str, bytes] | None = None) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{_escape_html(block.text)}</p>"
    caption = getattr(block, "caption", "")
    if isinstance(block, Picture):
        source = (
            _quote_url(block.name) if pictures is None else _to_data_uri(block.name, pictures[block.name])
        )
        image = f"<img src='{source}' alt='{_escape_html(caption or block.name)}' loading='lazy'>"
        image = f"<a href='{_quote_url(block.link)}'>{image}</a>" if block.link else image
        return f"<figure>{image}<figcaption>{_escape_html(caption)}</figcaption></figure>"
    head = "".join(f"<th scope='col'>{_escape_html(cell)}</th>" for cell in block.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_escape_html(format_cell(cell))}</td>" for cell in row) + "</tr>"
        for row in block.rows
    )
    title = f"<caption>{_escape_html(caption)}</caption>" if caption else ""
    return (
        f"<div class='wide'><table>{title}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _escape_html(value: str) -> str:
    return html.escape("\n".join(map(to_printable, str(value).split("\n"))), quote=True)


def _to_data_uri(name: str, content: bytes) -> str:
    kind = {".svg": "svg+xml", ".jpg": "jpeg"}.get(Path(name).suffix.lower(), "png")
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _quote_url(name: str) -> str:
    from urllib.parse import quote

    return quote(name, errors="surrogateescape")


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --line: #d8d8d8; --soft: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #eee; --paper: #16181b; --line: #3a3d42; --soft: #aaa; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.summary { font-size: 1.1rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.2rem 0; } img { max-width: 100%; height: auto; background: #fff; }
figcaption { color: var(--soft); font-size: .92rem; }
"""
