"""Max and min over windows, axes or operands: J selects the winner; ties share equally."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps import Linear, Map, MaxPool, Scale
from bilrp.errors import RuleError
from bilrp.rules.rule import Rule
from bilrp.rules.verification import verify_substitute
from bilrp.trace.layer_weights import expand_to_rank
from bilrp.trace.tape import Step, fill_slots

Candidates = Callable[[tuple[Tensor, ...]], Tensor]
"""From the values of a step's live operands to what its outputs choose the largest of, (candidates, *outputs)."""

Shares = Callable[[Step, Candidates], Tensor]
"""What each candidate has of each output: not negative, and summing to one over the candidates."""


def select() -> Rule:
    """Select the winner of max or min over windows, axes or operands; ties share equally."""
    return Rule("select", lambda step: freeze_selection(step, winner_shares))


def winner_shares(step: Step, candidates: Candidates) -> Tensor:
    """Assign each output to its largest candidate; ties share equally."""
    among = candidates(step.values)
    largest = among.amax(0)
    verify_substitute(step, lambda *live: (_sign(step) * largest).reshape(step.result.shape))
    won = torch.eq(among, largest, out=torch.empty_like(among))  # as floats, without a cast
    return won.div_(won.sum(0)).to(step.result.dtype)


def freeze_selection(step: Step, shares: Shares) -> Map:
    """Freeze max, min, topk, sort or max-pooling to a map with these shares of its candidates."""
    if not is_selection(step):
        raise RuleError(
            f"select is a rule for max, min, topk, sort and max-pooling, not for {step.describe()}"
        )
    if step.operation.kind == "write":
        return _scatter_reduce(step)
    if step.operation.kind == "sort":
        return _by_index(step)
    if step.operation.kind == "pool":
        return _pool(step, shares)
    if step.operation.kind == "adaptive":
        return _adaptive_pool(step, shares)
    operands = len(step.inputs) == 2 or isinstance(step.argument(1, "other"), Tensor)
    return _between_operands(step, shares) if operands else _along_axes(step, shares)


def is_selection(step: Step) -> bool:
    """Return whether the step selects values: max, min, topk, sort, max-pooling, or a write with amax or amin."""
    op = step.operation
    written = (
        op.kind == "write"
        and op.accumulate_arg is not None
        and step.argument_value(op.accumulate_arg) in {"amax", "amin"}
    )
    return written or op.rule == "select"


def _scatter_reduce(step: Step) -> Map:
    """Freeze scatter_reduce with amax or amin to the winner of each position; ties share equally."""
    names = ((0, "input"), (3, "src"))
    places = [step.args[i] if i < len(step.args) else step.kwargs[name] for i, name in names]
    dim, index = step.argument(1, "dim"), step.argument(2, "index")
    here, put = (fill_slots(place, step.values) for place in places)
    read = tuple(slice(n) for n in index.shape)  # torch ignores the rest of the source
    won = (put[read] == step.result.gather(dim, index)).to(step.result.dtype)
    if step.argument(5, "include_self", True):
        stayed = (here == step.result).to(step.result.dtype)
    else:  # positions that are written to ignore their old value
        stayed = torch.ones_like(step.result).scatter(dim, index, 0.0)
    ties = stayed.scatter_add(dim, index, won)
    stayed, won = stayed / ties, won / ties.gather(dim, index)

    def function(*live: Tensor) -> Tensor:
        tangents = [torch.zeros_like(t) if isinstance(t, Tensor) else fill_slots(t, live) for t in places]
        return (tangents[0] * stayed).scatter_add(dim, index, tangents[1][read] * won)

    return Linear(function, step.values, tuple(range(len(step.inputs))))


def _sign(step: Step) -> int:
    """Return −1 for a minimum, which is a maximum of negated values, else 1."""
    return -1 if step.op in {"min", "amin", "minimum", "fmin"} else 1


