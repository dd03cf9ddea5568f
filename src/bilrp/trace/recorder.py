"""Record one run of an unmodified encoder.

The encoder runs under a `TorchFunctionMode`: every torch call on a tensor that depends on the input (a *live* tensor)
becomes one `Step` with its tensors. Nothing is patched or hooked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bilrp.errors import InputError, TapeError
from bilrp.trace.aliased_writes import InplaceWriteLog, apply_assignments, gather_elements, resolve_overwrites
from bilrp.trace.call_records import NO_VERSION, CallRecord, build_steps, copy_constants, prune_steps
from bilrp.trace.complex_pairs import ComplexPairs, format_complex_error
from bilrp.trace.devices import is_on_cpu, read_scalars
from bilrp.trace.functionalization import (
    find_inplace_target,
    is_inplace,
    make_out_of_place,
    make_replay_call,
    normalize_argument_order,
)
from bilrp.trace.fused import expand_fused_call
from bilrp.trace.introspection import (
    find_modules,
    find_operation,
    find_referenced_tensors,
    list_named_weights,
    list_submodules,
    map_weight_owners,
)
from bilrp.trace.numerics import can_be_mask, check_mask_values, is_mask
from bilrp.trace.operation import DETERMINISTIC_KINDS, Op, OperationTable
from bilrp.trace.operation_table import OPERATIONS
from bilrp.trace.randomness import RandomCallDetector, RandomTensors
from bilrp.trace.replay import verify_tape
from bilrp.trace.tape import Slot, Tape, collect_tensors, get_storage_pointer, get_version, tree_map
from bilrp.trace.unsupported import (
    describe_non_tensor,
    reject_compiled_code,
    reject_training_mode,
    reject_unsupported_call,
    translate_torch_error,
)
from bilrp.trace.untracked_constants import RunConstants, find_overwritten, perturb, reject_input_dependent

METADATA_OPS = {"shape", "size", "dim", "ndim", "dtype", "device"}  # read no values
NORM_KINDS = {"norm", "statistics"}  # kinds whose functions differ in the order of their arguments
FIRST_OPERAND_NAMES = {"input", "self"}  # torch's names of the first operand


def record(
    encoder: Callable[[Tensor], Tensor],
    x: Float[Tensor, "..."],  # noqa: UP037 (a shape, which older versions of jaxtyping read as a string only)
    *,
    operations: OperationTable = OPERATIONS,
) -> Tape:
    """Run `encoder(x)` and return its verified tape.

    Args:
        encoder, x, operations: as for `record_unchecked`.

    >>> import torch.nn.functional as F
    >>> [step.op for step in record(lambda x: F.relu(x) + x, torch.ones(1, 4)).steps]
    ['relu', 'add']
    """
    tape = record_unchecked(encoder, x, operations)
    verify_tape(tape)
    return tape


def record_unchecked(
    encoder: Callable[[Tensor], Tensor], x: Tensor, operations: OperationTable = OPERATIONS
) -> Tape:
    """Run `encoder(x)` and return its tape without verifying it; `verify_tape` does not need the model.

    Args:
        encoder: a module or function in eval mode.
        x: one input, with a batch dimension of 1.
        operations: the table of operations.
    """
    modules = [list_submodules(module) for module in find_modules(encoder)]
    reject_compiled_code(encoder, modules)
    reject_training_mode(modules)
    named = list_named_weights(modules)
    training = any(part.training for parts in modules for _, part in parts) if modules else None
    module_names = {id(part): name for parts in modules for name, part in parts}
    initial_tensors = [weight for _, weight in named] + find_referenced_tensors(encoder, modules)

    def run(x: Tensor, initial_tensors: Iterable[Tensor]) -> tuple[Recorder, object]:
        recorder = Recorder(map_weight_owners(named), operations, module_names, initial_tensors, training)
        # all weights of a module, so that the fingerprint does not depend on the branches taken for this input
        for _, weight in named if isinstance(encoder, nn.Module) else ():
            recorder._register_weight(weight)
        # Gradients are on only because the autograd graph shows whether a tensor from unrecorded calls depends on
        # the input. Nothing is back-propagated.
        with torch.inference_mode(False), torch.enable_grad():
            start = x.detach().clone().requires_grad_().clone()
            recorder.begin(start)
            with recorder:
                return recorder, encoder(start)

    try:
        recorder, result = run(x, initial_tensors)
        tape = recorder.finish(x.detach(), result)
        first = recorder.constants
        if first.untracked:  # no autograd graph (another thread): only a second run shows what they depend on
            overwritten = find_overwritten(first.untracked)
            second, _ = run(perturb(x), [*initial_tensors, *first.reusable_results()])
            reject_input_dependent(first.untracked, second.constants.untracked, overwritten)
        return tape
    except RuntimeError as error:
        message = translate_torch_error(error)
        if message is None:
            raise
        raise TapeError(message) from error


class Recorder(TorchFunctionMode):
    """The mode that records calls.

    Tensors are identified by id (they are kept alive) and version counter, so that an unrecorded write (through a view, or
    by scripted code) is detected at the next use.

    Args:
        weight_owners: name of the owning module by address of the weight.
        operations: the table of operations.
        module_names: name by id of the module.
        initial_tensors: tensors that exist before the run.
        training: the model is in training mode; None if unknown.
    """

    def __init__(
        self,
        weight_owners: dict[int, str],
        operations: OperationTable,
        module_names: dict[int, str],
        initial_tensors: Iterable[Tensor] = (),
        training: bool | None = None,
    ):
        super().__init__()
        self.weight_owners = weight_owners
        self.constants = RunConstants(initial_tensors)
        self.operations = operations
        self.random_tensors = RandomTensors(training)
        self.complex_pairs = ComplexPairs()
        self.op_cache: dict[Any, Op] = {}  # by function
        self.records: list[CallRecord] = []
        self.live: dict[int, tuple[Tensor, int, int]] = {}  # id -> tensor, value number, version
        self.values: list[Tensor] = []  # the input, and the result of each call
        self.versions: list[int] = []  # of the values, when they were recorded
        self.weights: dict[int, Tensor] = {}
        self.mask_flags: dict[int, Tensor] = {}  # for weights on an accelerator: whether it is a mask
        self.input_node: Any = None  # the autograd node of the input
        self.write_log = InplaceWriteLog(module_names)
        self.used_values: set[int] = set()  # values that a recorded call uses
        self.step_constants: list[Tensor] = []  # constants that are arguments of steps
        self.fused_owner: str | None = None  # module of the fused call that is being expanded

    def begin(self, x: Tensor) -> None:
        """Record the input as value 0."""
        self._add_live_value(x)
        self.input_node = x.grad_fn

    def __torch_function__(self, func, types, args=(), kwargs=None):
        op = self.op_cache.get(func)
        if op is None:
            op = self.op_cache[func] = find_operation(func, self.operations)
        if op.name in METADATA_OPS:
            return func(*args, **(kwargs or {}))
        # rules expect operands in the order of the signature: torch.div(other=b, input=a) is a / b
        kwargs = dict(sorted((kwargs or {}).items(), key=lambda item: item[0] not in FIRST_OPERAND_NAMES))
        if op.kind in NORM_KINDS:
            func, args, kwargs = normalize_argument_order(func, args, kwargs)
        tensors = collect_tensors((*args, *kwargs.values()))
        for t in tensors if self.write_log.by_storage else ():
            self._record_aliased_writes(t, op.name)
        live = [t for t in tensors if id(t) in self.live]
        if op.kind == "grad_mode":
            return None  # gradients stay on: see record_unchecked
        if self.complex_pairs.is_complex_call(op.name, tensors, live):
            return self.complex_pairs.call(op, func, args, kwargs, self)
        for t in tensors:
            if id(t) not in self.live:
                self.constants.check(t, op.name, self.input_node, self.write_log.call_location)
        # a constant with the shape or dtype of a live tensor is a constant
        if not live or (op.is_like_op and id(args[0]) not in self.live):
            constants = [t for t in tensors if id(t) not in self.live]
            return self._compute_constant(op, func, args, kwargs, constants)
        if op.kind == "iteration":
            with self:
                return iter(args[0].unbind(0))
        if self.random_tensors.has_any(tensors):
            raise self.random_tensors.make_error(op.name)
        reject_unsupported_call(op, args, kwargs, live[0], self.random_tensors.training)
        for t in live:
            self._check_not_overwritten(t, op.name)
        if op.kind == "fused":
            self.fused_owner = self._find_owner([t for t in tensors if id(t) not in self.live])
            try:
                return expand_fused_call(op.name, func, args, kwargs, self)
            finally:
                self.fused_owner = None
        return self._record(op, func, args, kwargs, tensors)

    def _compute_constant(self, op: Op, func, args, kwargs, tensors: list[Tensor]) -> Any:
        """Run a call without live tensors; its result is a constant of the run."""
        writes = is_inplace(op, func, args, kwargs) or "out" in kwargs
        if tensors and writes:
            for t in (tensors[0], *collect_tensors(kwargs.get("out"))):
                self._copy_before_write(t)
        for t in tensors:
            self._register_weight(t)
        with RandomCallDetector() as detector:
            result = func(*args, **kwargs)
        self.random_tensors.update(op, detector.detected, args, kwargs, result)
        self.constants.add_results(result)
        if writes:
            targets = (*tensors[:1], *collect_tensors(kwargs.get("out")))
            self.constants.rewritten_storages.update(map(get_storage_pointer, targets))
        return result

    def _record(
        self,
        op: Op,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
    ) -> Any:
        """Run a call with live tensors, add its record, and return its result."""
        target = find_inplace_target(op, func, args, kwargs)
        call, replay_args, replay_kwargs = func, args, kwargs
        if target is not None:
            call, (replay_args, replay_kwargs) = make_out_of_place(op, func, args, kwargs)
        previous = self._find_mergeable_write(op, target)
        before = None if target is None or previous is not None else self._copy_before_write(target)
        versions_before = [*map(get_version, tensors)]
        inputs: list[int] = [] if previous is None else list(previous.inputs)
        constants: list[Tensor] = []

        def to_slot(t: Tensor) -> Any:
            if id(t) in self.live:
                inputs.append(self.live[id(t)][1])
                return Slot(len(inputs) - 1)
            if t is target and before is not None:
                constants.append(before)  # the values before the write
                return before
            constants.append(self._add_constant(op, t))
            return constants[-1]

        if op.replay_as:
            call = make_replay_call(op, args, kwargs)
        replay_args = tree_map(replay_args if previous is None else args[1:], to_slot)
        replay_args = replay_args if previous is None else (*previous.args, replay_args)
        replay_kwargs = tree_map(replay_kwargs, to_slot)
        is_constant = op.kind == "like" and all(
            id(t) not in self.live for t in collect_tensors((args[1:], kwargs))
        )
        result = self._run_watched(op, func, args, kwargs, is_constant=is_constant)
        if target is not None:
            self._note_write(target, merged=previous is not None)
        elif [*map(get_version, tensors)] != versions_before:
            raise TapeError(
                f"'{op.name}' writes into its arguments, which cannot be recorded: write out of place"
            )
        if is_constant:
            self.constants.add_results(result)
            return result
        owner, versions = self._find_owner(constants), tuple(map(get_version, constants))
        if owner is None and op.kind == "weighted":
            owner = self.fused_owner  # its weights are a slice of a parameter
        if previous is not None:
            owner, versions = previous.owner or owner, previous.versions + versions
        for output_index, out in _enumerate_outputs(target if op.kind == "overwrite" else result):
            if self._add_output(out, op, target):
                self.used_values.update(inputs)
                self.records.append(
                    CallRecord(
                        op, call, replay_args, replay_kwargs, tuple(inputs), owner, versions, output_index
                    )
                )
        return result

    def _run_watched(
        self,
        op: Op,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_constant: bool,
    ) -> Any:
        """Run a recorded call; random numbers are an error, or noted where only the shape of the input is used."""
        # active dropout was rejected before
        is_deterministic = op.kind in DETERMINISTIC_KINDS or op.training_args
        detector = RandomCallDetector(
            None if is_constant else partial(self.random_tensors.make_error, op.name)
        )
        with nullcontext() if is_deterministic else detector:
            result = func(*args, **kwargs)
        if is_constant:
            self.random_tensors.update(op, detector.detected, (), {}, result)
        return result

    def _add_constant(self, op: Op, t: Tensor) -> Tensor:
        """Return a tensor that does not depend on the input as a step stores it."""
        if t.layout != torch.strided:
            raise TapeError(
                f"'{op.name}' takes a sparse tensor of shape {tuple(t.shape)}, which cannot be recorded: use .to_dense()"
            )
        self._register_weight(t)
        self.step_constants.append(t)
        return t.detach()

    def _note_write(self, target: Tensor, *, merged: bool) -> None:
        """Note that a recorded call wrote into `target`; `merged`: its record continues an earlier write."""
        if id(target) not in self.live:  # it may belong to the model, and be overwritten in the next run
            self.constants.rewritten_storages.add(get_storage_pointer(target))
        if target.dtype.is_floating_point:
            self._mark_aliases_stale(target, merged=merged)

    def _add_output(self, out: Any, op: Op, target: Tensor | None) -> bool:
        """Make a result of a recorded call live, and return whether it needs a record."""
        if not isinstance(out, Tensor):
            return False
        if out.is_complex():
            raise TapeError(format_complex_error(op.name))
        if not out.dtype.is_floating_point:
            self.constants.add_results(out)
            return False
        if id(out) in self.live and out is not target:
            return False  # the call returned its input, e.g. contiguous()
        self._add_live_value(out)
        return True

    def _find_mergeable_write(self, op: Op, target: Tensor | None) -> CallRecord | None:
        """Return the previous assignment to the same tensor if it was not read since: both become one step."""
        if op.kind != "overwrite" or id(target) not in self.live:
            return None
        _, number, version = self.live[id(target)]
        last = self.records[number - 1] if number else None
        if (
            last is None
            or last.call is not apply_assignments
            or number in self.used_values
            or version == NO_VERSION
        ):
            return None
        self.values[number] = self.values[number].new_empty(0)  # not used any more
        return last

    def _add_live_value(self, out: Tensor) -> None:
        """Add a live value with the next number."""
        self.live[id(out)] = (out, len(self.values), get_version(out))
        self.values.append(out.detach())
        self.versions.append(out._version)

    def _find_owner(self, constants: list[Tensor]) -> str | None:
        for t in constants:
            if t.numel() and t.data_ptr() in self.weight_owners:
                return self.weight_owners[t.data_ptr()]
        return None

    def _copy_before_write(self, t: Tensor) -> Tensor:
        """Give earlier steps their own copy of memory that is about to be overwritten; return a copy of `t`."""
        storage = get_storage_pointer(t)
        self._copy_values({storage})
        if any(get_storage_pointer(constant) == storage for constant in self.step_constants):
            self.records = [copy_constants(record, storage) for record in self.records]
        return t.detach().clone()

    def _copy_values(self, storages: set[int]) -> None:
        """Copy the live values in these storages; a copy of a modified value counts as modified."""
        for number, value in enumerate(self.values):
            if get_storage_pointer(value) in storages:
                unmodified = value._version == self.versions[number]
                self.values[number] = copy = value.clone()
                self.versions[number] = copy._version if unmodified else NO_VERSION

    def _mark_aliases_stale(self, target: Tensor, *, merged: bool) -> None:
        """After an in-place call, mark other tensors with the same memory: they differ from their recorded values."""
        self.write_log.add(target, len(self.values), merged=merged)
        storage = get_storage_pointer(target)
        for key, (t, value, _) in list(self.live.items()) if not merged else ():
            if t is not target and get_storage_pointer(t) == storage:
                self.live[key] = (t, value, NO_VERSION)

    def _record_aliased_writes(self, t: Tensor, op: str) -> None:
        """Add a step for the current values of a tensor whose memory was written to through another tensor."""
        _, number, version = self.live.get(id(t), (t, -1, NO_VERSION))
        writes = self.write_log.writes_after(t, number)
        if not writes or version == get_version(t) or not t.dtype.is_floating_point:
            return
        if writes[-1].version != get_version(t) or any(write.target.dtype != t.dtype for write in writes):
            self.write_log.raise_overwritten(t, op)
        self.used_values.update(write.number for write in writes)
        sources, needed = resolve_overwrites(t, [write.target for write in writes])
        if not needed:  # the writes went to other elements
            if number >= 0:
                self.live[id(t)] = (t, number, get_version(t))
            return
        inputs = [writes[i].number for i in needed]
        base: Any = t.detach().clone()
        if number >= 0:
            inputs, base = [number, *inputs], Slot(0)
        slots = [Slot(i) for i in range(number >= 0, len(inputs))]
        self._add_live_value(t)
        self.used_values.update(inputs)
        versions = tuple(map(get_version, collect_tensors((sources, base))))
        assignment, args = self.operations.find("__setitem__"), (sources, base, *slots)
        self.records.append(
            CallRecord(assignment, gather_elements, args, {}, tuple(inputs), None, versions, None)
        )

    def _register_weight(self, t: Tensor) -> None:
        known = t in self.constants or id(t) in self.live or id(t) in self.weights
        if known or not t.dtype.is_floating_point:
            return
        if isinstance(t, nn.Parameter) or t.data_ptr() in self.weight_owners:
            self.weights[id(t)] = t
        elif not is_on_cpu(t) and can_be_mask(t):  # read at the end of the run
            self.weights[id(t)], self.mask_flags[id(t)] = t, torch.stack([*check_mask_values(t)]).any()
        elif not is_mask(t):
            self.weights[id(t)] = t

    def _check_not_overwritten(self, t: Tensor, op: str) -> None:
        if get_version(t) != self.live[id(t)][2]:
            self.write_log.raise_overwritten(t, op)

    def finish(self, x: Tensor, result: object) -> Tape:
        """Return the tape of the finished run."""
        if not isinstance(result, Tensor):
            raise InputError(describe_non_tensor(result))
        self._record_aliased_writes(result, "return")
        if id(result) not in self.live:
            raise TapeError(
                "the embedding does not depend on the input through any recorded torch call: scripted, compiled or "
                "numpy code cannot be explained, and neither can a constant"
            )
        self._check_not_overwritten(result, "return")
        output = self.live[id(result)][1]
        self._copy_values(self.constants.rewritten_storages)
        for storage in self.constants.rewritten_storages.intersection(
            map(get_storage_pointer, self.step_constants)
        ):
            self.records = [copy_constants(record, storage) for record in self.records]
        steps = prune_steps(output, build_steps(self.records, self.values, self.versions))
        flags = zip(self.mask_flags, read_scalars([*self.mask_flags.values()]), strict=True)
        masks = {key for key, flag in flags if flag}
        weights = tuple(w.detach() for key, w in self.weights.items() if key not in masks)
        return Tape(steps=steps, x=x, result=self.values[output], output=output, weights=weights)


def _enumerate_outputs(output: Any) -> list[tuple[int | None, Any]]:
    """Return the results of a call with their index; None for a single tensor."""
    if isinstance(output, Tensor):
        return [(None, output)]
    return list(enumerate(output)) if isinstance(output, tuple | list) else []
