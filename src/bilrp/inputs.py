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

from bilrp.errors import InputError, printable, quiet

if TYPE_CHECKING:
    from PIL import Image as Pillow

    from bilrp.regions import Regions, RegionSpec

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels of a picture."""

LONGEST = 1600
"""Pixels of the longest side of a view: enough for a screen, and a page stays small."""

MAX_VIEW_PIXELS = 100_000_000
"""Of a stored view, whoever made it: 3 bytes each as it is read, 3 as it is kept."""

GREY = (128, 128, 128)


@dataclass(frozen=True, eq=False)
class Image:
    """A picture for people: its own pixels (height, width, 3), and where in them the model's input lies.

    `box` is (left, top, right, bottom) of the whole input in pixels of this picture. Reading crops (the box is smaller
    than the picture), pads (it reaches beyond) or stretches, so places follow by one scale for each axis. `full` is the
    width and height of the photograph, where these pixels are a smaller copy of it.

    >>> Image(np.zeros((100, 200, 3), np.uint8), box=(50, 0, 150, 100)).place((0, 0, 8, 8), (16, 16))
    (50.0, 0.0, 100.0, 50.0)
    """

    pixels: np.ndarray
    box: Box
    full: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        left, top, right, bottom = self.box
        if self.pixels.ndim != 3 or self.pixels.shape[2] != 3 or self.pixels.dtype != np.uint8:
            raise InputError(
                f"a view has pixels (height, width, 3) of bytes, not {self.pixels.shape} of {self.pixels.dtype}"
            )
        if not (all(map(math.isfinite, self.box)) and left < right and top < bottom):
            raise InputError(f"the box {self.box} of a view is empty: give (left, top, right, bottom)")

    @staticmethod
    def of(picture: np.ndarray | Pillow.Image, box: Box | None = None) -> Image:
        """The view of a picture of any size (bytes, or as Pillow has it, which is not copied whole).

        It is never more than 1,600 pixels long; without a box, all of it is the input.

        >>> view = Image.of(np.zeros((400, 3200, 3), np.uint8))
        >>> view.size, view.full, view.box
        ((1600, 200), (3200, 400), (0.0, 0.0, 1600.0, 200.0))
        """
        from PIL import Image as Pillow

        array = isinstance(picture, np.ndarray)
        wide, high = (picture.shape[1], picture.shape[0]) if array else picture.size
        left, top, right, bottom = (0.0, 0.0, float(wide), float(high)) if box is None else box
        scale = LONGEST / max(wide, high)
        if scale >= 1:
            return Image(np.asarray(picture), (left, top, right, bottom), (wide, high))
        size = max(1, round(wide * scale)), max(1, round(high * scale))
        drawn = Pillow.fromarray(picture) if array else picture
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
    def visible(self) -> Box:
        """The part of the picture that the model saw."""
        left, top, right, bottom = self.box
        return (
            max(left, 0.0),
            max(top, 0.0),
            min(right, float(self.size[0])),
            min(bottom, float(self.size[1])),
        )

    def place(self, region: tuple[float, float, float, float], shape: tuple[int, int]) -> Box:
        """Where (top, left, bottom, right) of an input of that (height, width) lies: (left, top, right, bottom) here."""
        left, top, right, bottom = self.box
        across, down = (right - left) / shape[1], (bottom - top) / shape[0]
        first, start, last, stop = region
        return left + start * across, top + first * down, left + stop * across, top + last * down

    def photograph(self, place: Box) -> Box:
        """A place in this picture, in pixels of the photograph that it was made of.

        >>> Image.of(np.zeros((400, 3200, 3), np.uint8)).photograph((10, 20, 30, 40))
        (20.0, 40.0, 60.0, 80.0)
        """
        across, down = (full / here for full, here in zip(self.full or self.size, self.size, strict=True))
        left, top, right, bottom = place
        return left * across, top * down, right * across, bottom * down

    def seen(self, shape: tuple[int, int]) -> np.ndarray:
        """What the model's input shows, at that (height, width); what was padded is grey.

        >>> Image(np.zeros((8, 8, 3), np.uint8), box=(0, -8, 8, 8)).seen((4, 2))[:, 0, 0]
        array([128, 128,   0,   0], dtype=uint8)
        """
        wide, high = self.size
        if self.box == (0, 0, wide, high) and shape == (high, wide):
            return self.pixels
        from PIL import Image as Pillow

        left, top, right, bottom = self.box
        across, down = shape[1] / (right - left), shape[0] / (bottom - top)
        first, start, last, stop = self.visible
        columns = round((first - left) * across), max(round((last - left) * across), 1)
        rows = round((start - top) * down), max(round((stop - top) * down), 1)
        canvas = Pillow.new("RGB", (shape[1], shape[0]), GREY)
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

    >>> Text("A cat", ((0, 1), (2, 5), None)).words
    ('A', 'cat', '')
    """

    text: str
    spans: tuple[tuple[int, int] | None, ...]

    def __post_init__(self) -> None:
        for span in self.spans:
            if span is not None and not 0 <= span[0] <= span[1] <= len(self.text):
                raise InputError(f"the span {span} lies outside a text of {len(self.text)} characters")

    @property
    def words(self) -> tuple[str, ...]:
        """The characters of each region; empty for marks such as [CLS]."""
        return tuple("" if span is None else self.text[span[0] : span[1]] for span in self.spans)

    @property
    def marks(self) -> list[int]:
        """The regions that stand for no characters: marks of the tokenizer's own.

        >>> Text("A cat", (None, (0, 1), (2, 5), None)).marks
        [0, 3]
        """
        return [region for region, span in enumerate(self.spans) if span is None]

    def joined(self, owner: Sequence[int], count: int) -> Text:
        """The same text in larger regions: span i belongs to region owner[i], which reaches from its first to its last.

        >>> Text("A black cat", ((0, 1), (2, 7), (8, 11))).joined([0, 1, 1], 2).words
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

    `cut`, where given, finds regions that only the item knows of (words, sentences, spans of characters), and the view
    that goes with them or with ready-made ones. `given`, where set, is what the model is called with, `x` being the value
    of a module inside it. `notes` are what the reader has to say of it, by kind ("truncated", "unknown").

    >>> Item(torch.zeros(1, 4)).view is None
    True
    """

    x: Tensor
    view: View | None = None
    regions: RegionSpec | None = None
    name: str = ""
    cut: Callable[[Any], tuple[Regions, View | None]] | None = None
    given: Tensor | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