def _between_operands(step: Step, shares: Shares) -> Map:
    """Freeze max(a, b) or min(a, b) to the share of each operand; ties share equally."""
    places = [
        step.args[i] if i < len(step.args) else step.kwargs[name] for i, name in enumerate(("input", "other"))
    ]

    def candidates(values: tuple[Tensor, ...]) -> Tensor:
        return _sign(step) * torch.stack(
            torch.broadcast_tensors(*(fill_slots(place, values) for place in places))
        )

    weights = shares(step, candidates)
    live = [share for share, place in zip(weights, places, strict=True) if not isinstance(place, Tensor)]
    if len(live) == 1 and step.values[0].shape == step.result.shape:
        return Scale(live[0])

    def function(*s: Tensor) -> Tensor:
        return sum((t * share for t, share in zip(s, live, strict=True)), start=torch.zeros_like(step.result))

    return Linear(function, step.values, tuple(range(len(live))))


def _along_axes(step: Step, shares: Shares) -> Map:
    """Freeze amax, amin, max(dim), min(dim) or max() to the winners along the axes."""
    a = step.values[0]
    axes = step.argument(1, "dim", None)
    axes = tuple(range(a.dim())) if axes is None or axes == () else axes
    keep = bool(step.argument(2, "keepdim", False))
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    front = tuple(range(len(axes)))
    sizes = [a.shape[axis] for axis in axes]

    def candidates(values: tuple[Tensor, ...]) -> Tensor:
        return _sign(step) * values[0].movedim(axes, front).flatten(0, len(axes) - 1)

    weights = shares(step, candidates).unflatten(0, sizes).movedim(front, axes)
    return Linear(lambda s: (s * weights).sum(axes, keepdim=keep), step.values)


def _by_index(step: Step) -> Map:
    """Freeze topk or sort to a gather: each output is one input element."""
    values = fill_slots((step.args, step.kwargs), step.values)
    index = step.call(*values[0], **values[1])[1]
    assert step.operation.dim_arg is not None
    dim = step.argument_value(step.operation.dim_arg)
    return Linear(lambda s: s.gather(dim, index), step.values)


def _pool(step: Step, shares: Shares) -> Map:
    rank = step.operation.window_dims
    kernel = expand_to_rank(step.argument(1, "kernel_size"), rank)
    stride = step.argument(2, "stride")
    stride = kernel if stride is None or stride == [] else expand_to_rank(stride, rank)
    padding = expand_to_rank(step.argument(3, "padding", 0), rank)
    dilation = expand_to_rank(step.argument(4, "dilation", 1), rank)
    return _windows(step, shares, kernel, stride, padding, dilation)


def _windows(
    step: Step,
    shares: Shares,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> MaxPool:
    a, out, rank = step.values[0], step.result, len(kernel)
    sizes_in, sizes_out = a.shape[-rank:], out.shape[-rank:]
    # padding after the last element, up to the end of the last window (further with ceil_mode)
    after = [
        max(0, (o - 1) * s + d * (k - 1) + 1 - n - p)
        for o, s, d, k, n, p in zip(sizes_out, stride, dilation, kernel, sizes_in, padding, strict=True)
    ]
    pads = tuple(zip(padding, after, strict=True))
    offsets = tuple(
        tuple(i * d for i, d in zip(index, dilation, strict=True))
        for index in itertools.product(*(range(k) for k in kernel))
    )
    blank = MaxPool(shares=out.unsqueeze(0), offsets=offsets, stride=tuple(stride), padding=pads, at=a)

    def candidates(values: tuple[Tensor, ...]) -> Tensor:
        lowest = F.pad(values[0], [p for pad in reversed(pads) for p in pad], value=-math.inf)
        return torch.stack([blank.window_at_offset(lowest, o) for o in range(len(offsets))])

    return replace(blank, shares=shares(step, candidates))


def _adaptive_pool(step: Step, shares: Shares) -> Map:
    a, out = step.values[0], step.result
    rank = step.operation.window_dims
    sizes = list(zip(a.shape[-rank:], out.shape[-rank:], strict=True))
    if all(n % m == 0 for n, m in sizes):
        kernel = tuple(n // m for n, m in sizes)
        return _windows(step, shares, kernel, kernel, (0,) * rank, (1,) * rank)
    if shares is not winner_shares:
        raise RuleError(f"the windows of {step.describe()} are uneven: only select is a rule for it")
    # Uneven windows overlap irregularly: use the winners that torch returns (the first of a tie).
    pool = getattr(F, f"adaptive_max_pool{rank}d")
    index = pool(a, tuple(m for _, m in sizes), return_indices=True)[1].flatten(-rank)
    return Linear(lambda s: s.flatten(-rank).gather(-1, index).reshape(out.shape), step.values)
