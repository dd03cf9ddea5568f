"""Item: one input, as the model sees it and as people see it."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bilrp.errors import InputError, suppress_warnings, to_printable

if TYPE_CHECKING:
    from PIL import Image as Pillow

    from bilrp.regions import Regions, RegionSpec

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels of a picture."""

MAX_VIEW_SIDE_PIXELS = 1600
"""Pixels of the longest side of a view: enough for a screen, and a page stays small."""

MAX_VIEW_PIXELS = 100_000_000
"""Of a stored view, whoever made it: 3 bytes each as it is read, 3 as it is kept."""

PADDING_COLOR = (128, 128, 128)


@dataclass(frozen=True, eq=False)
class Image:
    """A picture for people: its own pixels (height, width, 3), and where in them the model's input lies.

    `box` is (left, top, right, bottom) of the whole input in pixels of this picture. Reading crops (the box is smaller
    than the picture), pads (it reaches beyond) or stretches, so places follow by one scale for each axis. `original_size` is
    the width and height of the photograph, where these pixels are a smaller copy of it.

    >>> Image(np.zeros((100, 200, 3), np.uint8), box=(50, 0, 150, 100)).map_to_view((0, 0, 8, 8), (16, 16))
    (50.0, 0.0, 100.0, 50.0)
    """

    pixels: np.ndarray
    box: Box
    original_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        left, top, right, bottom = self.box
        if self.pixels.ndim != 3 or self.pixels.shape[2] != 3 or self.pixels.dtype != np.uint8:
            raise InputError(
                f"a view has pixels (height, width, 3) of bytes, not {self.pixels.shape} of {self.pixels.dtype}"
            )
        if not (all(map(math.isfinite, self.box)) and left < right and top < bottom):
            raise InputError(f"the box {self.box} of a view is empty: give (left, top, right, bottom)")

    @staticmethod
    def from_image(image: np.ndarray | Pillow.Image, box: Box | None = None) -> Image:
        """The view of a picture of any size (bytes, or as Pillow has it, which is not copied whole).

        It is never more than 1,600 pixels long; without a box, all of it is the input.

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
        drawn = Pillow.fromarray(image) if array else image
        smaller = np.asarray(drawn.resize(size, Pillow.Resampling.LANCZOS))
        across, down = size[0] / wide, size[1] / high
        return Image(smaller, (left * across, top * down, right * across, bottom * down), (wide, high))

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[1], self.pixels.shape[0]

    @property
    def frame(self) -> Box:
        """The smallest box around the picture and the model's input: padding reaches beyond the picture."""
        left, top, right, bottom = self.box
        return (
            min(left, 0.0),
            min(top, 0.0),
            max(right, float(self.size[0])),
            max(bottom, float(self.size[1])),
        )

    @property
    def visible_box(self) -> Box:
        """The part of the picture that the model saw."""
        left, top, right, bottom = self.box
        return (
            max(left, 0.0),
            max(top, 0.0),
            min(right, float(self.size[0])),
            min(bottom, float(self.size[1])),
        )

    def map_to_view(self, region: tuple[float, float, float, float], shape: tuple[int, int]) -> Box:
        """Where (top, left, bottom, right) of an input of that (height, width) lies: (left, top, right, bottom) here."""
        left, top, right, bottom = self.box
        across, down = (right - left) / shape[1], (bottom - top) / shape[0]
        first, start, last, stop = region
        return left + start * across, top + first * down, left + stop * across, top + last * down

    def map_to_original(self, view_box: Box) -> Box:
        """A place in this picture, in pixels of the photograph that it was made of.

        >>> Image.from_image(np.zeros((400, 3200, 3), np.uint8)).map_to_original((10, 20, 30, 40))
        (20.0, 40.0, 60.0, 80.0)
        """
        across, down = (
            full / here for full, here in zip(self.original_size or self.size, self.size, strict=True)
        )
        left, top, right, bottom = view_box
        return left * across, top * down, right * across, bottom * down

    def crop_to_input(self, shape: tuple[int, int]) -> np.ndarray:
        """What the model's input shows, at that (height, width); what was padded is grey.

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
    """A text for people: the whole, and the characters [start, stop) of each region (None: a mark of the tokenizer's own).

    >>> Text("A cat", ((0, 1), (2, 5), None)).region_texts
    ('A', 'cat', '')
    """

    text: str
    spans: tuple[tuple[int, int] | None, ...]

    def __post_init__(self) -> None:
        for span in self.spans:
            if span is not None and not 0 <= span[0] <= span[1] <= len(self.text):
                raise InputError(f"the span {span} lies outside a text of {len(self.text)} characters")

    @property
    def region_texts(self) -> tuple[str, ...]:
        """The characters of each region; empty for marks such as [CLS]."""
        return tuple("" if span is None else self.text[span[0] : span[1]] for span in self.spans)

    @property
    def special_tokens(self) -> list[int]:
        """The regions that stand for no characters: marks of the tokenizer's own.

        >>> Text("A cat", (None, (0, 1), (2, 5), None)).special_tokens
        [0, 3]
        """
        return [region for region, span in enumerate(self.spans) if span is None]

    def merge_regions(self, owner: Sequence[int], count: int) -> Text:
        """The same text in larger regions: span i belongs to region owner[i], which reaches from its first to its last.

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
    """What `Encoder.read` gives: the input `x` (a batch of one), its view, and regions and a name where it has its own.

    `segment`, where given, finds regions that only the item knows of (words, sentences, spans of characters), and the view
    that goes with them or with ready-made ones. `model_input`, where set, is what the model is called with, `x` being
    the value
    of a module inside it. `notes` are what the reader has to say of it, by kind ("truncated", "unknown").

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
    """A file's own name, as one line that can be shown and stored anywhere.

    >>> display_name("photos/cat.jpg"), display_name(os.fsdecode(b"bad\\xff.png"))
    ('cat.jpg', 'bad\\\\xff.png')
    """
    return to_printable(os.path.basename(path))


def serialize_view(view: View | None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A view as tensors and words for a file: pictures as PNG, which loses nothing and packs better than numbers.

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
    return {"view": png}, {"view": json.dumps({"kind": "image", "box": view.box, "full": view.original_size})}


def deserialize_view(tensors: dict[str, Tensor], metadata: dict[str, str]) -> View | None:
    """The way back from `serialize_view`; older files hold the input's picture as it is."""
    if "view" not in metadata:
        return Image.from_image(tensors["picture"].numpy()) if "picture" in tensors else None
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
            raise InputError(f"its picture has {image.width}×{image.height} pixels, which are too many")
        pixels = np.asarray(image.convert("RGB"))
    left, top, right, bottom = map(float, about["box"])
    return Image(pixels, (left, top, right, bottom), None if about["full"] is None else tuple(about["full"]))
