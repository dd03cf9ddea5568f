"""Means over positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bilrp.engine.maps.base import Cost, Map, Shapes
from bilrp.engine.windows import Geometry


@dataclass(frozen=True, eq=False)
class Mean(Map):
    """J s = weight · Σ s over `axes`: a mean or sum over positions.

    Args:
        weight: 1 / number of positions for a mean, 1 for a sum; not rounded to the dtype of the values.
        axes, sizes: Axes to sum over, counted from the end (negative), and their lengths.
        squeeze: Whether to remove these axes.
    """

    weight: float
    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    squeeze: bool = False
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        mean = tangents[0].mean(self.axes, keepdim=not self.squeeze)
        return mean.mul_(self.weight * math.prod(self.sizes))

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        for axis in sorted(self.axes, reverse=True) if self.squeeze else ():
            cotangent = cotangent.unsqueeze(axis)
        shape = list(cotangent.shape)
        for axis, size in zip(self.axes, self.sizes, strict=True):
            shape[axis] = size
        return ((cotangent * self.weight).expand(shape),)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost()

    def geometry(self, shapes: Shapes) -> Geometry | None:
        """Whole images to a single position."""
        if not shapes.are_images or set(self.axes) != {-2, -1}:
            return None
        size = (shapes.sources[0][-2], shapes.sources[0][-1])
        return Geometry(extent=size, stride=size)

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return inputs[0].flatten(0, 1).any(0)[None, None]
