"""One self-contained HTML page that lets a reader explore an explanation, without network, from disk."""

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
from typing import TYPE_CHECKING, Any

import numpy as np

from bilrp.errors import InputError, to_printable
from bilrp.inputs import MAX_VIEW_SIDE_PIXELS, Image, Text
from bilrp.io import files
from bilrp.render import bundle, findings_figure, links
from bilrp.render.styles import resolve_palette
from bilrp.render.visibility import list_visible_regions, select_visible

if TYPE_CHECKING:
    from PIL import Image as Pillow

    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation

_MAX_EXACT_BYTES = 512 * 1024  # below this the relevance itself travels as float32: nothing is approximated
_MAX_DISPLAY_ERROR_FRACTION = 1e-4  # of the strongest pair: a tenth of the last digit the page shows
_MAX_PAIRS = 4_000_000  # what a browser still normalises and thresholds while a slider moves
_MAX_PNG_BYTES = 200 * 1024  # pictures beyond this are sent as JPEG
_PNG_SAMPLE_STRIDE_ROWS = 8  # one row in so many tells how well a picture packs
PAYLOAD_VERSION = 1  # of the payload: the page refuses another than its own

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
) -> str:
    """Return the whole page as one string.

    `style`, `palette`, `names` (of the two inputs), `special_tokens` are as in a figure.
    `compact` is for a frame: the picture takes the height that is left, what is beyond the findings unfolds on demand.

    >>> Path("why.html").write_text(render_html(explanation))  # doctest: +SKIP
    """
    resolve_palette(palette)  # refuse an unknown one
    names = None if names is None else (to_printable(names[0]), to_printable(names[1]))
    data = build_payload(
        explanation, title=title, style=style, names=names, special_tokens=special_tokens
    ) | {
        "palette": palette,
        "compact": compact,
    }
    named = [" and ".join(data["names"])] if data["names"] else []
    return build_document(
        data, title=": ".join([data["title"], *named]), entry="mount", start=_START_SCRIPT, css=_PAGE_CSS
    )


def build_document(data: Mapping[str, Any], *, title: str, entry: str, start: str, css: str) -> str:
    """A self-contained page: the data, the modules that `entry` needs, and the call that starts them."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    js = bundle.bundle_script(entry) + start
    fields = {
        "document": _html.escape(title),
        # Only this script and this style may run, and nothing may be fetched: not even by accident.
        "policy": (
            "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
            f"style-src '{_digest(css)}'; script-src '{_digest(js)}'"
        ),
        "css": css,
        "js": js,
        # "<" never reaches the parser, so no name can close the element it is in.
        "data": text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
    }
    # Half a surrogate pair, as in the name of a file that is not UTF-8, would be fatal after the work: it is escaped.
    return (
        _fill_template(bundle.read_source("page.html"), fields)
        .encode("utf-8", "backslashreplace")
        .decode("utf-8")
    )


def write(explanation: Explanation, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write the page to `path`, whole or not at all.

    >>> write(explanation, "why.html")  # doctest: +SKIP
    """
    return files.write_bytes(Path(path), render_html(explanation, **options).encode("utf-8"))


def embed(explanation: Explanation, *, height: int = 860, **options: Any) -> str:
    """Return the page inside an isolated frame, for notebooks (`Explanation._repr_html_`).

    >>> from IPython.display import HTML  # doctest: +SKIP
    >>> HTML(embed(explanation, height=700))  # doctest: +SKIP
    """
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
) -> dict[str, Any]:
    """Return what the page embeds: the two sides, the pairs, the account of the score, and how to draw them.

    >>> build_payload(explanation)["account"]["score"]  # doctest: +SKIP
    """
    whole, explanation = explanation, select_visible(explanation, special_tokens=special_tokens)
    relevance = _numpy(explanation.relevance).astype(np.float64)
    check_pair_count(*relevance.shape)
    if not np.isfinite(relevance).all() or not np.isfinite(float(explanation.score)):
        raise InputError("the explanation holds NaN or infinite relevance: there is nothing to show")
    # A side without its marks counts anew: outside the page, regions are called by the decomposition's numbers.
    side_a = serialize_side(explanation.a) | {
        "numbers": list_visible_regions(whole.a, special_tokens=special_tokens)
    }
    side_b = serialize_side(explanation.b) | {
        "numbers": list_visible_regions(whole.b, special_tokens=special_tokens)
    }
    style = None if style == "auto" else style
    named = style in links.STYLES if isinstance(style, str) else False
    return {
        "version": PAYLOAD_VERSION,
        "title": title or "Why are these two similar?",
        "similarity": str(explanation.similarity),
        "distance": explanation.is_distance,
        "account": serialize_breakdown(whole),
        "summary": whole.summary(),
        "findings": findings_figure.serialize_findings(explanation),
        "pairs": encode_pairs(relevance),
        "a": side_a,
        "b": side_b,
        "drawing": resolve_link_parameters(relevance, None if named else style),
        "style": style if named else "",
        "names": _display_names(explanation, names),
        "styles": {name: _link_parameters(style) for name, style in links.STYLES.items()},
        "facts": _origin_facts(explanation),
    }


