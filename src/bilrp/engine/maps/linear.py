"""Maps given as torch functions: affine ones, ones that only move numbers, and the true derivative of any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bilrp.engine.maps.base import Map, Shapes, vmap_or_loop
from bilrp.errors import RuleError

# torch's levels of forward derivatives belong to the whole process: one thread pushes through derivatives at a time.
_FORWARD_AD_LOCK = threading.RLock()


@dataclass(frozen=True, eq=False)
class Linear(Map):
    """J is the derivative of `function`, which is affine in its tensors: reshapes, sums, shifts, products.

    `at` holds one tensor of the right shape for each slot; J does not depend on their values. `adds_constant` tells
    whether the
    function adds a constant, where that is known (`engine.maps.affine_constants`).
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

        # A constant is added: subtracting it again would lose digits (-1e9) or all of them (-inf). So transpose the
        # transpose; forward derivatives would do as well, but torch crashes on some of them while it counts operations.
        def directional(*t: Tensor) -> Tensor:
            back = torch.func.vjp(self.function, *zeros)[1]
            forth = torch.func.vjp(back, torch.zeros_like(constant))[1]
            return forth(t)[0]

        return vmap_or_loop(directional)(*tangents)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        back = torch.func.vjp(self.function, *(torch.zeros_like(t) for t in self.at))[1]
        return vmap_or_loop(back)(cotangent)

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        return self._macs

    @cached_property
    def _macs(self) -> int:
        return count_macs(self.function, self.at)


@dataclass(frozen=True, eq=False)
class Rearrange(Linear):
    """J only moves numbers about, or sets some to zero: reshapes, permutations, padding, concatenation."""

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0


@dataclass(frozen=True, eq=False)
class Jacobian(Map):
    """J is the true derivative of `function` at `at`: gradient propagation, for Hessian×Product."""

    function: Callable[..., Tensor]
    at: tuple[Tensor, ...]
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        def directional(*t: Tensor) -> Tensor:
            # torch's own derivative of a group norm asks for a plain layout
            at, t = (tuple(each.contiguous() for each in given) for given in (self.at, t))
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

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        return self._macs

    @cached_property
    def _macs(self) -> int:
        return count_macs(self.function, self.at)


def count_macs(function: Callable[..., Tensor], at: tuple[Tensor, ...]) -> int:
    """Multiply-adds of one vector, counted by running the function once: only products count, so most are free.

    It runs by itself, not under vmap: torch's counter and its function transforms do not go together.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        function(*at)
    return counter.get_total_flops() // 2
