"""A self-contained interactive HTML page of an explanation, which needs no network."""

from __future__ import annotations

import base64
import hashlib
import html as _html
import io
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from bilrp.covering import describe_covering
from bilrp.errors import InputError, to_printable
from bilrp.findings.region_layout import to_label_image
from bilrp.findings.summary import collect_summary
from bilrp.inputs import MAX_VIEW_SIDE_PIXELS, Image, Text
from bilrp.io import files
from bilrp.render import bundle, findings_figure, links
from bilrp.render.styles import Show, check_show, resolve_palette
from bilrp.render.visibility import list_visible_regions, select_visible

if TYPE_CHECKING:
    from PIL import Image as Pillow

    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation
    from bilrp.explanation_files import PageOptions

_MAX_EXACT_BYTES = 512 * 1024  # up to this size relevance is embedded as float32
_MAX_DISPLAY_ERROR_FRACTION = 1e-4  # of the strongest pair: a tenth of the last digit that the page shows
_MAX_PAIRS = 4_000_000  # that a browser can update while a slider moves
_MAX_PNG_BYTES = 200 * 1024  # larger images are embedded as JPEG
_PNG_SAMPLE_STRIDE_ROWS = 8  # of the rows used to estimate the size of a PNG
PAYLOAD_VERSION = 1  # mount.js refuses other versions

_PAGE_CSS = "body{margin:0}main{display:grid;min-height:100vh}noscript p{padding:40px;font:15px sans-serif}"
_START_SCRIPT = """
mount(document.querySelector("main"), JSON.parse(document.querySelector("script[type='application/json']").textContent));
"""


def render_html(
    explanation: Explanation,
    *,
    title: str | None = None,
    style: str | links.Style | None = None,
    palette: str = "paper",
    names: tuple[str, str] | None = None,
    compact: bool = False,
    special_tokens: bool = False,
    show: Show = "matches",
) -> str:
    """Return the page as one string.

    Args:
        explanation, title, style, names, special_tokens, show: As for `build_payload`.
        palette: "paper" or "safe" (colour-blind safe).
        compact: For a frame: fit the height, and fold everything below the findings.
    """
    resolve_palette(palette)  # raises if unknown
    names = None if names is None else (to_printable(names[0]), to_printable(names[1]))
    data = build_payload(
        explanation, title=title, style=style, names=names, special_tokens=special_tokens, show=show
    )
    data |= {"palette": palette, "compact": "frame" if compact else False}
    document_title = f"{data['title']}: {' and '.join(data['names'])}" if data["names"] else data["title"]
    return build_document(data, title=document_title, entry="mount", start=_START_SCRIPT, css=_PAGE_CSS)


