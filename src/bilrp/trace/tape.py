"""The tape of one run: steps in order, each one torch call with its real tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from bilrp.trace.devices import ValueRanges
from bilrp.trace.fingerprint import hash_weights
from bilrp.trace.operation import Argument, Op

SEQUENCE_TYPES = (list, tuple)
SCALAR_TYPES = {int, float, bool, str, type(None)}  # most arguments, which hold nothing


@dataclass(frozen=True)
class Slot:
    """The place of the k-th live tensor in the arguments of a step."""

    index: int


@dataclass(frozen=True, eq=False)
class ReferenceValues:
    """What went in and what came out at a reference input."""

    values: tuple[Tensor, ...]
    result: Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """One torch call of the run: what was called, on which values, with what result.

    `inputs[k]` is the number of the live value that stands at `Slot(k)`, `values[k]` its tensor; all other
    arguments are constants of the run. `sources[k]` is the operation that made it, looking through reshapes,
    arithmetic with constants and denominators. `gate`, where set, is the 0/1 mask of the ReLU that alone consumes
    this step and was fused into it (then `output` is the ReLU's value, `result` still the one before it). `reference`,
    where set, is the same step at a reference input (`trace.reference_run`). `versions` says how often its result and its
    constants had been written to. `ranges`, on an accelerator, knows the smallest and largest numbers of weighted steps.
    """

    operation: Op
    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[int, ...]
    values: tuple[Tensor, ...]
    output: int
    result: Tensor
    sources: tuple[Op, ...] = ()
    output_index: int | None = None
    gate: Tensor | None = None
    reference: ReferenceValues | None = None
    versions: tuple[int, ...] = ()
    ranges: ValueRanges | None = field(default=None, repr=False)

    def run(self, *live: Tensor) -> Tensor:
        """Call the step again with other tensors in the places of the live ones."""
        args, kwargs = fill_slots(self.args, live), fill_slots(self.kwargs, live)
        result = self.call(*args, **kwargs)
        return result if self.output_index is None else result[self.output_index]

    @property
    def current_versions(self) -> tuple[int, ...]:
        """How often torch has seen its result and its constants written to, by now."""
        return tuple(t._version for t in (self.result, *collect_tensors((self.args, self.kwargs))))

    @property
    def op(self) -> str:
        """The operation's name: what composites match."""
        return self.operation.name

    def argument_value(self, argument: Argument) -> Any:
        """What the call was given for an argument of the table; live tensors come as their recorded values."""
        return fill_slots(argument.get(self.args, self.kwargs), self.values)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """The argument given at `position` or as keyword `name`; live tensors come as their recorded values."""
        if position < len(self.args):
            return fill_slots(self.args[position], self.values)
        return fill_slots(self.kwargs.get(name, default), self.values)

    @property
    def label(self) -> str:
        """What the step is called in tables: its operation, with the ReLU fused into it."""
        return self.op if self.gate is None else f"{self.op}+relu"

    def describe(self) -> str:
        """Name, operation and shapes, for error messages."""
        shapes = ", ".join(str(tuple(v.shape)) for v in self.values)
        return f"step '{self.name}' ({self.op}: {shapes} -> {tuple(self.result.shape)})"


@dataclass(frozen=True, eq=False)
class Tape:
    """What the encoder did for one input: steps in order, the input's value number and the output's.

    >>> import torch
    >>> from bilrp.trace.recorder import record
    >>> tape = record(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> [step.op for step in tape.steps]
    ['linear']
    """

    steps: tuple[Step, ...]
    x: Tensor
    result: Tensor
    output: int
    weights: tuple[Tensor, ...] = field(default=(), repr=False)
    input: int = 0
    reference: ReferenceValues | None = field(default=None, repr=False)

    def consumers(self) -> dict[int, list[Step]]:
        """Which steps use each value."""
        uses: dict[int, list[Step]] = {}
        for step in self.steps:
            for value in dict.fromkeys(step.inputs):
                uses.setdefault(value, []).append(step)
        return uses

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 over the weights the run used, so that decompositions of different weights never pair."""
        return hash_weights(self.weights)


def fill_slots(tree: Any, live: tuple[Tensor, ...]) -> Any:
    """Put live tensors back in the places of their slots."""
    if type(tree) in SCALAR_TYPES:
        return tree
    return tree_map(tree, lambda slot: live[slot.index], Slot)


def get_storage_pointer(t: Tensor) -> int:
    """Where the tensor's memory starts; tensors without memory of their own share it with none."""
    try:
        return t.untyped_storage().data_ptr() or -id(t)
    except NotImplementedError:  # sparse tensors
        return -id(t)


def collect_tensors(tree: Any) -> list[Tensor]:
    """The tensors in nested arguments, in order."""
    found: list[Tensor] = []
    _collect_into(tree if type(tree) is tuple else (tree,), found)
    return found


def _collect_into(items: Iterable[Any], tensors: list[Tensor]) -> None:
    for item in items:
        if type(item) in SCALAR_TYPES:
            continue
        if isinstance(item, Tensor):
            tensors.append(item)
        elif isinstance(item, SEQUENCE_TYPES):
            _collect_into(item, tensors)
        elif isinstance(item, dict):
            _collect_into(item.values(), tensors)
        elif isinstance(item, slice):
            _collect_into((item.start, item.stop, item.step), tensors)


def tree_map(tree: Any, fn: Callable[[Any], Any], leaf_types: type | tuple[type, ...] = Tensor) -> Any:
    """Replace every `kind` in nested arguments by `leaf(it)`."""
    if isinstance(tree, leaf_types):
        return fn(tree)
    if isinstance(tree, SEQUENCE_TYPES):
        items = [item if type(item) in SCALAR_TYPES else tree_map(item, fn, leaf_types) for item in tree]
        return items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, dict):
        return {
            key: value if type(value) in SCALAR_TYPES else tree_map(value, fn, leaf_types)
            for key, value in tree.items()
        }
    return tree
