"""Complex numbers made of live tensors, followed as pairs of real ones: rotations by `view_as_complex`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.functionalization import is_inplace
from bilrp.trace.operation import Op
from bilrp.trace.replay import is_close


class ComplexPairs:
    """The real tensor (..., 2) on the tape that stands for each complex tensor of the run."""

    def __init__(self) -> None:
        self.pair_by_id: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # by id: the complex tensor, kept alive, and the real one

    def is_complex_call(self, name: str, tensors: Sequence[Tensor], live: Sequence[Tensor]) -> bool:
        """Is this call to be followed in real numbers?"""
        return (name == "view_as_complex" and bool(live)) or (
            bool(self.pair_by_id) and any(id(t) in self.pair_by_id for t in tensors)
        )

    def call(
        self,
        op: Op,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        recorder: AbstractContextManager[object],
    ) -> Tensor:
        """What the call gives; the recorder takes notes of the real calls that do the same.

        Args:
            op: the row of the table of operations.
            func: the call itself, with its `args` and `kwargs`.
            recorder: the mode that takes notes of calls, which is off within its own `__torch_function__`.
        """
        written_out = None if is_inplace(op, func, args, kwargs) else REAL_EQUIVALENTS.get(op.name)
        given = [a for a in args if id(a) in self.pair_by_id] or list(args[:1])
        if written_out is None or kwargs or len(given) > 1:
            raise TapeError(format_complex_error(op.name))
        result = func(*args)
        pair = self.pair_by_id[id(given[0])][1] if id(given[0]) in self.pair_by_id else given[0]
        with recorder:
            pair = written_out(pair, *(a for a in args if a is not given[0]))
        if not result.is_complex():
            return pair
        if not is_close(pair.detach(), torch.view_as_real(result.detach()).to(pair.dtype)):
            raise TapeError(format_complex_error(op.name))
        self.pair_by_id[id(result)] = (result, pair)
        return result


def format_complex_error(name: str) -> str:
    return (
        f"'{name}' makes complex numbers of a live tensor, which cannot be followed: write it with real ones (a rotation "
        "by cos and sin, a transform by its matrix)"
    )


def _multiply(pair: Tensor, other: Any) -> Tensor:
    """(x + iy)(u + iv) = xu − yv + i(xv + yu)."""
    x, y = pair.unbind(-1)
    if not isinstance(other, Tensor):
        other = complex(other)
    elif not other.is_complex():
        return torch.stack([x * other, y * other], -1)
    u, v = other.real, other.imag
    return torch.stack([x * u - y * v, x * v + y * u], -1)


REAL_EQUIVALENTS: dict[str, Callable[..., Tensor]] = {
    "view_as_complex": lambda pair: pair,
    "view_as_real": lambda pair: pair,
    "real": lambda pair: pair[..., 0],
    "imag": lambda pair: pair[..., 1],
    "mul": _multiply,
}
