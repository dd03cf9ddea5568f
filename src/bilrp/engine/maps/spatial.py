"""Spatial maps without products: padding, centring of channels, and permutation of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps.base import Map, Shapes, move_channels_first, move_channels_last
from bilrp.engine.sparse_layout import GatherTerm, SparseTangent
from bilrp.engine.windows import Geometry, Window, crop_windows, prepare_for_crop, reframe_window

if TYPE_CHECKING:
    from bilrp.engine.maps.pooling import Pooling


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

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return Geometry(padding=(self.pads[2], self.pads[0])) if shapes.are_images else None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        """Return the source on windows shifted by the padding.

        Args:
            sources: Tangents of each source, zero outside their windows.
            origin: Upper left corner (K, 2) of each window of the target.
            size: Height and width of these windows.
            shapes: Shapes of sources and target.
        """
        return reframe_window(sources[0], origin - torch.tensor((self.pads[2], self.pads[0])), size)

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return F.pad(inputs[0], (0, 0, *self.pads))

    def input_support(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        return [F.pad(target, (0, 0, *self._inverse_pads))]

    def push_sparse(self, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
        """Copy each row of the target from its unpadded position.

        Args:
            sources: Sparse tangents of the sources.
            target: Where the result is written; its values are uninitialised.
            shapes: Shapes of sources and target.
        """
        row = F.pad(sources[0].layout.row_of_feature, (0, 0, *self.pads), value=-1)
        target.combine([GatherTerm(sources[0], row[target.layout.mask])])


@dataclass(frozen=True, eq=False)
class CenterAndScale(Map):
    """J s = factor ⊙ (s − mean of s along one axis): a layer norm with 1/std and weights frozen into the factor."""

    factor: Tensor
    axis: int = -1
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return (tangents[0] - tangents[0].mean(self.axis, keepdim=True)).mul_(self.factor)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        back = cotangent * self.factor
        return (back.sub_(back.mean(self.axis, keepdim=True)),)

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0

    def to_channels_first(self, shapes: Shapes) -> Map | None:
        return CenterAndScale(move_channels_first(self.factor), -3, self.slots) if self.axis == -1 else None

    def commute_pooling(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        if self.axis in pooling.axes:
            return None
        commuted = pooling.commute_factor(self.factor, shapes.target)
        return None if commuted is None else (CenterAndScale(commuted[0], self.axis), commuted[1])

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return Geometry() if shapes.are_images and self.axis == -3 else None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        """Return factor ⊙ (s − mean over channels) on windows.

        Args:
            sources: Tangents of each source, zero outside their windows.
            origin: Upper left corner (K, 2) of each window of the target.
            size: Height and width of these windows.
            shapes: Shapes of sources and target.
        """
        data = reframe_window(sources[0], origin, size)
        return (data - data.mean(1, keepdim=True)).mul_(crop_windows(self.factor, origin, size))

    def prepare_windows(self) -> Map:
        return replace(self, factor=prepare_for_crop(self.factor))

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
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

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0
