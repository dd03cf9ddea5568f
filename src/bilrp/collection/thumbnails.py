"""Thumbnails and texts stored in a collection, so that items can be shown without their files."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np

from bilrp.collection.tables import REINDEX_HINT
from bilrp.errors import InputError, suppress_warnings, wrap_errors
from bilrp.inputs import Image, Text, View

THUMBNAIL_SIDE_PIXELS = 320  # longest side
JPEG_QUALITY = 85
MAX_READ_SIDE_PIXELS = 4 * THUMBNAIL_SIDE_PIXELS  # of a thumbnail in a collection, which is not trusted
MAX_THUMBNAIL_BYTES = 4_000_000


def downscale(view: View | None) -> View | None:
    """Return a view with a smaller image; texts are returned unchanged."""
    if not isinstance(view, Image) or max(view.size) <= THUMBNAIL_SIDE_PIXELS:
        return view
    from PIL import Image as Pillow

    scale = THUMBNAIL_SIDE_PIXELS / max(view.size)
    size = max(1, round(view.size[0] * scale)), max(1, round(view.size[1] * scale))
    pixels = np.asarray(
        Pillow.fromarray(view.pixels).resize(size, Pillow.Resampling.LANCZOS, reducing_gap=2.0)
    )
    across, down = size[0] / view.size[0], size[1] / view.size[1]
    left, top, right, bottom = view.box
    return Image(
        pixels, (left * across, top * down, right * across, bottom * down), view.original_size or view.size
    )


def to_row(view: View | None) -> dict[str, str | bytes | None]:
    """Convert a view to columns of the items table."""
    if view is None:
        return {}
    if isinstance(view, Text):
        return {"text": view.text, "view": json.dumps({"kind": "text", "spans": view.spans})}
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.fromarray(view.pixels).save(buffer, "JPEG", quality=JPEG_QUALITY)
    metadata = {"kind": "image", "box": view.box, "full": view.original_size or view.size}
    return {"thumbnail": buffer.getvalue(), "view": json.dumps(metadata)}


def from_row(thumbnail: bytes | None, text: str | None, view: str | None) -> View | None:
    """Invert `to_row`.

    Args:
        thumbnail, text, view: The columns of these names: a JPEG, a text, and JSON metadata.
    """
    metadata = json.loads(view) if view else {}
    _check_metadata(metadata)
    if metadata.get("kind") == "text":
        spans = tuple(None if span is None else (span[0], span[1]) for span in metadata["spans"])
        return Text(text or "", spans)
    if metadata.get("kind") != "image" or not thumbnail:
        return None
    from PIL import Image as Pillow

    with Pillow.open(io.BytesIO(check_thumbnail(thumbnail)), formats=["JPEG"]) as image:
        pixels = np.asarray(image.convert("RGB"))
    left, top, right, bottom = map(float, metadata["box"])
    return replace(
        Image.from_image(pixels), box=(left, top, right, bottom), original_size=tuple(metadata["full"])
    )


def _check_metadata(metadata: object) -> None:
    """Raise `ValueError` for metadata that `to_row` does not write: a collection is not trusted."""
    if not isinstance(metadata, dict) or metadata.get("kind", "image") not in ("image", "text"):
        raise ValueError("a view must be of kind image or text")
    if metadata.get("kind") == "text":
        spans = metadata.get("spans")
        if not isinstance(spans, list) or not all(
            span is None or _are_numbers(span, 2, int) for span in spans
        ):
            raise ValueError("the spans of a text must be pairs of integers")
    elif metadata and not (
        _are_numbers(metadata.get("box"), 4, int, float) and _are_numbers(metadata.get("full"), 2, int)
    ):
        raise ValueError("the box of an image must have four numbers, and its size two")


def _are_numbers(values: object, count: int, *kinds: type) -> bool:
    """Return whether `values` is a list of `count` bounded numbers of these types."""
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(type(value) in kinds and abs(value) < 2**31 for value in values)


def check_thumbnail(thumbnail: bytes) -> bytes:
    """Raise `InputError` for a thumbnail that would take much memory or time to decode; `to_row` writes none."""
    from PIL import Image as Pillow

    if len(thumbnail) > MAX_THUMBNAIL_BYTES:
        raise InputError(
            f"its thumbnail has {len(thumbnail)} bytes, at most {MAX_THUMBNAIL_BYTES} are read: {REINDEX_HINT}"
        )
    with (
        wrap_errors(f"its thumbnail cannot be read: {REINDEX_HINT}"),
        suppress_warnings(),  # Pillow warns about many pixels
        Pillow.open(io.BytesIO(thumbnail), formats=["JPEG"]) as image,
    ):
        width, height = image.size
        progressive = bool(image.info.get("progressive"))
    if max(width, height) > MAX_READ_SIDE_PIXELS or progressive:
        kind = f"{width}×{height} pixels" + (" and is a progressive JPEG" if progressive else "")
        raise InputError(f"its thumbnail has {kind}, which bilrp never writes: {REINDEX_HINT}")
    return thumbnail
