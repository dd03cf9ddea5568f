"""record(encoder, x): run an untouched encoder once and write down what it did.

The run happens under a `TorchFunctionMode`: every torch call that touches a tensor depending on the
input (a *live* tensor) becomes one `Step` holding its real tensors. Nothing is patched, hooked or changed.
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
from bilrp.trace.operation import Op, OperationTable
from bilrp.trace.operation_table import OPERATIONS
from bilrp.trace.randomness import RandomCallDetector, RandomTensors
from bilrp.trace.replay import verify_tape
from bilrp.trace.tape import (
    Slot,
    Tape,
    collect_tensors,
    get_storage_and_version,
    get_storage_pointer,
    tree_map,
)
from bilrp.trace.unsupported import (
    describe_non_tensor,
    reject_compiled_code,
    reject_training_mode,
    reject_unsupported_call,
    translate_torch_error,
)
from bilrp.trace.untracked_constants import (
    UntrackedConstant,
    depends_on,
    find_overwritten,
    perturb,
    reject_input_dependent,
)

# Kinds of operations that draw no numbers: looking into every one of them for a draw would take as long as running it.
DETERMINISTIC_KINDS = {
    "arithmetic",
    "reduction",
    "product",
    "weighted",
    "softmax",
    "norm",
    "structural",
    "identity",
}
METADATA_OPS = {"shape", "size", "dim", "ndim", "dtype", "device"}  # they read no numbers
NORM_KINDS = {"norm", "statistics"}  # kinds whose spellings differ in the order of their arguments
FIRST_OPERAND_NAMES = {"input", "self"}  # what torch calls a function's first operand
NO_CONTEXT = nullcontext()


def record(
    encoder: Callable[[Tensor], Tensor],
    x: Float[Tensor, "..."],  # noqa: UP037 (a shape, which older versions of jaxtyping read as a string only)
    *,
    operations: OperationTable = OPERATIONS,
) -> Tape:
    """Run `encoder(x)` once and return the tape of everything that led from `x` to the output.

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
    """The tape as it was written: `verify_tape` tells whether it is true, and needs the model no more."""
    modules = [list_submodules(module) for module in find_modules(encoder)]
    reject_compiled_code(encoder, modules)
    reject_training_mode(modules)
    named = list_named_weights(modules)
    training = any(part.training for parts in modules for _, part in parts) if modules else None
    places = {id(part): name for parts in modules for name, part in parts}
    held = [weight for _, weight in named] + find_referenced_tensors(encoder, modules)

    def run(x: Tensor, held: Iterable[Tensor]) -> tuple[Recorder, object]:
        recorder = Recorder(map_weight_owners(named), operations, places, held, training)
        # all weights of a module, so that a branch not taken for this input does not change the origin
        for _, weight in named if isinstance(encoder, nn.Module) else ():
            recorder._register_weight(weight)
        # Gradients are on (for a copy of x) only so that a tensor made by calls we could not see still shows
        # that it depends on the input. Nothing is ever back-propagated.
        with torch.inference_mode(False), torch.enable_grad():
            start = x.detach().clone().requires_grad_().clone()
            recorder.begin(start)
            with recorder:
                return recorder, encoder(start)

    try:
        recorder, result = run(x, held)
        tape = recorder.finish(x.detach(), result)
        if recorder.untracked:  # where gradients were off (in another thread) only the numbers tell
            overwritten = find_overwritten(recorder.untracked)
            compared = {get_storage_pointer(each.tensor) for each in recorder.untracked.values()}
            # what recorded calls made may be kept by the model, for its next run
            kept = [t for t, _ in recorder.run_constants.values() if get_storage_pointer(t) not in compared]
            reject_input_dependent(
                recorder.untracked, run(perturb(x), [*held, *kept])[0].untracked, overwritten
            )
        return tape
    except RuntimeError as error:
        ours = translate_torch_error(error)
        if ours is None:
            raise
        raise TapeError(ours) from error


