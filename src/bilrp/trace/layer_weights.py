"""Operator, weights and bias of a linear, convolution or batch-norm step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilrp.errors import RuleError
from bilrp.trace.devices import ValueRanges
from bilrp.trace.linear_operators import Convolution, Dense
from bilrp.trace.tape import Step


@dataclass(frozen=True, eq=False)
class Weights:
    """A weighted step z = W a + b.

    Args:
        operator: how the weights act on the input.
        weight, bias: W, with outputs first, and b, if any.
        a, z: the step's input and output.
        columns: the call was x @ W, so outputs are on the last dimension.
        ranges: on an accelerator, the value ranges of a and z.
    """

    operator: Dense | Convolution
    weight: Tensor
    bias: Tensor | None
    a: Tensor
    z: Tensor
    columns: bool = False
    ranges: ValueRanges | None = None

    def apply(self, weight: Tensor, a: Tensor, bias: Tensor | None = None) -> Tensor:
        """Apply the step's operator with other weights, inputs and bias.

        Args:
            weight: weights of the shape of W.
            a: input of the operator.
            bias: bias to add, if any.
        """
        out = self.operator.apply(a, weight)
        return out if bias is None else out + self.operator.bias(bias)


def extract_weights(step: Step) -> Weights | None:
    """Return the weights of a linear or convolution step with constant weights; None for any other step."""
    at = step.operation.arg_positions
    if at is None or len(step.inputs) != 1 or step.argument_value(at.input) is not step.values[0]:
        return None
    weight, bias = step.argument_value(at.weight), None if at.bias is None else step.argument_value(at.bias)
    if at.conv_type:
        operator = _build_convolution(step, weight, transposed=at.conv_type == "transposed")
    elif _is_plain_linear(step, weight, bias):
        operator, weight = Dense(), weight.T if at.columns else weight
    else:
        return None
    return Weights(
        operator, weight, bias, a=step.values[0], z=step.result, columns=at.columns, ranges=step.ranges
    )


def empty_weights_like(weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate weights of the same shape in the memory layout of the kernels (channels last for 2-d convolutions)."""
    return torch.empty_like(weight, dtype=dtype, memory_format=_kernel_memory_format(weight))


def to_kernel_layout(weight: Tensor) -> Tensor:
    """Return the weights in the memory layout of the kernels, without a copy if they already have it."""
    return weight.contiguous(memory_format=_kernel_memory_format(weight)) if weight.dim() == 4 else weight


def _kernel_memory_format(weight: Tensor) -> torch.memory_format:
    return torch.channels_last if weight.dim() == 4 else torch.preserve_format


def is_convolution(step: Step) -> bool:
    """Return whether the step is a convolution or a transposed one, also with live weights."""
    return step.operation.arg_positions is not None and step.operation.arg_positions.conv_type != ""


def _is_plain_linear(step: Step, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether the step is x Wᵀ + b with a matrix W and a vector b, without the scale factors of addmm."""
    unscaled = step.kwargs.get("beta", 1) == 1 and step.kwargs.get("alpha", 1) == 1
    return weight.dim() == 2 and (bias is None or bias.dim() == 1) and unscaled


def _build_convolution(step: Step, weight: Tensor, *, transposed: bool) -> Convolution:
    rank = weight.dim() - 2
    padding, dilation = step.argument(4, "padding", 0), step.argument(7 if transposed else 5, "dilation", 1)
    return Convolution(
        stride=expand_to_rank(step.argument(3, "stride", 1), rank),
        padding=_resolve_padding(padding, weight, expand_to_rank(dilation, rank), step),
        dilation=expand_to_rank(dilation, rank),
        groups=step.argument(6, "groups", 1),
        transposed=transposed,
        output_padding=expand_to_rank(step.argument(5, "output_padding", 0) if transposed else 0, rank),
    )


def expand_to_rank(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return a stride, padding or the like with one number per spatial dimension."""
    if isinstance(value, int):
        return (value,) * rank
    values = tuple(value)
    return values * rank if len(values) == 1 else values


def _resolve_padding(padding: Any, weight: Tensor, dilation: tuple[int, ...], step: Step) -> tuple[int, ...]:
    if not isinstance(padding, str):
        return expand_to_rank(padding, weight.dim() - 2)
    if padding == "valid":
        return (0,) * (weight.dim() - 2)
    pads = compute_same_padding(weight, dilation)
    if any(before != after for before, after in pads):
        raise RuleError(
            f"{step.describe()} pads one side more than the other: call bilrp.trace.rewrite.simplify first"
        )
    return tuple(before for before, _ in pads)


def compute_same_padding(weight: Tensor, dilation: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return what padding='same' adds before and after each dimension."""
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    return [(t // 2, t - t // 2) for t in total]


def compute_batch_norm_affine(step: Step) -> tuple[Tensor, Tensor]:
    """Return scale and shift per channel of batch norm in eval mode: z = scale·a + shift."""
    mean, var = step.argument(1, "running_mean"), step.argument(2, "running_var")
    weight, bias = step.argument(3, "weight"), step.argument(4, "bias")
    scale = (var + step.argument(7, "eps", 1e-5)).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias
