"""Constants of a run that no recorded call produced, and whether they depend on the input.

A tensor computed outside the tape without gradients (in another thread, under `torch.no_grad`) looks like a constant.
The model is run again at a slightly perturbed input: real constants keep their values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.devices import defer_checks, is_on_cpu, require

PERTURBATION_SCALE = 0.01  # relative; towards zero, so that values stay within their bounds


class UntrackedConstant(NamedTuple):
    """A constant that no recorded call produced, with its values, the operation and the location of its first use."""

    tensor: Tensor  # keeps it alive, so that its id stays unique
    value: Tensor
    op: str
    location: str


def depends_on(node: Any, origin: Any) -> bool:
    """Return whether the autograd graph leads from `node` back to `origin`."""
    seen, waiting = {node}, [node]
    while waiting:
        node = waiting.pop()
        if node is origin:
            return True
        parents = {parent for parent, _ in node.next_functions if parent is not None} - seen
        seen |= parents
        waiting.extend(parents)
    return False


def perturb(x: Tensor) -> Tensor:
    """Return a slightly different input, for which a model most likely takes the same branches."""
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.detach() * (1 - PERTURBATION_SCALE * noise.to(x))


def find_overwritten(constants: Mapping[Any, UntrackedConstant]) -> set[Any]:
    """Return the keys of constants that were overwritten during their own run, which `verify_tape` reports."""
    return {
        key
        for key, constant in constants.items()
        if is_on_cpu(constant.value)
        and not torch.equal(torch.nan_to_num(constant.tensor.detach()), torch.nan_to_num(constant.value))
    }


def reject_input_dependent(
    first: Mapping[Any, UntrackedConstant],
    second: Mapping[Any, UntrackedConstant],
    overwritten: Collection[Any] = (),
) -> None:
    """Raise `TapeError` if a constant has other values at another input.

    Args:
        first: constants of the recorded run.
        second: constants of the run at the perturbed input, in the same order.
        overwritten: keys of `first` to skip.
    """
    others = list(second.values())
    with defer_checks():
        for number, (key, one) in enumerate(first.items()):
            other = others[number] if number < len(others) else None
            if key in overwritten:
                continue
            if other is None or one.value.shape != other.value.shape:
                _raise_input_dependent(one)
            elif is_on_cpu(one.value):
                if not torch.equal(torch.nan_to_num(one.value), torch.nan_to_num(other.value)):
                    _raise_input_dependent(one)
            else:
                same = torch.nan_to_num(one.value) == torch.nan_to_num(other.value)
                require(same.all(), partial(_raise_input_dependent, one))


def _raise_input_dependent(constant: UntrackedConstant) -> NoReturn:
    place = f" ({constant.location})" if constant.location else ""
    raise TapeError(
        f"'{constant.op}' received a tensor of shape {tuple(constant.value.shape)}{place} that changes with the input and "
        "that no recorded call made: part of the model runs in another thread, or outside torch; run it in the thread of "
        "the model's forward, with torch calls"
    )
