"""A pair as a file to take away: the self-contained page, a picture, or its matches as numbers."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from starlette.responses import Response

from bilrp.app.request_handling import Counter
from bilrp.explanation import Explanation
from bilrp.render import findings_figure, page

KINDS = {
    "html": "text/html; charset=utf-8", "png": "image/png", "csv": "text/csv; charset=utf-8", "json": "application/json",
}  # fmt: skip
MATCHES = 1000  # the strongest, in a table


async def sent(counter: Counter, kind: str, made: Callable[[], Explanation]) -> Response:
    """The file, to be saved and not shown: a page of its own keeps its own policy."""
    content = await counter.run(lambda: written(made(), kind))
    about = {"content-disposition": f'attachment; filename="bilrp.{kind}"'}
    return Response(content, media_type=KINDS[kind], headers=about)


def written(found: Explanation, kind: str) -> bytes:
    """An explanation in one of KINDS."""
    if kind == "html":
        return page.html(found).encode("utf-8")
    if kind == "png":
        with tempfile.TemporaryDirectory(prefix="bilrp-export-") as folder:
            return found.save(Path(folder) / "pair.png").read_bytes()
    rows = [[m.a, m.b, float(m.relevance)] for m in found.top(MATCHES)]
    if kind == "csv":
        text = io.StringIO()
        csv.writer(text).writerows([["region of a", "region of b", "relevance"], *rows])
        return text.getvalue().encode("utf-8")
    matches = [{"a": a, "b": b, "relevance": r} for a, b, r in rows]
    names = {"a": found.a.name, "b": found.b.name}
    said = {"similarity": found.similarity, "account": page.account(found), "summary": found.summary()}
    listed = {"findings": findings_figure.listed(found), "matches": matches}
    return json.dumps(names | said | listed, ensure_ascii=False).encode("utf-8", "backslashreplace")
