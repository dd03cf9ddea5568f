"""Comparisons of tensors, written with vectorized torch or numpy calls.

Torch's comparisons into booleans are not vectorized, and take as long as a small layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bilrp.trace.devices import ValueRanges, is_on_cpu, require

MIN_NUMPY_ELEMENTS = 2**14  # from here on numpy is faster than torch.equal
NUMPY_DTYPES = {torch.float16, torch.float32, torch.float64}  # dtypes that numpy compares as torch does
MASK_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
MAX_MASKED_SCORE = -1e4  # added to an attention score, this or less hides a position in all of these dtypes


def compute_relu_gate(z: Tensor) -> Tensor:
    """Return 1[z > 0] in the dtype of z.

    >>> compute_relu_gate(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 1.])
    """
    return torch.gt(z, 0, out=torch.empty_like(z))


def equal(a: Tensor, b: Tensor) -> bool:
    """Return `torch.equal(a, b)`, computed with numpy for large CPU tensors."""
    if (
        a.numel() < MIN_NUMPY_ELEMENTS
        or a.dtype != b.dtype
        or a.dtype not in NUMPY_DTYPES
        or not (is_on_cpu(a) and is_on_cpu(b))
    ):
        return torch.equal(a, b)
    return a.shape == b.shape and bool((a.detach().numpy() == b.detach().numpy()).all())


def all_close(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Return whether max |a − b| ≤ tolerance · max |b|, as a tensor on the device (NaN = NaN, ∞ = ∞).

    Args:
        a: the tensor to compare.
        b: the expected values, of the same shape.
        tolerance: relative to the largest finite |b|.

    >>> all_close(torch.tensor([1.0, torch.inf]), torch.tensor([1.001, torch.inf]), 0.01)
    tensor(True)
    """
    if not a.numel():
        return torch.ones((), dtype=torch.bool, device=b.device)
    largest = torch.nan_to_num(b, nan=0.0, posinf=0.0, neginf=0.0).abs().amax()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0, a - b).abs().amax() <= tolerance * largest


def get_tolerance(a: Tensor, b: Tensor) -> float:
    """Return the relative tolerance for comparing a computation with its repetition."""
    return max(100 * max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps), 1e-9)


def is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same shape and agree up to `get_tolerance`."""
    if a.shape != b.shape:
        return False
    if equal(a, b):
        return True
    tolerance = get_tolerance(a, b)
    b = b.detach()
    if float((a - b).abs().amax()) <= tolerance * float(b.abs().amax()) < math.inf:  # cheap, and usually true
        return True
    largest = float(torch.nan_to_num(b, nan=0.0, posinf=0.0, neginf=0.0).abs().max())
    return torch.allclose(a.to(b.dtype), b, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


def require_close(a: Tensor, b: Tensor, on_failure: Callable[[], object]) -> None:
    """Call `on_failure` unless `is_close(a, b)`; on an accelerator within `defer_checks`, at the end of that block.

    Args:
        a, b: as for `all_close`.
        on_failure: raises the error.
    """
    if is_on_cpu(b) or a.shape != b.shape:
        if not is_close(a, b):
            on_failure()
    else:
        require(all_close(a, b, get_tolerance(a, b)), on_failure)


def all_finite(t: Tensor) -> bool:
    """Return whether the sum is finite, which proves that all values are."""
    return math.isfinite(float(t.sum()))


def has_negative(t: Tensor, ranges: ValueRanges | None = None) -> bool:
    """Return whether any value is negative, looked up in `ranges` if possible.

    >>> has_negative(torch.tensor([0.0, -1.0])), has_negative(torch.zeros(0))
    (True, False)
    """
    known = None if ranges is None else ranges.get(t)
    return t.numel() > 0 and (bool(t.amin() < 0) if known is None else known[0] < 0)


def all_negative(t: Tensor, ranges: ValueRanges | None = None) -> bool:
    """Return whether all values are negative, looked up in `ranges` if possible."""
    known = None if ranges is None else ranges.get(t)
    return bool(t.amax() < 0) if known is None else known[1] < 0


def is_mask(t: Tensor) -> bool:
    """Return whether a tensor is a numeric mask: all 0 and 1 (to multiply), or all 0 and about −∞ (to add).

    >>> is_mask(torch.tensor([0.0, 1.0])), is_mask(torch.tensor([0.0, -0.5]))
    (True, False)
    """
    return can_be_mask(t) and any(bool(check) for check in check_mask_values(t))


def can_be_mask(t: Tensor) -> bool:
    """Return whether dtype and layout allow the tensor to be a mask."""
    return t.dtype in MASK_DTYPES and t.layout == torch.strided and not t.is_meta and t.dim() > 0


def check_mask_values(t: Tensor) -> Iterator[Tensor]:
    """Yield whether all values are 0 or 1, then whether all are 0 or at most `MAX_MASKED_SCORE`."""
    zero = t == 0
    yield (zero | (t == 1)).all()
    yield (zero | (t <= MAX_MASKED_SCORE)).all()
