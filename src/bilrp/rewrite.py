"""Tape → Tape: fold batch norm into the weights before it, drop identities, fuse ReLUs. The model is never touched."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bilrp.rules import batch_norm_scale, weights_of
from bilrp.tape import Slot, Step, Tape

IDENTITIES = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
IDENTITIES |= {"contiguous", "clone", "detach", "data", "alias", "positive"}


def simplify(tape: Tape, keep: frozenset[int] = frozenset()) -> Tape:
    """All rewrites in order. Values in `keep` stay visible (layers that are asked for by number).

    >>> import torch
    >>> from bilrp.tape import record
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU()).eval()
    >>> [step.label for step in simplify(record(net, torch.ones(1, 1, 4, 4))).steps]
    ['conv2d+relu']
    """
    return fuse_relu(fold_batch_norm(drop_identities(tape, keep), keep), keep)


def drop_identities(tape: Tape, keep: frozenset[int] = frozenset()) -> Tape:
    """Remove steps that change nothing; their users read the value before them."""
    steps: list[Step] = []
    same: dict[int, int] = {}
    for step in tape.steps:
        step = _rewired(step, same)
        if step.op in IDENTITIES and step.result.dtype == step.values[0].dtype and step.output not in keep:
            same[step.output] = step.inputs[0]
        else:
            steps.append(step)
    return replace(tape, steps=tuple(steps), output=same.get(tape.output, tape.output))


def fold_batch_norm(tape: Tape, keep: frozenset[int] = frozenset()) -> Tape:
    """W ← W·scale, b ← b·scale + shift, where a convolution or linear step feeds a batch norm and nothing else."""
    return _merge_pairs(tape, keep, _folded)


def fuse_relu(tape: Tape, keep: frozenset[int] = frozenset()) -> Tape:
    """Let a weighted step know the gate of the ReLU that alone consumes it: the other half is never computed."""
    return _merge_pairs(tape, keep, _gated)


def _merge_pairs(tape: Tape, keep: frozenset[int], merge) -> Tape:
    """Replace neighbours (first, second) by merge(first, second) where `first` has no other user and merge agrees."""
    users = tape.consumers()
    made = {step.output: step for step in tape.steps}
    merged: dict[int, Step] = {}  # output of second -> the merged step
    dropped: set[int] = set()
    for second in tape.steps:
        first = made.get(second.inputs[0]) if len(second.inputs) == 1 else None
        if first is None or len(users[first.output]) > 1 or first.output in keep | {tape.output}:
            continue
        joined = merge(first, second)
        if joined is not None:
            merged[second.output] = joined
            dropped.add(first.output)
    steps = tuple(merged.get(s.output, s) for s in tape.steps if s.output not in dropped)
    return replace(tape, steps=steps)


def _gated(first: Step, second: Step) -> Step | None:
    if second.op != "relu" or first.gate is not None or weights_of(first) is None:
        return None
    return replace(first, output=second.output, gate=(first.result > 0).to(first.result.dtype))


def _folded(first: Step, second: Step) -> Step | None:
    if second.op != "batch_norm" or first.op in {"matmul", "addmm"} or weights_of(first) is None:
        return None
    if first.op == "linear" and first.result.dim() != 2:
        return None  # batch norm counts channels on axis 1, a linear step on the last
    weights = weights_of(first)
    assert weights is not None
    scale, shift = batch_norm_scale(second)
    bias = shift if weights.bias is None else weights.bias * scale + shift
    weight = _scaled(weights.weight, scale, "transpose" in first.op, first.argument(6, "groups", 1))
    return replace(
        first,
        args=(Slot(0), weight, bias, *first.args[3:]),
        kwargs={k: v for k, v in first.kwargs.items() if k not in {"input", "weight", "bias"}},
        output=second.output,
        result=second.result,
    )


def _scaled(weight: Tensor, scale: Tensor, transposed: bool, groups: int) -> Tensor:
    """Scale each output channel; a transposed convolution keeps them on axis 1, group by group."""
    ones = [1] * (weight.dim() - 2)
    if not transposed:
        return weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
    grouped = weight.reshape(groups, -1, *weight.shape[1:]) * scale.reshape(groups, 1, -1, *ones)
    return grouped.reshape(weight.shape)


def _rewired(step: Step, same: dict[int, int]) -> Step:
    if not any(value in same for value in step.inputs):
        return step
    return replace(step, inputs=tuple(same.get(value, value) for value in step.inputs))
