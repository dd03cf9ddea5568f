"""Draw diagrams like those of old astronomical books: a fixed frame and centre, and a part that rotates between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

SIDE_PIXELS = 384  # drawn larger than it is read, so that lines are smooth
PAPER, INK = 238, 30
OUTER_FRACTION, INNER_FRACTION = 0.72, 0.2  # of half the side: the ring of the rotating part
FIXED, ROTATING = 0, 1  # numbers of the regions


class Diagram(NamedTuple):
    """What to draw: the fixed elements, and the lines of the rotating part as polygons around the centre."""

    frame: Callable[[ImageDraw.ImageDraw], None]
    lines: list[np.ndarray]

    def draw(self, angle: float = 0.0, *, frame: bool = True, rotating: bool = True) -> Image.Image:
        """Return the drawing.

        Args:
            angle: Of the rotating part, in degrees.
            frame: Draw the fixed elements.
            rotating: Draw the rotating part.
        """
        image = Image.new("RGB", (SIDE_PIXELS, SIDE_PIXELS), (PAPER, PAPER, PAPER - 12))
        pen = ImageDraw.Draw(image)
        if frame:
            self.frame(pen)
        turn = np.deg2rad(angle)
        matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        for line in self.lines if rotating else ():
            points = line @ matrix.T * SIDE_PIXELS / 2 + SIDE_PIXELS / 2
            pen.line([(float(x), float(y)) for x, y in points], fill=(INK, INK, INK), width=5, joint="curve")
        return image


def draw_diagram(seed: int) -> Diagram:
    """Return a random diagram: border and tick marks, a centre, and circles, spokes and a polygon that rotate."""
    rng = np.random.default_rng(seed)
    ticks, inset = int(rng.choice([12, 16, 24])), float(rng.uniform(0.02, 0.06))
    corners = bool(rng.integers(2))
    middle = SIDE_PIXELS / 2

    def frame(pen: ImageDraw.ImageDraw) -> None:
        ink = (INK, INK, INK)
        edge = inset * SIDE_PIXELS
        pen.rectangle((edge, edge, SIDE_PIXELS - edge, SIDE_PIXELS - edge), outline=ink, width=5)
        radius = 0.84 * middle
        pen.ellipse(
            (middle - radius, middle - radius, middle + radius, middle + radius), outline=ink, width=4
        )
        for at in np.linspace(0, 2 * np.pi, ticks, endpoint=False):
            ends = [
                (middle + r * middle * np.cos(at), middle + r * middle * np.sin(at)) for r in (0.76, 0.84)
            ]
            pen.line([(float(x), float(y)) for x, y in ends], fill=ink, width=4)
        if corners:
            for x in (edge, SIDE_PIXELS - edge - 40):
                for y in (edge, SIDE_PIXELS - edge - 40):
                    pen.ellipse((x + 8, y + 8, x + 32, y + 32), outline=ink, width=4)
        small = 0.12 * middle
        pen.ellipse((middle - small, middle - small, middle + small, middle + small), fill=ink)

    return Diagram(frame, _draw_rotating_part(rng))


def _draw_rotating_part(rng: np.random.Generator) -> list[np.ndarray]:
    """Return lines inside the ring: one or two circles off the centre, a spoke on one side, and a triangle."""
    low, high = INNER_FRACTION + 0.03, OUTER_FRACTION - 0.03
    round_about = np.linspace(0, 2 * np.pi, 60)
    lines = []
    for _ in range(int(rng.integers(1, 3))):
        radius = float(rng.uniform(0.1, (high - low) / 2))
        distance, at = float(rng.uniform(low + radius, high - radius)), float(rng.uniform(0, 2 * np.pi))
        middle = distance * np.array([np.cos(at), np.sin(at)])
        lines.append(middle + radius * np.stack([np.cos(round_about), np.sin(round_about)], axis=1))
    spoke, triangle = rng.uniform(0, 2 * np.pi, 2)
    lines.append(np.array([[r * np.cos(spoke), r * np.sin(spoke)] for r in (low, high)]))
    corners = [(low, 0.0), (high, 0.35), (high, -0.35), (low, 0.0)]
    lines.append(np.array([[r * np.cos(triangle + d), r * np.sin(triangle + d)] for r, d in corners]))
    return lines


def label_parts(height: int, width: int) -> np.ndarray:
    """Return `ROTATING` for pixels of the ring of the rotating part, `FIXED` for all others.

    >>> label_parts(96, 96).mean() < 0.5
    True
    """
    rows, columns = np.mgrid[:height, :width]
    radius = np.hypot((rows + 0.5) / height - 0.5, (columns + 0.5) / width - 0.5) * 2
    inside = (radius >= INNER_FRACTION) & (radius <= OUTER_FRACTION)
    return np.where(inside, ROTATING, FIXED)
