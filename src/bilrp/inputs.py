"""Item: one input as a tensor, and its view (image or text) to show."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bilrp.errors import InputError, suppress_warnings, to_printable

if TYPE_CHECKING:
    from PIL import Image as Pillow

    from bilrp.regions import Regions, RegionSpec

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels of an image."""

MAX_VIEW_SIDE_PIXELS = 1600
"""Longest side of a view: enough for a screen, and pages stay small."""

MAX_VIEW_PIXELS = 100_000_000
"""Limit for views read from files: decoding needs 6 bytes per pixel."""

PADDING_COLOR = (128, 128, 128)
SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])|\n\s*\n|\n")


@dataclass(frozen=True)
class Canvas:
    """The IIIF canvas that an image is painted on.

    Args:
        id: its address.
        width, height: in units of the canvas.
        box: the image on the canvas, (left, top, right, bottom).
        label: its name in the manifest.
        manifest: address of the manifest.
        image: address of the image.
        service: address of the image service; empty if there is none.
        service_type: of that service, "ImageService3" or "ImageService2".
    """

    id: str
    width: float
    height: float
    box: Box
    label: str = ""
    manifest: str = ""
    image: str = ""
    service: str = ""
    service_type: str = ""


def read_canvas(values: Mapping[str, Any]) -> Canvas:
    """Return the canvas of a dict from a file; checks it."""
    width, height, *edges = (float(number) for number in (values["width"], values["height"], *values["box"]))
    left, top, right, bottom = edges
    names = ("id", "label", "manifest", "image", "service", "service_type")
    identifier, *texts = (values[name] for name in names)
    if not all(isinstance(text, str) for text in (identifier, *texts)):
        raise InputError("a canvas needs an id and texts")
    extents = (width, height, right - left, bottom - top)
    if not all(math.isfinite(extent) and extent > 0 for extent in extents):
        raise InputError("a canvas needs a width, a height and a box")
    return Canvas(identifier, width, height, (left, top, right, bottom), *texts)