def build_document(data: Mapping[str, object], *, title: str, entry: str, start: str, css: str) -> str:
    """Return a self-contained page.

    Args:
        data: The payload, JSON-ready.
        title: Title of the document.
        entry: The JavaScript module to bundle.
        start: JavaScript that calls it.
        css: Style of the document.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    js = bundle.bundle_script(entry) + start
    fields = {
        "document": _html.escape(title),
        # Only this script and this style are allowed, and no requests.
        "policy": (
            "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
            f"style-src '{_digest(css)}'; script-src '{_digest(js)}'"
        ),
        "css": css,
        "js": js,
        # without "<" no string can close the script element
        "data": text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
    }
    document = _fill_template(bundle.read_source("page.html"), fields)
    # escape lone surrogates, as in file names that are not UTF-8
    return document.encode("utf-8", "backslashreplace").decode("utf-8")


def write(explanation: Explanation, path: str | os.PathLike[str], **options: Unpack[PageOptions]) -> Path:
    """Write the page to `path` atomically."""
    return files.write_bytes(Path(path), render_html(explanation, **options).encode("utf-8"))


def embed(explanation: Explanation, *, height: int = 860, **options: Unpack[PageOptions]) -> str:
    """Return the page in a sandboxed iframe, for notebooks (`Explanation._repr_html_`)."""
    page = render_html(explanation, compact=True, **options)
    return (
        f'<iframe srcdoc="{_html.escape(page, quote=True)}" sandbox="allow-scripts allow-downloads" '
        f'title="Why these two are similar" loading="lazy" width="100%" height="{int(height)}" '
        'style="border:0;width:100%;resize:vertical;color-scheme:normal"></iframe>'
    )


def build_payload(
    explanation: Explanation,
    *,
    title: str | None = None,
    style: str | links.Style | None = None,
    names: tuple[str, str] | None = None,
    special_tokens: bool = False,
    show: Show = "matches",
) -> dict[str, Any]:
    """Return the JSON data of the page: both inputs, relevance of pairs, score breakdown, findings, drawing parameters.

    Args:
        explanation: What to show.
        title: Title of the page.
        style: Name of a link style, or a style.
        names: Names of the two inputs.
        special_tokens: Include special tokens of texts.
        show: What the page shows first: "matches" or "differences".
    """
    full, explanation = explanation, select_visible(explanation, special_tokens=special_tokens)
    relevance = _numpy(explanation.relevance).astype(np.float64)
    check_pair_count(*relevance.shape)
    if not np.isfinite(relevance).all() or not np.isfinite(float(explanation.score)):
        raise InputError("cannot show an explanation with NaN or infinite relevance")
    # the page numbers the visible regions; "numbers" maps them to those of the full decomposition
    numbers = [list_visible_regions(side, special_tokens=special_tokens) for side in (full.a, full.b)]
    style = None if style == "auto" else style
    is_named = isinstance(style, str) and style in links.STYLES
    return {
        "version": PAYLOAD_VERSION,
        "title": title or "Why are these two similar?",
        "similarity": str(explanation.similarity),
        "distance": explanation.is_distance,
        "breakdown": serialize_breakdown(full),
        "near_zero": full.breakdown.is_near_zero,
        **_serialize_summary(full),
        **_number_visible(
            findings_figure.serialize_differences(full, special_tokens=special_tokens), numbers
        ),
        "findings": findings_figure.serialize_findings(explanation),
        "pairs": encode_pairs(relevance),
        "a": serialize_side(explanation.a) | {"numbers": numbers[0]},
        "b": serialize_side(explanation.b) | {"numbers": numbers[1]},
        "drawing": resolve_link_parameters(relevance, None if is_named else style),
        "style": style if is_named else "",
        "show": check_show(show),
        "names": _display_names(explanation, names),
        "styles": {name: _link_parameters(style) for name, style in links.STYLES.items()},
        "facts": _origin_facts(explanation),
    }


def _serialize_summary(explanation: Explanation) -> dict[str, Any]:
    """Return the summary as one text and in parts: the page shows matches as crops, and the score breakdown as a bar."""
    parts = collect_summary(explanation, explanation.findings())
    return {
        "summary": str(parts),
        "verdict": parts.verdict,
        "matches_text": {"lead": parts.lead, "named": parts.named, "text": parts.matches},
        "breakdown_text": {"lead": parts.breakdown_lead, "clauses": parts.breakdown},
        "checked": "" if explanation.runs is None else describe_covering(explanation.cover_findings()),
        "warnings": parts.warnings,
    }


def _number_visible(differences: dict[str, Any], numbers: list[list[int]]) -> dict[str, Any]:
    """Return serialized differences with the numbers that the page gives to visible regions."""
    position = {side: {n: k for k, n in enumerate(every)} for side, every in zip("ab", numbers, strict=True)}
    return differences | {
        "differences": [
            one | {"regions": [position[one["side"]][n] for n in one["regions"]]}
            for one in differences["differences"]
        ]
    }


def _display_names(explanation: Explanation, names: tuple[str, str] | None) -> list[str] | None:
    """Return `names`, or the inputs' own names, or None if they have none."""
    names = names or (explanation.a.name, explanation.b.name)
    return [_shorten(name) for name in names] if any(names) else None


def check_pair_count(rows: int, columns: int) -> None:
    """Raise InputError if there are more pairs of regions than a browser can draw."""
    if rows * columns > _MAX_PAIRS:
        raise InputError(
            f"{rows} × {columns} pairs of regions are too many for a page: use larger regions, "
            "--regions 64 or explanation.coarsen(bilrp.regions.grid(64))"
        )


def serialize_breakdown(explanation: Explanation) -> dict[str, float]:
    """Return the terms of the score for the page; terms that the similarity does not have are left out."""
    breakdown = explanation.breakdown
    terms = {"positive": breakdown.positive, "negative": breakdown.negative}
    if explanation.self_terms is not None:
        terms |= {"self_terms_a": breakdown.self_terms_a, "self_terms_b": breakdown.self_terms_b}
    if breakdown.special_tokens:
        terms["special_tokens"] = breakdown.special_tokens
    if breakdown.is_centered:
        rest = breakdown.unattributed - breakdown.shared
        return terms | {"shared": breakdown.shared, "unattributed": rest, "score": breakdown.score}
    if explanation.reference_terms is not None:  # the unattributed part in three terms
        reference_terms = breakdown.reference_terms_a + breakdown.reference_terms_b
        rest = breakdown.unattributed - breakdown.references
        terms |= {
            "reference_terms": reference_terms,
            "reference_score": breakdown.reference_score,
            "rest": rest,
        }
    return terms | {"unattributed": breakdown.unattributed, "score": breakdown.score}


