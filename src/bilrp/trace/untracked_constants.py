"""Constants of a run that no recorded call made: were they there before, or made of the input unseen?

A tensor that is made where gradients are off and the tape cannot look (in another thread, under `torch.no_grad`) looks
like any constant. Only the numbers tell: the model runs once more nearby, and what is a constant stays what it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.devices import defer_checks, is_on_cpu, require
from bilrp.trace.tape import get_storage_pointer

PERTURBATION_SCALE = 0.01  # how far, of each number; towards zero, where no bound is crossed


class UntrackedConstant(NamedTuple):
    """A constant that no recorded call made, with its numbers when it was first used, by which call and where."""

    tensor: Tensor  # kept, so that its id stays its own
    value: Tensor
    op: str
    location: str


def depends_on(node: Any, origin: Any) -> bool:
    """Does the autograd graph lead from `node` back to `origin`?"""
    seen, waiting = {node}, [node]
    while waiting:
        node = waiting.pop()
        if node is origin:
            return True
        found = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= found
        waiting.extend(found)
    return False


def perturb(x: Tensor) -> Tensor:
    """Another input, for which a model most likely goes the same way."""
    draw = torch.rand(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.detach() * (1 - PERTURBATION_SCALE * draw.to(x))


def find_overwritten(constants: Mapping[Any, UntrackedConstant]) -> set[Any]:
    """Keys of constants whose memory was written during their own run: replaying the tape reports these."""
    return {
        key
        for key, one in constants.items()
        if is_on_cpu(one.value)
        and not torch.equal(torch.nan_to_num(one.tensor.detach()), torch.nan_to_num(one.value))
    }


def reject_input_dependent(
    first: Mapping[Any, UntrackedConstant],
    second: Mapping[Any, UntrackedConstant],
    overwritten: Collection[Any] = (),
) -> None:
    """Refuse constants of a run that are others at another input.

    Args:
        first: constants of the run that is recorded.
        again: those of the run at a nearby input, in the same order.
        overwritten: keys in `first` that are left out.
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
        "that no recorded call made: a part of the model runs in another thread, or outside torch; run it in the "
        "thread of the model's forward, with torch calls"
    )


def get_storage_and_version(t: Tensor) -> tuple[int, int]:
    """The memory of a tensor, and how often it was written to as far as torch counts."""
    return get_storage_pointer(t), 0 if t.is_inference() else t._version
