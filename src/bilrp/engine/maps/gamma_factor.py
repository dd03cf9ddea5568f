"""Output factor z⁺/ρ(z) of LRP-γ, computed lazily."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bilrp.engine.maps.base import apply_gate
from bilrp.trace.linear_operators import Convolution, Dense


@dataclass(frozen=True, eq=False)
class LazyGammaFactor:
    """z⁺ / (ρ(W)a + ρ(b)), z⁺ = max(z, 0), where all inputs a have one sign.

    The denominators cost a product as large as the step itself. Windows and dense tangents need all of them (`value`).
    A sparse push needs those of its own rows, and computes them with the tangents by pushing a as one more column.

    Args:
        operator: The linear operation.
        weight: ρ(W).
        a: Input of the step.
        bias: ρ(b), or None.
        numerator: z⁺, 0 where a gate is 0.
        min_ratio: Lower bound of ρ(z)/z, enforced against rounding (γ far below the precision of the dtype).
    """

    operator: Dense | Convolution
    weight: Tensor
    a: Tensor
    bias: Tensor | None
    numerator: Tensor
    min_ratio: float
    computed: list[Tensor] = field(default_factory=list, init=False, repr=False)  # `value`, once it was read

    @property
    def value(self) -> Tensor:
        """The factors of all outputs; threads that compute them twice get the same result."""
        if not self.computed:
            self.computed.append(self._compute())
        return self.computed[0]

    def _compute(self) -> Tensor:
        # Torch brings weight and input into one memory format: convert the smaller one.
        weight = self.weight.contiguous() if self.weight.numel() < self.a.numel() else self.weight
        total = self.operator.apply(self.a, weight)
        if self.bias is not None:
            total += self.operator.bias(self.bias)
        total = torch.maximum(total, self.min_denominator(self.numerator), out=total)
        return torch.div(self.numerator, total, out=total)

    @property
    def is_computed(self) -> bool:
        """Whether `value` was read before."""
        return bool(self.computed)

    def min_denominator(self, numerator: Tensor) -> Tensor:
        """Lower bound of the denominators. Where z ≤ 0 any value will do; a normal float avoids slow subnormal division."""
        return (self.min_ratio * numerator).clamp_(min=_smallest_denominator(numerator.dtype))

    def with_gate(self, gate: Tensor) -> LazyGammaFactor:
        """Return the factor times a 0/1 gate."""
        return replace(self, numerator=apply_gate(self.numerator, gate))


def resolve_factor(factor: Tensor | LazyGammaFactor | None) -> Tensor | None:
    """Return the factor of all outputs, computed if it is lazy."""
    return factor.value if isinstance(factor, LazyGammaFactor) else factor


def _smallest_denominator(dtype: torch.dtype) -> float:
    """Smallest normal number; in float16, where that is a large 6e-5, the smallest subnormal."""
    info = torch.finfo(dtype)
    return info.tiny * info.eps if dtype == torch.float16 else info.tiny
