"""Poolings over positions: weighted means and slices, which `passes.hoist_pooling` can move before other maps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps.base import Cost, Map, Shapes
from bilrp.engine.maps.elementwise import Sum
from bilrp.engine.windows import Geometry
from bilrp.trace.devices import is_on_cpu

# Allowed relative error of a rank-one factorisation, in units of eps (six roundings occur). No error is allowed in
# dtypes with an eps above MAX_ROUNDED_EPS (float16).
MAX_ROUNDING_ERROR_EPS, MAX_ROUNDED_EPS = 4, 1e-6
MIN_PRECHECKED_NUMEL = 2**15  # larger factors are first checked on a corner


class Pooling(Map):
    """Π: from many positions to fewer, the same for every feature.

    Attributes:
        axes: The axes that become shorter, counted from the end (negative).
        squeeze: Whether these axes, then of length one, are removed.
    """

    axes: tuple[int, ...]
    squeeze: bool

    @abstractmethod
    def reduce(self, values: Tensor) -> Tensor:
        """Return Π s without squeezing."""

    @abstractmethod
    def expand(self, cotangent: Tensor) -> Tensor:
        """Return Πᵀ c for an unsqueezed c."""

    @abstractmethod
    def infer_pooled_shape(self, shape: torch.Size) -> torch.Size:
        """Return the shape of Π s without squeezing."""

    @abstractmethod
    def commute_factor(self, factor: Tensor, shape: torch.Size) -> tuple[Tensor, Pooling] | None:
        """Return q and Π' with Π diag(factor) = diag(q) Π' for values of that shape; None if there are none."""

    @abstractmethod
    def equals(self, other: Pooling) -> bool:
        """Return whether both are the same pooling."""

    @abstractmethod
    def without_squeeze(self) -> Pooling:
        """Return the pooling that keeps all axes."""

    def push(self, *tangents: Tensor) -> Tensor:
        pooled = self.reduce(tangents[0])
        return pooled.squeeze(self.axes) if self.squeeze else pooled

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        for axis in sorted(self.axes, reverse=True) if self.squeeze else ():
            cotangent = cotangent.unsqueeze(axis)
        return (self.expand(cotangent),)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost()

    def squeeze_map(self) -> Map:
        """Return the map that remains once the value is pooled: it removes the axes of length one, or is the identity."""
        zeros, ones = (0,) * len(self.axes), (1,) * len(self.axes)
        return Narrow(self.axes, zeros, ones, ones, squeeze=True) if self.squeeze else Sum((0,))


@dataclass(frozen=True, eq=False)
class Mean(Pooling):
    """J s = Σ over `axes` of weights ⊙ s: a (weighted) mean or sum over positions.

    Args:
        weights: Weight of each position; axes not in `axes` have length one.
        axes: Axes to sum over, counted from the end (negative).
        squeeze: Whether to remove these axes.
        uniform_weight: The weight of all positions if they are equal, not rounded to the dtype of `weights`.
    """

    weights: Tensor
    axes: tuple[int, ...]
    squeeze: bool = False
    uniform_weight: float | None = None
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def reduce(self, values: Tensor) -> Tensor:
        if self.common_weight is not None:
            return values.mean(self.axes, keepdim=True).mul_(self.common_weight * self.weights.numel())
        return (values * self.weights).sum(self.axes, keepdim=True)

    def expand(self, cotangent: Tensor) -> Tensor:
        if self.common_weight is None:
            return cotangent * self.weights
        shape = torch.broadcast_shapes(cotangent.shape, self.weights.shape)
        return (cotangent * self.common_weight).expand(shape)

    def with_weights(self, weights: Tensor) -> Mean:
        """Return the pooling with other weights."""
        return replace(self, weights=weights, uniform_weight=None)

    def infer_pooled_shape(self, shape: torch.Size) -> torch.Size:
        return _with_lengths(shape, self.axes, (1,) * len(self.axes))

    @cached_property
    def common_weight(self) -> float | None:
        """The weight of all positions if they are equal, which saves a product before the sum."""
        if self.uniform_weight is not None or not is_on_cpu(self.weights):
            return self.uniform_weight
        first, last = self.weights.amin(), self.weights.amax()
        return float(first) if bool(first == last) else None

    def commute_factor(self, factor: Tensor, shape: torch.Size) -> tuple[Tensor, Pooling] | None:
        """Possible where the factor is a product of a factor of positions and one of features."""
        factor = factor.reshape((1,) * (len(shape) - factor.dim()) + factor.shape)
        if not is_on_cpu(factor):  # no synchronisation: only factors that are constant by their strides
            constant = all(factor.shape[axis] == 1 or factor.stride(axis) == 0 for axis in self.axes)
            one = _with_lengths(factor.shape, self.axes, (1,) * len(self.axes))
            features = factor[tuple(slice(0, length) for length in one)]
            return (features.expand(self.infer_pooled_shape(shape)), self) if constant else None
        factors = factor_rank_one(factor, self.axes)
        if factors is None:
            return None
        positions, features = factors
        return features.expand(self.infer_pooled_shape(shape)), self.with_weights(self.weights * positions)

    def equals(self, other: Pooling) -> bool:
        if not isinstance(other, Mean) or self.axes != other.axes:
            return False
        if is_on_cpu(self.weights):
            return torch.equal(self.weights, other.weights)
        equal = (
            self.uniform_weight is not None
            and self.uniform_weight == other.uniform_weight
            and self.weights.shape == other.weights.shape
        )
        return equal or self.weights is other.weights

    def without_squeeze(self) -> Pooling:
        return replace(self, squeeze=False)

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        weighted = not back and self.common_weight is None
        return Cost(workspace=shapes.sources[0].numel() if weighted else 0)

    # ------------------------------------------------------------ images to a single position

    def geometry(self, shapes: Shapes) -> Geometry | None:
        if not shapes.are_images or set(self.axes) != {-2, -1}:
            return None
        size = (shapes.sources[0][-2], shapes.sources[0][-1])
        return Geometry(extent=size, stride=size)

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return inputs[0].flatten(0, 1).any(0)[None, None]


@dataclass(frozen=True, eq=False)
class Narrow(Pooling):
    """A slice of positions, such as the first token.

    Args:
        axes: Axes to slice, counted from the end (negative).
        starts: First position of each axis.
        lengths: Number of positions of each axis.
        sizes: Full length of each axis.
        squeeze: Whether to remove these axes, which then have length one.
    """

    axes: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    sizes: tuple[int, ...]
    squeeze: bool = False
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def reduce(self, values: Tensor) -> Tensor:
        for axis, start, length in zip(self.axes, self.starts, self.lengths, strict=True):
            values = values.narrow(axis, start, length)
        return values

    def expand(self, cotangent: Tensor) -> Tensor:
        pads = [0] * (2 * -min(self.axes))
        for axis, start, length, size in zip(self.axes, self.starts, self.lengths, self.sizes, strict=True):
            pads[2 * (-axis - 1)], pads[2 * (-axis - 1) + 1] = start, size - start - length
        return F.pad(cotangent, pads) if any(pads) else cotangent

    def infer_pooled_shape(self, shape: torch.Size) -> torch.Size:
        return _with_lengths(shape, self.axes, self.lengths)

    def commute_factor(self, factor: Tensor, shape: torch.Size) -> tuple[Tensor, Pooling] | None:
        """Always possible: slice the factor."""
        return self.reduce(factor.expand(shape)), self

    def equals(self, other: Pooling) -> bool:
        return isinstance(other, Narrow) and astuple(self) == astuple(other)

    def without_squeeze(self) -> Pooling:
        return replace(self, squeeze=False)


def factor_rank_one(factor: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """Factor a tensor into p ⊙ q, up to rounding; None if that is impossible.

    p has length one on all axes except `axes`, q on `axes`.

    >>> p, q = factor_rank_one(torch.tensor([[1.0, 3.0], [2.0, 6.0]]), (-2,))
    >>> p.tolist(), q.tolist()
    ([[0.5], [1.0]], [[2.0, 6.0]])
    >>> factor_rank_one(torch.tensor([[1.0, 3.0], [2.0, 5.0]]), (-2,)) is None
    True
    """
    if not factor.numel():  # an empty selection of positions
        return None
    if factor.numel() > MIN_PRECHECKED_NUMEL:  # a corner rules out nearly everything that has no such factors
        corner = factor
        for axis in axes:
            corner = corner.narrow(axis, 0, min(2, corner.shape[axis]))
        if _rank_one_factors(corner, axes) is None:
            return None
    return _rank_one_factors(factor, axes)


def _rank_one_factors(factor: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """Take row and column through the largest element, and check that their product is the factor."""
    size = factor.abs()
    remainder, position = int(size.argmax()), []
    p = q = factor
    for axis in range(-1, -factor.dim() - 1, -1):
        remainder, i = divmod(remainder, factor.shape[axis])
        position.append(i)
        if axis in axes:
            q = q.narrow(axis, i, 1)
        else:
            p = p.narrow(axis, i, 1)
    largest = float(factor[tuple(reversed(position))])
    p = p / largest if largest else p
    eps = torch.finfo(factor.dtype).eps
    tolerance = MAX_ROUNDING_ERROR_EPS * eps if eps < MAX_ROUNDED_EPS else 0
    error = (p * q).sub_(factor).abs_()
    return (p, q) if bool((error <= size.mul_(tolerance)).all()) else None


def _with_lengths(shape: torch.Size, axes: tuple[int, ...], lengths: tuple[int, ...]) -> torch.Size:
    sizes = list(shape)
    for axis, length in zip(axes, lengths, strict=True):
        sizes[axis] = length
    return torch.Size(sizes)
