"""Rewrites of a tape: compute in float64, drop identities, fold batch norm, fuse ReLUs.

Every rewrite returns a new tape; the model is not changed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.trace.layer_weights import (
    compute_batch_norm_affine,
    compute_same_padding,
    empty_weights_like,
    expand_to_rank,
    extract_weights,
    is_convolution,
)
from bilrp.trace.linear_operators import Convolution, Dense
from bilrp.trace.numerics import compute_relu_gate
from bilrp.trace.operation_table import OPERATIONS
from bilrp.trace.tape import Slot, Step, Tape, tree_map
from bilrp.trace.weight_cache import cache_tensor

BATCH_NORM_ARGUMENTS = ("running_mean", "running_var", "weight", "bias")


def simplify(tape: Tape, keep: frozenset[int] = frozenset(), *, fuse: bool = True) -> Tape:
    """Apply all rewrites.

    Args:
        tape: the recorded run.
        keep: value numbers that must remain outputs of a step (e.g. requested layers).
        fuse: fuse ReLUs into the weighted steps before them.

    >>> import torch
    >>> from bilrp.trace.recorder import record
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU()).eval()
    >>> [step.label for step in simplify(record(net, torch.ones(1, 1, 4, 4))).steps]
    ['conv2d+relu']
    """
    folded = fold_batch_norm(drop_identities(split_uneven_padding(upcast_to_float64(tape)), keep), keep)
    return fuse_relu(folded, keep) if fuse else folded


def upcast_to_float64(tape: Tape) -> Tape:
    """Convert all tensors and dtypes of a float64 run to float64, so that casts become identities.

    Some models compute norms in float32 even in a float64 run. That rounding is not linear: on the tape it would make
    push and pull differ in the eighth digit.
    """
    if tape.x.dtype != torch.float64 or not any(_is_narrow(step) for step in tape.steps):
        return tape
    return replace(
        tape, steps=tuple(_upcast_step(step) for step in tape.steps), result=_upcast_tensor(tape.result)
    )


def _upcast_step(step: Step) -> Step:
    return replace(
        step,
        args=_upcast_arguments(step.args),
        kwargs=_upcast_arguments(step.kwargs),
        values=tuple(_upcast_tensor(value) for value in step.values),
        result=_upcast_tensor(step.result),
    )


def _is_narrow(step: Step) -> bool:
    return any(value.dtype != torch.float64 for value in (*step.values, step.result))


def _upcast_arguments(tree):
    """Convert tensors and dtypes in nested arguments."""
    floats = tree_map(tree, lambda dtype: torch.float64 if dtype.is_floating_point else dtype, torch.dtype)
    return tree_map(floats, _upcast_tensor)


def _upcast_tensor(t: Tensor) -> Tensor:
    return t.double() if t.dtype.is_floating_point else t


def split_uneven_padding(tape: Tape) -> Tape:
    """Split a convolution with padding='same' and an even kernel into F.pad and a convolution.

    The zeros of F.pad are constants of the run: the relevance that z^B, flat and w² assign to them is unattributed.
    """
    steps: list[Step] = []
    number = max((step.output for step in tape.steps), default=0) + 1
    for step in tape.steps:
        pads = _uneven_pads(step)
        if not pads:
            steps.append(step)
            continue
        padded = F.pad(step.values[0], pads)
        pad = replace(
            step,
            operation=OPERATIONS.find("pad"),
            name=f"{step.name}.pad",
            call=F.pad,
            args=(Slot(0), pads),
            kwargs={},
            output=number,
            result=padded,
        )
        args = tuple(0 if i == 4 else a for i, a in enumerate(step.args))
        kwargs = {k: 0 if k == "padding" else v for k, v in step.kwargs.items()}
        steps += [pad, replace(step, args=args, kwargs=kwargs, inputs=(number,), values=(padded,))]
        number += 1
    return replace(tape, steps=tuple(steps))


def _uneven_pads(step: Step) -> list[int] | None:
    """Return the pads of a convolution that pads one side more than the other, in the order of F.pad."""
    if not is_convolution(step) or len(step.inputs) != 1 or step.argument(4, "padding", 0) != "same":
        return None
    weight = step.argument(1, "weight")
    pads = compute_same_padding(weight, expand_to_rank(step.argument(5, "dilation", 1), weight.dim() - 2))
    uneven = any(before != after for before, after in pads)
    return [p for pair in reversed(pads) for p in pair] if uneven else None


def drop_identities(tape: Tape, keep: frozenset[int] = frozenset()) -> Tape:
    """Remove steps that return their input; later steps then read that input."""
    steps: list[Step] = []
    same: dict[int, int] = {}
    for step in tape.steps:
        step = _rewire(step, same)
        if (
            step.operation.kind in {"identity", "random"}
            and _has_same_dtype_and_device(step)
            and step.output not in keep
        ):
            same[step.output] = step.inputs[0]
        else:
            steps.append(step)
    return replace(tape, steps=tuple(steps), output=same.get(tape.output, tape.output))


def fold_batch_norm(tape: Tape, keep: frozenset[int] = frozenset()) -> Tape:
    """Set W ← W·scale, b ← b·scale + shift for each weighted step that is used only by a batch norm."""
    return _merge_pairs(tape, keep, _fold_norm)


def fuse_relu(tape: Tape, keep: frozenset[int] = frozenset()) -> Tape:
    """Fuse a ReLU into the weighted step before it, if nothing else uses that step."""
    return _merge_pairs(tape, keep, _fuse_gate)


def _merge_pairs(tape: Tape, keep: frozenset[int], merge) -> Tape:
    """Replace (first, second) by merge(first, second) if only `second` uses `first` and merge returns a step."""
    users = tape.consumers()
    producers = {step.output: step for step in tape.steps}
    merged: dict[int, Step] = {}  # by output of `second`
    dropped: set[int] = set()
    for second in tape.steps:
        first = producers.get(second.inputs[0]) if len(second.inputs) == 1 else None
        if first is None or len(users[first.output]) > 1 or first.output in keep | {tape.output}:
            continue
        step = merge(first, second)
        if step is not None:
            merged[second.output] = step
            dropped.add(first.output)
    steps = tuple(merged.get(s.output, s) for s in tape.steps if s.output not in dropped)
    return replace(tape, steps=steps)


def _fuse_gate(first: Step, second: Step) -> Step | None:
    if second.operation.rule != "gate" or first.gate is not None or extract_weights(first) is None:
        return None
    return replace(first, output=second.output, gate=compute_relu_gate(first.result))


def _fold_norm(first: Step, second: Step) -> Step | None:
    weights = extract_weights(first) if second.operation.kind == "statistics" else None
    if weights is None or weights.columns:
        return None
    if first.result.dim() != weights.weight.dim() or second.argument(5, "training", False):
        return None  # channels are not on dimension 1, as batch norm needs: a linear step, an unbatched convolution
    scale, shift = compute_batch_norm_affine(second)
    bias = shift if weights.bias is None else weights.bias * scale + shift
    sources = (weights.weight, *(second.argument(i, name) for i, name in enumerate(BATCH_NORM_ARGUMENTS, 1)))
    name = ("folded", second.argument(7, "eps", 1e-5), weights.operator)
    weight = cache_tensor(name, sources, lambda: _scale_channels(weights.weight, scale, weights.operator))
    return replace(
        first,
        args=(Slot(0), weight, bias, *first.args[3:]),
        kwargs={k: v for k, v in first.kwargs.items() if k not in {"input", "weight", "bias"}},
        output=second.output,
        result=second.result,
    )


def _scale_channels(weight: Tensor, scale: Tensor, operator: Dense | Convolution) -> Tensor:
    """Scale each output channel; a transposed convolution has them on dimension 1, within each group."""
    if not isinstance(operator, Convolution) or not operator.transposed:
        each = scale.reshape(-1, *[1] * (weight.dim() - 1))
        return torch.mul(weight, each, out=empty_weights_like(weight, torch.result_type(weight, scale)))
    groups, ones = operator.groups, [1] * (weight.dim() - 2)
    grouped = weight.reshape(groups, -1, *weight.shape[1:]) * scale.reshape(groups, 1, -1, *ones)
    return grouped.reshape(weight.shape)


def _has_same_dtype_and_device(step: Step) -> bool:
    before = step.values[0]
    return step.result.dtype == before.dtype and step.result.device == before.device


def _rewire(step: Step, replacements: dict[int, int]) -> Step:
    if not any(value in replacements for value in step.inputs):
        return step
    return replace(step, inputs=tuple(replacements.get(value, value) for value in step.inputs))