def encode_pairs(relevance: np.ndarray) -> dict[str, Any]:
    """Encode the relevance of pairs in few bytes, exact to display precision.

    Small matrices are embedded as float32. Larger ones are embedded in the smaller of two forms, each with an error of at
    most a ten-thousandth of the strongest pair: the factors of R = L Mᵀ, which the browser multiplies, or R in int16
    steps, deflated.
    """
    rows, columns = relevance.shape
    shape = {"rows": rows, "columns": columns}
    if relevance.size * 4 <= _MAX_EXACT_BYTES:
        return {"kind": "matrix", **shape, "data": _base64(relevance.astype("<f4")), "error": 0.0}
    tolerance = _MAX_DISPLAY_ERROR_FRACTION * (float(np.abs(relevance).max()) or 1.0)
    factors, product = _factorize(relevance, tolerance), _deflate(relevance, tolerance)
    if factors is not None:
        factor_bytes = len(factors["left"]["data"]) + len(factors["right"]["data"])
        if factor_bytes < len(product["data"]):
            return {"kind": "factors", **shape, **factors}
    return {"kind": "deflated", **shape, **product}


def _deflate(relevance: np.ndarray, tolerance: float) -> dict[str, Any]:
    """Return relevance in int16 steps, all low bytes before all high bytes (nearly all equal), compressed."""
    steps = np.rint(relevance / (2 * tolerance)).astype("<i2")
    planes = steps.reshape(-1, 1).view(np.uint8).T
    data = base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode("ascii")
    return {"data": data, "scale": 2 * tolerance, "error": tolerance}


def resolve_link_parameters(
    relevance: np.ndarray, style: str | links.Style | None = None
) -> dict[str, float]:
    """Return l, h and p of `style`; without one, of "auto" with h at most the strongest pair."""
    parameters = _link_parameters(links.resolve_style(style or "auto", pairs=relevance.size))
    moment = float(np.mean(relevance**4) ** 0.25)
    if style is None and moment > 0:
        # with a larger h no link would have full opacity
        strongest = float(np.abs(relevance).max() / moment)
        parameters["h"] = max(min(parameters["h"], round(strongest, 3)), 2 * parameters["l"])
    return parameters


def _link_parameters(style: links.Style) -> dict[str, float]:
    return {"l": float(style.low), "h": float(style.high), "p": float(style.power)}


def _factorize(relevance: np.ndarray, tolerance: float) -> dict[str, Any] | None:
    """Return int16 factors of `relevance` with an error of at most `tolerance`, or None if they are not smaller."""
    rows, columns = relevance.shape
    left, spectrum, right = np.linalg.svd(relevance, full_matrices=False)
    # the error of an entry is at most the first dropped singular value
    rank = max(1, int((spectrum > tolerance / 2).sum()))
    if rank * (rows + columns) >= rows * columns:
        return None
    root = np.sqrt(spectrum[:rank])
    steps_l, scale_l = _quantize(left[:, :rank] * root)
    steps_r, scale_r = _quantize(right[:rank].T * root)
    product = (steps_l * np.array(scale_l)) @ (steps_r * np.array(scale_r)).T
    error = float(np.abs(product - relevance).max())
    if error > tolerance:
        return None
    left_side = {"scale": scale_l, "data": _base64(steps_l)}
    right_side = {"scale": scale_r, "data": _base64(steps_r)}
    return {"rank": rank, "left": left_side, "right": right_side, "error": error}


