"""Constants of a run that no recorded call produced, and whether they depend on the input.

A tensor computed outside the tape without gradients (in another thread, under `torch.no_grad`) looks like a constant.
The model is run again at a slightly perturbed input: real constants keep their values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, NoReturn, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import Node

from bilrp.errors import TapeError
from bilrp.trace.devices import defer_checks, is_on_cpu, require
from bilrp.trace.tape import collect_tensors, get_storage_and_version, get_storage_pointer

ConstantKey: TypeAlias = tuple[int, int]  # id and version of a tensor
PERTURBATION_SCALE = 0.01  # relative; towards zero, so that values stay within their bounds


class UntrackedConstant(NamedTuple):
    """A constant that no recorded call produced, with its values, the operation and the location of its first use."""

    tensor: Tensor  # keeps it alive, so that its id stays unique
    value: Tensor
    op: str
    location: str


class RunConstants:
    """The constants of a run: which existed before, and which were computed by recorded calls."""

    def __init__(self, initial_tensors: Iterable[Tensor]):
        self.initial = {id(t): (t, get_storage_and_version(t)) for t in initial_tensors}
        self.initial_states = {state for _, state in self.initial.values()}
        self.results: dict[int, tuple[Tensor, int]] = {}  # id -> result of a call on constants, version
        self.untracked: dict[ConstantKey, UntrackedConstant] = {}  # by id and version
        # written to by recorded calls; the next run may do so again
        self.rewritten_storages: set[int] = set()

    def __contains__(self, t: Tensor) -> bool:
        return id(t) in self.results

    def add_results(self, results: object) -> None:
        """Add the tensors that a recorded call on constants returned."""
        for t in collect_tensors(results):
            self.results[id(t)] = (t, get_storage_and_version(t)[1])

    def reusable_results(self) -> list[Tensor]:
        """Return the results that do not share memory with untracked constants; the model may use them again."""
        storages = {get_storage_pointer(constant.tensor) for constant in self.untracked.values()}
        return [t for t, _ in self.results.values() if get_storage_pointer(t) not in storages]

    def check(self, t: Tensor, op: str, input_node: Node, get_location: Callable[[], str]) -> None:
        """Raise `TapeError` if a tensor that is not live depends on the input; note it if that is unknown.

        Args:
            t: an argument of a call.
            op: name of the operation.
            input_node: autograd node of the input.
            get_location: returns the source location of the call.
        """
        if t.grad_fn is None or t in self:
            if t.dtype.is_floating_point and t.layout == torch.strided and not self._is_known(t):
                key = id(t), get_storage_and_version(t)[1]
                self.untracked[key] = UntrackedConstant(t, t.detach().clone(), op, get_location())
        elif depends_on(t.grad_fn, input_node):
            raise TapeError(
                f"'{op}' received a tensor of shape {tuple(t.shape)} from calls that are not recorded (scripted or "
                "compiled code, or a custom autograd function): use the plain Python module instead"
            )

    def _is_known(self, t: Tensor) -> bool:
        """Return whether a constant existed before the run, or was written only by recorded calls."""
        state = get_storage_and_version(t)
        if (id(t), state[1]) in self.untracked:
            return True
        if t in self:
            unmodified = state[1] == self.results[id(t)][1]
        elif id(t) in self.initial:
            unmodified = state == self.initial[id(t)][1]
        else:  # possibly a view of an initial tensor
            unmodified = state in self.initial_states
        return unmodified or state[0] in self.rewritten_storages


def depends_on(node: Node, origin: Node) -> bool:
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


def find_overwritten(constants: Mapping[ConstantKey, UntrackedConstant]) -> set[ConstantKey]:
    """Return the keys of constants that were overwritten during their own run, which `verify_tape` reports."""
    return {
        key
        for key, constant in constants.items()
        if is_on_cpu(constant.value)
        and not torch.equal(torch.nan_to_num(constant.tensor.detach()), torch.nan_to_num(constant.value))
    }


def reject_input_dependent(
    first: Mapping[ConstantKey, UntrackedConstant],
    second: Mapping[ConstantKey, UntrackedConstant],
    overwritten: Collection[ConstantKey] = (),
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
