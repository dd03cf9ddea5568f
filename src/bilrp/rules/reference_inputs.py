"""Reference inputs x₀ of the secant rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.errors import RuleError
from bilrp.trace.fingerprint import hash_code, hash_tensors

if TYPE_CHECKING:
    ReferenceLike: TypeAlias = "str | Tensor | Reference | Callable[[Tensor], Tensor]"
    """A reference by its name, as a tensor of the input's shape, or as a function of the input."""
else:  # checked by `as_reference`, with a helpful message
    ReferenceLike = Any


@dataclass(frozen=True)
class Reference:
    """A function x ↦ x₀ with a name, which is stored in a decomposition's origin."""

    name: str
    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Return x₀; raise unless it is finite and has the input's shape."""
        x0 = self.function(x)
        if not isinstance(x0, Tensor) or x0.shape != x.shape:
            shape = tuple(x0.shape) if isinstance(x0, Tensor) else type(x0).__name__
            raise RuleError(
                f"the reference '{self.name}' is {shape} for an input of shape {tuple(x.shape)}: it must have the "
                "input's shape"
            )
        if not bool(torch.isfinite(x0).all()):
            raise RuleError(f"the reference '{self.name}' has NaN or infinite values: clean it first")
        return x0.detach().to(x)


def mean(x: Tensor) -> Tensor:
    """Return a uniform image of the mean colour of x."""
    _check_image(x, "mean")
    return x.mean((2, 3), keepdim=True).expand_as(x).contiguous()


def blur(x: Tensor) -> Tensor:
    """Return the image without detail finer than an eighth of its shorter side (a box blur, applied twice)."""
    _check_image(x, "blurred")
    radius = max(1, min(x.shape[2:]) // 8)
    for _ in range(2):
        x = F.avg_pool2d(F.pad(x, (radius,) * 4, mode="replicate"), 2 * radius + 1, stride=1)
    return x


REFERENCES: dict[str, Callable[[Tensor], Tensor]] = {"mean": mean, "blurred": blur, "zero": torch.zeros_like}


def as_reference(reference: ReferenceLike) -> Reference:
    """Convert a name, a tensor of the input's shape, or a function of the input to a `Reference`."""
    if isinstance(reference, Reference):
        return reference
    if isinstance(reference, str):
        if reference not in REFERENCES:
            raise RuleError(
                f"unknown reference {reference!r}: use one of {', '.join(REFERENCES)}, a tensor, or a function of the input"
            )
        return Reference(reference, REFERENCES[reference])
    if isinstance(reference, Tensor):
        copied = reference.detach().clone()  # a copy, in case the caller overwrites it
        return Reference(f"tensor{tuple(reference.shape)} {hash_tensors([copied])}", lambda x: copied)
    if not callable(reference):
        raise RuleError(
            f"a reference is one of {', '.join(REFERENCES)}, a tensor, or a function of the input, got "
            f"{type(reference).__name__}"
        )
    return Reference(
        f"{getattr(reference, '__qualname__', type(reference).__qualname__)} {hash_code(reference)}",
        reference,
    )


def _check_image(x: Tensor, name: str) -> None:
    if x.dim() != 4:
        raise RuleError(
            f"the reference '{name}' is for images (1, channels, height, width), and this input has shape "
            f"{tuple(x.shape)}: give a tensor, or a function of the input"
        )
