"""Download of an explained pair: the self-contained page, an image, or the matches as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from starlette.responses import Response

from bilrp.app.request_handling import ThreadLimiter
from bilrp.explanation import Explanation
from bilrp.render import findings_figure, page

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8", "png": "image/png", "csv": "text/csv; charset=utf-8", "json": "application/json",
}  # fmt: skip
MAX_EXPORTED_MATCHES = 1000  # the strongest ones


async def build_download(limiter: ThreadLimiter, kind: str, compute: Callable[[], Explanation]) -> Response:
    """Return the export as an attachment, so that the browser saves it and this server's policy does not apply to it.

    Args:
        limiter: limits the worker threads.
        kind: a key of MEDIA_TYPES.
        compute: returns the explanation, called on a worker thread.
    """
    content = await limiter.run(lambda: render_export(compute(), kind))
    headers = {"content-disposition": f'attachment; filename="bilrp.{kind}"'}
    return Response(content, media_type=MEDIA_TYPES[kind], headers=headers)


def render_export(explanation: Explanation, kind: str) -> bytes:
    """Render an explanation as one of MEDIA_TYPES."""
    if kind == "html":
        return page.render_html(explanation).encode("utf-8")
    if kind == "png":
        with tempfile.TemporaryDirectory(prefix="bilrp-export-") as folder:
            return explanation.save(Path(folder) / "pair.png").read_bytes()
    rows = [[m.a, m.b, float(m.relevance)] for m in explanation.top(MAX_EXPORTED_MATCHES)]
    if kind == "csv":
        text = io.StringIO()
        csv.writer(text).writerows([["region of a", "region of b", "relevance"], *rows])
        return text.getvalue().encode("utf-8")
    values = {
        "a": explanation.a.name,
        "b": explanation.b.name,
        "similarity": explanation.similarity,
        "breakdown": page.serialize_breakdown(explanation),
        "summary": explanation.summary(),
        "findings": findings_figure.serialize_findings(explanation),
        "matches": [{"a": a, "b": b, "relevance": r} for a, b, r in rows],
    }
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "backslashreplace")
