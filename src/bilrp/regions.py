"""Regions: groups of input features, each with a label 0 … count-1; −1 means in no region.

A *spec* is a function x → Regions, so that inputs of different sizes can share it: `grid(8)`, `features()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bilrp.errors import InputError


@dataclass(frozen=True, eq=False)
class Regions:
    """A partition of one input's features.

    `labels` is shaped like the input without its batch axis. `boxes`, for rectangles over all channels, holds
    (top, left, bottom, right) of each region; `names` are words to show (tokens).
    """

    labels: Int[Tensor, "*features"]
    count: int
    kind: str
    boxes: Tensor | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        sizes = torch.bincount(self.labels.flatten() + 1, minlength=self.count + 1)[1:]
        if len(sizes) > self.count:
            raise InputError(
                f"labels run up to {len(sizes) - 1}, but there are {self.count} regions: count from 0"
            )
        if self.names is not None and len(self.names) != self.count:
            raise InputError(f"{len(self.names)} names for {self.count} regions: give one for each")
        if self.count == 0 or bool((sizes == 0).any()):
            empty = (
                "there are none" if self.count == 0 else f"region {int((sizes == 0).nonzero()[0])} is empty"
            )
            raise InputError(
                f"every region needs at least one feature, but {empty}: number labels 0 … n-1 without gaps"
            )

    def masks(self, which: Tensor, dtype: torch.dtype) -> Tensor:
        """0/1 masks of the regions with these numbers, (K, 1, *input): what push starts from."""
        wanted = which.to(self.labels.device)
        shape = (-1, 1, *[1] * self.labels.dim())
        return (self.labels == wanted.reshape(shape)).to(dtype)

    def pool(self, relevance: Float[Tensor, "k 1 *features"]) -> Float[Tensor, "k {self.count}"]:
        """Sum relevance (K, 1, *input) over each region, (K, count): Appendix E sums, so it conserves."""
        sums = relevance.new_zeros(relevance.shape[0], self.count + 1)
        return sums.index_add_(1, self.labels.flatten() + 1, relevance.flatten(1))[:, 1:]


Spec = Callable[[Tensor], Regions]


def for_both(specs: Any) -> tuple[Any, Any]:
    """The specs of two inputs: a tuple of two is one for each, anything else serves both."""
    return specs if isinstance(specs, tuple) and len(specs) == 2 else (specs, specs)


def grid(size: int | tuple[int, int]) -> Spec:
    """k×k pixel patches over all channels, row by row; patches at the right and bottom edge may be smaller.

    >>> grid(8)(torch.zeros(1, 3, 16, 20)).count
    6
    """
    high, wide = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    if not (isinstance(high, Integral) and isinstance(wide, Integral)):
        raise InputError(f"grid needs whole pixels, as in grid(8) or grid((8, 4)), got {type(size).__name__}")
    high, wide = int(high), int(wide)
    if high < 1 or wide < 1:
        raise InputError(f"grid needs patches of at least one pixel, got {size}")

    def spec(x: Tensor) -> Regions:
        if x.dim() != 4:
            raise InputError(
                f"grid needs an image of shape (1, channels, height, width), got {tuple(x.shape)}: "
                "use features() or labels(mask)"
            )
        rows, columns = (
            torch.arange(n, device=x.device) // k for n, k in ((x.shape[2], high), (x.shape[3], wide))
        )
        across = int(columns[-1]) + 1
        labels = (rows[:, None] * across + columns).expand(x.shape[1:])
        tops, lefts = torch.meshgrid(
            torch.arange(0, x.shape[2], high), torch.arange(0, x.shape[3], wide), indexing="ij"
        )
        bottoms, rights = (tops + high).clamp(max=x.shape[2]), (lefts + wide).clamp(max=x.shape[3])
        boxes = torch.stack([t.flatten() for t in (tops, lefts, bottoms, rights)], dim=1)
        return Regions(labels, len(boxes), kind=f"grid({size})", boxes=boxes)

    return spec


def features() -> Spec:
    """Every input feature by itself, flattened row-major.

    >>> features()(torch.zeros(1, 3, 4)).count
    12
    """

    def spec(x: Tensor) -> Regions:
        count = x[0].numel()
        return Regions(torch.arange(count, device=x.device).reshape(x.shape[1:]), count, kind="features()")

    return spec


def labels(mask: Tensor | Any, *, names: tuple[str, ...] | None = None) -> Spec:
    """Any partition: an integer tensor shaped like the input without its batch axis (or without its channels).

    −1 means in no region; the part of such features is unattributed.

    >>> labels(torch.tensor([0, 0, 1, -1]))(torch.zeros(1, 4)).count
    2
    """
    given = torch.as_tensor(mask)
    if given.dtype.is_floating_point or given.dtype == torch.bool:
        raise InputError(f"labels need an integer tensor, got {given.dtype}")

    def spec(x: Tensor) -> Regions:
        # An image mask without channels holds for all channels; no other axis is ever guessed.
        fitting = [x.shape[1:], x.shape[2:]] if x.dim() > 3 else [x.shape[1:]]
        if given.shape not in fitting:
            raise InputError(
                f"labels of shape {tuple(given.shape)} do not fit an input of shape {tuple(x.shape)}: "
                f"give a tensor of shape {' or '.join(str(tuple(shape)) for shape in fitting)}"
            )
        full = given.to(x.device).long().expand(x.shape[1:])
        if int(full.min()) < -1:
            raise InputError(f"labels run from -1 (no region) upwards, got {int(full.min())}")
        if int(full.max()) >= full.numel():
            raise InputError(
                f"a label of {int(full.max())} for {full.numel()} features: number them 0 … n-1 without gaps"
            )
        return Regions(full, int(full.max()) + 1, kind="labels", boxes=_boxes(full), names=names)

    return spec


def tokens(names: tuple[str, ...] | list[str] | None = None) -> Spec:
    """One region for each position of a sequence of shape (1, length, width).

    >>> tokens(["a", "cat"])(torch.zeros(1, 2, 5)).names
    ('a', 'cat')
    """

    def spec(x: Tensor) -> Regions:
        if x.dim() != 3:
            raise InputError(f"tokens need an input of shape (1, length, width), got {tuple(x.shape)}")
        if names is not None and len(names) != x.shape[1]:
            raise InputError(f"{len(names)} token names for a sequence of length {x.shape[1]}")
        index = torch.arange(x.shape[1], device=x.device)[:, None].expand(x.shape[1:])
        return Regions(index, x.shape[1], kind="tokens()", names=None if names is None else tuple(names))

    return spec


def default(x: Tensor) -> Regions:
    """8×8 patches for images, single features for everything else."""
    return grid(8)(x) if x.dim() == 4 else features()(x)


def resolve(spec: Any, x: Tensor) -> Regions:
    """A spec, ready-made Regions, the side of a patch, or an integer mask, as the regions of x."""
    if spec is None:
        return default(x)
    if isinstance(spec, Regions):
        if spec.labels.shape != x.shape[1:]:
            raise InputError(
                f"regions for an input of shape (1, *{tuple(spec.labels.shape)}), got {tuple(x.shape)}"
            )
        return spec
    if isinstance(spec, Integral):
        return grid(int(spec))(x)
    if isinstance(spec, Tensor | np.ndarray):
        return labels(spec)(x)
    made = spec(x) if callable(spec) else None
    if not isinstance(made, Regions):
        raise InputError(
            f"regions are grid(8), features(), labels(mask), tokens(), a side in pixels or an integer mask, "
            f"not {type(spec).__name__}"
        )
    return made


def _boxes(full: Tensor) -> Tensor | None:
    """Bounding boxes, if every region is a rectangle over all channels of an image."""
    if full.dim() != 3 or not bool((full == full[:1]).all()):
        return None
    flat = full[0]
    boxes = []
    for label in range(int(flat.max()) + 1):
        where = (flat == label).nonzero()
        if len(where) == 0:
            return None
        (top, left), (bottom, right) = where.amin(0).tolist(), (where.amax(0) + 1).tolist()
        if (bottom - top) * (right - left) != len(where):
            return None
        boxes.append((top, left, bottom, right))
    return torch.tensor(boxes)
