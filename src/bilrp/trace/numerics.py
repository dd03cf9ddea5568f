"""Comparisons of whole values, by the calls that go several numbers at a time.

Torch compares into booleans, and selects by them, one number at a time: as long as a small layer runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bilrp.trace.devices import ValueRanges


def compute_relu_gate(z: Tensor) -> Tensor:
    """1[z > 0] as numbers of z's own type.

    >>> compute_relu_gate(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 1.])
    """
    return torch.gt(z, 0, out=torch.empty_like(z))


def equal(a: Tensor, b: Tensor) -> bool:
    """`torch.equal`, of large values on the processor by numpy.

    >>> equal(torch.zeros(2), torch.zeros(2)), equal(torch.zeros(2), torch.ones(2))
    (True, False)
    """
    if (
        a.numel() < MIN_NUMPY_ELEMENTS
        or a.dtype != b.dtype
        or a.dtype not in NUMPY_DTYPES
        or a.device.type != "cpu"
        or b.device.type != "cpu"
    ):
        return torch.equal(a, b)
    return a.shape == b.shape and bool((a.detach().numpy() == b.detach().numpy()).all())


def all_close(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Are all numbers equal, or apart by at most that share of the largest? One boolean, which nobody waits for.

    >>> all_close(torch.tensor([1.0, torch.inf]), torch.tensor([1.001, torch.inf]), 0.01)
    tensor(True)
    """
    if not a.numel():
        return torch.ones((), dtype=torch.bool, device=b.device)
    largest = torch.nan_to_num(b, nan=0.0, posinf=0.0, neginf=0.0).abs().amax()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0, a - b).abs().amax() <= tolerance * largest


MIN_NUMPY_ELEMENTS = 2**14  # numbers from which on numpy is faster, with all it takes to call it
NUMPY_DTYPES = {torch.float16, torch.float32, torch.float64}  # types that it compares as torch does


def all_finite(t: Tensor) -> bool:
    """Are all numbers finite, for sure? A sum tells, unless it overflows itself.

    >>> all_finite(torch.ones(2)), all_finite(torch.tensor([0.0, torch.nan]))
    (True, False)
    """
    return math.isfinite(float(t.sum()))


def has_negative(t: Tensor, ranges: ValueRanges | None = None) -> bool:
    """Is any number below zero? `ranges` may know.

    >>> has_negative(torch.tensor([0.0, -1.0])), has_negative(torch.zeros(0))
    (True, False)
    """
    known = None if ranges is None else ranges.get(t)
    return t.numel() > 0 and (bool(t.amin() < 0) if known is None else known[0] < 0)


def all_negative(t: Tensor, ranges: ValueRanges | None = None) -> bool:
    """Are all numbers below zero? `ranges` may know.

    >>> all_negative(torch.tensor([0.0, -1.0])), all_negative(torch.tensor([-1.0]))
    (False, True)
    """
    known = None if ranges is None else ranges.get(t)
    return bool(t.amax() < 0) if known is None else known[1] < 0


MASK_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
MAX_MASKED_SCORE = -1e4  # added to the score of a position, this or less hides it in every one of these types


def is_mask(t: Tensor) -> bool:
    """A mask in numbers, which belongs to the item as a boolean one does: 0 and 1 to multiply, 0 and −∞ (or so) to add.

    >>> is_mask(torch.tensor([0.0, 1.0])), is_mask(torch.tensor([0.0, -0.5]))
    (True, False)
    """
    return can_be_mask(t) and any(bool(sign) for sign in check_mask_values(t))


def can_be_mask(t: Tensor) -> bool:
    """Can its numbers be compared with those of a mask?"""
    return t.dtype in MASK_DTYPES and t.layout == torch.strided and not t.is_meta and t.dim() > 0


def check_mask_values(t: Tensor) -> Iterator[Tensor]:
    """Has it only 0 and 1? Has it only 0 and −∞ (or so)?"""
    zero = t == 0
    yield (zero | (t == 1)).all()
    yield (zero | (t <= MAX_MASKED_SCORE)).all()
