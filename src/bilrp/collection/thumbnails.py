"""What a collection shows of an item without its file: a small picture, or the text, and where the input lies in it."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np

from bilrp.errors import InputError, suppress_warnings, wrap_errors
from bilrp.inputs import Image, Text, View

THUMBNAIL_SIDE_PIXELS = 320  # pixels of the longest side
JPEG_QUALITY = 85
MAX_READ_SIDE_PIXELS = 4 * THUMBNAIL_SIDE_PIXELS  # of a thumbnail that is read, whoever made it
MAX_THUMBNAIL_BYTES = 4_000_000
REINDEX_HINT = "index it again under another name"


def downscale(view: View | None) -> View | None:
    """The same view in few pixels; texts stay as they are.

    >>> downscale(Image.from_image(np.zeros((480, 640, 3), np.uint8))).size
    (320, 240)
    """
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
    """A view as columns of the items' table."""
    if view is None:
        return {}
    if isinstance(view, Text):
        return {"text": view.text, "view": json.dumps({"kind": "text", "spans": view.spans})}
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.fromarray(view.pixels).save(buffer, "JPEG", quality=JPEG_QUALITY)
    about = {"kind": "image", "box": view.box, "full": view.original_size or view.size}
    return {"thumbnail": buffer.getvalue(), "view": json.dumps(about)}


def from_row(thumbnail: bytes | None, text: str | None, view: str | None) -> View | None:
    """The way back from `to_row`."""
    about = json.loads(view) if view else {}
    _check_metadata(about)
    if about.get("kind") == "text":
        spans = tuple(None if span is None else (span[0], span[1]) for span in about["spans"])
        return Text(text or "", spans)
    if about.get("kind") != "image" or not thumbnail:
        return None
    from PIL import Image as Pillow

    with Pillow.open(io.BytesIO(check_thumbnail(thumbnail)), formats=["JPEG"]) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    left, top, right, bottom = map(float, about["box"])
    return replace(
        Image.from_image(pixels), box=(left, top, right, bottom), original_size=tuple(about["full"])
    )


def _check_metadata(metadata: object) -> None:
    """Refuse what `to_row` does not write: a collection may come from anybody."""
    if not isinstance(metadata, dict) or metadata.get("kind", "image") not in ("image", "text"):
        raise ValueError("a view is of an image or a text")
    if metadata.get("kind") == "text":
        spans = metadata.get("spans")
        if not isinstance(spans, list) or not all(
            span is None or _are_numbers(span, 2, int) for span in spans
        ):
            raise ValueError("the spans of a text are pairs of numbers")
    elif metadata and not (
        _are_numbers(metadata.get("box"), 4, int, float) and _are_numbers(metadata.get("full"), 2, int)
    ):
        raise ValueError("the box of an image has four sides, and its size two")


def _are_numbers(values: object, count: int, *kinds: type) -> bool:
    """So many finite numbers of these types?"""
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(type(value) in kinds and abs(value) < 2**31 for value in values)


def check_thumbnail(thumbnail: bytes) -> bytes:
    """Refuse a thumbnail that `to_row` would not make: one that takes much memory or time to decode."""
    from PIL import Image as Pillow

    if len(thumbnail) > MAX_THUMBNAIL_BYTES:
        raise InputError(
            f"its thumbnail has {len(thumbnail)} bytes, at most {MAX_THUMBNAIL_BYTES} are read: {REINDEX_HINT}"
        )
    with (
        wrap_errors(f"its thumbnail cannot be read: {REINDEX_HINT}"),
        suppress_warnings(),  # Pillow only warns of many pixels
        Pillow.open(io.BytesIO(thumbnail), formats=["JPEG"]) as picture,
    ):
        width, height = picture.size
        passes = bool(picture.info.get("progressive"))
    if max(width, height) > MAX_READ_SIDE_PIXELS or passes:
        how = f"{width}×{height} pixels" + (" in several passes" if passes else "")
        raise InputError(f"its thumbnail has {how}, larger than any that is made: {REINDEX_HINT}")
    return thumbnail
