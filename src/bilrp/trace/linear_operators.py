"""The linear operators of weighted steps and their transposes, for any weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Dense:
    """The operator x ↦ x Wᵀ of a linear layer, its transpose c ↦ c W, and its bias broadcast to outputs."""

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x Wᵀ."""
        return F.linear(x, weight)

    def transpose(self, c: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """Return c W.

        Args:
            c: cotangent of the output.
            weight: W, with outputs first.
            like: not used; `Convolution.transpose` needs it.
        """
        return c @ weight

    def bias(self, bias: Tensor) -> Tensor:
        """Return the bias in a shape that broadcasts to outputs."""
        return bias


@dataclass(frozen=True)
class Convolution:
    """The operator x ↦ W * x of a convolution or transposed convolution, for any leading dimensions."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    @cached_property
    def rank(self) -> int:
        """Number of spatial dimensions."""
        return len(self.stride)

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the convolution of x, without a bias."""
        lead, flat = x.shape[: -self.rank - 1], x.reshape(-1, *x.shape[-self.rank - 1 :])
        out = torch.ops.aten.convolution(flat, weight, None, *self._convolution_args())
        return out.reshape(*lead, *out.shape[1:])

    def transpose(self, c: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """Return the transpose of the convolution applied to c.

        Args:
            c: cotangent of the output.
            weight: weights of the convolution.
            like: a tensor with the channels and spatial size of the input, which the output's shape does not determine.
        """
        lead, flat = c.shape[: -self.rank - 1], c.reshape(-1, *c.shape[-self.rank - 1 :])
        shape = like.shape[-self.rank - 1 :]
        if self.is_correlation(weight):
            # faster than convolution_backward
            flipped = weight.flip(tuple(range(2, weight.dim()))).transpose(0, 1)
            pads = [
                d * (k - 1) - p for d, k, p in zip(self.dilation, weight.shape[2:], self.padding, strict=True)
            ]
            zero = [0] * self.rank
            out = torch.ops.aten.convolution(
                flat, flipped, None, self.stride, pads, self.dilation, False, zero, 1
            )
        else:
            unused_input = flat.new_empty(1).expand(flat.shape[0], *shape)
            out = torch.ops.aten.convolution_backward(
                flat, unused_input, weight, None, *self._convolution_args(), [True, False, False]
            )[0]
        return out.reshape(*lead, *shape)

    def bias(self, bias: Tensor) -> Tensor:
        """Return the bias in a shape that broadcasts to outputs."""
        return bias.reshape(-1, *[1] * self.rank)

    def is_correlation(self, weight: Tensor) -> bool:
        """Return whether the transpose is a plain convolution with flipped weights."""
        kernel = zip(self.padding, self.dilation, weight.shape[2:], strict=True)
        pads_fit = all(p <= d * (k - 1) for p, d, k in kernel)
        return not self.transposed and self.groups == 1 and set(self.stride) == {1} and pads_fit

    def _convolution_args(self):
        output_padding = self.output_padding or (0,) * self.rank
        return (self.stride, self.padding, self.dilation, self.transposed, output_padding, self.groups)
