"""Linear and convolution steps under any LRP rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from torch import Tensor

from bilrp.engine.maps.base import (
    Cost,
    Map,
    Shapes,
    apply_gate,
    full_mask,
    nonzero_mask,
    scale_by,
    scale_by_,
    sum_in_place,
)
from bilrp.engine.windows import Geometry
from bilrp.trace.linear_operators import Convolution, Dense


@dataclass(frozen=True, eq=False)
class Term:
    """diag(after) · A_weight · diag(before): one summand of a frozen weighted step; factors of None are 1."""

    weight: Tensor
    before: Tensor | None = None
    after: Tensor | None = None


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
                group[0].after,
            )
            for group in self.group_by_after()
        )

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        pulled = (
            scale_by_(self.operator.transpose(scale_by(cotangent, t.after), t.weight, self.at), t.before)
            for t in self.terms
        )
        return (sum_in_place(pulled),)

    def with_gate(self, gate: Tensor | None) -> Weighted:
        """Return this map followed by a 0/1 gate."""
        return (
            self if gate is None else self._with_after(lambda f: gate if f is None else apply_gate(f, gate))
        )

    def with_factor(self, factor: Tensor) -> Weighted:
        """Return diag(factor) J; the factor has the shape of the target."""
        return self._with_after(lambda f: factor if f is None else f * factor)

    def _with_after(self, change: Callable[[Tensor | None], Tensor]) -> Weighted:
        """Return this map with other output factors; terms that shared one continue to share it."""
        changed = {id(t.after): t.after for t in self.terms}
        changed = {key: change(factor) for key, factor in changed.items()}
        return replace(self, terms=tuple(replace(t, after=changed[id(t.after)]) for t in self.terms))

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

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        source, target, macs = shapes.sources[0].numel(), shapes.target.numel(), self._macs(shapes, back=back)
        several = len(self.terms) > 1  # the result of one term, in addition to the sum of the previous ones
        if back:
            workspace = any(t.after is not None for t in self.terms) * target + several * source
        else:
            workspace = any(t.before is not None for t in self.terms) * source + several * target
        return Cost(macs, workspace)

    def _macs(self, shapes: Shapes, *, back: bool) -> int:
        operator = self.operator
        if not isinstance(operator, Convolution):
            return self.weight_numel * shapes.target.numel() // self.terms[0].weight.shape[0]
        flipped = back and operator.is_correlation(self.terms[0].weight)
        # A transposed convolution works at each input position, a plain one at each output position.
        positions = self.at.shape if operator.transposed or flipped else shapes.target
        return self.weight_numel * positions[-operator.rank :].numel()

    def geometry(self, shapes: Shapes) -> Geometry | None:
        operator = self.operator
        if not shapes.are_images or not isinstance(operator, Convolution):
            return None
        if operator.transposed or operator.rank != 2:
            return None
        (tall, wide), (down, across) = self.terms[0].weight.shape[2:], operator.dilation
        (pad_y, pad_x), (step_y, step_x) = operator.padding, operator.stride
        extent = (down * (tall - 1) + 1, across * (wide - 1) + 1)
        return Geometry(extent, (step_y, step_x), (pad_y, pad_x))

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        afters = [term.after for term in self.terms]
        masks = (
            full_mask(shapes.target) if f is None else nonzero_mask(f.expand(shapes.target)) for f in afters
        )
        return reduce(or_, masks)
