"""The base class of maps, and helpers for its subclasses.

Every map acts on tangents of shape (K, *value.shape): K regions when pushing, K coordinates when pulling. `push` and
`pull` are required. With `geometry` a map of images can also be pushed on windows and on sparse tangents; the other
methods make this fast.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from bilrp.engine.windows import Geometry
from bilrp.errors import suppress_warnings
from bilrp.trace.devices import is_on_cpu


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


class Cost(NamedTuple):
    """Cost of a map.

    Args:
        macs: Multiply-adds for one vector.
        workspace: Temporary elements for one vector, besides sources and target.
    """

    macs: int = 0
    workspace: int = 0


class Map(ABC):
    """A step frozen at one input: the linear map J, as push (J s) and pull (Jᵀ c).

    Attributes:
        slots: Which of the step's live inputs the map depends on; the rule detached the others.
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

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        """Return the cost to push (or pull) one vector; only matrix products and convolutions count."""
        return Cost(workspace=shapes.sources[0].numel() if back else shapes.target.numel())

    # ------------------------------------------------------------ on windows

    def geometry(self, shapes: Shapes) -> Geometry | None:
        """Return the field of an output position; None if this is not a spatial map of images."""
        return None

    # ------------------------------------------------------------ on sparse tangents

    def support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        """Return which features (H, W, C) of the target can be non-zero, given those of the sources."""
        return full_mask(shapes.target)


def full_mask(shape: torch.Size) -> Tensor:
    """Return a mask (H, W, C) of all features of a value of that shape, as one expanded element."""
    return torch.ones((), dtype=torch.bool).expand(shape[-3:]).permute(1, 2, 0)


def nonzero_mask(full: Tensor) -> Tensor:
    """Return the mask (H, W, C) of non-zero features of an image-shaped tensor.

    Uses numpy, whose comparison is vectorised where torch's is not.
    """
    image = full.detach().reshape(full.shape[-3:])
    is_numpy = is_on_cpu(image) and image.dtype != torch.bfloat16
    return (torch.from_numpy(image.numpy() != 0) if is_numpy else image != 0).permute(1, 2, 0)


def move_channels_first(tensor: Tensor) -> Tensor:
    """Permute (…, H, W, C) to (…, C, H, W)."""
    return tensor.movedim(-1, -3)


def move_channels_last(tensor: Tensor) -> Tensor:
    """Permute (…, C, H, W) to (…, H, W, C)."""
    return tensor.movedim(-3, -1)


Outputs = TypeVar("Outputs")


def vmap_or_loop(function: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """Return `torch.vmap(function)`, with a loop for a batch of one and for operations that vmap does not support."""

    def call(*tensors: Tensor) -> Outputs:
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
