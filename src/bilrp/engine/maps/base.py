"""The base class of maps, and helpers for its subclasses.

Every map acts on tangents of shape (K, *value.shape): K regions when pushing, K coordinates when pulling. `push` and
`pull` are required. With `geometry` a map of images can also be pushed on windows and on sparse tangents; the other
methods make this fast.
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

MACS_PER_DENSIFIED_NUMBER = 5  # to densify one number
MAX_DENSE_COLUMNS = 16  # columns densified at once by maps without their own push_sparse


class Shapes(NamedTuple):
    """Shapes of the sources and the target of a map."""

    sources: tuple[torch.Size, ...]
    target: torch.Size

    @property
    def numel(self) -> int:
        return sum(shape.numel() for shape in self.sources) + self.target.numel()

    @property
    def are_images(self) -> bool:
        """Whether all of them are single images, (1, C, H, W)."""
        return all(is_image(shape) for shape in (*self.sources, self.target))


def is_image(shape: torch.Size) -> bool:
    """Return whether a shape is (1, C, H, W)."""
    return len(shape) == 4 and shape[0] == 1


class Map(ABC):
    """A step frozen at one input: the linear map J, as push (J s) and pull (Jᵀ c).

    Attributes:
        slots: Which of the step's live inputs the map depends on; the rule froze the others.
        on_mask: Whether the map acts on a region's 0/1 mask instead of its values.
    """

    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    @abstractmethod
    def push(self, *tangents: Tensor) -> Tensor:
        """Return J s."""

    @abstractmethod
    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """Return Jᵀ c, one tensor per slot."""

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        """Return the multiply-adds to push (or pull) one vector; only matrix products and convolutions count."""
        return 0

    def setup_macs(self, shapes: Shapes, source_layout: SparseLayout | None = None) -> int:
        """Return the multiply-adds needed once, before the first push or pull.

        Args:
            shapes: Shapes of sources and target.
            source_layout: Layout of the source for a sparse push; None for all other methods.
        """
        return 0

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        """Return the temporary elements to push (or pull) one vector, besides sources and target."""
        return shapes.sources[0].numel() if back else shapes.target.numel()

    def to_channels_first(self, shapes: Shapes) -> Map | None:
        """Return the equivalent of a map of (1, H, W, C) for (1, C, H, W); None if there is none."""
        return None

    def commute_pooling(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        """Return J' and Π' with Π J = J' Π', to pool before the map instead of after it; None if there are none."""
        return None

    # ------------------------------------------------------------ on windows

    def geometry(self, shapes: Shapes) -> Geometry | None:
        """Return the field of an output position; None if this is not a spatial map of images."""
        return None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        """Return J s on windows of the target.

        Args:
            sources: Tangents of each source, zero outside their windows.
            origin: Upper left corner (K, 2) of each window of the target.
            size: Height and width of these windows.
            shapes: Shapes of sources and target.
        """
        dense = self.push(*(w.to_images(shape) for w, shape in zip(sources, shapes.sources, strict=True)))
        return crop_each(dense, origin, size)

    def prepare_windows(self) -> Map:
        """Return the map with its constants in the memory format that is fastest to crop from."""
        return self

    def window_macs(self, size: tuple[int, int], shapes: Shapes, *, back: bool = False) -> int:
        """Return the multiply-adds to push (or pull) one window of the target.

        Args:
            size: Height and width of the window of the target.
            shapes: Shapes of sources and target.
            back: Whether to count a pull instead of a push.
        """
        return self.macs(shapes, back=back)

    def can_pull_windows(self, shapes: Shapes) -> bool:
        """Return whether `pull_windows` is implemented for these shapes."""
        return False

    def pull_windows(self, windows: Window, shapes: Shapes) -> Window:
        """Return Jᵀ c on the windows of the source that the windows of the target depend on."""
        raise NotImplementedError

    # ------------------------------------------------------------ on sparse tangents

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        """Return which features (H, W, C) of the target can be non-zero, given those of the sources."""
        return full_mask(shapes.target)

    def input_support(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        """Return which features of each source the target's features `target` depend on."""
        return [full_mask(shape) for shape in shapes.sources]

    def push_sparse(self, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
        """Write J s into a sparse tangent; by default through dense tangents, a few columns at once.

        Args:
            sources: Sparse tangents of the sources.
            target: Where the result is written; its values are uninitialised.
            shapes: Shapes of sources and target.
        """
        for columns in torch.arange(len(target.layout.cone.low)).split(MAX_DENSE_COLUMNS):
            dense = (
                source.to_dense(shape, columns) for source, shape in zip(sources, shapes.sources, strict=True)
            )
            target.load_columns(self.push(*dense)[:, 0], columns)

    def is_identity_on_rows(self, source: SparseLayout, target: SparseLayout, shapes: Shapes) -> bool:
        """Return whether the target's values equal those of its only source, so that memory can be shared.

        Args:
            source: Layout of the only source.
            target: Layout of the result.
            shapes: Shapes of source and target.
        """
        return False

    def sparse_cost(
        self, layouts: Sequence[SparseLayout], target: SparseLayout, shapes: Shapes
    ) -> tuple[int, int]:
        """Return the multiply-adds of `push_sparse`, and the equivalent of its memory traffic.

        Args:
            layouts: Layouts of the sources.
            target: Layout of the result.
            shapes: Shapes of sources and target.
        """
        overridden, columns = type(self).push_sparse is not Map.push_sparse, len(target.cone.low)
        return columns * self.macs(shapes), 0 if overridden else densify_macs(columns, shapes)


def densify_macs(columns: int, shapes: Shapes) -> int:
    """Return the cost of densifying so many columns, in multiply-adds."""
    return MACS_PER_DENSIFIED_NUMBER * columns * shapes.numel


def move_channels_first(tensor: Tensor) -> Tensor:
    """Permute (…, H, W, C) to (…, C, H, W)."""
    return tensor.movedim(-1, -3)


def move_channels_last(tensor: Tensor) -> Tensor:
    """Permute (…, C, H, W) to (…, H, W, C)."""
    return tensor.movedim(-3, -1)


def vmap_or_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.vmap(function)`, with a loop for a batch of one and for operations that vmap does not support."""

    def call(*tensors: Tensor) -> Any:
        if len(tensors[0]) == 1:  # without the cost of vmap, which exceeds that of a small operation
            return _loop(function, tensors)
        with suppress_warnings():
            try:
                return torch.vmap(function)(*tensors)
            except RuntimeError as error:
                if not any(message in str(error) for message in VMAP_ERROR_MESSAGES):
                    raise
        return _loop(function, tensors)

    return call


# Error messages of operations that vmap cannot batch.
VMAP_ERROR_MESSAGES = (
    "Batching rule not implemented",
    "we do not yet support",
    "NYI: querying is_contiguous",  # derivative of a group norm on non-contiguous tensors
    "view size is not compatible",
)


def _loop(function: Callable[..., Any], tensors: tuple[Tensor, ...]) -> Any:
    """Call `function` on each slice of the leading axis and stack the results."""
    results = [function(*each) for each in zip(*tensors, strict=True)]
    if len(results) == 1:
        only = results[0]
        return only[None] if isinstance(only, Tensor) else tuple(output[None] for output in only)
    if isinstance(results[0], Tensor):
        return torch.stack(results)
    return tuple(torch.stack(outputs) for outputs in zip(*results, strict=True))


def scale_by(x: Tensor, factor: Tensor | None) -> Tensor:
    """Return x ⊙ factor, or x for None."""
    return x if factor is None else x * factor


def scale_by_(x: Tensor, factor: Tensor | None) -> Tensor:
    """`scale_by` in place."""
    return x if factor is None else x.mul_(factor)


def apply_gate(factor: Tensor, gate: Tensor) -> Tensor:
    """Return the factor where a 0/1 gate is 1, and 0 elsewhere, also where the factor is inf or nan.

    >>> apply_gate(torch.tensor([2.0, torch.inf]), torch.tensor([1.0, 0.0]))
    tensor([2., 0.])
    """
    if not is_on_cpu(factor):  # masked_fill is as fast there, and needs no synchronisation
        return factor.masked_fill(gate <= 0, 0)
    product = factor * gate  # many times faster than masked_fill, and correct where all is finite
    return product if math.isfinite(float(product.sum())) else factor.masked_fill(gate <= 0, 0)


def sum_in_place(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum, accumulated into the first tensor."""
    total: Tensor | None = None
    for t in tensors:
        total = t if total is None else total.add_(t)
    assert total is not None
    return total
