"""Comparisons of whole values, by the calls that go several numbers at a time.

Torch compares into booleans, and selects by them, one number at a time: as long as a small layer runs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gate_of(z: Tensor) -> Tensor:
    """1[z > 0] as numbers of z's own type.

    >>> gate_of(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 1.])
    """
    return torch.gt(z, 0, out=torch.empty_like(z))


def equal(a: Tensor, b: Tensor) -> bool:
    """`torch.equal`, of large values on the processor by numpy.

    >>> equal(torch.zeros(2), torch.zeros(2)), equal(torch.zeros(2), torch.ones(2))
    (True, False)
    """
    if (
        a.numel() < LARGE
        or a.dtype != b.dtype
        or a.dtype not in NUMPY
        or a.device.type != "cpu"
        or b.device.type != "cpu"
    ):
        return torch.equal(a, b)
    return a.shape == b.shape and bool((a.detach().numpy() == b.detach().numpy()).all())


LARGE = 2**14  # numbers from which on numpy is faster, with all it takes to call it
NUMPY = {torch.float16, torch.float32, torch.float64}  # types that it compares as torch does


def all_finite(t: Tensor) -> bool:
    """Are all numbers finite, for sure? A sum tells, unless it overflows itself.

    >>> all_finite(torch.ones(2)), all_finite(torch.tensor([0.0, torch.nan]))
    (True, False)
    """
    return math.isfinite(float(t.sum()))


def has_negative(t: Tensor) -> bool:
    """Is any number below zero?

    >>> has_negative(torch.tensor([0.0, -1.0])), has_negative(torch.zeros(0))
    (True, False)
    """
    return t.numel() > 0 and bool(t.amin() < 0)