def name_of(path: str | os.PathLike[str]) -> str:
    """A file's own name, as one line that can be shown and stored anywhere.

    >>> name_of("photos/cat.jpg"), name_of(os.fsdecode(b"bad\\xff.png"))
    ('cat.jpg', 'bad\\\\xff.png')
    """
    return printable(os.path.basename(path))


def as_stored(view: View | None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A view as tensors and words for a file: pictures as PNG, which loses nothing and packs better than numbers.

    >>> from_stored(*as_stored(Text("A cat", ((0, 1), (2, 5))))).words
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
    return {"view": png}, {"view": json.dumps({"kind": "image", "box": view.box, "full": view.full})}


def from_stored(tensors: dict[str, Tensor], words: dict[str, str]) -> View | None:
    """The way back from `as_stored`; older files hold the input's picture as it is."""
    if "view" not in words:
        return Image.of(tensors["picture"].numpy()) if "picture" in tensors else None
    about = json.loads(words["view"])
    if about["kind"] == "text":
        return Text(
            about["text"], tuple(None if span is None else (span[0], span[1]) for span in about["spans"])
        )
    from PIL import Image as Pillow

    with quiet(), Pillow.open(io.BytesIO(tensors["view"].numpy().tobytes()), formats=["PNG"]) as image:
        if image.width * image.height > MAX_VIEW_PIXELS:
            raise InputError(f"its picture has {image.width}×{image.height} pixels, which are too many")
        pixels = np.asarray(image.convert("RGB"))
    left, top, right, bottom = map(float, about["box"])
    return Image(pixels, (left, top, right, bottom), None if about["full"] is None else tuple(about["full"]))
