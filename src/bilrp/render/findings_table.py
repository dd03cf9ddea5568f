"""Findings as an HTML table for notebooks: number, share, and crops or words of both inputs."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bilrp.findings.formatting import describe_location
from bilrp.findings.summary import format_relevance, name_whole
from bilrp.inputs import Image
from bilrp.render.page import encode_thumbnail

if TYPE_CHECKING:
    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation
    from bilrp.findings.grouping import Finding

CROP_PIXELS = 160
CROP_MARGIN_FRACTION = 0.15  # of the side of the regions, around them


def render_html(explanation: Explanation, findings: Sequence[Finding]) -> str:
    """Return a table of findings."""
    if not findings:
        return "<p>No matches.</p>"
    rows = "".join(
        f"<tr><td>{n}</td><td><b>{html.escape(format_relevance(finding))}</b></td>"
        f"<td>{_render_side(explanation.a, finding.a)}</td><td>{_render_side(explanation.b, finding.b)}</td></tr>"
        for n, finding in enumerate(findings, 1)
    )
    share = "relevance" if findings[0].share is None else f"share of {name_whole(explanation)}"
    return f"<table><thead><tr><th></th><th>{share}</th><th>A</th><th>B</th></tr></thead><tbody>{rows}</tbody></table>"


def _render_side(side: Decomposition, numbers: Sequence[int]) -> str:
    boxes = side.region_boxes
    if not isinstance(side.view, Image) or boxes is None:
        return html.escape(describe_location(side.regions, side.view, numbers))
    crop = _crop(side.view, np.array([boxes[n] for n in numbers], dtype=float))
    where = html.escape(describe_location(side.regions, side.view, numbers))
    return f'<img alt="{where}" title="{where}" src="{encode_thumbnail(crop, CROP_PIXELS)}">'


def _crop(view: Image, boxes: np.ndarray) -> np.ndarray:
    """Return the pixels around these boxes (left, top, right, bottom); all of the image if they are in its padding."""
    left, top, right, bottom = *boxes[:, :2].min(0), *boxes[:, 2:].max(0)
    margin = CROP_MARGIN_FRACTION * max(right - left, bottom - top)
    columns = slice(max(0, round(left - margin)), max(1, round(right + margin)))
    rows = slice(max(0, round(top - margin)), max(1, round(bottom + margin)))
    crop = view.pixels[rows, columns]
    return crop if crop.size else view.pixels
