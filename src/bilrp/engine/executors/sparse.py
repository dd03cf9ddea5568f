"""Sparse push: propagate only features that can be non-zero.

After ReLUs and max-poolings most of a tangent is zero, at the same features for all regions, since the gates depend on
the input alone. A sparse tangent has one row per feature that can be non-zero, with a number per region whose receptive
field contains it. A convolution is then a small dense product at each position: (active outputs × active inputs in the
field) · (active inputs × regions). Exact: everything omitted is zero. On VGG-16 a few per cent of the work remain.
`push_map` has a form for each kind of map that acts on rows; other maps are pushed on whole images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp import native
from bilrp.engine.executors.sparse_layout import (
    Kernel,
    RowTerm,
    SparseLayout,
    SparseTangent,
    TorchSparseTangent,
    WeightTerm,
)
from bilrp.engine.executors.sparse_native import NativeSparseTangent
from bilrp.engine.maps import Gated, Map, MaxPool, Pad, Scale, Shapes, Sum, Weighted
from bilrp.engine.maps.base import full_mask
from bilrp.engine.program import Key, Link
from bilrp.engine.windows import Geometry
from bilrp.trace.linear_operators import Convolution

# Rough equivalents in multiply-adds.
MACS_PER_COPIED_NUMBER = 32  # one number is copied for a position
MACS_PER_WEIGHT_LOOKUP = 10  # one weight is looked up, in native code
MACS_PER_TORCH_PRODUCT = 10_000_000  # overhead of one small product in torch
MACS_PER_DENSIFIED_NUMBER = 5  # one number is densified
MACS_PER_COMBINED_NUMBER = 8  # one number is multiplied and added to another row
MAX_DENSE_COLUMNS = 16  # columns densified at once for maps that do not act on rows


def propagate_support(links: Sequence[Link]) -> dict[Key, Tensor]:
    """Return for each value a mask (H, W, C) of the features that can be non-zero."""
    supports: dict[Key, Tensor] = {}
    for link in links:
        inputs = [
            supports[s] if s in supports else full_mask(shape)
            for s, shape in zip(link.sources, link.shapes.sources, strict=True)
        ]
        supports[link.target] = link.map.support(inputs, link.shapes).bool()  # a user's may be numeric
    return supports


def choose_tangent_type(like: Tensor) -> type[SparseTangent]:
    """Return the native implementation of sparse tangents if it supports this tensor's dtype, else torch's."""
    return NativeSparseTangent if native.is_supported(like) else TorchSparseTangent


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
    for columns in torch.arange(target.layout.column_count).split(MAX_DENSE_COLUMNS):
        dense = (source.to_dense(columns)[:, None] for source in sources)
        target.load_columns(map_.push(*dense)[:, 0], columns)


@push_map.register(Scale)
def _push_scale(map_: Scale, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
    factor = target.layout.gather(map_.factor.expand(shapes.target))
    target.combine([RowTerm(sources[0], factor=factor)])


@push_map.register(Sum)
def _push_sum(map_: Sum, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
    target.combine([RowTerm(source) for source in sources])


@push_map.register(Pad)
def _push_pad(map_: Pad, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
    target.combine([RowTerm(sources[0], (-map_.pads[2], -map_.pads[0]))])


@push_map.register(Gated)
def _push_gated(map_: Gated, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
    before = replace(target, values=torch.empty_like(target.values))
    push_map(map_.inner, sources, before, shapes)
    target.combine([RowTerm(before, factor=target.layout.gather(map_.gate))])


@push_map.register(MaxPool)
def _push_max_pool(
    map_: MaxPool, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes
) -> None:
    _combine_offsets(sources[0], target, map_.shares, map_.offsets, _geometry(map_, shapes))


@push_map.register(Weighted)
def _push_weighted(
    map_: Weighted, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes
) -> None:
    if _is_depthwise(map_):
        kernel = _kernel(map_, shapes)
        steps = (
            [dilation * i for i in range(size)]
            for size, dilation in zip(kernel.size, kernel.dilation, strict=True)
        )
        offsets = list(product(*steps))
        shares = _depthwise_shares(map_, offsets, kernel.geometry, shapes)
        _combine_offsets(sources[0], target, shares, offsets, kernel.geometry)
    elif _is_ungrouped(map_):
        source = sources[0].layout

        def gather(factor: Tensor | None, layout: SparseLayout, shape: torch.Size) -> Tensor | None:
            return None if factor is None else layout.gather(factor.expand(shape))

        terms = [
            WeightTerm(
                term.weight,
                gather(term.before, source, shapes.sources[0]),
                gather(term.after, target.layout, shapes.target),
            )
            for term in map_.terms
        ]
        target.convolve(sources[0], terms, _kernel(map_, shapes))
    else:
        push_map.dispatch(Map)(map_, sources, target, shapes)


def _combine_offsets(
    source: SparseTangent,
    target: SparseTangent,
    shares: Tensor,
    offsets: Sequence[tuple[int, ...]],
    geometry: Geometry,
) -> None:
    """Set target[c] = Σ_o share_o[c] · source[c at offset o of its field]: a sum over a field, channel by channel."""
    top, left = geometry.padding
    terms = [
        RowTerm(source, (y - top, x - left), target.layout.gather(share))
        for (y, x), share in zip(offsets, shares, strict=True)
    ]
    target.combine(terms, geometry.stride)


def _is_ungrouped(map_: Weighted) -> bool:
    return isinstance(map_.operator, Convolution) and map_.operator.groups == 1


def _is_depthwise(map_: Weighted) -> bool:
    """Return whether each output channel has one input channel, with the same number."""
    weight, operator = map_.terms[0].weight, map_.operator
    return isinstance(operator, Convolution) and operator.groups == len(weight) and weight.shape[1] == 1


def _depthwise_shares(
    map_: Weighted, offsets: Sequence[tuple[int, ...]], geometry: Geometry, shapes: Shapes
) -> Tensor:
    """Return Σ_t after_t ⊙ w_t ⊙ before_t at each offset of the kernel: what each input of a field contributes."""
    (height, width), (down, across), (top, left) = shapes.target[2:], geometry.stride, geometry.padding
    tall, wide = geometry.input_size((height, width))
    rows, columns = shapes.sources[0][2:]
    total = None
    for term in map_.terms:
        part = term.weight[:, 0].flatten(1).T[:, None, :, None, None]
        if term.before is not None:
            whole = term.before.expand(shapes.sources[0])
            padded = F.pad(whole, (left, wide - left - columns, top, tall - top - rows))
            fields = [padded[..., y:, x:][..., ::down, ::across][..., :height, :width] for y, x in offsets]
            part = part * torch.stack(fields)
        part = part if term.after is None else part * term.after
        total = part if total is None else total.add_(part)
    assert total is not None
    return total.expand(-1, *shapes.target)


def count_shares(map_: Map) -> int:
    """Return how many numbers `push_map` computes for each feature of the target before it combines rows."""
    if isinstance(map_, Weighted) and _is_depthwise(map_):
        return 3 * map_.terms[0].weight[0].numel()
    return 0


def _geometry(map_: Map, shapes: Shapes) -> Geometry:
    geometry = map_.geometry(shapes)
    assert geometry is not None
    return geometry


def _kernel(map_: Weighted, shapes: Shapes) -> Kernel:
    assert isinstance(map_.operator, Convolution)
    (tall, wide), (down, across) = map_.terms[0].weight.shape[2:], map_.operator.dilation
    return Kernel((tall, wide), (down, across), _geometry(map_, shapes))


def count_cost(
    map_: Map, layouts: Sequence[SparseLayout], target: SparseLayout, shapes: Shapes
) -> tuple[int, int]:
    """Return the multiply-adds of `push_map`, and the equivalent of its overhead.

    Args:
        map_: A map with a geometry.
        layouts, target: Layouts of the sources and of the result.
        shapes: Shapes of sources and target.
    """
    inner = map_.inner if isinstance(map_, Gated) else map_
    if isinstance(inner, Weighted) and _is_ungrouped(inner):
        inputs, rows = _kernel(inner, shapes).count_inputs(layouts[0]), target.rows_per_position
        regions = target.cone.regions_per_position
        copied, lookups = int((inputs * (rows > 0) * regions).sum()), int((inputs * rows).sum())
        products = int(((inputs * rows) > 0).sum())
        has_native = native.load_library() is not None
        single = MACS_PER_WEIGHT_LOOKUP * lookups if has_native else MACS_PER_TORCH_PRODUCT * products
        return int((inputs * rows * regions).sum()), MACS_PER_COPIED_NUMBER * copied + single
    if isinstance(inner, Weighted) and _is_depthwise(inner):
        macs = inner.terms[0].weight[0].numel() * target.numel
        return macs, MACS_PER_COMBINED_NUMBER * macs
    on_rows = isinstance(inner, Scale | Sum | Pad | MaxPool)
    overhead = 0 if on_rows else MACS_PER_DENSIFIED_NUMBER * target.column_count * shapes.numel
    return target.column_count * inner.cost(shapes).macs, overhead