class Recorder(TorchFunctionMode):
    """Takes notes of calls. A tensor is known by its id (kept alive here) together with its version counter,
    so that a write that was not seen (through a view, or by scripted code) is noticed at the next use."""

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
        # what the encoder refers to: its memory and version before the run
        self.initial_tensors = {id(t): (t, get_storage_and_version(t)) for t in initial_tensors}
        self.initial_states = {state for _, state in self.initial_tensors.values()}
        self.untracked: dict[
            tuple[int, int], UntrackedConstant
        ] = {}  # by id and version: no recorded call made it
        self.operations = operations
        self.random_tensors = RandomTensors(training)
        self.complex_pairs = ComplexPairs()  # for complex numbers
        self.op_cache: dict[Any, Op] = {}  # what each function called so far is
        self.records: list[CallRecord] = []
        self.live: dict[int, tuple[Tensor, int, int]] = {}  # id -> tensor, value number, version
        self.values: list[Tensor] = []  # the input, and what each call gave
        self.versions: list[int] = []  # of the values
        self.run_constants: dict[
            int, tuple[Tensor, int]
        ] = {}  # constants of the run, and their versions then
        self.weights: dict[int, Tensor] = {}
        self.mask_flags: dict[int, Tensor] = {}  # of weights on an accelerator: is it a mask?
        self.input_node: Any = None  # the autograd node of the input
        self.write_log = InplaceWriteLog(module_names)  # of live values
        self.used_values: set[int] = set()  # values that some call took
        self.step_constants: list[Tensor] = []  # those that steps hold
        self.fused_owner: str | None = None  # the module of the fused call that is being written out
        # storages of constants that were written to, also by live values, and will be in the next run
        self.rewritten_storages: set[int] = set()

    def begin(self, x: Tensor) -> None:
        self._add_live_value(x)
        self.input_node = x.grad_fn

    def __torch_function__(self, func, types, args=(), kwargs=None):
        op = self.op_cache.get(func)
        if op is None:
            op = self.op_cache[func] = find_operation(func, self.operations)
        if op.name in METADATA_OPS:
            return func(*args, **(kwargs or {}))
        # Rules count operands in the order of the signature: torch.div(other=b, input=a) is a / b, not b / a.
        kwargs = (
            dict(sorted(kwargs.items(), key=lambda given: given[0] not in FIRST_OPERAND_NAMES))
            if kwargs
            else {}
        )
        if op.kind in NORM_KINDS:
            func, args, kwargs = normalize_argument_order(func, args, kwargs)
        tensors = collect_tensors((*args, *kwargs.values()))
        for t in tensors if self.write_log.by_storage else ():
            self._record_aliased_writes(t, op.name)
        live = [t for t in tensors if id(t) in self.live]
        if op.kind == "grad_mode":
            return None  # gradients stay on, also where the model turns them off: see record
        if self.complex_pairs.is_complex_call(op.name, tensors, live):
            return self.complex_pairs.call(op, func, args, kwargs, self)
        self._check_untracked(tensors, op.name)
        lent = (
            op.is_like_op and id(args[0]) not in self.live
        )  # a constant in the shape or type of a live tensor
        if not live or lent:
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
        """A call that no live tensor takes part in: its result is a constant of the run."""
        writes = is_inplace(op, func, args, kwargs) or "out" in kwargs
        if tensors and writes:
            for t in (tensors[0], *collect_tensors(kwargs.get("out"))):
                self._copy_before_write(t)
        for t in tensors:
            self._register_weight(t)
        with RandomCallDetector() as watch:
            result = func(*args, **kwargs)
        self.random_tensors.update(op, watch.detected, args, kwargs, result)
        self._add_run_constants(result)
        if writes:
            self.rewritten_storages.update(
                map(get_storage_pointer, (*tensors[:1], *collect_tensors(kwargs.get("out"))))
            )
        return result

    def _record(
        self,
        op: Op,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
    ) -> Any:
        target = find_inplace_target(op, func, args, kwargs)
        call, recorded = (
            make_out_of_place(op, func, args, kwargs) if target is not None else (func, (args, kwargs))
        )
        joined = self._find_mergeable_write(op, target)
        before = None if target is None or joined is not None else self._copy_before_write(target)
        versions = [*map(_version, tensors)]
        inputs: list[int] = [] if joined is None else list(joined.inputs)
        constants: list[Tensor] = []

        def slot(t: Tensor) -> Any:
            if id(t) in self.live:
                inputs.append(self.live[id(t)][1])
                return Slot(len(inputs) - 1)
            if t is target and before is not None:
                constants.append(before)  # about to receive live values: record what it was
                return before
            if t.layout != torch.strided:
                raise TapeError(
                    f"'{op.name}' takes a sparse tensor of shape {tuple(t.shape)}, which cannot be followed: use its "
                    ".to_dense()"
                )
            self._register_weight(t)
            self.step_constants.append(t)
            constants.append(t.detach())
            return constants[-1]

        if op.replay_as:
            call = make_replay_call(op, args, kwargs)
        recorded_args, recorded_kwargs = (
            tree_map(recorded[0], slot) if joined is None else (*joined.args, tree_map(args[1:], slot)),
            tree_map(recorded[1], slot) if kwargs else {},
        )
        fixed = op.kind in DETERMINISTIC_KINDS or op.training_args  # dropout that is active was refused
        blank = op.kind == "like" and all(id(t) not in self.live for t in collect_tensors((args[1:], kwargs)))
        watch = RandomCallDetector(None if blank else partial(self.random_tensors.make_error, op.name))
        with NO_CONTEXT if fixed else watch:
            result = func(*args, **kwargs)
        if target is not None:
            if id(target) not in self.live:  # perhaps the model's own, and written to again in the next run
                self.rewritten_storages.add(get_storage_pointer(target))
            if target.dtype.is_floating_point:
                self._mark_written(target, merged=joined is not None)
        elif [*map(_version, tensors)] != versions:
            raise TapeError(
                f"'{op.name}' writes into its arguments, which the tape cannot follow: write out of place"
            )
        if blank:
            self.random_tensors.update(op, watch.detected, (), {}, result)
            self._add_run_constants(result)
            return result
        given = target if op.kind == "overwrite" else result
        outputs = [(None, given)] if isinstance(given, Tensor) else _enumerate_outputs(given)
        for item, out in outputs:
            if not isinstance(out, Tensor):
                continue
            if out.is_complex():
                raise TapeError(format_complex_error(op.name))
            if not out.dtype.is_floating_point:
                self._add_run_constants(out)
                continue
            if id(out) in self.live and out is not target:
                continue  # the call returned its own input, e.g. contiguous()
            self._add_live_value(out)
            owner, counted = self._find_owner(constants), tuple(map(_version, constants))
            if owner is None and op.kind == "weighted":
                owner = self.fused_owner  # its weights are a part of a parameter
            if joined is not None:
                owner, counted = joined.owner or owner, joined.versions + counted
            self.used_values.update(inputs)
            self.records.append(
                CallRecord(op, call, recorded_args, recorded_kwargs, tuple(inputs), owner, counted, item)
            )
        return result

    def _add_run_constants(self, constants: Any) -> None:
        for t in collect_tensors(constants):
            self.run_constants[id(t)] = (t, get_storage_and_version(t)[1])

    def _find_mergeable_write(self, op: Op, target: Tensor | None) -> CallRecord | None:
        """The assignment to the same tensor that nobody has read since: the two are one step (a loop that fills rows)."""
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
        self.values[number] = self.values[number].new_empty(0)  # of no use to anyone: not to be copied
        return last

    def _add_live_value(self, out: Tensor) -> None:
        """One more live value."""
        self.live[id(out)] = (out, len(self.values), _version(out))
        self.values.append(out.detach())
        self.versions.append(out._version)

    def _find_owner(self, constants: list[Tensor]) -> str | None:
        for t in constants:
            if t.numel() and t.data_ptr() in self.weight_owners:
                return self.weight_owners[t.data_ptr()]
        return None

    def _copy_before_write(self, t: Tensor) -> Tensor:
        """Before an in-place call: give earlier steps their own copy of what is about to be overwritten
        (also where they hold the same storage through a view)."""
        storage = get_storage_pointer(t)
        self._copy_values({storage})
        if any(get_storage_pointer(constant) == storage for constant in self.step_constants):
            self.records = [copy_constants(note, storage) for note in self.records]
        return t.detach().clone()

    def _copy_values(self, storages: set[int]) -> None:
        """Live values that lie there, in memory of their own: as untouched as what they are copies of."""
        for number, value in enumerate(self.values):
            if get_storage_pointer(value) in storages:
                untouched = value._version == self.versions[number]
                self.values[number] = copy = value.clone()
                self.versions[number] = copy._version if untouched else NO_VERSION

    def _mark_written(self, target: Tensor, *, merged: bool) -> None:
        """After an in-place call: no other tensor over the same memory shows what the tape believes."""
        self.write_log.add(target, len(self.values), merged=merged)
        storage = get_storage_pointer(target)
        for key, (t, value, _) in list(self.live.items()) if not merged else ():
            if t is not target and get_storage_pointer(t) == storage:
                self.live[key] = (t, value, NO_VERSION)

    def _record_aliased_writes(self, t: Tensor, op: str) -> None:
        """A tensor whose memory was written to through another one: what it holds now is a step of its own."""
        _, number, version = self.live.get(id(t), (t, -1, NO_VERSION))
        writes = self.write_log.writes_after(t, number)
        if not writes or version == _version(t) or not t.dtype.is_floating_point:
            return
        if writes[-1].version != _version(t) or any(write.target.dtype != t.dtype for write in writes):
            self.write_log.raise_overwritten(t, op)
        self.used_values.update(write.number for write in writes)
        sources, needed = resolve_overwrites(t, [write.target for write in writes])
        if not needed:  # other places of the same memory
            if number >= 0:
                self.live[id(t)] = (t, number, _version(t))
            return
        inputs = [writes[i].number for i in needed]
        base: Any = t.detach().clone()
        if number >= 0:
            inputs, base = [number, *inputs], Slot(0)
        slots = [Slot(i) for i in range(number >= 0, len(inputs))]
        self._add_live_value(t)
        self.used_values.update(inputs)
        held = tuple(map(_version, collect_tensors((sources, base))))
        op_row = self.operations.find("__setitem__")
        self.records.append(
            CallRecord(op_row, gather_elements, (sources, base, *slots), {}, tuple(inputs), None, held, None)
        )

    def _register_weight(self, t: Tensor) -> None:
        known = id(t) in self.run_constants or id(t) in self.live or id(t) in self.weights
        if known or not t.dtype.is_floating_point:
            return
        if isinstance(t, nn.Parameter) or t.data_ptr() in self.weight_owners:
            self.weights[id(t)] = t
        elif not is_on_cpu(t) and can_be_mask(t):  # asked when the run has ended, with all others
            self.weights[id(t)], self.mask_flags[id(t)] = t, torch.stack([*check_mask_values(t)]).any()
        elif not is_mask(t):
            self.weights[id(t)] = t

    def _check_not_overwritten(self, t: Tensor, op: str) -> None:
        if _version(t) != self.live[id(t)][2]:
            self.write_log.raise_overwritten(t, op)

    def _check_untracked(self, tensors: list[Tensor], op: str) -> None:
        for t in tensors:
            if id(t) in self.live:
                continue
            if t.grad_fn is None or id(t) in self.run_constants:
                if t.dtype.is_floating_point and t.layout == torch.strided and not self._is_known(t):
                    self.untracked[id(t), get_storage_and_version(t)[1]] = UntrackedConstant(
                        t, t.detach().clone(), op, self.write_log.call_location()
                    )
                continue
            if depends_on(t.grad_fn, self.input_node):
                raise TapeError(
                    f"'{op}' received a tensor of shape {tuple(t.shape)} from calls the tape cannot see (scripted or "
                    "compiled code, or a custom autograd function): use the plain Python module instead"
                )

    def _is_known(self, t: Tensor) -> bool:
        """Was it there before the run, as far as one can see, or made and written to by recorded calls alone?"""
        state = get_storage_and_version(t)
        if (id(t), state[1]) in self.untracked:
            return True  # it has been noted
        if id(t) in self.run_constants:
            seen = state[1] == self.run_constants[id(t)][1]
        elif id(t) in self.initial_tensors:
            seen = state == self.initial_tensors[id(t)][1]
        else:  # another look at the same memory
            seen = state in self.initial_states
        return seen or state[0] in self.rewritten_storages

    def finish(self, x: Tensor, result: object) -> Tape:
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
        self._copy_values(self.rewritten_storages)
        for storage in self.rewritten_storages.intersection(map(get_storage_pointer, self.step_constants)):
            self.records = [copy_constants(note, storage) for note in self.records]
        steps = prune_steps(output, build_steps(self.records, self.values, self.versions))
        masks = [
            key
            for key, holds in zip(self.mask_flags, read_scalars([*self.mask_flags.values()]), strict=True)
            if holds
        ]
        weights = tuple(w.detach() for key, w in self.weights.items() if key not in masks)
        return Tape(steps=steps, x=x, result=self.values[output], output=output, weights=weights)


def _version(t: Tensor) -> int:
    try:
        return t._version
    except RuntimeError:  # torch counts no writes in inference mode
        raise TapeError(
            "the model runs in torch.inference_mode, which hides writes from the tape: call its undecorated forward"
        ) from None


def _enumerate_outputs(result: Any) -> list[tuple[int, Any]]:
    return list(enumerate(result)) if isinstance(result, tuple | list) else []