def _display_names(explanation: Explanation, names: tuple[str, str] | None) -> list[str] | None:
    """Return what the two inputs are called: the names given, else their own; None where they have none."""
    called = names or (explanation.a.name, explanation.b.name)
    return [_shorten(name) for name in called] if any(called) else None


def check_pair_count(rows: int, columns: int) -> None:
    """Refuse more pairs of regions than a browser can hold."""
    if rows * columns > _MAX_PAIRS:
        raise InputError(
            f"{rows} × {columns} pairs of regions are too many for a page: take larger regions, "
            "--regions 64 or explanation.coarsen(bilrp.regions.grid(64))"
        )


def serialize_breakdown(explanation: Explanation) -> dict[str, float]:
    """Return what adds up to the score; each side with itself only where the similarity has such a part.

    >>> serialize_breakdown(explanation)["score"] == explanation.score  # doctest: +SKIP
    True
    """
    found = explanation.breakdown
    parts = {"positive": found.positive, "negative": found.negative}
    if explanation.self_terms is not None:
        parts |= {"within_a": found.self_terms_a, "within_b": found.self_terms_b}
    if found.special_tokens:
        parts |= {"marks": found.special_tokens}
    if explanation.reference_terms is not None:  # in which the unattributed comes
        known = {
            "against": found.reference_terms_a + found.reference_terms_b,
            "references": found.reference_score,
        }
        parts |= known | {"rest": found.unattributed - sum(known.values())}
    return parts | {"unattributed": found.unattributed, "score": found.score}


def encode_pairs(relevance: np.ndarray) -> dict[str, Any]:
    """Encode the relevance of pairs in the fewest bytes that are exact to display precision.

    A 128 px pair has 256 × 256 pairs of rank up to 256: the parts themselves (h = 8192) would be 8 MB a side
    and even their exact factors twice as large as the product, so the product travels, as float32. For finer
    regions the smaller of two forms travels, neither off by more than a ten-thousandth of the strongest pair:
    the factors of R = L Mᵀ, which the browser contracts, or the product in steps of that size, deflated.

    >>> encode_pairs(np.eye(2))["kind"]
    'matrix'
    """
    rows, columns = relevance.shape
    shape = {"rows": rows, "columns": columns}
    if relevance.size * 4 <= _MAX_EXACT_BYTES:
        return {"kind": "matrix", **shape, "data": _base64(relevance.astype("<f4")), "error": 0.0}
    tolerance = _MAX_DISPLAY_ERROR_FRACTION * (float(np.abs(relevance).max()) or 1.0)
    factors, product = _factorize(relevance, tolerance), _deflate(relevance, tolerance)
    if factors is not None and len(factors["left"]["data"]) + len(factors["right"]["data"]) < len(
        product["data"]
    ):
        return {"kind": "factors", **shape, **factors}
    return {"kind": "deflated", **shape, **product}


def _deflate(relevance: np.ndarray, tolerance: float) -> dict[str, Any]:
    """Return the product in int16 steps, low bytes before high bytes (which are nearly all alike), compressed."""
    steps = np.rint(relevance / (2 * tolerance)).astype("<i2")
    planes = steps.reshape(-1, 1).view(np.uint8).T
    data = base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode("ascii")
    return {"data": data, "scale": 2 * tolerance, "error": tolerance}


def resolve_link_parameters(
    relevance: np.ndarray, style: str | links.Style | None = None
) -> dict[str, float]:
    """Return l, h and p of `style`; without one, of the automatic style, saturated by the strongest pair at the latest.

    >>> resolve_link_parameters(np.eye(2), "faces")
    {'l': 0.3, 'h': 60.0, 'p': 1.0}
    """
    found = _link_parameters(links.resolve_style(style or "auto", pairs=relevance.size))
    moment = float(np.mean(relevance**4) ** 0.25)
    if style is None and moment > 0:
        # h beyond the strongest pair would leave everything pale
        top = float(np.abs(relevance).max() / moment)
        found["h"] = max(min(found["h"], round(top, 3)), 2 * found["l"])
    return found


def _link_parameters(style: links.Style) -> dict[str, float]:
    return {"l": float(style.low), "h": float(style.high), "p": float(style.power)}


def _factorize(relevance: np.ndarray, tolerance: float) -> dict[str, Any] | None:
    """Return int16 factors within `tolerance` of the product, or None where they are the larger."""
    rows, columns = relevance.shape
    left, spectrum, right = np.linalg.svd(relevance, full_matrices=False)
    # No entry errs by more than the first dropped singular value.
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
    """Return int16 steps and the size of a step for each column."""
    scale = np.abs(values).max(axis=0) / 32767
    scale[scale == 0] = 1.0
    return np.rint(values / scale).astype("<i2"), [float(s) for s in scale]