@dataclass(frozen=True, eq=False)
class Image:
    """An image to show, and the position of the model's input in it.

    Args:
        pixels: bytes (height, width, 3).
        box: the model's input in pixels of this image: smaller than the image if it was cropped, larger if padded.
        original_size: (width, height) of the original image, if these pixels are a smaller copy of it.
        canvas: the IIIF canvas of the original image, if it comes from a manifest.

    >>> Image(np.zeros((100, 200, 3), np.uint8), box=(50, 0, 150, 100)).map_to_view((0, 0, 8, 8), (16, 16))
    (50.0, 0.0, 100.0, 50.0)
    """

    pixels: np.ndarray
    box: Box
    original_size: tuple[int, int] | None = None
    canvas: Canvas | None = None

    def __post_init__(self) -> None:
        left, top, right, bottom = self.box
        if self.pixels.ndim != 3 or self.pixels.shape[2] != 3 or self.pixels.dtype != np.uint8:
            raise InputError(
                f"a view needs uint8 pixels (height, width, 3), not {self.pixels.shape} of {self.pixels.dtype}"
            )
        if not (all(map(math.isfinite, self.box)) and left < right and top < bottom):
            raise InputError(f"the box {self.box} of a view is empty: give (left, top, right, bottom)")

    @staticmethod
    def from_image(image: np.ndarray | Pillow.Image, box: Box | None = None) -> Image:
        """Return the view of an image of any size, scaled down to at most 1,600 pixels a side.

        Args:
            image: a Pillow image, or bytes (height, width, 3).
            box: the model's input in pixels of the image; by default all of it.

        >>> view = Image.from_image(np.zeros((400, 3200, 3), np.uint8))
        >>> view.size, view.original_size, view.box
        ((1600, 200), (3200, 400), (0.0, 0.0, 1600.0, 200.0))
        """
        from PIL import Image as Pillow

        array = isinstance(image, np.ndarray)
        wide, high = (image.shape[1], image.shape[0]) if array else image.size
        left, top, right, bottom = (0.0, 0.0, float(wide), float(high)) if box is None else box
        scale = MAX_VIEW_SIDE_PIXELS / max(wide, high)
        if scale >= 1:
            return Image(np.asarray(image), (left, top, right, bottom), (wide, high))
        size = max(1, round(wide * scale)), max(1, round(high * scale))
        source = Pillow.fromarray(image) if array else image
        smaller = np.asarray(source.resize(size, Pillow.Resampling.LANCZOS))
        across, down = size[0] / wide, size[1] / high
        return Image(smaller, (left * across, top * down, right * across, bottom * down), (wide, high))

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[1], self.pixels.shape[0]

    @property
    def frame(self) -> Box:
        """The smallest box around the image and the model's input, which is larger where it was padded."""
        left, top, right, bottom = self.box
        return (
            min(left, 0.0),
            min(top, 0.0),
            max(right, float(self.size[0])),
            max(bottom, float(self.size[1])),
        )

    @property
    def visible_box(self) -> Box:
        """The part of the image that the model saw."""
        left, top, right, bottom = self.box
        return (
            max(left, 0.0),
            max(top, 0.0),
            min(right, float(self.size[0])),
            min(bottom, float(self.size[1])),
        )

    def map_to_view(self, region: tuple[float, float, float, float], shape: tuple[int, int]) -> Box:
        """Map (top, left, bottom, right) of an input of shape (height, width) to a box in pixels of this image."""
        left, top, right, bottom = self.box
        across, down = (right - left) / shape[1], (bottom - top) / shape[0]
        first, start, last, stop = region
        return left + start * across, top + first * down, left + stop * across, top + last * down

    def map_to_original(self, view_box: Box) -> Box:
        """Map a box in this image to pixels of the original image.

        >>> Image.from_image(np.zeros((400, 3200, 3), np.uint8)).map_to_original((10, 20, 30, 40))
        (20.0, 40.0, 60.0, 80.0)
        """
        across, down = (
            full / here for full, here in zip(self.original_size or self.size, self.size, strict=True)
        )
        left, top, right, bottom = view_box
        return left * across, top * down, right * across, bottom * down

    def crop_to_input(self, shape: tuple[int, int]) -> np.ndarray:
        """Return the model's input as an image of shape (height, width); padding is grey.

        >>> Image(np.zeros((8, 8, 3), np.uint8), box=(0, -8, 8, 8)).crop_to_input((4, 2))[:, 0, 0]
        array([128, 128,   0,   0], dtype=uint8)
        """
        wide, high = self.size
        if self.box == (0, 0, wide, high) and shape == (high, wide):
            return self.pixels
        from PIL import Image as Pillow

        left, top, right, bottom = self.box
        across, down = shape[1] / (right - left), shape[0] / (bottom - top)
        first, start, last, stop = self.visible_box
        columns = round((first - left) * across), max(round((last - left) * across), 1)
        rows = round((start - top) * down), max(round((stop - top) * down), 1)
        canvas = Pillow.new("RGB", (shape[1], shape[0]), PADDING_COLOR)
        inner = Pillow.fromarray(self.pixels).resize(
            (max(columns[1] - columns[0], 1), max(rows[1] - rows[0], 1)),
            Pillow.Resampling.BICUBIC,
            box=(first, start, last, stop),
        )
        canvas.paste(inner, (columns[0], rows[0]))
        return np.asarray(canvas)


@dataclass(frozen=True, eq=False)
class Text:
    """A text to show, and the characters [start, stop) of each region (None: a special token).

    >>> Text("A cat", ((0, 1), (2, 5), None)).region_texts
    ('A', 'cat', '')
    """

    text: str
    spans: tuple[tuple[int, int] | None, ...]

    def __post_init__(self) -> None:
        for span in self.spans:
            if span is not None and not 0 <= span[0] <= span[1] <= len(self.text):
                raise InputError(f"the span {span} is outside a text of {len(self.text)} characters")

    @property
    def region_texts(self) -> tuple[str, ...]:
        """The characters of each region; empty for special tokens such as [CLS]."""
        return tuple("" if span is None else self.text[span[0] : span[1]] for span in self.spans)

    @property
    def special_tokens(self) -> list[int]:
        """The regions without characters: special tokens of the tokenizer.

        >>> Text("A cat", (None, (0, 1), (2, 5), None)).special_tokens
        [0, 3]
        """
        return [region for region, span in enumerate(self.spans) if span is None]

    def merge_regions(self, owner: Sequence[int], count: int) -> Text:
        """Return the text in larger regions: span i joins region owner[i], from its first to its last character.

        >>> Text("A black cat", ((0, 1), (2, 7), (8, 11))).merge_regions([0, 1, 1], 2).region_texts
        ('A', 'black cat')
        """
        members = [
            [s for s, o in zip(self.spans, owner, strict=True) if o == region and s]
            for region in range(count)
        ]
        spans = tuple((min(s for s, _ in of), max(s for _, s in of)) if of else None for of in members)
        return Text(self.text, spans)


