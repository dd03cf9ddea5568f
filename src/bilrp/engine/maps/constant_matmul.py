"""Product with a constant matrix, e.g. attention with detached weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilrp.engine.maps.base import Cost, Map, Shapes


@dataclass(frozen=True, eq=False)
class ConstantMatmul(Map):
    """J v = P v on the last two axes, as one product for all regions.

    Args:
        weights: P, (…, heads, n, m).
        group_size: Query heads that share one head of the values (grouped-query attention).
    """

    weights: Tensor
    group_size: int = 1
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        v = tangents[0] if self.group_size == 1 else tangents[0].repeat_interleave(self.group_size, -3)
        return _batched_matmul(self.weights, v)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        back = _batched_matmul(self.weights.mT, cotangent)
        return (back if self.group_size == 1 else back.unflatten(-3, (-1, self.group_size)).sum(-3),)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost(self.weights.numel() * shapes.target[-1], shapes.target.numel())


def _batched_matmul(weights: Tensor, v: Tensor) -> Tensor:
    """Return P v for K tensors (K, …, m, d), computed as P (…, n, m) · (…, m, K·d)."""
    columns = v.movedim(0, -2).flatten(-2)
    return (weights @ columns).unflatten(-1, (v.shape[0], v.shape[-1])).movedim(-2, 0)
