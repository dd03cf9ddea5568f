"""Spatial maps without products: padding, centring of channels, and permutation of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps.base import Cost, Map, Shapes, move_channels_first, move_channels_last
from bilrp.engine.windows import Geometry


@dataclass(frozen=True, eq=False)
class Pad(Map):
    """Zero padding of an image by `pads` = (left, right, top, bottom); negative values crop."""

    pads: tuple[int, int, int, int]
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return F.pad(tangents[0], self.pads)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (F.pad(cotangent, self._inverse_pads),)

    @property
    def _inverse_pads(self) -> tuple[int, ...]:
        return tuple(-n for n in self.pads)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost()

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return Geometry(padding=(self.pads[2], self.pads[0])) if shapes.are_images else None

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return F.pad(inputs[0], (0, 0, *self.pads))


@dataclass(frozen=True, eq=False)
class CenterAndScale(Map):
    """J s = factor ⊙ (s − mean of s along one axis): a layer norm with 1/std and weights as one constant factor."""

    factor: Tensor
    axis: int = -1
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return (tangents[0] - tangents[0].mean(self.axis, keepdim=True)).mul_(self.factor)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        back = cotangent * self.factor
        return (back.sub_(back.mean(self.axis, keepdim=True)),)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost()

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return Geometry() if shapes.are_images and self.axis == -3 else None

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        """Where one channel can be non-zero, all can."""
        return inputs[0].any(2, keepdim=True).expand_as(inputs[0])


@dataclass(frozen=True, eq=False)
class PermuteChannels(Map):
    """Permute an image to channels last, (1, H, W, C), or back to channels first."""

    channels_last: bool
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return move_channels_last(tangents[0]) if self.channels_last else move_channels_first(tangents[0])

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (move_channels_first(cotangent) if self.channels_last else move_channels_last(cotangent),)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost()