def serialize_side(decomposition: Decomposition, *, src: str | None = None) -> dict[str, Any]:
    """Return one input for the page: its picture (or, at `src`, its address) or its words, and where each region lies."""
    regions = decomposition.regions
    names = None if regions.names is None else [str(name) for name in regions.names]
    labels = _to_label_image(_numpy(regions.labels))
    found: dict[str, Any] = {"count": int(regions.count), "names": names, "places": None}
    found |= {"name": decomposition.name, "view": _serialize_view(decomposition, src)}
    plane = regions.boxes is not None or regions.labels.dim() == 3
    located = isinstance(decomposition.view, Image) or (names is None and plane)
    if located and labels is not None:
        found["places"] = _locate_regions(labels, found["count"])
    return found


def _serialize_view(decomposition: Decomposition, src: str | None) -> dict[str, Any] | None:
    """Return the input as people see it: the photograph and what lies where in it, or the text and its words.

    Places are [left, top, right, bottom] in pixels of the photograph as shown: `box` is the model's input (smaller than
    the photograph where reading cropped, beyond it where it padded), `frame` is what holds both, and `regions` are the
    regions. `full` is the photograph's own [width, height], for places in words.
    """
    view, places = decomposition.view, decomposition.region_boxes
    if isinstance(view, Text):
        return {"kind": "text", "text": view.text, "spans": view.spans}
    if view is None or places is None:
        return None
    wide, high = view.size
    return {
        "kind": "image",
        "src": _data_uri(view.pixels) if src is None else src,
        "width": wide,
        "height": high,
        "full": list(view.original_size or view.size),
        "box": _round_box(view.box),
        "frame": _round_box(view.frame),
        "regions": [_round_box(place) for place in places],
    }


def _round_box(box: Iterable[float]) -> list[float]:
    return [round(float(edge), 2) for edge in box]


def _to_label_image(labels: np.ndarray) -> np.ndarray | None:
    """Return labels as [height, width], or None where regions are not areas of a plane."""
    if labels.ndim == 3 and (labels == labels[:1]).all():
        return labels[0]
    return labels if labels.ndim == 2 else None


def _locate_regions(labels: np.ndarray, count: int) -> dict[str, Any]:
    """Return boxes [top, left, bottom, right] of the regions; with their outline where they are no boxes."""
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
    boxed = (area == (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).all()
    return {
        "height": height,
        "width": width,
        "boxes": boxes.tolist(),
        "grid": _grid_shape(boxes) if boxed else None,
        "runs": None if boxed else _run_length_encode(labels.ravel()),
    }


def _grid_shape(boxes: np.ndarray) -> list[int] | None:
    """Return [rows, columns] if the boxes are a full grid, row by row: then a region has a row and a column."""
    tops, row = np.unique(boxes[:, 0], return_inverse=True)
    lefts, column = np.unique(boxes[:, 1], return_inverse=True)
    full = len(tops) * len(lefts) == len(boxes)
    ordered = full and (row * len(lefts) + column == np.arange(len(boxes))).all()
    return [len(tops), len(lefts)] if ordered else None


def _run_length_encode(labels: np.ndarray) -> list[int]:
    """Return [label, length, label, length, …].

    >>> _run_length_encode(np.array([4, 4, -1]))
    [4, 2, -1, 1]
    """
    starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    lengths = np.diff(np.r_[starts, labels.size])
    return np.stack([labels[starts], lengths], axis=1).ravel().tolist()


def _data_uri(pixels: np.ndarray) -> str:
    """Return the picture as a data URI: PNG, or JPEG where PNG would fill the page."""
    from PIL import Image as Pillow  # here: a page of words needs none

    image, buffer = Pillow.fromarray(pixels).convert("RGB"), io.BytesIO()
    kind = "png"
    if _estimate_png_bytes(image) <= 1.25 * _MAX_PNG_BYTES:  # it can get small enough
        image.save(buffer, "PNG", compress_level=4)
    if not 0 < buffer.tell() <= _MAX_PNG_BYTES:
        buffer, kind = io.BytesIO(), "jpeg"
        image.thumbnail((MAX_VIEW_SIDE_PIXELS, MAX_VIEW_SIDE_PIXELS))
        image.save(buffer, "JPEG", quality=88)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _estimate_png_bytes(image: Pillow.Image) -> int:
    """About how many bytes a PNG takes: some of its rows, as differences of neighbours, packed quickly."""
    rows = np.asarray(image)[::_PNG_SAMPLE_STRIDE_ROWS]
    return len(zlib.compress(np.diff(rows, axis=1).tobytes(), 1)) * image.height // len(rows)


def _origin_facts(explanation: Any) -> list[list[str]]:
    """Return how the explanation was made, as short pairs of words for the foot of the page."""
    origin = explanation.a.origin or {}
    made = [
        [str(key).replace("_", " "), _shorten(value)] for key, value in origin.items() if value is not None
    ]
    return [["similarity", str(explanation.similarity)], *(fact for fact in made if fact[0] != "similarity")]


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
    """Replace each {{name}} once, in one pass: what a field holds is never looked at again."""
    first, *rest = template.split("{{")
    pieces = [first]
    for chunk in rest:
        name, _, tail = chunk.partition("}}")
        pieces += [fields[name], tail]
    return "".join(pieces)
