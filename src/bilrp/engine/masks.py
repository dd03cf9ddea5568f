"""Masks (H, W, C) of the features of an image that can be non-zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.windows import Geometry


def to_hwc(full: Tensor) -> Tensor:
    """Permute (…, C, H, W) to (H, W, C)."""
    return full.reshape(full.shape[-3:]).permute(1, 2, 0)


def nonzero_mask(full: Tensor) -> Tensor:
    """Return the mask (H, W, C) of non-zero features, in the memory format of `full`.

    Uses numpy, whose comparison is vectorised where torch's is not.
    """
    if full.device.type != "cpu" or full.dtype == torch.bfloat16:
        return to_hwc(full) != 0
    image = full.detach().reshape(full.shape[-3:])
    return torch.from_numpy(image.numpy() != 0).permute(1, 2, 0)


def full_mask(shape: torch.Size) -> Tensor:
    """Return a mask (H, W, C) of all features of a value of that shape, as one expanded element."""
    return torch.ones((), dtype=torch.bool).expand(shape[-3:]).permute(1, 2, 0)


def _is_full(mask: Tensor) -> bool:
    return not any(mask.stride()) and bool(mask.flatten()[:1].all())


def mask_and(a: Tensor, b: Tensor) -> Tensor:
    """Return a & b, without computing it if one of them is `full_mask`."""
    return b if _is_full(a) else a if _is_full(b) else a & b


def mask_or(masks: Iterable[Tensor]) -> Tensor:
    """Return the union of masks; pairwise, as stacking would copy each into another memory format."""
    return reduce(_mask_or_pair, masks)


def _mask_or_pair(a: Tensor, b: Tensor) -> Tensor:
    return a if a is b or _is_full(a) else b if _is_full(b) else a | b


def select_offset(source: Tensor, offset: Sequence[int], geometry: Geometry, shape: Sequence[int]) -> Tensor:
    """Return the source (H, W, C) at one offset of the field of each output position; empty beyond the border.

    Args:
        source: A mask, counts (0 is empty) or row numbers (−1 is empty).
        offset: Offset within the field.
        geometry: Geometry of the map.
        shape: (H, W, …) of the output.
    """
    return pad_to_fields(source, geometry, shape)[offset_slices(offset, geometry, shape)]


def offset_slices(offset: Sequence[int], geometry: Geometry, shape: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices that outputs read, at one offset, of a source padded by `pad_to_fields`.

    Args:
        offset: Offset within the field.
        geometry: Geometry of the map.
        shape: (H, W, …) of the output.
    """
    return tuple(
        slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(offset, shape[:2], geometry.stride, strict=True)
    )


def pad_to_fields(source: Tensor, geometry: Geometry, shape: Sequence[int]) -> Tensor:
    """Pad a source so that it contains the whole field of every output position.

    Args:
        source: A mask or counts (padded with 0), or row numbers (padded with −1), (H, W, C).
        geometry: Geometry of the map.
        shape: (H, W, …) of the output.
    """
    axes = zip(shape[:2], geometry.stride, geometry.extent, geometry.padding, source.shape[:2], strict=True)
    ends = [max(0, (n - 1) * s + e - p - size) for n, s, e, p, size in axes]
    top, left = geometry.padding
    empty = -1 if source.dtype == torch.long else 0
    return F.pad(source, (0, 0, left, ends[1], top, ends[0]), value=empty)
