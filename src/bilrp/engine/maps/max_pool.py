"""Max-pooling frozen to its winners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps.base import Cost, Map, Shapes, nonzero_mask
from bilrp.engine.windows import Geometry


@dataclass(frozen=True, eq=False)
class MaxPool(Map):
    """Max-pooling frozen to its winners: out = Σ_o share_o ⊙ x[offset o of each field]; ties share equally.

    Args:
        shares: Share of each offset, (offsets, *output shape).
        offsets: Offsets within a field, in the padded input.
        stride: Step between fields, per axis.
        padding: Zeros needed before and after, per axis.
        at: Input of the step.
    """

    shares: Tensor
    offsets: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    at: Tensor
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        padded = self._pad(tangents[0])
        out = self.window_at_offset(padded, 0) * self.shares[0]
        for o in range(1, len(self.offsets)):
            out.addcmul_(self.window_at_offset(padded, o), self.shares[o])
        return out

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        shape = self.at.shape[-len(self.stride) :]
        full = [size + sum(pad) for size, pad in zip(shape, self.padding, strict=True)]
        padded = cotangent.new_zeros(*cotangent.shape[: -len(self.stride)], *full)
        for o in range(len(self.offsets)):
            self.window_at_offset(padded, o).addcmul_(cotangent, self.shares[o])
        inner = tuple(slice(pad[0], pad[0] + size) for size, pad in zip(shape, self.padding, strict=True))
        return (padded[(..., *inner)],)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        padded = any(p for pad in self.padding for p in pad)
        return Cost(workspace=shapes.sources[0].numel() if padded else 0)

    def _pad(self, x: Tensor) -> Tensor:
        flat = [p for pad in reversed(self.padding) for p in pad]
        return F.pad(x, flat) if any(flat) else x

    def window_at_offset(self, padded: Tensor, o: int) -> Tensor:
        """Return the padded input at offset number o of every field."""
        return padded[(..., *self.offset_slices(o, self.shares.shape[-len(self.stride) :]))]

    def offset_slices(self, o: int, sizes: Sequence[int]) -> tuple[slice, ...]:
        """Return the slices of the padded input at offset number o, for `sizes` fields per axis."""
        return tuple(
            slice(start, start + (size - 1) * step + 1, step)
            for start, size, step in zip(self.offsets[o], sizes, self.stride, strict=True)
        )

    def geometry(self, shapes: Shapes) -> Geometry | None:
        if not shapes.are_images or len(self.stride) != 2:
            return None
        tall, wide = (max(offset[axis] for offset in self.offsets) + 1 for axis in (0, 1))
        return Geometry(
            (tall, wide), (self.stride[0], self.stride[1]), (self.padding[0][0], self.padding[1][0])
        )

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        """Where a winner can be non-zero; shares are positive, so that nothing cancels."""
        return nonzero_mask(self.push(inputs[0].permute(2, 0, 1)[None, None].to(self.shares)))
