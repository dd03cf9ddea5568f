"""Max-pooling frozen to its winners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps.base import Map, Shapes, move_channels_first, move_channels_last, sum_in_place
from bilrp.engine.sparse_layout import (
    MaxPoolSelection,
    SparseTangent,
    mask_and,
    mask_or,
    nonzero_mask,
    offset_slices,
    pad_to_fields,
    select_offset,
)
from bilrp.engine.windows import Geometry, Window, crop_windows, reframe_window


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

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        return shapes.sources[0].numel() if any(p for pad in self.padding for p in pad) else 0

    def _pad(self, x: Tensor) -> Tensor:
        flat = [p for pad in reversed(self.padding) for p in pad]
        return F.pad(x, flat) if any(flat) else x

    def window_at_offset(self, padded: Tensor, o: int) -> Tensor:
        """Return the padded input at offset number o of every field."""
        return padded[(..., *self._offset_slices(o, self.shares.shape[-len(self.stride) :]))]

    def _offset_slices(self, o: int, sizes: Sequence[int]) -> tuple[slice, ...]:
        return tuple(
            slice(start, start + (size - 1) * step + 1, step)
            for start, size, step in zip(self.offsets[o], sizes, self.stride, strict=True)
        )

    # ------------------------------------------------------------ on windows

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return self._geometry() if shapes.are_images and len(self.stride) == 2 else None

    def _geometry(self) -> Geometry:
        (tall, wide), (down, across) = (
            (max(o[axis] for o in self.offsets) + 1 for axis in (0, 1)),
            self.stride,
        )
        return Geometry((tall, wide), (down, across), (self.padding[0][0], self.padding[1][0]))

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        """Return Σ_o share_o ⊙ s[offset o] on windows, with the shares cropped to them.

        Args:
            sources: Tangents of each source, zero outside their windows.
            origin: Upper left corner (K, 2) of each window of the target.
            size: Height and width of these windows.
            shapes: Shapes of sources and target.
        """
        geometry = self._geometry()
        data = reframe_window(sources[0], geometry.input_origin(origin), geometry.input_size(size))
        return sum_in_place(
            data[(..., *self._offset_slices(o, size))] * crop_windows(share, origin, size)
            for o, share in enumerate(self.shares)
        )

    def prepare_windows(self) -> Map:
        return replace(self, shares=move_channels_first(move_channels_last(self.shares).contiguous()))

    # ------------------------------------------------------------ on sparse tangents

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        winners = [nonzero_mask(share) for share in self.shares]
        inside = [
            select_offset(inputs[0], offset, self._geometry(), winners[0].shape) for offset in self.offsets
        ]
        return mask_or(mask_and(w, s) for w, s in zip(winners, inside, strict=True))

    def input_support(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        (_, channels, height, width), geometry = shapes.sources[0], self._geometry()
        need = pad_to_fields(torch.zeros(height, width, channels, dtype=torch.bool), geometry, target.shape)
        for offset, share in zip(self.offsets, self.shares, strict=True):
            need[offset_slices(offset, geometry, target.shape)] |= mask_and(target, nonzero_mask(share))
        top, left = geometry.padding
        return [need[top : top + height, left : left + width]]

    def push_sparse(self, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
        """Write the winners of each field row by row.

        Args:
            sources: Sparse tangents of the sources.
            target: Where the result is written; its values are uninitialised.
            shapes: Shapes of sources and target.
        """
        before = tuple(pad[0] for pad in self.padding)
        target.max_pool(sources[0], MaxPoolSelection(self.shares, self.offsets, self.stride, before))
