"""Elementwise maps: scaling, sums, and a gate after any other map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from torch import Tensor

from bilrp.engine.maps.base import Cost, Map, Shapes, nonzero_mask
from bilrp.engine.windows import Geometry


@dataclass(frozen=True, eq=False)
class Scale(Map):
    """J = diag(factor): gates, activations, norms. A factor of shape () is a scalar."""

    factor: Tensor
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return tangents[0] * self.factor

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent * self.factor,)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost()

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return Geometry() if shapes.are_images and shapes.sources[0] == shapes.target else None

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return inputs[0] & nonzero_mask(self.factor.expand(shapes.target))


@dataclass(frozen=True, eq=False)
class Sum(Map):
    """J = (1 … 1): a sum of live values of one shape, as at the end of a residual block."""

    slots: tuple[int, ...] = (0, 1)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return sum(tangents[1:], start=tangents[0])

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent,) * len(self.slots)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost()

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return Geometry() if shapes.are_images else None

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return reduce(or_, inputs)


@dataclass(frozen=True, eq=False)
class Gated(Map):
    """Any map followed by the 0/1 gate of the ReLU that was fused into its step."""

    inner: Map
    gate: Tensor
    slots: tuple[int, ...] = field(init=False)
    on_mask: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", self.inner.slots)
        object.__setattr__(self, "on_mask", self.inner.on_mask)

    def push(self, *tangents: Tensor) -> Tensor:
        return self.inner.push(*tangents) * self.gate

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return self.inner.pull(cotangent * self.gate)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        inner = self.inner.cost(shapes, back=back)
        return inner._replace(workspace=inner.workspace + shapes.target.numel())

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return self.inner.geometry(shapes)

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return self.inner.support(inputs, shapes) & nonzero_mask(self.gate)
