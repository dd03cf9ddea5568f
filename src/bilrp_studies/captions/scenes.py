"""Drawn scenes and their captions: which words go with which region is known.

A scene is 64×64 pixels with one to four objects that differ in colour and in shape; a caption names some of them, each
after the relation it stands in to the one named before: "a red circle left of a blue square".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

SCENE_PIXELS = 64
MAX_OBJECTS = 4  # objects of a scene
MIN_BOX_PIXELS, MAX_BOX_PIXELS = 16, 22  # sides of an object's box
MIN_GAP_PIXELS = 2  # pixels between two boxes, at least
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
    """One object of a scene: colour, shape, and the box it fills."""

    color: str
    shape: str
    box: Box

    @property
    def center(self) -> tuple[float, float]:
        top, left, bottom, right = self.box
        return (top + bottom) / 2, (left + right) / 2


@dataclass(frozen=True, eq=False)
class Scene:
    """A drawn scene: pixels (64, 64, 3) of bytes, all its objects, and those that its caption names, in order."""

    pixels: np.ndarray
    objects: tuple[SceneObject, ...]
    named_objects: tuple[SceneObject, ...]

    @property
    def caption(self) -> str:
        """The words of the caption: "a red circle left of a blue square"."""
        return " ".join(word for word, _ in caption_words(self.named_objects))

    @property
    def object_of_word(self) -> tuple[int | None, ...]:
        """For each word of the caption, the number of the named object whose colour or shape it is, else None."""
        return tuple(owner for _, owner in caption_words(self.named_objects))


def caption_words(objects: Sequence[SceneObject]) -> list[tuple[str, int | None]]:
    """A caption's words, each with the object whose colour or shape it says.

    >>> red, blue = SceneObject("red", "circle", (0, 0, 16, 16)), SceneObject("blue", "square", (4, 40, 20, 56))
    >>> [word for word, _ in caption_words([red, blue])], [owner for _, owner in caption_words([red])]
    (['a', 'red', 'circle', 'left', 'of', 'a', 'blue', 'square'], [None, 0, 0])
    """
    words: list[tuple[str, int | None]] = []
    for number, thing in enumerate(objects):
        if number:
            words += [(word, None) for word in describe_relation(objects[number - 1], thing).split()]
        words += [("a", None), (thing.color, number), (thing.shape, number)]
    return words


def describe_relation(first: SceneObject, second: SceneObject) -> str:
    """Where the first stands as seen from the second, along the longer way between their middles.

    >>> describe_relation(SceneObject("red", "circle", (0, 0, 16, 16)), SceneObject("blue", "square", (40, 4, 56, 20)))
    'above'
    """
    down, across = (second.center[axis] - first.center[axis] for axis in (0, 1))
    if abs(across) >= abs(down):
        return "left of" if across > 0 else "right of"
    return "above" if down > 0 else "below"


def reverse_relations(caption: str) -> str:
    """The caption with every relation turned round: of the same objects, and wrong.

    >>> reverse_relations("a red circle left of a blue square")
    'a red circle right of a blue square'
    """
    return " ".join(OPPOSITES.get(word, word) for word in caption.split())


def draw_scene(
    generator: np.random.Generator, *, object_count: int, named_count: int, colors: Sequence[str] = ()
) -> Scene:
    """A random scene with that many objects, of these colours where they are given, of which that many are named."""
    boxes = _draw_boxes(generator, object_count)
    colors = colors or generator.permutation(list(COLORS))[:object_count].tolist()
    shapes = generator.permutation(SHAPES)[:object_count].tolist()
    things = tuple(SceneObject(*each) for each in zip(colors, shapes, boxes, strict=True))
    order = generator.permutation(object_count)[:named_count].tolist()
    # a grey of its own for each scene, with grain: the ground is no zero that explains itself
    ground = generator.uniform(0.25, 0.75)
    pixels = np.full((SCENE_PIXELS, SCENE_PIXELS, 3), ground, np.float32)
    for thing in things:
        top, left, bottom, right = thing.box
        pixels[top:bottom, left:right][shape_mask(thing.shape, bottom - top)] = COLORS[thing.color]
    pixels += 0.04 * generator.standard_normal(pixels.shape, np.float32)
    drawn = (pixels.clip(0, 1) * 255).round().astype(np.uint8)
    return Scene(drawn, things, tuple(things[number] for number in order))


@cache
def shape_mask(shape: str, side: int) -> np.ndarray:
    """Which pixels of a box of that side a shape covers; it touches all four sides of its box.

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
    """What the model sees of scenes: (n, 3, 64, 64), grey is zero.

    >>> stack_pixels([draw_scene(np.random.default_rng(0), object_count=1, named_count=1)]).shape
    torch.Size([1, 3, 64, 64])
    """
    stacked = torch.from_numpy(np.stack([scene.pixels for scene in scenes]))
    return ((stacked.float() / 255 - 0.5) / 0.25).permute(0, 3, 1, 2).contiguous()


def _draw_boxes(generator: np.random.Generator, count: int) -> list[Box]:
    """Boxes that keep apart; a draw that leaves no room for the next one is begun again."""
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
