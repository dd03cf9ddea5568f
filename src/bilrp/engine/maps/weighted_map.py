"""Linear and convolution steps under any LRP rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps import position_blocks, sparse_convolution
from bilrp.engine.maps.base import (
    Map,
    Shapes,
    apply_gate,
    densify_macs,
    move_channels_first,
    scale_by,
    scale_by_,
    sum_in_place,
)
from bilrp.engine.maps.gamma_factor import LazyGammaFactor, resolve_factor
from bilrp.engine.maps.pooling import Narrow, Pooling
from bilrp.engine.sparse_layout import SparseLayout, SparseTangent, full_mask, mask_or, nonzero_mask
from bilrp.engine.windows import Geometry, Window, crop_windows, prepare_for_crop, reframe_window
from bilrp.trace.linear_operators import Convolution, Dense


@dataclass(frozen=True, eq=False)
class Term:
    """diag(after) · A_weight · diag(before): one summand of a frozen weighted step; None is the identity."""

    weight: Tensor
    before: Tensor | None = None
    after: Tensor | LazyGammaFactor | None = None

    @property
    def dense_after(self) -> Tensor | None:
        """The factor of all outputs."""
        return resolve_factor(self.after)

    @property
    def after_support(self) -> Tensor | None:
        """Not zero where the factor behind is not."""
        return self.after.numerator if isinstance(self.after, LazyGammaFactor) else self.after

    def to_channels_first(self) -> Term:
        """Of a matrix at each position, that of a convolution of 1×1."""
        weight, before = (
            self.weight[:, :, None, None],
            None if self.before is None else move_channels_first(self.before),
        )
        if isinstance(self.after, LazyGammaFactor):
            return Term(weight, before, self.after.to_channels_first(POINTWISE, weight))
        return Term(weight, before, None if self.after is None else move_channels_first(self.after))


POINTWISE = Convolution((1, 1), (0, 0), (1, 1))


@dataclass(frozen=True, eq=False)
class Weighted(Map):
    """J = Σ_t diag(after_t) A_{w_t} diag(before_t): a linear or convolution step under any LRP rule.

    With `on_mask` the map acts on a region's 0/1 mask instead of its values (z^B, flat, w²).
    """

    operator: Dense | Convolution
    terms: tuple[Term, ...]
    at: Tensor
    on_mask: bool = False
    slots: tuple[int, ...] = (0,)

    def push(self, *tangents: Tensor) -> Tensor:
        return sum_in_place(
            scale_by_(
                sum_in_place(self.operator.apply(scale_by(tangents[0], t.before), t.weight) for t in group),
                group[0].dense_after,
            )
            for group in self.group_by_after()
        )

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        pulled = (
            scale_by_(
                self.operator.transpose(scale_by(cotangent, t.dense_after), t.weight, self.at), t.before
            )
            for t in self.terms
        )
        return (sum_in_place(pulled),)

    def with_gate(self, gate: Tensor | None) -> Weighted:
        """The same map followed by a 0/1 gate."""
        if gate is None:
            return self
        factors = {id(t.after): t.after for t in self.terms}
        # each once: terms that share their factor behind go on sharing it
        gated = {key: _gate_factor(f, gate) for key, f in factors.items()}
        return replace(self, terms=tuple(replace(t, after=gated[id(t.after)]) for t in self.terms))

    def group_by_after(self) -> list[list[Term]]:
        """Neighbouring terms that share their factor behind."""
        groups: list[list[Term]] = []
        for term in self.terms:
            if groups and groups[-1][0].after is term.after:
                groups[-1].append(term)
            else:
                groups.append([term])
        return groups

    @property
    def weight_numel(self) -> int:
        """Numbers in the weights of all terms."""
        return len(self.terms) * self.terms[0].weight.numel()

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        operator = self.operator
        if not isinstance(operator, Convolution):
            return self.weight_numel * shapes.target.numel() // self.terms[0].weight.shape[0]
        flipped = back and operator.is_correlation(self.terms[0].weight)
        # A transposed convolution works at each input position, a plain one at each output position.
        places = self.at.shape if operator.transposed or flipped else shapes.target
        return self.weight_numel * places[-operator.rank :].numel()

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        source, target = shapes.sources[0].numel(), shapes.target.numel()
        several = len(self.terms) > 1  # one term's result beside the sum of those before it
        if back:
            return any(t.after is not None for t in self.terms) * target + several * source
        return any(t.before is not None for t in self.terms) * source + several * target

    def to_channels_first(self, shapes: Shapes) -> Map | None:
        """A matrix at each position is a convolution of 1×1."""
        if self.on_mask or not isinstance(self.operator, Dense):
            return None
        terms = tuple(term.to_channels_first() for term in self.terms)
        return Weighted(POINTWISE, terms, at=move_channels_first(self.at), slots=self.slots)

    def setup_macs(self, shapes: Shapes, source_layout: SparseLayout | None = None) -> int:
        """The denominators of a ratio that nobody made yet."""
        ratios = {id(t.after): t.after for t in self.terms if isinstance(t.after, LazyGammaFactor)}
        if source_layout is not None and self._computes_denominators(source_layout):
            return 0
        return sum(not ratio.is_computed for ratio in ratios.values()) * self.macs(shapes) // len(self.terms)

    def commute_pooling(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        """Π Σ_t diag(after_t) W_t diag(before_t), where every term's factors let Π past, and all to the same Π'."""
        if not self._is_pointwise_along(pooling.axes):
            return None
        terms, poolings = [], []
        after = {id(t.after): _commute_factor(pooling, t.after, shapes.target) for t in self.terms}
        # each once: terms that share their factor behind go on sharing it
        for term in self.terms:
            behind = after[id(term.after)]
            before = None if behind is None else _commute_factor(behind[1], term.before, shapes.sources[0])
            if behind is None or before is None:
                return None
            terms.append(Term(term.weight, before[0], behind[0]))
            poolings.append(before[1])
        if not all(each.equals(poolings[0]) for each in poolings[1:]):
            return None
        at = self.at.new_empty(()).expand(pooling.pooled_shape(self.at.shape))
        return replace(self, terms=tuple(terms), at=at, slots=(0,)), poolings[0]

    def _is_pointwise_along(self, axes: tuple[int, ...]) -> bool:
        """Is it one matrix at each position along these axes?"""
        operator = self.operator
        if not isinstance(operator, Convolution):
            return -1 not in axes
        single = {*self.terms[0].weight.shape[2:], *operator.stride} == {1} and not any(operator.padding)
        return single and not operator.transposed and min(axes) >= -operator.rank

    # ------------------------------------------------------------ on windows

    def geometry(self, shapes: Shapes) -> Geometry | None:
        operator = self.operator
        if not shapes.are_images or not isinstance(operator, Convolution):
            return None
        return None if operator.transposed or operator.rank != 2 else self._geometry(operator)

    def _geometry(self, operator: Convolution) -> Geometry:
        (tall, wide), (down, across) = self.terms[0].weight.shape[2:], operator.dilation
        (top, left), (high, far) = operator.padding, operator.stride
        return Geometry((down * (tall - 1) + 1, across * (wide - 1) + 1), (high, far), (top, left))

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        assert isinstance(self.operator, Convolution)
        reach = self._geometry(self.operator)
        start, field = reach.input_origin(origin), reach.input_size(size)
        parts = []
        for group in self.group_by_after():
            part = sum_in_place(_convolve(term, self.operator, sources[0], start, field) for term in group)
            after = group[0].dense_after
            parts.append(part if after is None else part.mul_(crop_windows(after, origin, size)))
        return sum_in_place(parts)

    def prepare_windows(self) -> Map:
        used = {
            id(t): t
            for term in self.terms
            for t in (term.weight, term.before, term.dense_after)
            if t is not None
        }
        # each once: terms that share their factor behind go on sharing it
        laid = {key: prepare_for_crop(t) for key, t in used.items()}
        terms = (
            Term(laid[id(t.weight)], laid.get(id(t.before)), laid.get(id(t.dense_after))) for t in self.terms
        )
        return replace(self, terms=tuple(terms))

    def window_macs(self, size: tuple[int, int], shapes: Shapes, *, back: bool = False) -> int:
        assert isinstance(self.operator, Convolution)
        # without padding, as `pull_windows` has it
        if back and replace(self.operator, padding=(0, 0)).is_correlation(self.terms[0].weight):
            size = self._geometry(self.operator).input_size(size)
        return self.weight_numel * size[0] * size[1]

    def can_pull_windows(self, shapes: Shapes) -> bool:
        return self.geometry(shapes) is not None and not self.on_mask

    def pull_windows(self, windows: Window, shapes: Shapes) -> Window:
        assert isinstance(self.operator, Convolution)
        reach = self._geometry(self.operator)
        # A window carries no border of its own: its padding is what lies beside it in the image.
        operator = replace(self.operator, padding=(0, 0))
        origin, size = reach.input_origin(windows.origin), reach.input_size(windows.shape)
        outside = windows.data.new_ones(()).expand(1, 1, *shapes.target[-2:])
        like = windows.data.new_empty(()).expand(shapes.sources[0][-3], *size)
        parts = []
        for term in self.terms:
            there = windows.scale(outside if term.dense_after is None else term.dense_after)
            part = Window(operator.transpose(there.data, term.weight, like), origin)
            parts.append(part.data if term.before is None else part.scale(term.before).data)
        return Window(sum_in_place(parts), origin)

    # ------------------------------------------------------------ on active rows

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return mask_or(
            full_mask(shapes.target)
            if term.after_support is None
            else nonzero_mask(term.after_support.expand(shapes.target))
            for term in self.terms
        )

    def push_sparse(self, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
        assert isinstance(self.operator, Convolution)
        if self.operator.groups > 1:
            return super().push_sparse(sources, target, shapes)
        weights = tuple(t.weight for t in self.terms)
        before = tuple(None if t.before is None else t.before.expand(shapes.sources[0]) for t in self.terms)
        after = [
            t.after if self._computes_denominators(sources[0].layout) else t.dense_after for t in self.terms
        ]
        after = tuple(f.expand(shapes.target) if isinstance(f, Tensor) else f for f in after)
        work = sparse_convolution.SparseConvolution(weights, before, after, self._kernel(self.operator))
        return target.convolve(sources[0], work)

    def sparse_cost(
        self, layouts: Sequence[SparseLayout], target: SparseLayout, shapes: Shapes
    ) -> tuple[int, int]:
        assert isinstance(self.operator, Convolution)
        if self.operator.groups > 1:
            columns = len(target.cone.low)
            return columns * self.macs(shapes), densify_macs(columns, shapes)
        found = position_blocks.convolution_cost(self._kernel(self.operator), layouts[0], target)
        with_rows = any(
            isinstance(t.after, LazyGammaFactor) for t in self.terms
        ) and self._computes_denominators(layouts[0])
        return found.macs + with_rows * found.weight_lookups, found.overhead_macs

    def _computes_denominators(self, source: SparseLayout) -> bool:
        """Do the denominators come with the push of these rows?"""
        term, operator = self.terms[0], self.operator
        plain = len(self.terms) == 1 and term.before is None
        plain = plain and isinstance(operator, Convolution) and operator.groups == 1
        ratio = term.after if plain else None
        return isinstance(ratio, LazyGammaFactor) and not ratio.is_computed and ratio.is_covered_by(source)

    def _kernel(self, operator: Convolution) -> position_blocks.Kernel:
        (tall, wide), (down, across) = self.terms[0].weight.shape[2:], operator.dilation
        return position_blocks.Kernel((tall, wide), (down, across), self._geometry(operator))


def _gate_factor(factor: Tensor | LazyGammaFactor | None, gate: Tensor) -> Tensor | LazyGammaFactor:
    if factor is None:
        return gate
    return factor.with_gate(gate) if isinstance(factor, LazyGammaFactor) else apply_gate(factor, gate)


def _commute_factor(
    pooling: Pooling, factor: Tensor | LazyGammaFactor | None, shape: torch.Size
) -> tuple[Tensor | None, Pooling] | None:
    if isinstance(factor, LazyGammaFactor) and not isinstance(pooling, Narrow):
        return None  # one for each position and feature, and not worth making to find out
    behind = resolve_factor(factor)
    return (None, pooling) if behind is None else pooling.commute_factor(behind, shape)


def _convolve(
    term: Term, operator: Convolution, source: Window, origin: Tensor, size: tuple[int, int]
) -> Tensor:
    """W * (before ⊙ s), for the fields of that size that begin at `origin`."""
    data = source.data
    if term.before is not None:
        data = data * crop_windows(term.before, source.origin, source.shape)
    pads = _symmetric_padding(source, origin, size)
    if pads is None:  # zeros on one side only, or not the same for all: lay them out first
        data, pads = reframe_window(Window(data, source.origin), origin, size), (0, 0)
    return F.conv2d(data, term.weight, None, operator.stride, pads, operator.dilation, operator.groups)


def _symmetric_padding(source: Window, origin: Tensor, size: tuple[int, int]) -> tuple[int, int] | None:
    """Zeros needed around the window, where they are the same on both sides: convolution can pad them itself."""
    shift = source.origin - origin
    if not bool((shift == shift[0]).all()):
        return None
    before = shift[0].tolist()
    after = [n - b - have for n, b, have in zip(size, before, source.shape, strict=True)]
    return (before[0], before[1]) if before == after and min(before) >= 0 else None
