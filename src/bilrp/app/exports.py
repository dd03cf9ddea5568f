"""Download of an explained pair: the self-contained page, an image, or the matches as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from bilrp.app.request_handling import ThreadLimiter
from bilrp.explanation import Explanation
from bilrp.render import findings_figure, page

MAX_EXPORTED_MATCHES = 1000  # the strongest ones


@dataclass(frozen=True)
class ExportFormat:
    """A file that a pair can be saved as.

    Args:
        label: text of the link on the page.
        media_type: content type of the answer.
        render: returns the content of the file.
    """

    label: str
    media_type: str
    render: Callable[[Explanation], bytes]


async def build_download(limiter: ThreadLimiter, kind: str, compute: Callable[[], Explanation]) -> Response:
    """Return the export as an attachment, so that the browser saves it and this server's policy does not apply to it.

    Args:
        limiter: limits the worker threads.
        kind: a key of EXPORTS.
        compute: returns the explanation, called on a worker thread.
    """
    export = EXPORTS[kind]
    content = await limiter.run(lambda: export.render(compute()))
    headers = {"content-disposition": f'attachment; filename="bilrp.{kind}"'}
    return Response(content, media_type=export.media_type, headers=headers)


def render_page(explanation: Explanation) -> bytes:
    """Return the self-contained page."""
    return page.render_html(explanation).encode("utf-8")


def render_picture(explanation: Explanation) -> bytes:
    """Return the figure as .png."""
    with tempfile.TemporaryDirectory(prefix="bilrp-export-") as folder:
        return explanation.save(Path(folder) / "pair.png").read_bytes()


def render_csv(explanation: Explanation) -> bytes:
    """Return the strongest matches as a table."""
    text = io.StringIO()
    csv.writer(text).writerows([["region of a", "region of b", "relevance"], *_list_matches(explanation)])
    return text.getvalue().encode("utf-8")


def render_json(explanation: Explanation) -> bytes:
    """Return breakdown, summary, findings and the strongest matches."""
    values = {
        "a": explanation.a.name,
        "b": explanation.b.name,
        "similarity": explanation.similarity,
        "breakdown": page.serialize_breakdown(explanation),
        "summary": explanation.summary(),
        "findings": findings_figure.serialize_findings(explanation),
        "matches": [{"a": a, "b": b, "relevance": r} for a, b, r in _list_matches(explanation)],
    }
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _list_matches(explanation: Explanation) -> list[tuple[int, int, float]]:
    return [(m.a, m.b, float(m.relevance)) for m in explanation.top(MAX_EXPORTED_MATCHES)]


EXPORTS = {
    "html": ExportFormat("page", "text/html; charset=utf-8", render_page),
    "png": ExportFormat("picture", "image/png", render_picture),
    "csv": ExportFormat("matches (CSV)", "text/csv; charset=utf-8", render_csv),
    "json": ExportFormat("everything (JSON)", "application/json", render_json),
}
"""The files that a pair can be saved as, by suffix; the page lists them in this order."""
