"""Verify a tape: replay every step from the input and compare with the recorded results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.devices import is_on_cpu, require
from bilrp.trace.layer_weights import extract_weights
from bilrp.trace.linear_operators import Convolution
from bilrp.trace.numerics import all_close, all_finite, get_tolerance, is_close
from bilrp.trace.operation import ArgPositions
from bilrp.trace.tape import Slot, Step, Tape, get_storage_pointer, tree_map

SAMPLED_OUTPUTS_DIVISOR = 16  # replay 1/16 of the outputs of a weighted step
MIN_SAMPLED_OUTPUTS = 64  # below this, replay all outputs
ROW_OPERATIONS = {"gelu", "silu", "relu", "tanh", "layer_norm"}  # compute each row of the last axis by itself
PADDING_POSITION, GROUPS_POSITION = 4, 6  # argument positions of a convolution
Comparison = Callable[[Tensor, Tensor], bool]
TENSOR_LEAF_TYPES = (Tensor, Slot)


def verify_tape(tape: Tape) -> None:
    """Replay the tape from its input; raise `TapeError` if a step does not reproduce its recorded result.

    Weighted steps, poolings, attention, norms and activations take most of the time, so only a sample of their outputs
    or rows is replayed, or two random linear combinations of all outputs. A step whose tensors were written to since,
    according to torch's version counters, is replayed completely. Writes that bypass torch (e.g. numpy, into a weight) are
    detected only if they change the sampled outputs.

    On an accelerator all comparisons are read at once; if one fails, the steps are compared one by one.
    """
    if is_on_cpu(tape.x):
        _replay_steps(tape, is_close)
        return
    comparisons: list[Tensor] = []

    def compare_later(a: Tensor, b: Tensor) -> bool:
        if a.shape == b.shape:
            comparisons.append(all_close(a, b, get_tolerance(a, b)))
        return a.shape == b.shape

    _replay_steps(tape, compare_later)
    if comparisons:
        all_equal = torch.stack([comparison.to(tape.x.device) for comparison in comparisons]).all()
        require(all_equal, lambda: _replay_steps(tape, is_close))


def _replay_steps(tape: Tape, is_same: Comparison) -> None:
    with torch.no_grad():
        values = {tape.input: tape.x}
        last_use = {value: i for i, step in enumerate(tape.steps) for value in step.inputs}
        for i, step in enumerate(tape.steps):
            live = tuple(values[v] for v in step.inputs)
            try:
                matches = _is_view(step, live) or _sample_matches(step, live, i, is_same)
                result = step.result if matches else step.run(*live)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise TapeError(
                    f"{step.describe()} cannot be replayed ({reason}): compute it outside the model"
                ) from error
            if result is not step.result and not is_same(result, step.result):
                raise TapeError(
                    f"running {step.describe()} again gives other numbers: the model is random, or overwrites its "
                    "constants while it runs; make it write out of place"
                )
            values[step.output] = result
            for value in set(step.inputs):
                if last_use[value] == i:
                    del values[value]


def _is_view(step: Step, live: tuple[Tensor, ...]) -> bool:
    """Return whether the result is a view of an input that was already verified."""
    verified = len(live) == 1 and live[0] is step.values[0] and step.operation.kind == "structural"
    return verified and get_storage_pointer(step.result) == get_storage_pointer(live[0])


def _sample_matches(step: Step, live: tuple[Tensor, ...], step_index: int, is_same: Comparison) -> bool:
    """Return whether a sample of the outputs is reproduced; if not, all of them must be compared."""
    window_dims, positions = step.operation.window_dims, step.operation.arg_positions
    acts_on_rows = step.operation.kind == "attention" or step.op in ROW_OPERATIONS
    if (
        not (window_dims or positions or acts_on_rows)
        or (len(live) != 1 and not acts_on_rows)
        or step.output_index is not None
        or step.current_versions != step.versions
    ):
        return False
    try:
        if acts_on_rows:
            return _rows_match(step, live, step_index, is_same)
        if window_dims:
            return _pooling_matches(step, live[0], step_index, is_same)
        return positions is not None and _product_matches(step, positions, live[0], step_index, is_same)
    except (RuntimeError, IndexError, TypeError, ValueError):  # unusual shapes
        return False


def _rows_match(step: Step, live: tuple[Tensor, ...], step_index: int, is_same: Comparison) -> bool:
    """Compare some rows (axis −2) of a step that computes each row by itself: of an attention, those of some queries."""
    rows = step.result.shape[-2]
    if rows < MIN_SAMPLED_OUTPUTS or step.argument(5, "is_causal", False) is True:
        return False
    start, length = _sample_range(rows, step_index)
    mask = step.argument(3, "attn_mask") if step.operation.kind == "attention" else None

    def narrow(leaf: Tensor | Slot) -> Tensor:
        if isinstance(leaf, Slot):
            return live[leaf.index].narrow(-2, start, length) if leaf.index == 0 else live[leaf.index]
        return leaf.narrow(-2, start, length) if leaf is mask and leaf.shape[-2] == rows else leaf

    args = tree_map(step.args, narrow, TENSOR_LEAF_TYPES)
    kwargs = tree_map(step.kwargs, narrow, TENSOR_LEAF_TYPES)
    return is_same(step.call(*args, **kwargs), step.result.narrow(-2, start, length))


def _pooling_matches(step: Step, x: Tensor, step_index: int, is_same: Comparison) -> bool:
    """Compare some channels of a pooling, which treats each channel separately."""
    if x.dim() != step.operation.window_dims + 2 or x.shape[1] < MIN_SAMPLED_OUTPUTS:
        return False
    sample = _sample_range(x.shape[1], step_index)
    return is_same(step.run(x.narrow(1, *sample)), step.result.narrow(1, *sample))


def _product_matches(
    step: Step, positions: ArgPositions, x: Tensor, step_index: int, is_same: Comparison
) -> bool:
    """Compare some outputs of a weighted step, or random combinations of all of them."""
    weight = positions.weight.get(step.args, step.kwargs)
    if (
        positions.columns
        or positions.conv_type == "transposed"
        or not isinstance(weight, Tensor)
        or weight.dim() < 2
    ):
        return False
    count = weight.shape[0]
    bias = None if positions.bias is None else positions.bias.get(step.args, step.kwargs)
    is_vector = bias is None or (isinstance(bias, Tensor) and bias.shape == (count,))
    groups = step.argument(GROUPS_POSITION, "groups", 1)
    # a sample of the outputs of a depthwise convolution needs only the same input channels
    depthwise = bool(positions.conv_type) and groups == count and weight.shape[1] == 1
    if count < MIN_SAMPLED_OUTPUTS or not is_vector or not (groups == 1 or depthwise):
        return False
    many_pixels = (
        weight.dim() == x.dim() == 4
        and len(x) == 1
        and weight.shape[2:].numel() > 1
        and weight.numel() < x.numel()
    )
    if (
        positions.conv_type
        and groups == 1
        and many_pixels
        and not isinstance(step.argument(PADDING_POSITION, "padding", 0), str)
    ):
        return _random_sums_match(step, x, step_index, is_same)
    sample = _sample_range(count, step_index)
    dim = 1 - weight.dim() if positions.conv_type else -1

    def narrow(leaf: Tensor | Slot) -> Tensor:
        if isinstance(leaf, Slot):
            return x.narrow(dim, *sample) if depthwise else x
        return leaf.narrow(0, *sample) if leaf is weight or leaf is bias else leaf

    args = tree_map(step.args, narrow, TENSOR_LEAF_TYPES)
    kwargs = tree_map(step.kwargs, narrow, TENSOR_LEAF_TYPES)
    if depthwise:
        args, kwargs = _with_groups(args, kwargs, sample[1])
    return is_same(step.call(*args, **kwargs), step.result.narrow(dim, *sample))


def _sample_range(count: int, step_index: int) -> tuple[int, int]:
    """Return start and length of the sampled outputs, which differ from step to step."""
    length = -(-count // SAMPLED_OUTPUTS_DIVISOR)
    return step_index * length % (count - length + 1), length


def _random_sums_match(step: Step, x: Tensor, step_index: int, is_same: Comparison) -> bool:
    """Compare two random linear combinations of all outputs of a convolution.

    Coefficients of both signs show a change in one output, positive ones a change common to all outputs. With many
    pixels and few weights this costs less than replaying a sample of the outputs.
    """
    w = extract_weights(step)
    if w is None or not isinstance(w.operator, Convolution):
        return False
    generator, outputs = torch.Generator().manual_seed(step_index), len(w.weight)
    signed, positive = (
        torch.randn(outputs, generator=generator),
        torch.rand(outputs, generator=generator) + 0.5,
    )
    coefficients = torch.stack([signed, positive]).to(x)
    (height, width), size = w.weight.shape[2:], step.result.shape[-2:]
    # the combined kernels, one row for each combination and kernel position, applied to every pixel
    kernels = (
        (coefficients @ w.weight.flatten(1)).reshape(2, -1, height * width).transpose(1, 2).flatten(0, 1)
    )
    products = kernels @ x[0].flatten(1)
    (top, left), strides, dilation = w.operator.padding, w.operator.stride, w.operator.dilation
    products = F.pad(products.unflatten(1, x.shape[2:]), (left, left, top, top)).unflatten(0, (2, -1))
    total = x.new_zeros(2, *size)
    if w.bias is not None:
        total += (coefficients @ w.bias)[:, None, None]
    for position in range(height * width):
        dy, dx = position // width * dilation[0], position % width * dilation[1]
        total += products[:, position, dy :: strides[0], dx :: strides[1]][:, : size[0], : size[1]]
    expected = (coefficients @ step.result[0].flatten(1)).reshape(2, *size)
    # infinite values would match anything; ∞ − ∞ is NaN and therefore not 0
    finite = all_finite(total) if is_same is is_close else is_same(total - total, torch.zeros_like(total))
    return finite and all(is_same(a, b) for a, b in zip(total, expected, strict=True))


def _with_groups(args: tuple[Any, ...], kwargs: dict[str, Any], groups: int) -> tuple[Any, dict[str, Any]]:
    """Return a convolution's arguments with another number of groups."""
    if len(args) > GROUPS_POSITION:
        return (*args[:GROUPS_POSITION], groups, *args[GROUPS_POSITION + 1 :]), kwargs
    return args, {**kwargs, "groups": groups}
