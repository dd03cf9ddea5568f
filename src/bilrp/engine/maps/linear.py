"""Maps defined by torch functions: affine ones, rearrangements, and the derivative of any function."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bilrp.engine.maps.base import Cost, Map, Shapes, vmap_or_loop
from bilrp.errors import RuleError

# Forward-mode AD levels of torch are global to the process: one thread at a time.
_FORWARD_AD_LOCK = threading.RLock()


@dataclass(frozen=True, eq=False)
class Linear(Map):
    """J is the derivative of an affine function: reshapes, sums, shifts, products.

    Args:
        function: Affine in its tensors.
        at: One tensor per slot that gives shape and dtype; J does not depend on its values.
        adds_constant: Whether f(0) ≠ 0; None if unknown (`engine.maps.affine_constants` sets it).
    """

    function: Callable[..., Tensor]
    at: tuple[Tensor, ...]
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False
    adds_constant: bool | None = None

    def push(self, *tangents: Tensor) -> Tensor:
        if self.adds_constant is False:
            return vmap_or_loop(self.function)(*tangents)
        zeros = tuple(torch.zeros_like(t) for t in self.at)
        constant = self.function(*zeros)
        if self.adds_constant is None and not bool(constant.any()):
            return vmap_or_loop(self.function)(*tangents)

        # Subtracting the constant again would lose digits (-1e9) or all of them (-inf), so transpose the transpose.
        # Forward-mode AD would do as well, but torch crashes on some operations under FlopCounterMode.
        def directional(*t: Tensor) -> Tensor:
            back = torch.func.vjp(self.function, *zeros)[1]
            forward = torch.func.vjp(back, torch.zeros_like(constant))[1]
            return forward(t)[0]

        return vmap_or_loop(directional)(*tangents)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        back = torch.func.vjp(self.function, *(torch.zeros_like(t) for t in self.at))[1]
        return vmap_or_loop(back)(cotangent)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return super().cost(shapes, back=back)._replace(macs=self._macs)

    @cached_property
    def _macs(self) -> int:
        return count_macs(self.function, self.at)


@dataclass(frozen=True, eq=False)
class Rearrange(Linear):
    """J only moves numbers or sets some to zero: reshapes, permutations, padding, concatenation."""

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost()


@dataclass(frozen=True, eq=False)
class Jacobian(Map):
    """J is the derivative of `function` at `at`: gradient propagation, for Hessian×Product."""

    function: Callable[..., Tensor]
    at: tuple[Tensor, ...]
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        def directional(*t: Tensor) -> Tensor:
            # torch's derivative of a group norm needs contiguous tensors
            at, t = (tuple(each.contiguous() for each in tensors) for tensors in (self.at, t))
            return torch.func.jvp(self.function, at, t)[1]

        with _FORWARD_AD_LOCK:
            try:
                return vmap_or_loop(directional)(*tangents)
            except NotImplementedError as error:
                raise RuleError(
                    f"torch cannot push through an operation here ({str(error).splitlines()[0]}): use mode='pull'"
                ) from error

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        back = torch.func.vjp(self.function, *(each.contiguous() for each in self.at))[1]
        return vmap_or_loop(back)(cotangent)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return super().cost(shapes, back=back)._replace(macs=self._macs)

    @cached_property
    def _macs(self) -> int:
        return count_macs(self.function, self.at)


def count_macs(function: Callable[..., Tensor], at: tuple[Tensor, ...]) -> int:
    """Return the multiply-adds of one call of the function; only matrix products and convolutions count.

    Not under vmap: FlopCounterMode does not support function transforms.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        function(*at)
    return counter.get_total_flops() // 2
