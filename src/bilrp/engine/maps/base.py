"""What a map is, and what it may say about itself.

Every map acts on tangents of shape (K, *value.shape): K regions when pushing, K coordinates when pulling. `push` and
`pull` are enough. A map of images that also says its `geometry` is pushed on crops and on active rows; the rest of its
answers make that fast.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bilrp.engine.sparse_layout import SparseLayout, SparseTangent, full_mask
from bilrp.engine.windows import Geometry, Window, crop_each
from bilrp.errors import suppress_warnings
from bilrp.trace.devices import is_on_cpu

if TYPE_CHECKING:
    from bilrp.engine.maps.pooling import Pooling

MACS_PER_DENSIFIED_NUMBER = 5  # multiply-adds that pass while one number is laid out whole
MAX_DENSE_COLUMNS = 16  # columns that are laid out whole at once, where a map has no way of its own with rows


class Shapes(NamedTuple):
    """From values of which shapes to a value of which shape a map leads."""

    sources: tuple[torch.Size, ...]
    target: torch.Size

    @property
    def numel(self) -> int:
        return sum(shape.numel() for shape in self.sources) + self.target.numel()

    @property
    def are_images(self) -> bool:
        """Are all of them single images, (1, C, H, W)?"""
        return all(is_image(shape) for shape in (*self.sources, self.target))


def is_image(shape: torch.Size) -> bool:
    return len(shape) == 4 and shape[0] == 1


class Map(ABC):
    """A step frozen at one input: the linear map J, as push (J s) and pull (Jᵀ c).

    `slots` says which of the step's live inputs the map depends on; the others were frozen by the rule. With `on_mask`
    the map acts on a region's 0/1 mask instead of its values.
    """

    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    @abstractmethod
    def push(self, *tangents: Tensor) -> Tensor:
        """J s."""

    @abstractmethod
    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """Jᵀ c, one for each slot."""

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        """Multiply-adds to push (or pull) one vector; only products count."""
        return 0

    def setup_macs(self, shapes: Shapes, source_layout: SparseLayout | None = None) -> int:
        """Multiply-adds that come once, before anything is pushed or pulled (pushed on rows, if these are the source's)."""
        return 0

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        """Numbers that pushing (or pulling) one vector needs for a while, besides its sources and its target."""
        return shapes.sources[0].numel() if back else shapes.target.numel()

    def to_channels_first(self, shapes: Shapes) -> Map | None:
        """The same map of images (1, C, H, W), where this is one of (1, H, W, C); None where it is none."""
        return None

    def commute_pooling(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        """J' and Π' with Π J = J' Π': the same map of values that were pooled before; None where there is none."""
        return None

    # ------------------------------------------------------------ on windows

    def geometry(self, shapes: Shapes) -> Geometry | None:
        """How far the map looks; None where it is not a map from images to an image of the same positions."""
        return None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        """J s on windows of that size of the target which begin at `origin`; elsewhere the sources are zero."""
        whole = self.push(*(w.to_images(shape) for w, shape in zip(sources, shapes.sources, strict=True)))
        return crop_each(whole, origin, size)

    def prepare_windows(self) -> Map:
        """The same map with its constants laid out as windows are cut from them."""
        return self

    def window_macs(self, size: tuple[int, int], shapes: Shapes, *, back: bool = False) -> int:
        """Multiply-adds for one window of that size of the target."""
        return self.macs(shapes, back=back)

    def can_pull_windows(self, shapes: Shapes) -> bool:
        """Can windows be pulled?"""
        return False

    def pull_windows(self, windows: Window, shapes: Shapes) -> Window:
        """Jᵀ c on windows: those of the source are grown by the reach, and may lie over the border."""
        raise NotImplementedError

    # ------------------------------------------------------------ on active rows

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        """Which features (H, W, C) of the target can be non-zero if those of the sources can."""
        return full_mask(shapes.target)

    def input_support(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        """Which features of each source the target's depend on."""
        return [full_mask(shape) for shape in shapes.sources]

    def push_sparse(self, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
        """J s on rows: those of the sources → those of the target, all of which are written: they hold anything."""
        for columns in torch.arange(len(target.layout.cone.low)).split(MAX_DENSE_COLUMNS):
            whole = (
                source.to_dense(shape, columns) for source, shape in zip(sources, shapes.sources, strict=True)
            )
            target.load_columns(self.push(*whole)[:, 0], columns)

    def is_identity_on_rows(self, source: SparseLayout, target: SparseLayout, shapes: Shapes) -> bool:
        """Are the target's rows those of its only source, number for number?"""
        return False

    def sparse_cost(
        self, layouts: Sequence[SparseLayout], target: SparseLayout, shapes: Shapes
    ) -> tuple[int, int]:
        """Multiply-adds of `push_sparse`, and how many more pass while it moves numbers about."""
        own, columns = type(self).push_sparse is not Map.push_sparse, len(target.cone.low)
        return columns * self.macs(shapes), 0 if own else densify_macs(columns, shapes)


def densify_macs(columns: int, shapes: Shapes) -> int:
    """What laying out columns whole costs, in multiply-adds."""
    return MACS_PER_DENSIFIED_NUMBER * columns * shapes.numel


def move_channels_first(tensor: Tensor) -> Tensor:
    """(…, H, W, C) → (…, C, H, W)."""
    return tensor.movedim(-1, -3)


def move_channels_last(tensor: Tensor) -> Tensor:
    """(…, C, H, W) → (…, H, W, C)."""
    return tensor.movedim(-3, -1)


def vmap_or_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` over a leading axis, also where torch can only loop (it says so once for every such operation)."""

    def call(*tensors: Tensor) -> Any:
        with suppress_warnings():
            try:
                return torch.vmap(function)(*tensors)
            except RuntimeError as error:
                if not any(words in str(error) for words in VMAP_ERROR_MESSAGES):
                    raise
        return _loop(function, tensors)

    return call


VMAP_ERROR_MESSAGES = (
    "Batching rule not implemented",
    "we do not yet support",
    "NYI: querying is_contiguous",  # a group norm's derivative, where numbers lie in another order
    "view size is not compatible",
)  # what vmap says of calls it can't batch


def _loop(function: Callable[..., Any], tensors: tuple[Tensor, ...]) -> Any:
    """The same, one by one."""
    found = [function(*each) for each in zip(*tensors, strict=True)]
    if isinstance(found[0], Tensor):
        return torch.stack(found)
    return tuple(torch.stack(outputs) for outputs in zip(*found, strict=True))


def scale_by(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


def scale_by_(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x.mul_(factor)


def apply_gate(factor: Tensor, gate: Tensor) -> Tensor:
    """The factor where a 0/1 gate is open, 0 elsewhere, whatever stands there.

    >>> apply_gate(torch.tensor([2.0, torch.inf]), torch.tensor([1.0, 0.0]))
    tensor([2., 0.])
    """
    if not is_on_cpu(factor):  # a selection is as fast there, and asks nothing
        return factor.masked_fill(gate <= 0, 0)
    product = factor * gate  # many times as fast as a selection, and right where all is finite
    return product if math.isfinite(float(product.sum())) else factor.masked_fill(gate <= 0, 0)


def sum_in_place(tensors: Iterable[Tensor]) -> Tensor:
    """The sum, in the memory of the first."""
    total: Tensor | None = None
    for t in tensors:
        total = t if total is None else total.add_(t)
    assert total is not None
    return total
