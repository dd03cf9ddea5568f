"""Frozen steps: linear maps that can be pushed forward and pulled back, for many vectors at once.

Every map acts on tangents of shape (K, *value.shape): K regions when pushing, K coordinates when pulling.
`slots` says which of the step's live inputs the map depends on; the others were frozen by the rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bilrp.errors import RuleError
from bilrp.trace.operators import Convolution, Dense


@runtime_checkable
class Map(Protocol):
    """A step frozen at one input: the linear map J, as push (J s) and pull (Jᵀ c)."""

    @property
    def slots(self) -> tuple[int, ...]: ...

    @property
    def on_mask(self) -> bool: ...

    def push(self, *tangents: Tensor) -> Tensor: ...

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, eq=False)
class Scale:
    """J = diag(factor): gates, activations, norms. (A factor of shape () is a number.)"""

    factor: Tensor
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return tangents[0] * self.factor

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent * self.factor,)


@dataclass(frozen=True, eq=False)
class Linear:
    """J is the derivative of `function`, which is affine in its tensors: reshapes, sums, shifts, products.

    `at` holds one tensor of the right shape for each slot; J does not depend on their values.
    """

    function: Callable[..., Tensor]
    at: tuple[Tensor, ...]
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        zeros = tuple(torch.zeros_like(t) for t in self.at)
        constant = self.function(*zeros)
        if not bool(constant.any()):
            return batched(self.function)(*tangents)

        # A constant is added: subtracting it again would lose digits (-1e9) or all of them (-inf). So transpose the
        # transpose; forward derivatives would do as well, but torch crashes on some of them while it counts operations.
        def directional(*t: Tensor) -> Tensor:
            back = torch.func.vjp(self.function, *zeros)[1]
            forth = torch.func.vjp(back, torch.zeros_like(constant))[1]
            return forth(t)[0]

        return batched(directional)(*tangents)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        back = torch.func.vjp(self.function, *(torch.zeros_like(t) for t in self.at))[1]
        return batched(back)(cotangent)


@dataclass(frozen=True, eq=False)
class Move(Linear):
    """J only moves numbers about, or sets some to zero: reshapes, permutations, padding, concatenation."""


@dataclass(frozen=True, eq=False)
class Sum:
    """J = (1 … 1): a plain sum of live values of one shape, as at the end of a residual block."""

    slots: tuple[int, ...] = (0, 1)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return tangents[0] if len(tangents) == 1 else tangents[0] + tangents[1]

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent,) * len(self.slots)


@dataclass(frozen=True, eq=False)
class Jacobian:
    """J is the true derivative of `function` at `at`: gradient propagation, for Hessian×Product."""

    function: Callable[..., Tensor]
    at: tuple[Tensor, ...]
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        def directional(*t: Tensor) -> Tensor:
            return torch.func.jvp(self.function, self.at, t)[1]

        with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no forward derivative
            try:
                return batched(directional)(*tangents)
            except NotImplementedError as error:
                raise RuleError(
                    f"torch cannot push through an operation here ({str(error).splitlines()[0]}): use mode='pull'"
                ) from error

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        with sdpa_kernel(SDPBackend.MATH):
            back = torch.func.vjp(self.function, *self.at)[1]
            return batched(back)(cotangent)


@dataclass(frozen=True, eq=False)
class Gated:
    """Any map followed by the 0/1 gate of the ReLU that was fused into its step."""

    inner: Map
    gate: Tensor

    @property
    def slots(self) -> tuple[int, ...]:
        return self.inner.slots

    @property
    def on_mask(self) -> bool:
        return self.inner.on_mask

    def push(self, *tangents: Tensor) -> Tensor:
        return self.inner.push(*tangents) * self.gate

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return self.inner.pull(cotangent * self.gate)


@dataclass(frozen=True, eq=False)
class Term:
    """diag(after) · A_weight · diag(before): one summand of a frozen weighted step; None is the identity."""

    weight: Tensor
    before: Tensor | None = None
    after: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Weighted:
    """J = Σ_t diag(after_t) A_{w_t} diag(before_t): a linear or convolution step under any LRP rule.

    With `on_mask` the map acts on a region's 0/1 mask instead of its values (z^B, flat, w²).
    """

    operator: Dense | Convolution
    terms: tuple[Term, ...]
    at: Tensor
    on_mask: bool = False
    slots: tuple[int, ...] = (0,)

    def push(self, *tangents: Tensor) -> Tensor:
        out: Tensor | None = None
        for group in self.by_after():
            part = sum_of(self.operator.apply(times(tangents[0], t.before), t.weight) for t in group)
            part = times_(part, group[0].after)
            out = part if out is None else out.add_(part)
        assert out is not None
        return out

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        pulled = (
            times_(self.operator.transpose(times(cotangent, t.after), t.weight, self.at), t.before)
            for t in self.terms
        )
        return (sum_of(pulled),)

    def gated(self, gate: Tensor | None) -> Weighted:
        """The same map followed by a 0/1 gate."""
        if gate is None:
            return self
        terms = tuple(
            replace(t, after=gate if t.after is None else torch.where(gate > 0, t.after, 0))
            for t in self.terms
        )
        return replace(self, terms=terms)

    def by_after(self) -> list[list[Term]]:
        groups: list[list[Term]] = []
        for term in self.terms:
            if groups and groups[-1][0].after is term.after:
                groups[-1].append(term)
            else:
                groups.append([term])
        return groups


@dataclass(frozen=True, eq=False)
class Pool:
    """Max-pooling frozen to its winners: out = Σ_o share_o ⊙ x[offset o of each window]; ties share equally."""

    shares: Tensor  # (offsets, *out shape)
    offsets: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # zeros needed before and after, for each axis
    at: Tensor
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        padded = self._pad(tangents[0])
        out = self._window(padded, 0) * self.shares[0]
        for o in range(1, len(self.offsets)):
            out.addcmul_(self._window(padded, o), self.shares[o])
        return out

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        shape = self.at.shape[-len(self.stride) :]
        grown = [size + sum(pad) for size, pad in zip(shape, self.padding, strict=True)]
        padded = cotangent.new_zeros(*cotangent.shape[: -len(self.stride)], *grown)
        for o in range(len(self.offsets)):
            self._window(padded, o).addcmul_(cotangent, self.shares[o])
        inner = tuple(slice(pad[0], pad[0] + size) for size, pad in zip(shape, self.padding, strict=True))
        return (padded[(..., *inner)],)

    def _pad(self, x: Tensor) -> Tensor:
        flat = [p for pad in reversed(self.padding) for p in pad]
        return F.pad(x, flat) if any(flat) else x

    def _window(self, padded: Tensor, o: int) -> Tensor:
        sizes = self.shares.shape[-len(self.stride) :]
        cut = tuple(
            slice(start, start + (size - 1) * step + 1, step)
            for start, size, step in zip(self.offsets[o], sizes, self.stride, strict=True)
        )
        return padded[(..., *cut)]


def batched(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` over a leading axis, also where torch can only loop (it says so once for every such operation)."""

    def call(*tensors: Tensor) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return torch.vmap(function)(*tensors)

    return call


def times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


def times_(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x.mul_(factor)


def sum_of(tensors) -> Tensor:
    total: Tensor | None = None
    for t in tensors:
        total = t if total is None else total.add_(t)
    assert total is not None
    return total
