"""The factor behind a product under γ, whose denominators are made by whoever needs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bilrp.engine.sparse_layout import Layout, not_zero
from bilrp.engine.maps.base import shut, to_front
from bilrp.trace.linear_operators import Convolution, Dense


@dataclass(frozen=True, eq=False)
class Ratio:
    """z⁺ / (ρ(W)a + ρ(b)), z⁺ = max(z, 0), where all inputs a have one sign.

    The denominators are a product as large as the step itself. Windows and whole values want all of them (`whole`, made
    when it is first asked for). Active rows want those of their own outputs from their own inputs: there the input as a
    whole is pushed beside the regions, as one column more, and gives each row its denominator.
    """

    operator: Dense | Convolution
    weight: Tensor  # ρ(W)
    a: Tensor
    bias: Tensor | None  # ρ(b)
    counted: Tensor  # z⁺, 0 where a gate is shut
    more: float  # ρ(z) ≥ more · z, also where rounding says otherwise (γ far below the type's precision)

    @cached_property
    def whole(self) -> Tensor:
        """The factors of all outputs."""
        # Few weights are laid out as the values are sooner than the values as the weights; elsewhere torch does it itself.
        near = self.weight.contiguous() if self.weight.numel() < self.a.numel() else self.weight
        total = self.operator.apply(self.a, near)
        if self.bias is not None:
            total += self.operator.bias(self.bias)
        total = torch.maximum(total, self._least(self.counted), out=total)
        return torch.div(self.counted, total, out=total)

    @property
    def made(self) -> bool:
        return "whole" in self.__dict__

    def _least(self, counted: Tensor) -> Tensor:
        """What denominators are at least. Where z ≤ 0 any number will do; one that is no subnormal is soon divided by."""
        return (self.more * counted).clamp_(min=_smallest(counted.dtype))

    def gated(self, gate: Tensor) -> Ratio:
        return replace(self, counted=shut(self.counted, gate))

    def channels_first(self, operator: Convolution, weight: Tensor) -> Ratio:
        """The same of images, by an operator on images."""
        a, counted = to_front(self.a), to_front(self.counted)
        return replace(self, operator=operator, weight=weight, a=a, counted=counted)

    def among(self, source: Layout) -> bool:
        """Has every input that is not zero a row, so that rows know the whole input?"""
        if self not in source.known:  # planned, counted and done: asked for three times
            source.known[self] = not bool((not_zero(self.a) & ~source.active).any())
        return source.known[self]

    def at_rows(self, source: Layout, target: Layout) -> RatioRows:
        """What active rows make their factors of."""
        counted = target.of(self.counted)
        if self.bias is None:
            bias = counted.new_zeros(target.rows)
        else:  # one for each channel, or one for all
            bias = self.bias.expand(target.active.shape[2])[target.channel]
        return RatioRows(source.of(self.a), bias, counted, self._least(counted))


@dataclass(frozen=True, eq=False)
class RatioRows:
    """A ratio on active rows: a at the source's; ρ(b), z⁺ and the least denominator at the target's."""

    a: Tensor
    bias: Tensor
    counted: Tensor
    least: Tensor

    def factor(self, sums: Tensor, rows: slice) -> Tensor:
        """z⁺ / (ρ(W)a + ρ(b)) for some of the target's rows, from their ρ(W)a."""
        return self.counted[rows] / torch.maximum(sums + self.bias[rows], self.least[rows])


def whole(factor: Tensor | Ratio | None) -> Tensor | None:
    """A factor for all outputs."""
    return factor.whole if isinstance(factor, Ratio) else factor


def _smallest(dtype: torch.dtype) -> float:
    """The smallest number that may be meant: in float16, whose normal numbers end at 6e-5, the smallest there is."""
    about = torch.finfo(dtype)
    return about.tiny * about.eps if dtype == torch.float16 else about.tiny
