"""Sparse push: propagate only features that can be non-zero.

After ReLUs and max-poolings most of a tangent is zero, at the same features for all regions, since the gates depend on
the input alone. A sparse tangent has one row per feature that can be non-zero, with a number per region whose receptive
field contains it. A convolution is then a small dense product at each position: (active outputs × active inputs in the
field) · (active inputs × regions). Exact: everything omitted is zero. On VGG-16 a few per cent of the work remain.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bilrp import native
from bilrp.engine.program import Key, Link
from bilrp.engine.sparse_layout import full_mask, mask_or
from bilrp.engine.sparse_native import NativeSparseTangent
from bilrp.engine.sparse_torch import TorchSparseTangent

# ---------------------------------------------------------------- support


def propagate_support(links: Sequence[Link], start: dict[Key, Tensor]) -> dict[Key, Tensor]:
    """Return for each value a mask (H, W, C) of the features that can be non-zero, given those of `start`."""
    supports = dict(start)
    for link in links:
        inputs = [
            supports[s] if s in supports else full_mask(shape)
            for s, shape in zip(link.sources, link.shapes.sources, strict=True)
        ]
        supports[link.target] = link.map.output_support(inputs, link.shapes)
    return supports


def backpropagate_support(links: Sequence[Link], outputs: set[Key]) -> dict[Key, Tensor]:
    """Return for each value a mask of the features that `outputs` depend on: before a max-pooling, the winners."""
    supports: dict[Key, Tensor] = {}
    for link in reversed(links):
        if link.target in outputs or link.target not in supports:
            supports[link.target] = full_mask(link.shape)
        for source, need in zip(
            link.sources, link.map.input_support(supports[link.target], link.shapes), strict=True
        ):
            supports[source] = mask_or([supports[source], need]) if source in supports else need
    return supports


# ---------------------------------------------------------------- tangents


def choose_tangent_type(like: Tensor) -> type[TorchSparseTangent] | type[NativeSparseTangent]:
    """Return the native implementation of sparse tangents if it supports this tensor's dtype, else torch's."""
    return NativeSparseTangent if native.is_supported(like) else TorchSparseTangent


class BufferPool:
    """Reusable buffers for sparse tangents: allocating costs more than computing them.

    All buffers have the size of the largest request; the operating system does not commit untouched pages.
    """

    def __init__(self, like: Tensor) -> None:
        self.like, self.capacity = like, 1  # not 0: buffers are identified by address
        self.free: list[Tensor] = []
        self.in_use: dict[int, Tensor] = {}  # by address

    def reserve(self, capacity: int) -> None:
        """Set the size of future buffers to at least `capacity`."""
        if capacity > self.capacity:
            self.capacity = capacity
            self.free.clear()

    def acquire(self, size: int) -> Tensor:
        """Return an uninitialised buffer of `size` elements."""
        self.reserve(size)
        buffer = self.free.pop() if self.free else self.like.new_empty(self.capacity)
        self.in_use[buffer.untyped_storage().data_ptr()] = buffer
        return buffer[:size]

    def release(self, values: Tensor) -> None:
        """Return a buffer to the pool."""
        buffer = self.in_use.pop(values.untyped_storage().data_ptr())
        if buffer.numel() == self.capacity:
            self.free.append(buffer)
