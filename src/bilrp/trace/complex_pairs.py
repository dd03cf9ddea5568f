"""Complex tensors computed from live ones, recorded as pairs of real tensors (rotations by `view_as_complex`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.functionalization import is_inplace
from bilrp.trace.numerics import is_close
from bilrp.trace.operation import Op


class ComplexPairs:
    """The real tensor (..., 2) on the tape for each complex tensor of the run."""

    def __init__(self) -> None:
        # by id of the complex tensor: the tensor itself, so that its id stays unique, and the real pair
        self.pair_by_id: dict[int, tuple[Tensor, Tensor]] = {}

    def is_complex_call(self, name: str, tensors: Sequence[Tensor], live: Sequence[Tensor]) -> bool:
        """Return whether the call must be recorded in real numbers.

        Args:
            name: name of the operation.
            tensors: all tensors among its arguments.
            live: those that depend on the input.
        """
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
        """Run the call, record the equivalent real calls, and return its result.

        Args:
            op: the operation.
            func, args, kwargs: the call.
            recorder: the recording mode, which is off inside its own `__torch_function__`.
        """
        real_call = None if is_inplace(op, func, args, kwargs) else REAL_EQUIVALENTS.get(op.name)
        operands = [a for a in args if id(a) in self.pair_by_id] or list(args[:1])
        if real_call is None or kwargs or len(operands) > 1:
            raise TapeError(format_complex_error(op.name))
        result, operand = func(*args), operands[0]
        pair = self.pair_by_id[id(operand)][1] if id(operand) in self.pair_by_id else operand
        with recorder:
            pair = real_call(pair, *(a for a in args if a is not operand))
        if not result.is_complex():
            return pair
        if not is_close(pair.detach(), torch.view_as_real(result.detach()).to(pair.dtype)):
            raise TapeError(format_complex_error(op.name))
        self.pair_by_id[id(result)] = (result, pair)
        return result


def format_complex_error(name: str) -> str:
    """Return the message for an operation on complex tensors that cannot be recorded."""
    return (
        f"'{name}' makes complex numbers of a live tensor, which cannot be recorded: use real numbers (cos and sin for a "
        "rotation, the matrix of a Fourier transform)"
    )


def _multiply(pair: Tensor, other: Any) -> Tensor:
    """Return (x + iy)(u + iv) = xu − yv + i(xv + yu)."""
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
