"""Local steps that are no products: padding, centring of channels, and images whose channels come last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.sparse_layout import Rows, Term
from bilrp.engine.maps.base import Map, Shapes, to_front, to_last
from bilrp.engine.windows import Reach, Window, cut, for_cutting, place

if TYPE_CHECKING:
    from bilrp.engine.maps.pooling import Pooling


@dataclass(frozen=True, eq=False)
class Pad(Map):
    """Zeros around an image: (left, right, top, bottom), negative where it is cut."""

    pads: tuple[int, int, int, int]
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return F.pad(tangents[0], self.pads)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (F.pad(cotangent, self._back),)

    @property
    def _back(self) -> tuple[int, ...]:
        return tuple(-n for n in self.pads)

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0

    def reach(self, shapes: Shapes) -> Reach | None:
        return Reach(padding=(self.pads[2], self.pads[0])) if shapes.images else None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        return place(sources[0], origin - torch.tensor((self.pads[2], self.pads[0])), size)

    def possible(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return F.pad(inputs[0], (0, 0, *self.pads))

    def needed(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        return [F.pad(target, (0, 0, *self._back))]

    def push_rows(self, sources: Sequence[Rows], target: Rows, shapes: Shapes) -> None:
        row = F.pad(sources[0].layout.row, (0, 0, *self.pads), value=-1)
        target.combine([Term(sources[0], row[target.layout.active])])


@dataclass(frozen=True, eq=False)
class Centred(Map):
    """J s = factor ⊙ (s − mean of s along one axis): a layer norm with 1/std and its weights frozen in the factor."""

    factor: Tensor
    axis: int = -1
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return (tangents[0] - tangents[0].mean(self.axis, keepdim=True)).mul_(self.factor)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        back = cotangent * self.factor
        return (back.sub_(back.mean(self.axis, keepdim=True)),)

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0

    def channels_first(self, shapes: Shapes) -> Map | None:
        return Centred(to_front(self.factor), -3, self.slots) if self.axis == -1 else None

    def pooled(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        found = None if self.axis in pooling.axes else pooling.past(self.factor, shapes.target)
        return None if found is None else (Centred(found[0], self.axis), found[1])

    def reach(self, shapes: Shapes) -> Reach | None:
        return Reach() if shapes.images and self.axis == -3 else None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        data = place(sources[0], origin, size)
        return (data - data.mean(1, keepdim=True)).mul_(cut(self.factor, origin, size))

    def for_windows(self) -> Map:
        return replace(self, factor=for_cutting(self.factor))

    def possible(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        """Wherever any channel can be non-zero, all can."""
        return inputs[0].any(2, keepdim=True).expand_as(inputs[0])


@dataclass(frozen=True, eq=False)
class Turn(Map):
    """An image's channels moved last, (1, H, W, C), or first again."""

    last: bool
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return to_last(tangents[0]) if self.last else to_front(tangents[0])

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (to_front(cotangent) if self.last else to_last(cotangent),)

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0
