"""Item: one input, as the model sees it and as people see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from bilrp.regions import Regions, Spec

Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Image:
    """A picture for people: its own pixels (height, width, 3), and where in them the model's input lies.

    `box` is (left, top, right, bottom) of the whole input in pixels of this picture. Reading crops (the box is smaller
    than the picture), pads (it reaches beyond) or stretches, so places follow by one scale for each axis.

    >>> Image(np.zeros((100, 200, 3), np.uint8), box=(50, 0, 150, 100)).place((0, 0, 8, 8), (16, 16))
    (50.0, 0.0, 100.0, 50.0)
    """

    pixels: np.ndarray
    box: Box

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[1], self.pixels.shape[0]

    def place(self, region: tuple[float, float, float, float], shape: tuple[int, int]) -> Box:
        """Where (top, left, bottom, right) of an input of that (height, width) lies: (left, top, right, bottom) here."""
        left, top, right, bottom = self.box
        across, down = (right - left) / shape[1], (bottom - top) / shape[0]
        first, start, last, stop = region
        return left + start * across, top + first * down, left + stop * across, top + last * down


@dataclass(frozen=True, eq=False)
class Text:
    """A text for people: the whole, and the characters [start, stop) of each region (None: a mark of the tokenizer's own).

    >>> Text("A cat", ((0, 1), (2, 5), None)).words
    ('A', 'cat', '')
    """

    text: str
    spans: tuple[tuple[int, int] | None, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The characters of each region; empty for marks such as [CLS]."""
        return tuple("" if span is None else self.text[span[0] : span[1]] for span in self.spans)


View = Image | Text


@dataclass(frozen=True, eq=False)
class Item:
    """What `Encoder.read` gives: the input `x` (a batch of one), its view, and regions and a name where it has its own.

    >>> import torch
    >>> Item(torch.zeros(1, 4)).view is None
    True
    """

    x: Tensor
    view: View | None = None
    regions: Regions | Spec | None = None
    name: str = ""
