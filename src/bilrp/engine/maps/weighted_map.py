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
    """diag(after) · A_weight · diag(before): one summand of a frozen weighted step; factors of None are 1."""

    weight: Tensor
    before: Tensor | None = None
    after: Tensor | LazyGammaFactor | None = None

    @property
    def dense_after(self) -> Tensor | None:
        """The output factor, computed if it is lazy."""
        return resolve_factor(self.after)

    @property
    def after_support(self) -> Tensor | None:
        """A tensor that is non-zero where the output factor is."""
        return self.after.numerator if isinstance(self.after, LazyGammaFactor) else self.after

    def to_channels_first(self) -> Term:
        """Return the term of the equivalent 1×1 convolution."""
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

    Args:
        operator: The linear operation A.
        terms: Weights and factors of each summand.
        at: Input of the step.
        on_mask: Whether the map acts on a region's 0/1 mask instead of its values (z^B, flat, w²).
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
        """Return this map followed by a 0/1 gate."""
        if gate is None:
            return self
        factors = {id(t.after): t.after for t in self.terms}
        # once per factor, so that terms continue to share it
        gated = {key: _gate_factor(f, gate) for key, f in factors.items()}
        return replace(self, terms=tuple(replace(t, after=gated[id(t.after)]) for t in self.terms))

    def group_by_after(self) -> list[list[Term]]:
        """Group adjacent terms that share their output factor."""
        groups: list[list[Term]] = []
        for term in self.terms:
            if groups and groups[-1][0].after is term.after:
                groups[-1].append(term)
            else:
                groups.append([term])
        return groups

    @property
    def weight_numel(self) -> int:
        """Number of weights of all terms."""
        return len(self.terms) * self.terms[0].weight.numel()

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        operator = self.operator
        if not isinstance(operator, Convolution):
            return self.weight_numel * shapes.target.numel() // self.terms[0].weight.shape[0]
        flipped = back and operator.is_correlation(self.terms[0].weight)
        # A transposed convolution works at each input position, a plain one at each output position.
        positions = self.at.shape if operator.transposed or flipped else shapes.target
        return self.weight_numel * positions[-operator.rank :].numel()

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        source, target = shapes.sources[0].numel(), shapes.target.numel()
        several = len(self.terms) > 1  # the result of one term, in addition to the sum of the previous ones
        if back:
            return any(t.after is not None for t in self.terms) * target + several * source
        return any(t.before is not None for t in self.terms) * source + several * target

    def to_channels_first(self, shapes: Shapes) -> Map | None:
        """Return the equivalent 1×1 convolution of a matrix product at each position."""
        if self.on_mask or not isinstance(self.operator, Dense):
            return None
        terms = tuple(term.to_channels_first() for term in self.terms)
        return Weighted(POINTWISE, terms, at=move_channels_first(self.at), slots=self.slots)

    def setup_macs(self, shapes: Shapes, source_layout: SparseLayout | None = None) -> int:
        """Return the cost of lazy γ denominators that are not computed yet."""
        factors = {id(t.after): t.after for t in self.terms if isinstance(t.after, LazyGammaFactor)}
        if source_layout is not None and self._computes_denominators(source_layout):
            return 0
        return (
            sum(not factor.is_computed for factor in factors.values()) * self.macs(shapes) // len(self.terms)
        )

    def commute_pooling(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        """Possible where Π commutes with the factors of every term, and all terms give the same Π'."""
        if not self._is_pointwise_along(pooling.axes):
            return None
        terms, poolings = [], []
        after = {id(t.after): _commute_factor(pooling, t.after, shapes.target) for t in self.terms}
        # once per factor, so that terms continue to share it
        for term in self.terms:
            outer = after[id(term.after)]
            inner = None if outer is None else _commute_factor(outer[1], term.before, shapes.sources[0])
            if outer is None or inner is None:
                return None
            terms.append(Term(term.weight, inner[0], outer[0]))
            poolings.append(inner[1])
        if not all(each.equals(poolings[0]) for each in poolings[1:]):
            return None
        at = self.at.new_empty(()).expand(pooling.pooled_shape(self.at.shape))
        return replace(self, terms=tuple(terms), at=at, slots=(0,)), poolings[0]

    def _is_pointwise_along(self, axes: tuple[int, ...]) -> bool:
        """Return whether the map applies one matrix at each position along these axes."""
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
        (pad_y, pad_x), (step_y, step_x) = operator.padding, operator.stride
        extent = (down * (tall - 1) + 1, across * (wide - 1) + 1)
        return Geometry(extent, (step_y, step_x), (pad_y, pad_x))

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        """Convolve windows of the source, and multiply by the cropped output factors.

        Args:
            sources: Tangents of each source, zero outside their windows.
            origin: Upper left corner (K, 2) of each window of the target.
            size: Height and width of these windows.
            shapes: Shapes of sources and target.
        """
        assert isinstance(self.operator, Convolution)
        geometry = self._geometry(self.operator)
        start, field = geometry.input_origin(origin), geometry.input_size(size)
        parts = []
        for group in self.group_by_after():
            part = sum_in_place(_convolve(term, self.operator, sources[0], start, field) for term in group)
            after = group[0].dense_after
            parts.append(part if after is None else part.mul_(crop_windows(after, origin, size)))
        return sum_in_place(parts)

    def prepare_windows(self) -> Map:
        tensors = {
            id(t): t
            for term in self.terms
            for t in (term.weight, term.before, term.dense_after)
            if t is not None
        }
        # once per factor, so that terms continue to share it
        prepared = {key: prepare_for_crop(t) for key, t in tensors.items()}
        terms = (
            Term(prepared[id(t.weight)], prepared.get(id(t.before)), prepared.get(id(t.dense_after)))
            for t in self.terms
        )
        return replace(self, terms=tuple(terms))

    def window_macs(self, size: tuple[int, int], shapes: Shapes, *, back: bool = False) -> int:
        """Return the multiply-adds of all terms for one window of the target.

        Args:
            size: Height and width of the window of the target.
            shapes: Shapes of sources and target.
            back: Whether to count a pull instead of a push.
        """
        assert isinstance(self.operator, Convolution)
        # without padding, as in `pull_windows`
        if back and replace(self.operator, padding=(0, 0)).is_correlation(self.terms[0].weight):
            size = self._geometry(self.operator).input_size(size)
        return self.weight_numel * size[0] * size[1]

    def can_pull_windows(self, shapes: Shapes) -> bool:
        return self.geometry(shapes) is not None and not self.on_mask

    def pull_windows(self, windows: Window, shapes: Shapes) -> Window:
        assert isinstance(self.operator, Convolution)
        geometry = self._geometry(self.operator)
        # No padding: around a window is the rest of the image.
        operator = replace(self.operator, padding=(0, 0))
        origin, size = geometry.input_origin(windows.origin), geometry.input_size(windows.shape)
        ones = windows.data.new_ones(()).expand(1, 1, *shapes.target[-2:])
        like = windows.data.new_empty(()).expand(shapes.sources[0][-3], *size)
        parts = []
        for term in self.terms:
            window = windows.scale(ones if term.dense_after is None else term.dense_after)
            part = Window(operator.transpose(window.data, term.weight, like), origin)
            parts.append(part.data if term.before is None else part.scale(term.before).data)
        return Window(sum_in_place(parts), origin)

    # ------------------------------------------------------------ on sparse tangents

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return mask_or(
            full_mask(shapes.target)
            if term.after_support is None
            else nonzero_mask(term.after_support.expand(shapes.target))
            for term in self.terms
        )

    def push_sparse(self, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
        """Convolve sparse tangents; grouped convolutions through dense tangents.

        Args:
            sources: Sparse tangents of the sources.
            target: Where the result is written; its values are uninitialised.
            shapes: Shapes of sources and target.
        """
        assert isinstance(self.operator, Convolution)
        if self.operator.groups > 1:
            return super().push_sparse(sources, target, shapes)
        weights = tuple(t.weight for t in self.terms)
        before = tuple(None if t.before is None else t.before.expand(shapes.sources[0]) for t in self.terms)
        after = [
            t.after if self._computes_denominators(sources[0].layout) else t.dense_after for t in self.terms
        ]
        after = tuple(f.expand(shapes.target) if isinstance(f, Tensor) else f for f in after)
        convolution = sparse_convolution.SparseConvolution(
            weights, before, after, self._kernel(self.operator)
        )
        return target.convolve(sources[0], convolution)

    def sparse_cost(
        self, layouts: Sequence[SparseLayout], target: SparseLayout, shapes: Shapes
    ) -> tuple[int, int]:
        """Return the multiply-adds of `push_sparse`, including γ denominators, and the equivalent of its overhead.

        Args:
            layouts: Layouts of the sources.
            target: Layout of the result.
            shapes: Shapes of sources and target.
        """
        assert isinstance(self.operator, Convolution)
        if self.operator.groups > 1:
            columns = len(target.cone.low)
            return columns * self.macs(shapes), densify_macs(columns, shapes)
        cost = position_blocks.convolution_cost(self._kernel(self.operator), layouts[0], target)
        with_denominators = any(
            isinstance(t.after, LazyGammaFactor) for t in self.terms
        ) and self._computes_denominators(layouts[0])
        return cost.macs + with_denominators * cost.weight_lookups, cost.overhead_macs

    def _computes_denominators(self, source: SparseLayout) -> bool:
        """Return whether a sparse push from this layout computes the γ denominators itself."""
        term, operator = self.terms[0], self.operator
        plain = len(self.terms) == 1 and term.before is None
        plain = plain and isinstance(operator, Convolution) and operator.groups == 1
        factor = term.after if plain else None
        return isinstance(factor, LazyGammaFactor) and not factor.is_computed and factor.is_covered_by(source)

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
        return None  # differs per position and feature; computing it just to check would not pay
    dense = resolve_factor(factor)
    return (None, pooling) if dense is None else pooling.commute_factor(dense, shape)


def _convolve(
    term: Term, operator: Convolution, source: Window, origin: Tensor, size: tuple[int, int]
) -> Tensor:
    """Return W * (before ⊙ s) for input fields of one size at `origin`."""
    data = source.data
    if term.before is not None:
        data = data * crop_windows(term.before, source.origin, source.shape)
    pads = _symmetric_padding(source, origin, size)
    if pads is None:  # not symmetric, or not the same for all windows: pad explicitly
        data, pads = reframe_window(Window(data, source.origin), origin, size), (0, 0)
    return F.conv2d(data, term.weight, None, operator.stride, pads, operator.dilation, operator.groups)


def _symmetric_padding(source: Window, origin: Tensor, size: tuple[int, int]) -> tuple[int, int] | None:
    """Return the padding around the windows if it is equal on both sides, so that the convolution can apply it."""
    shift = source.origin - origin
    if not bool((shift == shift[0]).all()):
        return None
    before = shift[0].tolist()
    after = [n - b - length for n, b, length in zip(size, before, source.shape, strict=True)]
    return (before[0], before[1]) if before == after and min(before) >= 0 else None
