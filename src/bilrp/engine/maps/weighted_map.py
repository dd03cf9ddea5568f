"""Linear and convolution steps under any LRP rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.sparse_layout import Layout, Rows, everything, not_zero, union
from bilrp.engine.maps import position_blocks, sparse_convolution
from bilrp.engine.maps.base import Map, Shapes, laid_out, shut, sum_of, times, times_, to_front
from bilrp.engine.maps.pooling import Pick, Pooling
from bilrp.engine.maps.gamma_factor import Ratio, whole
from bilrp.engine.windows import Reach, Window, cut, for_cutting, place
from bilrp.trace.linear_operators import Convolution, Dense


@dataclass(frozen=True, eq=False)
class Term:
    """diag(after) · A_weight · diag(before): one summand of a frozen weighted step; None is the identity."""

    weight: Tensor
    before: Tensor | None = None
    after: Tensor | Ratio | None = None

    @property
    def behind(self) -> Tensor | None:
        """The factor of all outputs."""
        return whole(self.after)

    @property
    def open(self) -> Tensor | None:
        """Not zero where the factor behind is not."""
        return self.after.counted if isinstance(self.after, Ratio) else self.after

    def channels_first(self) -> Term:
        """Of a matrix at each position, that of a convolution of 1×1."""
        weight, before = self.weight[:, :, None, None], None if self.before is None else to_front(self.before)
        if isinstance(self.after, Ratio):
            return Term(weight, before, self.after.channels_first(POINTWISE, weight))
        return Term(weight, before, None if self.after is None else to_front(self.after))


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
        return sum_of(
            times_(
                sum_of(self.operator.apply(times(tangents[0], t.before), t.weight) for t in group),
                group[0].behind,
            )
            for group in self.by_after()
        )

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        pulled = (
            times_(self.operator.transpose(times(cotangent, t.behind), t.weight, self.at), t.before)
            for t in self.terms
        )
        return (sum_of(pulled),)

    def gated(self, gate: Tensor | None) -> Weighted:
        """The same map followed by a 0/1 gate."""
        if gate is None:
            return self
        factors = {id(t.after): t.after for t in self.terms}
        # each once: terms that share their factor behind go on sharing it
        gated = {key: _gated(f, gate) for key, f in factors.items()}
        return replace(self, terms=tuple(replace(t, after=gated[id(t.after)]) for t in self.terms))

    def by_after(self) -> list[list[Term]]:
        """Neighbouring terms that share their factor behind."""
        groups: list[list[Term]] = []
        for term in self.terms:
            if groups and groups[-1][0].after is term.after:
                groups[-1].append(term)
            else:
                groups.append([term])
        return groups

    @property
    def weights(self) -> int:
        """Numbers in the weights of all terms."""
        return len(self.terms) * self.terms[0].weight.numel()

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        operator = self.operator
        if not isinstance(operator, Convolution):
            return self.weights * shapes.target.numel() // self.terms[0].weight.shape[0]
        flipped = back and operator.is_correlation(self.terms[0].weight)
        # A transposed convolution works at each input position, a plain one at each output position.
        places = self.at.shape if operator.transposed or flipped else shapes.target
        return self.weights * places[-operator.rank :].numel()

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        source, target = shapes.sources[0].numel(), shapes.target.numel()
        several = len(self.terms) > 1  # one term's result beside the sum of those before it
        if back:
            return any(t.after is not None for t in self.terms) * target + several * source
        return any(t.before is not None for t in self.terms) * source + several * target

    def channels_first(self, shapes: Shapes) -> Map | None:
        """A matrix at each position is a convolution of 1×1."""
        if self.on_mask or not isinstance(self.operator, Dense):
            return None
        terms = tuple(term.channels_first() for term in self.terms)
        return Weighted(POINTWISE, terms, at=to_front(self.at), slots=self.slots)

    def beforehand(self, shapes: Shapes, rows: Layout | None = None) -> int:
        """The denominators of a ratio that nobody made yet."""
        ratios = {id(t.after): t.after for t in self.terms if isinstance(t.after, Ratio)}
        if rows is not None and self._with_rows(rows):
            return 0
        return sum(not ratio.made for ratio in ratios.values()) * self.macs(shapes) // len(self.terms)

    def pooled(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        """Π Σ_t diag(after_t) W_t diag(before_t), where every term's factors let Π past, and all to the same Π'."""
        if not self._at_each(pooling.axes):
            return None
        terms, poolings = [], []
        after = {id(t.after): _past(pooling, t.after, shapes.target) for t in self.terms}
        # each once: terms that share their factor behind go on sharing it
        for term in self.terms:
            behind = after[id(term.after)]
            before = None if behind is None else _past(behind[1], term.before, shapes.sources[0])
            if behind is None or before is None:
                return None
            terms.append(Term(term.weight, before[0], behind[0]))
            poolings.append(before[1])
        if not all(each.equals(poolings[0]) for each in poolings[1:]):
            return None
        at = self.at.new_empty(()).expand(pooling.shortened(self.at.shape))
        return replace(self, terms=tuple(terms), at=at, slots=(0,)), poolings[0]

    def _at_each(self, axes: tuple[int, ...]) -> bool:
        """Is it one matrix at each position along these axes?"""
        operator = self.operator
        if not isinstance(operator, Convolution):
            return -1 not in axes
        single = {*self.terms[0].weight.shape[2:], *operator.stride} == {1} and not any(operator.padding)
        return single and not operator.transposed and min(axes) >= -operator.rank

    # ------------------------------------------------------------ on windows

    def reach(self, shapes: Shapes) -> Reach | None:
        operator = self.operator
        if not shapes.images or not isinstance(operator, Convolution):
            return None
        return None if operator.transposed or operator.rank != 2 else self._reach(operator)

    def _reach(self, operator: Convolution) -> Reach:
        (tall, wide), (down, across) = self.terms[0].weight.shape[2:], operator.dilation
        (top, left), (high, far) = operator.padding, operator.stride
        return Reach((down * (tall - 1) + 1, across * (wide - 1) + 1), (high, far), (top, left))

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        assert isinstance(self.operator, Convolution)
        reach = self._reach(self.operator)
        start, field = reach.start(origin), reach.field(size)
        parts = []
        for group in self.by_after():
            part = sum_of(_convolve(term, self.operator, sources[0], start, field) for term in group)
            after = group[0].behind
            parts.append(part if after is None else part.mul_(cut(after, origin, size)))
        return sum_of(parts)

    def for_windows(self) -> Map:
        used = {
            id(t): t for term in self.terms for t in (term.weight, term.before, term.behind) if t is not None
        }
        # each once: terms that share their factor behind go on sharing it
        laid = {key: for_cutting(t) for key, t in used.items()}
        terms = (Term(laid[id(t.weight)], laid.get(id(t.before)), laid.get(id(t.behind))) for t in self.terms)
        return replace(self, terms=tuple(terms))

    def window_macs(self, size: tuple[int, int], shapes: Shapes, *, back: bool = False) -> int:
        assert isinstance(self.operator, Convolution)
        # without padding, as `pull_windows` has it
        if back and replace(self.operator, padding=(0, 0)).is_correlation(self.terms[0].weight):
            size = self._reach(self.operator).field(size)
        return self.weights * size[0] * size[1]

    def has_tiles(self, shapes: Shapes) -> bool:
        return self.reach(shapes) is not None and not self.on_mask

    def pull_windows(self, windows: Window, shapes: Shapes) -> Window:
        assert isinstance(self.operator, Convolution)
        reach = self._reach(self.operator)
        # A window carries no border of its own: its padding is what lies beside it in the image.
        operator = replace(self.operator, padding=(0, 0))
        origin, size = reach.start(windows.origin), reach.field(windows.shape)
        outside = windows.data.new_ones(()).expand(1, 1, *shapes.target[-2:])
        like = windows.data.new_empty(()).expand(shapes.sources[0][-3], *size)
        parts = []
        for term in self.terms:
            there = windows.times(outside if term.behind is None else term.behind)
            part = Window(operator.transpose(there.data, term.weight, like), origin)
            parts.append(part.data if term.before is None else part.times(term.before).data)
        return Window(sum_of(parts), origin)

    # ------------------------------------------------------------ on active rows

    def possible(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return union(
            everything(shapes.target) if term.open is None else not_zero(term.open.expand(shapes.target))
            for term in self.terms
        )

    def push_rows(self, sources: Sequence[Rows], target: Rows, shapes: Shapes) -> None:
        assert isinstance(self.operator, Convolution)
        if self.operator.groups > 1:
            return super().push_rows(sources, target, shapes)
        weights = tuple(t.weight for t in self.terms)
        before = tuple(None if t.before is None else t.before.expand(shapes.sources[0]) for t in self.terms)
        after = [t.after if self._with_rows(sources[0].layout) else t.behind for t in self.terms]
        after = tuple(f.expand(shapes.target) if isinstance(f, Tensor) else f for f in after)
        work = sparse_convolution.Convolving(weights, before, after, self._kernel(self.operator))
        return target.convolve(sources[0], work)

    def row_work(self, layouts: Sequence[Layout], target: Layout, shapes: Shapes) -> tuple[int, int]:
        assert isinstance(self.operator, Convolution)
        if self.operator.groups > 1:
            columns = len(target.cone.low)
            return columns * self.macs(shapes), laid_out(columns, shapes)
        found = position_blocks.amount(self._kernel(self.operator), layouts[0], target)
        with_rows = any(isinstance(t.after, Ratio) for t in self.terms) and self._with_rows(layouts[0])
        return found.macs + with_rows * found.weights, found.moving

    def _with_rows(self, source: Layout) -> bool:
        """Do the denominators come with the push of these rows?"""
        term, operator = self.terms[0], self.operator
        plain = len(self.terms) == 1 and term.before is None
        plain = plain and isinstance(operator, Convolution) and operator.groups == 1
        ratio = term.after if plain else None
        return isinstance(ratio, Ratio) and not ratio.made and ratio.among(source)

    def _kernel(self, operator: Convolution) -> position_blocks.Kernel:
        (tall, wide), (down, across) = self.terms[0].weight.shape[2:], operator.dilation
        return position_blocks.Kernel((tall, wide), (down, across), self._reach(operator))


def _gated(factor: Tensor | Ratio | None, gate: Tensor) -> Tensor | Ratio:
    if factor is None:
        return gate
    return factor.gated(gate) if isinstance(factor, Ratio) else shut(factor, gate)


def _past(
    pooling: Pooling, factor: Tensor | Ratio | None, shape: torch.Size
) -> tuple[Tensor | None, Pooling] | None:
    if isinstance(factor, Ratio) and not isinstance(pooling, Pick):
        return None  # one for each position and feature, and not worth making to find out
    behind = whole(factor)
    return (None, pooling) if behind is None else pooling.past(behind, shape)


def _convolve(
    term: Term, operator: Convolution, source: Window, origin: Tensor, size: tuple[int, int]
) -> Tensor:
    """W * (before ⊙ s), for the fields of that size that begin at `origin`."""
    data = source.data
    if term.before is not None:
        data = data * cut(term.before, source.origin, source.shape)
    pads = _symmetric(source, origin, size)
    if pads is None:  # zeros on one side only, or not the same for all: lay them out first
        data, pads = place(Window(data, source.origin), origin, size), (0, 0)
    return F.conv2d(data, term.weight, None, operator.stride, pads, operator.dilation, operator.groups)


def _symmetric(source: Window, origin: Tensor, size: tuple[int, int]) -> tuple[int, int] | None:
    """Zeros needed around the window, where they are the same on both sides: convolution can pad them itself."""
    shift = source.origin - origin
    if not bool((shift == shift[0]).all()):
        return None
    before = shift[0].tolist()
    after = [n - b - have for n, b, have in zip(size, before, source.shape, strict=True)]
    return (before[0], before[1]) if before == after and min(before) >= 0 else None
