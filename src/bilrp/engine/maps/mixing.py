"""Attention with frozen weights: values are mixed along an axis; and steps that are several maps one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilrp.engine.maps.base import Map, Shapes


@dataclass(frozen=True, eq=False)
class Mix(Map):
    """J v = P v on the last two axes: one product for all regions, whose values lie side by side.

    Values (…, heads, m, d) may have fewer heads than P: grouped queries share them, `shared` each.
    """

    weights: Tensor  # (…, heads, n, m)
    shared: int = 1
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        v = tangents[0] if self.shared == 1 else tangents[0].repeat_interleave(self.shared, -3)
        return _beside(self.weights, v)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        back = _beside(self.weights.mT, cotangent)
        return (back if self.shared == 1 else back.unflatten(-3, (-1, self.shared)).sum(-3),)

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        return self.weights.numel() * shapes.target[-1]

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        return shapes.target.numel()


@dataclass(frozen=True, eq=False)
class Chain(Map):
    """J = J_n ⋯ J_1: maps of one source each, one after the other, as one step."""

    maps: tuple[Map, ...]
    between: tuple[Shapes, ...]
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        value = tangents[0]
        for each in self.maps:
            value = each.push(value)
        return value

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        for each in reversed(self.maps):
            (cotangent,) = each.pull(cotangent)
        return (cotangent,)

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        return sum(each.macs(s, back=back) for each, s in zip(self.maps, self.between, strict=True))

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        inner = zip(self.maps, self.between, strict=True)
        return max(s.numel + each.scratch(s, back=back) for each, s in inner)


def _beside(weights: Tensor, v: Tensor) -> Tensor:
    """P v for K tensors (K, …, m, d) at once, as P (…, n, m) · (…, m, K·d)."""
    count, wide = v.shape[0], v.shape[-1]
    laid = v.movedim(0, -2).flatten(-2)
    return (weights @ laid).unflatten(-1, (count, wide)).movedim(-2, 0)