View = Image | Text


@dataclass(frozen=True, eq=False)
class Item:
    """One input, as `Encoder.read` returns it.

    Args:
        x: the input tensor, a batch of one.
        view: the image or text to show.
        regions: the default regions of this input.
        name: to show, e.g. the file's name.
        segment: returns regions by name ("words", "sentences", spans of characters) and their view.
        model_input: what the model is called with, where `x` is the output of a module inside it (token embeddings).
        notes: warnings of the reader by kind ("truncated", "unknown").

    >>> Item(torch.zeros(1, 4)).view is None
    True
    """

    x: Tensor
    view: View | None = None
    regions: RegionSpec | None = None
    name: str = ""
    segment: Callable[[Any], tuple[Regions, View | None]] | None = None
    model_input: Tensor | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


def display_name(path: str | os.PathLike[str]) -> str:
    """Return a file's name without its folder, as printable text.

    >>> display_name("photos/cat.jpg"), display_name(os.fsdecode(b"bad\\xff.png"))
    ('cat.jpg', 'bad\\\\xff.png')
    """
    return to_printable(os.path.basename(path))


def serialize_view(view: View | None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a view as tensors and metadata for a file; images are stored as PNG.

    >>> deserialize_view(*serialize_view(Text("A cat", ((0, 1), (2, 5))))).region_texts
    ('A', 'cat')
    """
    if view is None:
        return {}, {}
    if isinstance(view, Text):
        return {}, {"view": json.dumps({"kind": "text", "text": view.text, "spans": view.spans})}
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.fromarray(view.pixels).save(buffer, "PNG")
    png = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    words = {"kind": "image", "box": view.box, "full": view.original_size}
    words |= {} if view.canvas is None else {"canvas": asdict(view.canvas)}
    return {"view": png}, {"view": json.dumps(words)}


def deserialize_view(tensors: dict[str, Tensor], metadata: dict[str, str]) -> View | None:
    """Rebuild a view from `serialize_view`'s tensors and metadata."""
    if "view" not in metadata:
        return None
    about = json.loads(metadata["view"])
    if about["kind"] == "text":
        return Text(
            about["text"], tuple(None if span is None else (span[0], span[1]) for span in about["spans"])
        )
    from PIL import Image as Pillow

    with (
        suppress_warnings(),
        Pillow.open(io.BytesIO(tensors["view"].numpy().tobytes()), formats=["PNG"]) as image,
    ):
        if image.width * image.height > MAX_VIEW_PIXELS:
            raise InputError(
                f"its image has {image.width}×{image.height} pixels, more than {MAX_VIEW_PIXELS}"
            )
        pixels = np.asarray(image.convert("RGB"))
    left, top, right, bottom = map(float, about["box"])
    canvas = read_canvas(about["canvas"]) if "canvas" in about else None
    full = None if about["full"] is None else tuple(about["full"])
    return Image(pixels, (left, top, right, bottom), full, canvas)


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Return the spans of sentences: split after . ! ? … before white space, after 。！？, and at line breaks.

    >>> [("It rains. Stay in!")[a:b] for a, b in split_sentences("It rains. Stay in!")]
    ['It rains.', 'Stay in!']
    """
    spans, start = [], 0
    for end in SENTENCE_END.finditer(text):
        spans.append((start, end.end()))
        start = end.end()
    spans.append((start, len(text)))
    trimmed = (trim_span(text, span) for span in spans)
    return [span for span in trimmed if span[0] < span[1] and text[slice(*span)].strip()]


def trim_span(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return a span without the white space at its ends; a span of white space only stays as it is."""
    start, stop = span
    inner = text[start:stop]
    if not inner.strip():
        return span
    return start + len(inner) - len(inner.lstrip()), stop - len(inner) + len(inner.rstrip())
