"""Max and min, over windows, axes or operands: the winner is selected; ties share equally."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps import Linear, Map, Pool, Scale
from bilrp.errors import RuleError
from bilrp.rules.rule import Rule
from bilrp.trace.tape import Step, fill
from bilrp.trace.weights import spread


def select() -> Rule:
    """Max and min, over windows, axes or operands: J selects the winner; ties share equally."""
    return Rule("select", freeze_selection)


def freeze_selection(step: Step) -> Map:
    if step.operation.rule != "select":
        raise RuleError(
            f"select is a rule for max, min, topk, sort and max-pooling, not for {step.describe()}"
        )
    by_kind = {"order": _by_index, "pool": _pool, "adaptive": _adaptive_pool}
    if step.operation.kind in by_kind:
        return by_kind[step.operation.kind](step)
    operands = len(step.inputs) == 2 or isinstance(step.argument(1, "other"), Tensor)
    return _between_operands(step) if operands else _along_axes(step)


def _between_operands(step: Step) -> Map:
    """max(a, b), min(a, b): the winner's place; equal operands share."""
    left, right = step.argument(0, "input"), step.argument(1, "other")
    tie = (left == right).to(step.result.dtype) / 2
    shares = [(side == step.result).to(step.result.dtype) - tie for side in (left, right)]
    live = [shares[i] for i, side in enumerate((left, right)) if any(side is v for v in step.values)]
    if len(step.inputs) == 2 and step.inputs[0] == step.inputs[1]:
        live = [torch.full_like(tie, 0.5)] * 2
    if len(live) == 1 and step.values[0].shape == step.result.shape:
        return Scale(live[0])

    def function(*s: Tensor) -> Tensor:
        return sum((t * share for t, share in zip(s, live, strict=True)), start=torch.zeros_like(step.result))

    return Linear(function, step.values, tuple(range(len(live))))


def _along_axes(step: Step) -> Map:
    """amax, amin, max(dim), min(dim), max(): the winners along the axes."""
    a = step.values[0]
    axes = step.argument(1, "dim", None)
    axes = tuple(range(a.dim())) if axes is None or axes == () else axes
    keep = bool(step.argument(2, "keepdim", False))
    axes = (axes,) if isinstance(axes, int) else tuple(axes)

    def spread(t: Tensor) -> Tensor:
        for axis in () if keep else sorted(x % a.dim() for x in axes):
            t = t.unsqueeze(axis)
        return t

    won = (a == spread(step.result)).to(a.dtype)
    shares = won / won.sum(axes, keepdim=True)
    return Linear(lambda s: (s * shares).sum(axes, keepdim=keep), step.values)


def _by_index(step: Step) -> Map:
    """topk and sort: each output is one input element."""
    values = fill((step.args, step.kwargs), step.values)
    index = step.call(*values[0], **values[1])[1]
    assert step.operation.axis is not None
    dim = step.given(step.operation.axis)
    return Linear(lambda s: s.gather(dim, index), step.values)


def _pool(step: Step) -> Map:
    a, out = step.values[0], step.result
    rank = step.operation.axes
    kernel = spread(step.argument(1, "kernel_size"), rank)
    stride = step.argument(2, "stride")
    stride = kernel if stride is None or stride == [] else spread(stride, rank)
    padding = spread(step.argument(3, "padding", 0), rank)
    dilation = spread(step.argument(4, "dilation", 1), rank)
    return _winners(a, out, kernel, stride, padding, dilation)


def _winners(a: Tensor, out: Tensor, kernel, stride, padding, dilation) -> Pool:
    rank = len(kernel)
    sizes_in, sizes_out = a.shape[-rank:], out.shape[-rank:]
    # zeros after the last element, as far as the last window reaches (ceil_mode reaches further)
    after = [
        max(0, (o - 1) * s + d * (k - 1) + 1 - n - p)
        for o, s, d, k, n, p in zip(sizes_out, stride, dilation, kernel, sizes_in, padding, strict=True)
    ]
    pads = tuple(zip(padding, after, strict=True))
    offsets = tuple(
        tuple(i * d for i, d in zip(index, dilation, strict=True))
        for index in itertools.product(*(range(k) for k in kernel))
    )
    blank = Pool(shares=out.unsqueeze(0), offsets=offsets, stride=stride, padding=pads, at=a)
    lowest = F.pad(a, [p for pad in reversed(pads) for p in pad], value=-math.inf)
    won = torch.stack([(blank.window(lowest, o) == out) for o in range(len(offsets))]).to(out.dtype)
    return Pool(shares=won / won.sum(0), offsets=offsets, stride=stride, padding=pads, at=a)


def _adaptive_pool(step: Step) -> Map:
    a, out = step.values[0], step.result
    rank = step.operation.axes
    sizes = list(zip(a.shape[-rank:], out.shape[-rank:], strict=True))
    if all(n % m == 0 for n, m in sizes):
        kernel = tuple(n // m for n, m in sizes)
        return _winners(a, out, kernel, kernel, (0,) * rank, (1,) * rank)
    # Uneven windows overlap irregularly: follow torch's own winner (a tie goes to the first).
    pool = getattr(F, f"adaptive_max_pool{rank}d")
    index = pool(a, tuple(m for _, m in sizes), return_indices=True)[1].flatten(-rank)
    return Linear(lambda s: s.flatten(-rank).gather(-1, index).reshape(out.shape), step.values)
