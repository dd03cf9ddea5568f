"""Sparse push: propagate only features that can be non-zero.

After ReLUs and max-poolings most of a tangent is zero, at the same features for all regions, since the gates depend on
the input alone. A sparse tangent has one row per feature that can be non-zero, with a number per region whose receptive
field contains it. A convolution is then a small dense product at each position: (active outputs × active inputs in the
field) · (active inputs × regions). Exact: everything omitted is zero. On VGG-16 a few per cent of the work remain.
`push_map` has a form for each kind of map that acts on rows; other maps are pushed on whole images.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp import native
from bilrp.engine.executors import position_blocks, sparse_convolution
from bilrp.engine.executors.sparse_layout import GatherTerm, OffsetWeights, SparseLayout, SparseTangent
from bilrp.engine.executors.sparse_native import NativeSparseTangent
from bilrp.engine.executors.sparse_torch import TorchSparseTangent
from bilrp.engine.maps import Gated, LazyGammaFactor, Map, MaxPool, Mean, Pad, Scale, Shapes, Sum, Weighted
from bilrp.engine.masks import full_mask, mask_and, mask_or, nonzero_mask, offset_slices, pad_to_fields
from bilrp.engine.program import Key, Link
from bilrp.trace.linear_operators import Convolution

# Rough equivalents in multiply-adds.
MACS_PER_DENSIFIED_NUMBER = 5  # one number is densified
MACS_PER_COMBINED_NUMBER = 8  # one number is multiplied and added to another row
MAX_DENSE_COLUMNS = 16  # columns densified at once for maps that do not act on rows

# ---------------------------------------------------------------- support


def propagate_support(links: Sequence[Link], start: dict[Key, Tensor]) -> dict[Key, Tensor]:
    """Return for each value a mask (H, W, C) of the features that can be non-zero, given those of `start`."""
    supports = dict(start)
    for link in links:
        inputs = [
            supports[s] if s in supports else full_mask(shape)
            for s, shape in zip(link.sources, link.shapes.sources, strict=True)
        ]
        supports[link.target] = link.map.support(inputs, link.shapes)
    return supports


def backpropagate_support(links: Sequence[Link], outputs: set[Key]) -> dict[Key, Tensor]:
    """Return for each value a mask of the features that `outputs` depend on: before a max-pooling, the winners."""
    supports: dict[Key, Tensor] = {}
    for link in reversed(links):
        if link.target in outputs or link.target not in supports:
            supports[link.target] = full_mask(link.shape)
        needs = find_needed_inputs(link.map, supports[link.target], link.shapes)
        for source, need in zip(link.sources, needs, strict=True):
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


# ---------------------------------------------------------------- kinds of maps


@singledispatch
def push_map(map_: Map, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
    """Write J s into a sparse tangent.

    Args:
        map_: A map with a geometry.
        sources: Sparse tangents of the sources.
        target: Where the result is written; its values are uninitialised.
        shapes: Shapes of sources and target.
    """
    for columns in torch.arange(len(target.layout.cone.low)).split(MAX_DENSE_COLUMNS):
        dense = (
            source.to_dense(shape, columns) for source, shape in zip(sources, shapes.sources, strict=True)
        )
        target.load_columns(map_.push(*dense)[:, 0], columns)


@push_map.register(Scale)
def _push_scale(map_: Scale, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
    factor = target.layout.gather(map_.factor.expand(shapes.target))
    target.combine([GatherTerm(sources[0], _same_features(sources[0], target), factor)])


@push_map.register(Sum)
def _push_sum(map_: Sum, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
    target.combine([GatherTerm(source, _same_features(source, target)) for source in sources])


@push_map.register(Pad)
def _push_pad(map_: Pad, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
    row = F.pad(sources[0].layout.row_of_feature, (0, 0, *map_.pads), value=-1)
    target.combine([GatherTerm(sources[0], row[target.layout.mask])])


@push_map.register(Gated)
def _push_gated(map_: Gated, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
    push_map(map_.inner, sources, target, shapes)
    target.scale(target.layout.gather(map_.gate))


@push_map.register(MaxPool)
def _push_max_pool(
    map_: MaxPool, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes
) -> None:
    before = tuple(pad[0] for pad in map_.padding)
    target.combine_offsets(sources[0], OffsetWeights(map_.shares, map_.offsets, map_.stride, before))


@push_map.register(Weighted)
def _push_weighted(
    map_: Weighted, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes
) -> None:
    if _is_depthwise(map_):
        target.combine_offsets(sources[0], _depthwise_weights(map_, shapes))
        return
    if not _is_ungrouped(map_):
        push_map.dispatch(Map)(map_, sources, target, shapes)
        return
    before = tuple(None if t.before is None else t.before.expand(shapes.sources[0]) for t in map_.terms)
    computed = computes_denominators(map_, sources[0].layout)
    after = [t.after if computed else t.dense_after for t in map_.terms]
    after = tuple(f.expand(shapes.target) if isinstance(f, Tensor) else f for f in after)
    weights = tuple(t.weight for t in map_.terms)
    kernel = _kernel(map_, shapes)
    target.convolve(sources[0], sparse_convolution.SparseConvolution(weights, before, after, kernel))


def _same_features(source: SparseTangent, target: SparseTangent) -> Tensor:
    """Return the row of the source with the same feature as each row of the target, −1 for none."""
    return source.layout.row_of_feature[target.layout.mask]


def _is_ungrouped(map_: Weighted) -> bool:
    return isinstance(map_.operator, Convolution) and map_.operator.groups == 1


def _is_depthwise(map_: Weighted) -> bool:
    """Return whether each output channel has one input channel, with the same number, and only output factors."""
    weight, operator = map_.terms[0].weight, map_.operator
    grouped = isinstance(operator, Convolution) and operator.groups == len(weight)
    return grouped and weight.shape[1] == 1 and all(t.before is None for t in map_.terms)


def _depthwise_weights(map_: Weighted, shapes: Shapes) -> OffsetWeights:
    """Return Σ_t after_t ⊙ w_t at each offset of the kernel: what each input of a field contributes."""
    kernel = _kernel(map_, shapes)
    offsets = tuple((y, x) for y in range(kernel.size[0]) for x in range(kernel.size[1]))
    total = None
    for term in map_.terms:
        weight = term.weight[:, 0].flatten(1).T[:, None, :, None, None]
        part = weight * (1 if term.dense_after is None else term.dense_after)
        total = part if total is None else total + part
    assert total is not None
    places = tuple((y * kernel.dilation[0], x * kernel.dilation[1]) for y, x in offsets)
    weights = total.expand(len(offsets), *shapes.target)
    return OffsetWeights(weights, places, kernel.geometry.stride, kernel.geometry.padding)


def _kernel(map_: Weighted, shapes: Shapes) -> position_blocks.Kernel:
    geometry = map_.geometry(shapes)
    assert isinstance(map_.operator, Convolution) and geometry is not None
    (tall, wide), (down, across) = map_.terms[0].weight.shape[2:], map_.operator.dilation
    return position_blocks.Kernel((tall, wide), (down, across), geometry)


def computes_denominators(map_: Map, source: SparseLayout) -> bool:
    """Return whether a sparse push from this layout computes the γ denominators itself."""
    inner = _without_gate(map_)
    if not isinstance(inner, Weighted) or not _is_ungrouped(inner):
        return False
    term, single = inner.terms[0], len(inner.terms) == 1
    if not single or term.before is not None or not isinstance(term.after, LazyGammaFactor):
        return False
    return not term.after.is_computed and sparse_convolution.is_covered(term.after, source)


def count_cost(
    map_: Map, layouts: Sequence[SparseLayout], target: SparseLayout, shapes: Shapes
) -> tuple[int, int]:
    """Return the multiply-adds of `push_map`, including γ denominators, and the equivalent of its overhead.

    Args:
        map_: A map with a geometry.
        layouts: Layouts of the sources.
        target: Layout of the result.
        shapes: Shapes of sources and target.
    """
    inner, columns = _without_gate(map_), len(target.cone.low)
    if isinstance(inner, Weighted) and _is_ungrouped(inner):
        cost = position_blocks.convolution_cost(_kernel(inner, shapes), layouts[0], target)
        return cost.macs + computes_denominators(inner, layouts[0]) * cost.weight_lookups, cost.overhead_macs
    if isinstance(inner, Weighted) and _is_depthwise(inner):
        macs = inner.terms[0].weight[0].numel() * target.numel
        return macs, MACS_PER_COMBINED_NUMBER * macs
    on_rows = isinstance(inner, Scale | Sum | Pad | MaxPool)
    overhead = 0 if on_rows else MACS_PER_DENSIFIED_NUMBER * columns * shapes.numel
    return columns * inner.cost(shapes).macs, overhead


def count_setup_macs(map_: Map, source: SparseLayout, shapes: Shapes) -> int:
    """Return the multiply-adds needed once before a sparse push from this layout.

    Args:
        map_: The map that is pushed through.
        source: Layout of the tangents before it.
        shapes: Shapes of its sources and its target.
    """
    return 0 if computes_denominators(map_, source) else map_.cost(shapes).setup_macs


def _without_gate(map_: Map) -> Map:
    return map_.inner if isinstance(map_, Gated) else map_


# ---------------------------------------------------------------- which inputs a result depends on


@singledispatch
def find_needed_inputs(map_: Map, target: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return which features of each source the features `target` depend on: all, for maps of unknown kind.

    Args:
        map_: The map.
        target: Mask of the features of its result.
        shapes: Shapes of its sources and its target.
    """
    return [full_mask(shape) for shape in shapes.sources]


