"""Check before a run that recording all of its values fits into memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from bilrp.trace.devices import check_fits

MIN_CHECKED_INPUT_BYTES = 16 * 2**20  # smaller inputs are not checked before the run


def forward_bytes(forward: Callable[[Tensor], object], x: Tensor) -> int | None:
    """Return the bytes of all values of a forward pass at x, computed on fake tensors; None if that fails."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    counter = _AllocationCounter()
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as fake, counter:
            forward(fake.from_tensor(x))
    except Exception:  # not every model runs on fake tensors; the real run reports real errors
        return None
    return counter.total_bytes


class _AllocationCounter(TorchDispatchMode):
    """Sum the bytes of all results that do not share memory with the arguments of their call."""

    total_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        arguments = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        allocated = (
            t for t in tree_iter(out) if isinstance(t, Tensor) and t.untyped_storage()._cdata not in arguments
        )
        self.total_bytes += sum(t.numel() * t.element_size() for t in allocated)
        return out


def check_forward_fits(forward: Callable[[Tensor], object], x: Tensor) -> None:
    """Raise InputError if recording all values of a forward pass at x does not fit into memory."""
    needed = forward_bytes(forward, x) if x.numel() * x.element_size() >= MIN_CHECKED_INPUT_BYTES else None
    if needed is not None:
        check_fits(
            needed, x.device, f"one run on an input of shape {tuple(x.shape)}", "use a smaller input (--size)"
        )
