"""The tape of one run: its steps in order, each one torch call with its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.devices import ValueRanges
from bilrp.trace.fingerprint import hash_weights
from bilrp.trace.operation import Argument, Op

SEQUENCE_TYPES = (list, tuple)
SCALAR_TYPES = {int, float, bool, str, type(None)}  # most arguments: they contain no tensors


@dataclass(frozen=True)
class Slot:
    """Placeholder for the k-th live tensor in the arguments of a step."""

    index: int


@dataclass(frozen=True, eq=False)
class ReferenceValues:
    """The input and output tensors of a step (or tape) at a reference input."""

    values: tuple[Tensor, ...]
    result: Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """One recorded torch call: the function, its arguments and its result.

    Args:
        operation: the operation's entry in the table.
        name: the module that owns the weights, else the operation with a counter.
        call, args, kwargs: the call; `Slot(k)` marks the k-th live tensor, all other arguments are constants.
        inputs: value number of each live tensor.
        values: the live tensors themselves.
        output: value number of the result.
        result: the output tensor (before a fused ReLU).
        sources: the operation that produced each live tensor, ignoring reshapes, constant factors and denominators.
        output_index: which element of the call's result this is, if the call returns several tensors.
        gate: 0/1 mask of the ReLU fused into this step; `output` is then the value after the ReLU.
        reference: the same step at a reference input (`trace.reference_run`).
        versions: version counters of the result and the constants when they were recorded.
        ranges: on an accelerator, smallest and largest value of the tensors of weighted steps.
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
        """Run the call again with other tensors instead of the recorded live ones."""
        args, kwargs = fill_slots(self.args, live), fill_slots(self.kwargs, live)
        result = self.call(*args, **kwargs)
        return result if self.output_index is None else result[self.output_index]

    @property
    def current_versions(self) -> tuple[int, ...]:
        """Version counters of the result and the constants now."""
        return tuple(t._version for t in (self.result, *collect_tensors((self.args, self.kwargs))))

    @property
    def op(self) -> str:
        """Name of the operation, which composites match."""
        return self.operation.name

    def argument_value(self, argument: Argument) -> Any:
        """Return the value of an argument of the table, with slots replaced by the recorded tensors."""
        return fill_slots(argument.get(self.args, self.kwargs), self.values)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument of the call, with slots replaced by the recorded tensors.

        Args:
            position: its position.
            name: its keyword, used if the call has fewer positional arguments.
            default: the value if the call does not have it.
        """
        if position < len(self.args):
            return fill_slots(self.args[position], self.values)
        return fill_slots(self.kwargs.get(name, default), self.values)

    @property
    def label(self) -> str:
        """Name of the operation for tables, including a fused ReLU."""
        return self.op if self.gate is None else f"{self.op}+relu"

    def describe(self) -> str:
        """Return name, operation and shapes, for error messages."""
        shapes = ", ".join(str(tuple(v.shape)) for v in self.values)
        return f"step '{self.name}' ({self.op}: {shapes} -> {tuple(self.result.shape)})"


@dataclass(frozen=True, eq=False)
class Tape:
    """The recorded run of an encoder on one input.

    Args:
        steps: the steps in execution order.
        x: the input.
        result: the embedding.
        output: value number of the embedding.
        weights: the weights that the run used.
        input: value number of the input.
        reference: input and embedding at a reference input, if the tape was run there.
    """

    steps: tuple[Step, ...]
    x: Tensor
    result: Tensor
    output: int
    weights: tuple[Tensor, ...] = field(default=(), repr=False)
    input: int = 0
    reference: ReferenceValues | None = field(default=None, repr=False)

    def read_value(self, number: int) -> Tensor:
        """Return the recorded tensor with this value number, after the ReLU that is fused into its step."""
        if number == self.input:
            return self.x
        step = next(step for step in self.steps if step.output == number)
        return step.result if step.gate is None else step.result * step.gate

    def consumers(self) -> dict[int, list[Step]]:
        """Return the steps that use each value, by value number."""
        uses: dict[int, list[Step]] = {}
        for step in self.steps:
            for value in dict.fromkeys(step.inputs):
                uses.setdefault(value, []).append(step)
        return uses

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the weights; decompositions with different fingerprints cannot be paired."""
        return hash_weights(self.weights)


def fill_slots(tree: Any, live: tuple[Tensor, ...]) -> Any:
    """Replace every `Slot(k)` in nested arguments by `live[k]`."""
    if type(tree) in SCALAR_TYPES:
        return tree
    return tree_map(tree, lambda slot: live[slot.index], Slot)


def get_storage_pointer(t: Tensor) -> int:
    """Return the address of the tensor's storage, or a unique negative number if it has none."""
    try:
        return t.untyped_storage().data_ptr() or -id(t)
    except NotImplementedError:  # sparse tensors
        return -id(t)


def get_storage_and_version(t: Tensor) -> tuple[int, int]:
    """Return the address of the tensor's storage and its version counter (0 in inference mode)."""
    return get_storage_pointer(t), 0 if t.is_inference() else t._version


def get_version(t: Tensor) -> int:
    """Return the tensor's version counter; raise `TapeError` in inference mode, which has none."""
    try:
        return t._version
    except RuntimeError:
        raise TapeError(
            "the model runs in torch.inference_mode, so writes cannot be recorded: call its undecorated forward"
        ) from None


def collect_tensors(tree: object) -> list[Tensor]:
    """Return the tensors in nested arguments, in order."""
    tensors: list[Tensor] = []
    _collect_into(tree if type(tree) is tuple else (tree,), tensors)
    return tensors


def _collect_into(items: Iterable[object], tensors: list[Tensor]) -> None:
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
    """Replace every instance of `leaf_types` in nested arguments by `fn(instance)`.

    Args:
        tree: a leaf, or nested lists, tuples and dictionaries.
        fn: the replacement.
        leaf_types: types to replace; anything else stays as it is.
    """
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
