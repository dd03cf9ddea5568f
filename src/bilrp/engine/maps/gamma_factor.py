"""The factor behind a product under γ, whose denominators are made by whoever needs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bilrp.engine.maps.base import apply_gate, move_channels_first
from bilrp.engine.sparse_layout import SparseLayout, nonzero_mask
from bilrp.trace.linear_operators import Convolution, Dense


@dataclass(frozen=True, eq=False)
class LazyGammaFactor:
    """z⁺ / (ρ(W)a + ρ(b)), z⁺ = max(z, 0), where all inputs a have one sign.

    The denominators are a product as large as the step itself. Windows and whole values want all of them (`value`, made
    when it is first asked for). Active rows want those of their own outputs from their own inputs: there the input as a
    whole is pushed beside the regions, as one column more, and gives each row its denominator.
    """

    operator: Dense | Convolution
    weight: Tensor  # ρ(W)
    a: Tensor
    bias: Tensor | None  # ρ(b)
    numerator: Tensor  # z⁺, 0 where a gate is shut
    min_ratio: (
        float  # ρ(z) ≥ min_ratio · z, also where rounding says otherwise (γ far below the type's precision)
    )

    @cached_property
    def value(self) -> Tensor:
        """The factors of all outputs."""
        # Few weights are laid out as the values are sooner than the values as the weights; elsewhere torch does it itself.
        near = self.weight.contiguous() if self.weight.numel() < self.a.numel() else self.weight
        total = self.operator.apply(self.a, near)
        if self.bias is not None:
            total += self.operator.bias(self.bias)
        total = torch.maximum(total, self._min_denominator(self.numerator), out=total)
        return torch.div(self.numerator, total, out=total)

    @property
    def is_computed(self) -> bool:
        return "value" in self.__dict__

    def _min_denominator(self, numerator: Tensor) -> Tensor:
        """What denominators are at least. Where z ≤ 0 any number will do; one that is no subnormal is soon divided by."""
        return (self.min_ratio * numerator).clamp_(min=_smallest_denominator(numerator.dtype))

    def with_gate(self, gate: Tensor) -> LazyGammaFactor:
        return replace(self, numerator=apply_gate(self.numerator, gate))

    def to_channels_first(self, operator: Convolution, weight: Tensor) -> LazyGammaFactor:
        """The same of images, by an operator on images."""
        a, counted = move_channels_first(self.a), move_channels_first(self.numerator)
        return replace(self, operator=operator, weight=weight, a=a, numerator=counted)

    def is_covered_by(self, source: SparseLayout) -> bool:
        """Has every input that is not zero a row, so that rows know the whole input?"""
        if self not in source.memo:  # planned, counted and done: asked for three times
            source.memo[self] = not bool((nonzero_mask(self.a) & ~source.mask).any())
        return source.memo[self]

    def at_rows(self, source: SparseLayout, target: SparseLayout) -> SparseGammaFactor:
        """What active rows make their factors of."""
        counted = target.gather(self.numerator)
        if self.bias is None:
            bias = counted.new_zeros(target.row_count)
        else:  # one for each channel, or one for all
            bias = self.bias.expand(target.mask.shape[2])[target.channel]
        return SparseGammaFactor(source.gather(self.a), bias, counted, self._min_denominator(counted))


@dataclass(frozen=True, eq=False)
class SparseGammaFactor:
    """A ratio on active rows: a at the source's; ρ(b), z⁺ and the least denominator at the target's."""

    a: Tensor
    bias: Tensor
    numerator: Tensor
    min_denominator: Tensor

    def compute(self, sums: Tensor, rows: slice) -> Tensor:
        """z⁺ / (ρ(W)a + ρ(b)) for some of the target's rows, from their ρ(W)a."""
        return self.numerator[rows] / torch.maximum(sums + self.bias[rows], self.min_denominator[rows])


def resolve_factor(factor: Tensor | LazyGammaFactor | None) -> Tensor | None:
    """A factor for all outputs."""
    return factor.value if isinstance(factor, LazyGammaFactor) else factor


def _smallest_denominator(dtype: torch.dtype) -> float:
    """The smallest number that may be meant: in float16, whose normal numbers end at 6e-5, the smallest there is."""
    about = torch.finfo(dtype)
    return about.tiny * about.eps if dtype == torch.float16 else about.tiny
