"""Max-pooling frozen to its winners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.sparse_layout import Rows, Winners, both, grown, not_zero, seen, steps, union
from bilrp.engine.maps.base import Map, Shapes, sum_of, to_front, to_last
from bilrp.engine.windows import Reach, Window, cut, place


@dataclass(frozen=True, eq=False)
class Pool(Map):
    """Max-pooling frozen to its winners: out = Σ_o share_o ⊙ x[offset o of each window]; ties share equally."""

    shares: Tensor  # (offsets, *out shape)
    offsets: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # zeros needed before and after, for each axis
    at: Tensor
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        padded = self._pad(tangents[0])
        out = self.window(padded, 0) * self.shares[0]
        for o in range(1, len(self.offsets)):
            out.addcmul_(self.window(padded, o), self.shares[o])
        return out

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        shape = self.at.shape[-len(self.stride) :]
        full = [size + sum(pad) for size, pad in zip(shape, self.padding, strict=True)]
        padded = cotangent.new_zeros(*cotangent.shape[: -len(self.stride)], *full)
        for o in range(len(self.offsets)):
            self.window(padded, o).addcmul_(cotangent, self.shares[o])
        inner = tuple(slice(pad[0], pad[0] + size) for size, pad in zip(shape, self.padding, strict=True))
        return (padded[(..., *inner)],)

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        return shapes.sources[0].numel() if any(p for pad in self.padding for p in pad) else 0

    def _pad(self, x: Tensor) -> Tensor:
        flat = [p for pad in reversed(self.padding) for p in pad]
        return F.pad(x, flat) if any(flat) else x

    def window(self, padded: Tensor, o: int) -> Tensor:
        """What every output sees of a padded input at offset number o."""
        return padded[(..., *self._steps(o, self.shares.shape[-len(self.stride) :]))]

    def _steps(self, o: int, sizes: Sequence[int]) -> tuple[slice, ...]:
        return tuple(
            slice(start, start + (size - 1) * step + 1, step)
            for start, size, step in zip(self.offsets[o], sizes, self.stride, strict=True)
        )

    # ------------------------------------------------------------ on windows

    def reach(self, shapes: Shapes) -> Reach | None:
        return self._reach() if shapes.images and len(self.stride) == 2 else None

    def _reach(self) -> Reach:
        (tall, wide), (down, across) = (
            (max(o[axis] for o in self.offsets) + 1 for axis in (0, 1)),
            self.stride,
        )
        return Reach((tall, wide), (down, across), (self.padding[0][0], self.padding[1][0]))

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        reach = self._reach()
        data = place(sources[0], reach.start(origin), reach.field(size))
        return sum_of(
            data[(..., *self._steps(o, size))] * cut(share, origin, size)
            for o, share in enumerate(self.shares)
        )

    def for_windows(self) -> Map:
        return replace(self, shares=to_front(to_last(self.shares).contiguous()))

    # ------------------------------------------------------------ on active rows

    def possible(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        won = [not_zero(share) for share in self.shares]
        there = [seen(inputs[0], offset, self._reach(), won[0].shape) for offset in self.offsets]
        return union(both(w, s) for w, s in zip(won, there, strict=True))

    def needed(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        (_, channels, height, width), reach = shapes.sources[0], self._reach()
        need = grown(torch.zeros(height, width, channels, dtype=torch.bool), reach, target.shape)
        for offset, share in zip(self.offsets, self.shares, strict=True):
            need[steps(offset, reach, target.shape)] |= both(target, not_zero(share))
        top, left = reach.padding
        return [need[top : top + height, left : left + width]]

    def push_rows(self, sources: Sequence[Rows], target: Rows, shapes: Shapes) -> None:
        before = tuple(pad[0] for pad in self.padding)
        target.pool(sources[0], Winners(self.shares, self.offsets, self.stride, before))
