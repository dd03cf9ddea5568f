"""Run a tape once more, from its input: a step that now gives other numbers was not seen as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.devices import is_on_cpu, require
from bilrp.trace.layer_weights import extract_weights
from bilrp.trace.linear_operators import Convolution
from bilrp.trace.numerics import all_close, all_finite, equal
from bilrp.trace.operation import ArgPositions
from bilrp.trace.tape import Slot, Step, Tape, get_storage_pointer, tree_map

SAMPLED_OUTPUTS_DIVISOR = 16  # one in so many outputs of a product with weights is computed again
MIN_SAMPLED_OUTPUTS = 64  # outputs that are all computed again
PADDING_POSITION, GROUPS_POSITION = 4, 6  # where a convolution is told them
Comparison = Callable[[Tensor, Tensor], bool]
TENSOR_LEAF_TYPES = (Tensor, Slot)  # what a step's arguments hold of tensors


def verify_tape(tape: Tape) -> None:
    """Run the tape once more, from the input: a step that now gives other numbers was not seen as it was.

    Products with weights and poolings take nearly all of a run's time, and are run for some of their outputs, or for
    their sum by random numbers. Nothing is lost by it where torch counts writes: what was written to since is run
    whole. A write that torch does not see (numpy's, into the memory of a weight) is found where it reaches those outputs.

    An accelerator answers for all steps at once; where it says no, they are asked one by one.
    """
    if is_on_cpu(tape.x):
        _replay_steps(tape, is_close)
        return
    answers: list[Tensor] = []

    def assume(a: Tensor, b: Tensor) -> bool:
        answers.append(all_close(a, b, _tolerance(a, b))) if a.shape == b.shape else None
        return a.shape == b.shape

    _replay_steps(tape, assume)
    if answers:
        holds = torch.stack([answer.to(tape.x.device) for answer in answers]).all()
        require(holds, lambda: _replay_steps(tape, is_close))


def _replay_steps(tape: Tape, is_same: Comparison) -> None:
    with torch.no_grad():
        values = {tape.input: tape.x}
        last = {value: i for i, step in enumerate(tape.steps) for value in step.inputs}
        for i, step in enumerate(tape.steps):
            live = tuple(values[v] for v in step.inputs)
            try:
                holds = _is_view(step, live) or _matches_sampled(step, live, i, is_same)
                again = step.result if holds else step.run(*live)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise TapeError(
                    f"{step.describe()} cannot be run again by itself ({reason}): compute it outside the model"
                ) from error
            if again is not step.result and not is_same(again, step.result):
                raise TapeError(
                    f"running {step.describe()} again gives other numbers: the model is random, or overwrites its "
                    "constants while it runs; make it write out of place"
                )
            values[step.output] = again
            for value in set(step.inputs):
                if last[value] == i:
                    del values[value]


def _is_view(step: Step, live: tuple[Tensor, ...]) -> bool:
    """Does it only look at the very numbers that stand there? They have been looked at."""
    seen = len(live) == 1 and live[0] is step.values[0] and step.operation.kind == "structural"
    return seen and get_storage_pointer(step.result) == get_storage_pointer(live[0])


def _matches_sampled(step: Step, live: tuple[Tensor, ...], step_index: int, is_same: Comparison) -> bool:
    """Does a step give the same numbers again, where some of its outputs are asked? (No: ask for all.)"""
    axes, places = step.operation.window_dims, step.operation.arg_positions
    if (
        not (axes or places)
        or len(live) != 1
        or step.output_index is not None
        or step.current_versions != step.versions
    ):
        return False
    try:
        if axes:
            return _pooling_matches(step, live[0], step_index, is_same)
        return places is not None and _product_matches(step, places, live[0], step_index, is_same)
    except (RuntimeError, IndexError, TypeError, ValueError):  # a call with its own ideas about shapes
        return False


def _pooling_matches(step: Step, x: Tensor, step_index: int, is_same: Comparison) -> bool:
    """A pooling, which takes each channel by itself."""
    if x.dim() != step.operation.window_dims + 2 or x.shape[1] < MIN_SAMPLED_OUTPUTS:
        return False
    some = _sample_range(x.shape[1], step_index)
    return is_same(step.run(x.narrow(1, *some)), step.result.narrow(1, *some))


def _product_matches(
    step: Step, positions: ArgPositions, x: Tensor, step_index: int, is_same: Comparison
) -> bool:
    """A product with weights."""
    weight = positions.weight.get(step.args, step.kwargs)
    if (
        positions.columns
        or positions.conv_type == "transposed"
        or not isinstance(weight, Tensor)
        or weight.dim() < 2
    ):
        return False
    count, bias = (
        weight.shape[0],
        None if positions.bias is None else positions.bias.get(step.args, step.kwargs),
    )
    usual = bias is None or (isinstance(bias, Tensor) and bias.shape == (count,))
    groups = step.argument(GROUPS_POSITION, "groups", 1)
    # where each channel is convolved by itself, some outputs need the same channels of the input alone
    apart = bool(positions.conv_type) and groups == count and weight.shape[1] == 1
    if count < MIN_SAMPLED_OUTPUTS or not usual or not (groups == 1 or apart):
        return False
    wide = (
        weight.dim() == x.dim() == 4
        and len(x) == 1
        and weight.shape[2:].numel() > 1
        and weight.numel() < x.numel()
    )
    if (
        positions.conv_type
        and groups == 1
        and wide
        and not isinstance(step.argument(PADDING_POSITION, "padding", 0), str)
    ):
        return _random_sums_match(step, x, step_index, is_same)
    some = _sample_range(count, step_index)
    axis = 1 - weight.dim() if positions.conv_type else -1

    def part(thing: Tensor | Slot) -> Tensor:
        if isinstance(thing, Slot):
            return x.narrow(axis, *some) if apart else x
        return thing.narrow(0, *some) if thing is weight or thing is bias else thing

    args, kwargs = (
        tree_map(step.args, part, TENSOR_LEAF_TYPES),
        tree_map(step.kwargs, part, TENSOR_LEAF_TYPES),
    )
    if apart:
        args, kwargs = _with_groups(args, kwargs, some[1])
    return is_same(step.call(*args, **kwargs), step.result.narrow(axis, *some))


def _sample_range(count: int, step_index: int) -> tuple[int, int]:
    """One in `SAMPLED_OUTPUTS_DIVISOR` of so many outputs, others at each step: where they begin, and how many."""
    length = -(-count // SAMPLED_OUTPUTS_DIVISOR)
    return step_index * length % (count - length + 1), length


def _random_sums_match(step: Step, x: Tensor, step_index: int, is_same: Comparison) -> bool:
    """All outputs of a convolution at once, added up by random numbers: two outputs, of the weights so added up.

    Once by numbers of either sign, where a change in one output shows best, and once by positive ones, where one that all
    outputs share does not cancel. Where values are many and weights few that costs less than a few outputs.
    """
    w = extract_weights(step)
    if w is None or not isinstance(w.operator, Convolution):
        return False
    draw, outputs = torch.Generator().manual_seed(step_index), len(w.weight)
    signed, positive = torch.randn(outputs, generator=draw), torch.rand(outputs, generator=draw) + 0.5
    by = torch.stack([signed, positive]).to(x)
    (tall, wide), size = w.weight.shape[2:], step.result.shape[-2:]
    # what each place of the kernel makes of every position: sums × places, as many rows as that
    kernels = (by @ w.weight.flatten(1)).reshape(2, -1, tall * wide).transpose(1, 2).flatten(0, 1)
    mixed = kernels @ x[0].flatten(1)
    (top, left), (down, across), (far, out) = w.operator.padding, w.operator.stride, w.operator.dilation
    seen = F.pad(mixed.unflatten(1, x.shape[2:]), (left, left, top, top)).unflatten(0, (2, -1))
    total = x.new_zeros(2, *size)
    if w.bias is not None:
        total += (by @ w.bias)[:, None, None]
    for number in range(tall * wide):
        y, z = number // wide * far, number % wide * out
        total += seen[:, number, y::down, z::across][:, : size[0], : size[1]]
    found = (by @ step.result[0].flatten(1)).reshape(2, *size)
    # infinite numbers would agree with any; ∞ − ∞ is no number, and so not 0
    finite = all_finite(total) if is_same is is_close else is_same(total - total, torch.zeros_like(total))
    return finite and all(is_same(a, b) for a, b in zip(total, found, strict=True))


def _with_groups(args: tuple[Any, ...], kwargs: dict[str, Any], groups: int) -> tuple[Any, dict[str, Any]]:
    """A convolution's arguments with another number of groups."""
    if len(args) > GROUPS_POSITION:
        return (*args[:GROUPS_POSITION], groups, *args[GROUPS_POSITION + 1 :]), kwargs
    return args, {**kwargs, "groups": groups}


def is_close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if equal(a, b):
        return True
    slack = _tolerance(a, b)
    b = b.detach()
    if float((a - b).abs().amax()) <= slack * float(b.abs().amax()) < math.inf:  # as most are, and soon told
        return True
    finite = torch.nan_to_num(b, nan=0.0, posinf=0.0, neginf=0.0)
    largest = float(finite.abs().max())
    return torch.allclose(a.to(b.dtype), b, rtol=slack, atol=slack * largest, equal_nan=True)


def require_close(a: Tensor, b: Tensor, on_failure: Callable[[], object]) -> None:
    """Call `otherwise`, which raises, unless both are the same; an accelerator is asked with the other checks of a run."""
    if is_on_cpu(b) or a.shape != b.shape:
        if not is_close(a, b):
            on_failure()
    else:
        require(all_close(a, b, _tolerance(a, b)), on_failure)


def _tolerance(a: Tensor, b: Tensor) -> float:
    return max(100 * max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps), 1e-9)
