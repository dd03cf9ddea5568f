"""Synthetic scenes with captions, for which the correspondence between words and regions is known.

A scene has 64×64 pixels and one to four objects that differ in colour and in shape. A caption names some of them, with
the spatial relation between consecutive ones: "a red circle left of a blue square".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

SCENE_PIXELS = 64
MAX_OBJECTS = 4  # per scene
MIN_BOX_PIXELS, MAX_BOX_PIXELS = 16, 22  # side of an object's bounding box
MIN_GAP_PIXELS = 2  # minimum distance between two boxes
COLORS = {
    "red": (0.90, 0.12, 0.12),
    "green": (0.10, 0.65, 0.15),
    "blue": (0.12, 0.25, 0.90),
    "yellow": (0.95, 0.88, 0.10),
    "purple": (0.60, 0.12, 0.75),
    "cyan": (0.10, 0.85, 0.90),
}
SHAPES = ("circle", "square", "triangle", "cross", "ring")
OPPOSITES = {"left": "right", "right": "left", "above": "below", "below": "above"}
VOCABULARY = ("a", *COLORS, *SHAPES, *OPPOSITES, "of")

Box = tuple[int, int, int, int]
"""(top, left, bottom, right) in pixels."""


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene: colour, shape and bounding box."""

    color: str
    shape: str
    box: Box

    @property
    def center(self) -> tuple[float, float]:
        top, left, bottom, right = self.box
        return (top + bottom) / 2, (left + right) / 2


@dataclass(frozen=True, eq=False)
class Scene:
    """A scene: uint8 pixels (64, 64, 3), all its objects, and the objects that its caption names, in order."""

    pixels: np.ndarray
    objects: tuple[SceneObject, ...]
    named_objects: tuple[SceneObject, ...]

    @property
    def caption(self) -> str:
        """The caption, for example "a red circle left of a blue square"."""
        return " ".join(word for word, _ in caption_words(self.named_objects))

    @property
    def object_of_word(self) -> tuple[int | None, ...]:
        """For each word of the caption, the index of the named object whose colour or shape it is, else None."""
        return tuple(owner for _, owner in caption_words(self.named_objects))


def caption_words(objects: Sequence[SceneObject]) -> list[tuple[str, int | None]]:
    """Return the words of a caption, each with the index of the object whose colour or shape it names, else None.

    >>> red, blue = SceneObject("red", "circle", (0, 0, 16, 16)), SceneObject("blue", "square", (4, 40, 20, 56))
    >>> [word for word, _ in caption_words([red, blue])], [owner for _, owner in caption_words([red])]
    (['a', 'red', 'circle', 'left', 'of', 'a', 'blue', 'square'], [None, 0, 0])
    """
    words: list[tuple[str, int | None]] = []
    for number, item in enumerate(objects):
        if number:
            words += [(word, None) for word in describe_relation(objects[number - 1], item).split()]
        words += [("a", None), (item.color, number), (item.shape, number)]
    return words


def describe_relation(first: SceneObject, second: SceneObject) -> str:
    """Return the position of the first object relative to the second, along the axis on which their centres differ more.

    >>> describe_relation(SceneObject("red", "circle", (0, 0, 16, 16)), SceneObject("blue", "square", (40, 4, 56, 20)))
    'above'
    """
    down, across = (second.center[axis] - first.center[axis] for axis in (0, 1))
    if abs(across) >= abs(down):
        return "left of" if across > 0 else "right of"
    return "above" if down > 0 else "below"


def reverse_relations(caption: str) -> str:
    """Return the caption with every relation replaced by its opposite, which makes it wrong.

    >>> reverse_relations("a red circle left of a blue square")
    'a red circle right of a blue square'
    """
    return " ".join(OPPOSITES.get(word, word) for word in caption.split())


def draw_scene(
    generator: np.random.Generator, *, object_count: int, named_count: int, colors: Sequence[str] = ()
) -> Scene:
    """Draw a random scene.

    Args:
        generator: Source of all random choices.
        object_count: Number of objects, at most MAX_OBJECTS.
        named_count: Number of objects that the caption names.
        colors: Colours of the objects; random if empty.
    """
    boxes = _draw_boxes(generator, object_count)
    colors = colors or generator.permutation(list(COLORS))[:object_count].tolist()
    shapes = generator.permutation(SHAPES)[:object_count].tolist()
    items = tuple(SceneObject(*each) for each in zip(colors, shapes, boxes, strict=True))
    order = generator.permutation(object_count)[:named_count].tolist()
    # a random grey with noise for each scene, so that the background is not exactly zero
    ground = generator.uniform(0.25, 0.75)
    pixels = np.full((SCENE_PIXELS, SCENE_PIXELS, 3), ground, np.float32)
    for item in items:
        top, left, bottom, right = item.box
        pixels[top:bottom, left:right][shape_mask(item.shape, bottom - top)] = COLORS[item.color]
    pixels += 0.04 * generator.standard_normal(pixels.shape, np.float32)
    drawn = (pixels.clip(0, 1) * 255).round().astype(np.uint8)
    return Scene(drawn, items, tuple(items[number] for number in order))


@cache
def shape_mask(shape: str, side: int) -> np.ndarray:
    """Return the mask of the pixels that a shape covers in a square box; the shape touches all four sides.

    >>> shape_mask("cross", 6).astype(int).sum(1).tolist()
    [2, 2, 6, 6, 2, 2]
    """
    at = (np.arange(side) + 0.5) * 2 / side - 1
    y, x = at[:, None], at[None, :]
    edge = 2 / side
    return {
        "circle": x**2 + y**2 <= 1,
        "square": np.ones((side, side), bool),
        "triangle": np.abs(x) <= (y + 1) / 2 + edge / 2,
        "cross": (np.abs(x) <= 0.34) | (np.abs(y) <= 0.34),
        "ring": (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.3),
    }[shape]


def stack_pixels(scenes: Sequence[Scene]) -> Tensor:
    """Return the scenes as model input: (n, 3, 64, 64), mid-grey is zero.

    >>> stack_pixels([draw_scene(np.random.default_rng(0), object_count=1, named_count=1)]).shape
    torch.Size([1, 3, 64, 64])
    """
    stacked = torch.from_numpy(np.stack([scene.pixels for scene in scenes]))
    return ((stacked.float() / 255 - 0.5) / 0.25).permute(0, 3, 1, 2).contiguous()


def _draw_boxes(generator: np.random.Generator, count: int) -> list[Box]:
    """Draw boxes that do not overlap, by rejection; start over if no position is left for the next one."""
    while True:
        boxes: list[Box] = []
        for size, down, across in generator.random((30 * count, 3)).tolist():
            side = MIN_BOX_PIXELS + int(size * (MAX_BOX_PIXELS - MIN_BOX_PIXELS + 1))
            top, left = (int(at * (SCENE_PIXELS - side + 1)) for at in (down, across))
            box = (top, left, top + side, left + side)
            if all(_are_apart(box, other) for other in boxes):
                boxes.append(box)
            if len(boxes) == count:
                return boxes


def _are_apart(one: Box, other: Box) -> bool:
    return (
        one[2] + MIN_GAP_PIXELS <= other[0]
        or other[2] + MIN_GAP_PIXELS <= one[0]
        or one[3] + MIN_GAP_PIXELS <= other[1]
        or other[3] + MIN_GAP_PIXELS <= one[1]
    )