@find_needed_inputs.register(Scale)
def _scale_inputs(map_: Scale, target: Tensor, shapes: Shapes) -> list[Tensor]:
    return [mask_and(target, nonzero_mask(map_.factor.expand(shapes.target)))]


@find_needed_inputs.register(Sum)
def _sum_inputs(map_: Sum, target: Tensor, shapes: Shapes) -> list[Tensor]:
    return [target] * len(map_.slots)


@find_needed_inputs.register(Gated)
def _gated_inputs(map_: Gated, target: Tensor, shapes: Shapes) -> list[Tensor]:
    return find_needed_inputs(map_.inner, mask_and(target, nonzero_mask(map_.gate)), shapes)


@find_needed_inputs.register(Pad)
def _pad_inputs(map_: Pad, target: Tensor, shapes: Shapes) -> list[Tensor]:
    return [F.pad(target, (0, 0, *(-n for n in map_.pads)))]


@find_needed_inputs.register(Mean)
def _mean_inputs(map_: Mean, target: Tensor, shapes: Shapes) -> list[Tensor]:
    return [target.expand(*shapes.sources[0][-2:], -1)]


@find_needed_inputs.register(MaxPool)
def _max_pool_inputs(map_: MaxPool, target: Tensor, shapes: Shapes) -> list[Tensor]:
    """Only the winners."""
    (_, channels, height, width), geometry = shapes.sources[0], map_.geometry(shapes)
    assert geometry is not None
    need = pad_to_fields(torch.zeros(height, width, channels, dtype=torch.bool), geometry, target.shape)
    for offset, share in zip(map_.offsets, map_.shares, strict=True):
        need[offset_slices(offset, geometry, target.shape)] |= mask_and(target, nonzero_mask(share))
    top, left = geometry.padding
    return [need[top : top + height, left : left + width]]