def _quantize(values: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Return int16 steps and the step size of each column."""
    scale = np.abs(values).max(axis=0) / 32767
    scale[scale == 0] = 1.0
    return np.rint(values / scale).astype("<i2"), [float(s) for s in scale]


def serialize_side(decomposition: Decomposition, *, src: str | None = None) -> dict[str, Any]:
    """Return one input for the page: its image (or its address `src`) or words, and the positions of its regions."""
    regions = decomposition.regions
    names = None if regions.names is None else [str(name) for name in regions.names]
    labels = _numpy(regions.labels) if regions.labels.dim() == 2 else to_label_image(regions)
    is_plane = regions.boxes is not None or regions.labels.dim() == 3
    is_located = isinstance(decomposition.view, Image) or (names is None and is_plane)
    return {
        "count": int(regions.count),
        "names": names,
        "places": _locate_regions(labels, regions.count) if is_located and labels is not None else None,
        "name": decomposition.name,
        "view": _serialize_view(decomposition, src),
    }


def _serialize_view(decomposition: Decomposition, src: str | None) -> dict[str, Any] | None:
    """Return the image and the positions in it, or the text and the spans of its words.

    Boxes are [left, top, right, bottom] in pixels of the image as shown: `box` is the model's input (smaller than the
    image if it was cropped, larger if it was padded), `frame` contains both, and `regions` are the regions. `full` is
    the original [width, height], for descriptions of positions.
    """
    view, boxes = decomposition.view, decomposition.region_boxes
    if isinstance(view, Text):
        return {"kind": "text", "text": view.text, "spans": view.spans}
    if view is None or boxes is None:
        return None
    width, height = view.size
    return {
        "kind": "image",
        "src": encode_image(view.pixels) if src is None else src,
        "width": width,
        "height": height,
        "full": list(view.original_size or view.size),
        "box": _round_box(view.box),
        "frame": _round_box(view.frame),
        "regions": [_round_box(box) for box in boxes],
    }


def _round_box(box: Iterable[float]) -> list[float]:
    return [round(float(edge), 2) for edge in box]


def _locate_regions(labels: np.ndarray, count: int) -> dict[str, Any]:
    """Return the boxes [top, left, bottom, right] of the regions, and run-length encoded labels if they are not boxes."""
    height, width = labels.shape
    inside = labels >= 0
    row, column = np.nonzero(inside)
    label = labels[inside]
    boxes = np.zeros((count, 4), dtype=int)
    boxes[:, :2] = max(height, width)
    np.minimum.at(boxes[:, 0], label, row)
    np.minimum.at(boxes[:, 1], label, column)
    np.maximum.at(boxes[:, 2], label, row + 1)
    np.maximum.at(boxes[:, 3], label, column + 1)
    area = np.bincount(label, minlength=count)
    boxes[area == 0] = 0
    are_boxes = (area == (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).all()
    return {
        "height": height,
        "width": width,
        "boxes": boxes.tolist(),
        "grid": _grid_shape(boxes) if are_boxes else None,
        "runs": None if are_boxes else _run_length_encode(labels.ravel()),
    }


def _grid_shape(boxes: np.ndarray) -> list[int] | None:
    """Return [rows, columns] if the boxes are a full grid, row by row, else None."""
    tops, row = np.unique(boxes[:, 0], return_inverse=True)
    lefts, column = np.unique(boxes[:, 1], return_inverse=True)
    is_full = len(tops) * len(lefts) == len(boxes)
    is_grid = is_full and (row * len(lefts) + column == np.arange(len(boxes))).all()
    return [len(tops), len(lefts)] if is_grid else None


def _run_length_encode(labels: np.ndarray) -> list[int]:
    """Return [label, length, label, length, …].

    >>> _run_length_encode(np.array([4, 4, -1]))
    [4, 2, -1, 1]
    """
    starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    lengths = np.diff(np.r_[starts, labels.size])
    return np.stack([labels[starts], lengths], axis=1).ravel().tolist()


def encode_image(pixels: np.ndarray) -> str:
    """Return the image as a data URI: PNG, or JPEG if a PNG would be too large."""
    from PIL import Image as Pillow  # here, because pages of texts do not need Pillow

    image, buffer = Pillow.fromarray(pixels).convert("RGB"), io.BytesIO()
    kind = "png"
    if _estimate_png_bytes(image) <= 1.25 * _MAX_PNG_BYTES:  # worth trying
        image.save(buffer, "PNG", compress_level=4)
    if not 0 < buffer.tell() <= _MAX_PNG_BYTES:
        buffer, kind = io.BytesIO(), "jpeg"
        image.thumbnail((MAX_VIEW_SIDE_PIXELS, MAX_VIEW_SIDE_PIXELS))
        image.save(buffer, "JPEG", quality=88)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def encode_thumbnail(pixels: np.ndarray, side: int) -> str:
    """Return the image as a data URI of a JPEG with at most `side` pixels a side."""
    from PIL import Image as Pillow

    image, buffer = Pillow.fromarray(pixels).convert("RGB"), io.BytesIO()
    image.thumbnail((side, side))
    image.save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _estimate_png_bytes(image: Pillow.Image) -> int:
    """Estimate the size of a PNG from some rows, as differences of neighbouring pixels."""
    rows = np.asarray(image)[::_PNG_SAMPLE_STRIDE_ROWS]
    return len(zlib.compress(np.diff(rows, axis=1).tobytes(), 1)) * image.height // len(rows)


def _origin_facts(explanation: Explanation) -> list[list[str]]:
    """Return the origin of the explanation as pairs of strings for the footer."""
    similarity = {"similarity": explanation.similarity}  # replaces that of the decomposition, and comes first
    facts = similarity | dict(explanation.a.origin or {}) | similarity
    return [
        [str(key).replace("_", " "), _shorten(value)] for key, value in facts.items() if value is not None
    ]


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else f"{text[:157]}…"


def _numpy(values: Any) -> np.ndarray:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"


def _fill_template(template: str, fields: Mapping[str, str]) -> str:
    """Replace each {{name}} in one pass, so that the content of a field is never expanded."""
    first, *rest = template.split("{{")
    pieces = [first]
    for chunk in rest:
        name, _, tail = chunk.partition("}}")
        pieces += [fields[name], tail]
    return "".join(pieces)
