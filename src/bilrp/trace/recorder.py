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
from bilrp.trace.aliased_writes import Writes, assigned, picked, written_over
from bilrp.trace.functionalization import in_row_order, is_inplace, out_of_place, run_again_by, written
from bilrp.trace.numerics import is_comparable, is_mask, mask_signs
from bilrp.trace.devices import on_host, read
from bilrp.trace.randomness import Drawn, WatchDraws
from bilrp.trace.fused import write_out
from bilrp.trace.introspection import modules_of, named_weights, operation_of, owners, parts_of, tensors_of
from bilrp.trace.call_records import NEVER, Note, leading_to, steps_of, with_constants_copied
from bilrp.trace.operation import Op, Table
from bilrp.trace.operation_table import OPERATIONS
from bilrp.trace.complex_pairs import Pairs, no_complex
from bilrp.trace.unsupported import in_our_words, no_tensor, refuse_call, refuse_moving_targets, refuse_what_cannot_be_seen
from bilrp.trace.replay import replay
from bilrp.trace.tape import Slot, Tape, mapped, storage_of, tensors_in
from bilrp.trace.untracked_constants import Unknown, depends_on, find_overwritten, nearby, refuse_changing, written_state

# Kinds of operations that draw no numbers: looking into every one of them for a draw would take as long as running it.
NEVER_RANDOM = {
    "arithmetic",
    "reduction",
    "product",
    "weighted",
    "softmax",
    "norm",
    "structural",
    "identity",
}
SHAPES = {"shape", "size", "dim", "ndim", "dtype", "device"}  # they read no numbers
NORMS = {"norm", "statistics"}  # kinds whose spellings differ in the order of their arguments
FIRST = {"input", "self"}  # what torch calls a function's first operand
NOTHING = nullcontext()


def record(
    encoder: Callable[[Tensor], Tensor],
    x: Float[Tensor, "..."],  # noqa: UP037 (a shape, which older versions of jaxtyping read as a string only)
    *,
    operations: Table = OPERATIONS,
) -> Tape:
    """Run `encoder(x)` once and return the tape of everything that led from `x` to the output.

    >>> import torch.nn.functional as F
    >>> [step.op for step in record(lambda x: F.relu(x) + x, torch.ones(1, 4)).steps]
    ['relu', 'add']
    """
    tape = recorded(encoder, x, operations)
    replay(tape)
    return tape


def recorded(encoder: Callable[[Tensor], Tensor], x: Tensor, operations: Table = OPERATIONS) -> Tape:
    """The tape as it was written: `replay` tells whether it is true, and needs the model no more."""
    modules = [parts_of(module) for module in modules_of(encoder)]
    refuse_what_cannot_be_seen(encoder, modules)
    refuse_moving_targets(modules)
    named = named_weights(modules)
    training = any(part.training for parts in modules for _, part in parts) if modules else None
    places = {id(part): name for parts in modules for name, part in parts}
    held = [weight for _, weight in named] + tensors_of(encoder, modules)

    def run(x: Tensor, held: Iterable[Tensor]) -> tuple[Recorder, object]:
        recorder = Recorder(owners(named), operations, places, held, training)
        # all weights of a module, so that a branch not taken for this input does not change the origin
        for _, weight in named if isinstance(encoder, nn.Module) else ():
            recorder._use_weight(weight)
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
        if recorder.unknown:  # where gradients were off (in another thread) only the numbers tell
            overwritten = find_overwritten(recorder.unknown)
            compared = {storage_of(each.tensor) for each in recorder.unknown.values()}
            # what recorded calls made may be kept by the model, for its next run
            kept = [t for t, _ in recorder.made.values() if storage_of(t) not in compared]
            refuse_changing(recorder.unknown, run(nearby(x), [*held, *kept])[0].unknown, overwritten)
        return tape
    except RuntimeError as error:
        ours = in_our_words(error)
        if ours is None:
            raise
        raise TapeError(ours) from error


class Recorder(TorchFunctionMode):
    """Takes notes of calls. A tensor is known by its id (kept alive here) together with its version counter,
    so that a write that was not seen (through a view, or by scripted code) is noticed at the next use."""

    def __init__(
        self,
        names: dict[int, str],
        operations: Table,
        modules: dict[int, str],
        held: Iterable[Tensor] = (),
        training: bool | None = None,
    ):
        super().__init__()
        self.names = names
        # what the encoder refers to: its memory and version before the run
        self.held = {id(t): (t, written_state(t)) for t in held}
        self.held_memory = {state for _, state in self.held.values()}
        self.unknown: dict[tuple[int, int], Unknown] = {}  # by id and version: no recorded call made it
        self.operations = operations
        self.drawn = Drawn(training)
        self.pairs = Pairs()  # for complex numbers
        self.known: dict[Any, Op] = {}  # what each function called so far is
        self.notes: list[Note] = []
        self.live: dict[int, tuple[Tensor, int, int]] = {}  # id -> tensor, value number, version
        self.values: list[Tensor] = []  # the input, and what each call gave
        self.versions: list[int] = []  # of the values
        self.made: dict[int, tuple[Tensor, int]] = {}  # constants of the run, and their versions then
        self.weights: dict[int, Tensor] = {}
        self.masks: dict[int, Tensor] = {}  # of weights on an accelerator: is it a mask?
        self.origin: Any = None  # the autograd node of the input
        self.writes = Writes(modules)  # of live values
        self.consumed: set[int] = set()  # values that some call took
        self.constants: list[Tensor] = []  # those that steps hold
        self.fused: str | None = None  # the module of the fused call that is being written out
        # storages of constants that were written to, also by live values, and will be in the next run
        self.rewritten: set[int] = set()

    def begin(self, x: Tensor) -> None:
        self._add(x)
        self.origin = x.grad_fn

    def __torch_function__(self, func, types, args=(), kwargs=None):
        op = self.known.get(func)
        if op is None:
            op = self.known[func] = operation_of(func, self.operations)
        if op.name in SHAPES:
            return func(*args, **(kwargs or {}))
        # Rules count operands in the order of the signature: torch.div(other=b, input=a) is a / b, not b / a.
        kwargs = dict(sorted(kwargs.items(), key=lambda given: given[0] not in FIRST)) if kwargs else {}
        if op.kind in NORMS:
            func, args, kwargs = in_row_order(func, args, kwargs)
        tensors = tensors_in((*args, *kwargs.values()))
        for t in tensors if self.writes.by_storage else ():
            self._follow_writes(t, op.name)
        live = [t for t in tensors if id(t) in self.live]
        if op.kind == "switch":
            return None  # gradients stay on, also where the model turns them off: see record
        if self.pairs.follow(op.name, tensors, live):
            return self.pairs.call(op, func, args, kwargs, self)
        self._notice_unseen(tensors, op.name)
        lent = op.lends and id(args[0]) not in self.live  # a constant in the shape or type of a live tensor
        if not live or lent:
            constants = [t for t in tensors if id(t) not in self.live]
            return self._compute_constant(op, func, args, kwargs, constants)
        if op.kind == "iteration":
            with self:
                return iter(args[0].unbind(0))
        if self.drawn.touch(tensors):
            raise self.drawn.refusal(op.name)
        refuse_call(op, args, kwargs, live[0], self.drawn.training)
        for t in live:
            self._notice_writes(t, op.name)
        if op.kind == "fused":
            self.fused = self._owner([t for t in tensors if id(t) not in self.live])
            try:
                return write_out(op.name, func, args, kwargs, self)
            finally:
                self.fused = None
        return self._record(op, func, args, kwargs, tensors)

    def _compute_constant(self, op: Op, func, args, kwargs, tensors: list[Tensor]) -> Any:
        """A call that no live tensor takes part in: its result is a constant of the run."""
        writes = is_inplace(op, func, args, kwargs) or "out" in kwargs
        if tensors and writes:
            for t in (tensors[0], *tensors_in(kwargs.get("out"))):
                self._keep_before_write(t)
        for t in tensors:
            self._use_weight(t)
        with WatchDraws() as watch:
            result = func(*args, **kwargs)
        self.drawn.follow(op, watch.drew, args, kwargs, result)
        self._make(result)
        if writes:
            self.rewritten.update(map(storage_of, (*tensors[:1], *tensors_in(kwargs.get("out")))))
        return result

    def _record(
        self,
        op: Op,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
    ) -> Any:
        target = written(op, func, args, kwargs)
        call, recorded = (
            out_of_place(op, func, args, kwargs) if target is not None else (func, (args, kwargs))
        )
        joined = self._write_before(op, target)
        before = None if target is None or joined is not None else self._keep_before_write(target)
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
            self._use_weight(t)
            self.constants.append(t)
            constants.append(t.detach())
            return constants[-1]

        if op.again:
            call = run_again_by(op, args, kwargs)
        recorded_args, recorded_kwargs = (
            mapped(recorded[0], slot) if joined is None else (*joined.args, mapped(args[1:], slot)),
            mapped(recorded[1], slot) if kwargs else {},
        )
        fixed = op.kind in NEVER_RANDOM or op.active  # dropout that is active was refused
        blank = op.kind == "blank" and all(id(t) not in self.live for t in tensors_in((args[1:], kwargs)))
        watch = WatchDraws(None if blank else partial(self.drawn.refusal, op.name))
        with NOTHING if fixed else watch:
            result = func(*args, **kwargs)
        if target is not None:
            if id(target) not in self.live:  # perhaps the model's own, and written to again in the next run
                self.rewritten.add(storage_of(target))
            if target.dtype.is_floating_point:
                self._mark_written(target, joined=joined is not None)
        elif [*map(_version, tensors)] != versions:
            raise TapeError(
                f"'{op.name}' writes into its arguments, which the tape cannot follow: write out of place"
            )
        if blank:
            self.drawn.follow(op, watch.drew, (), {}, result)
            self._make(result)
            return result
        given = target if op.kind == "overwrite" else result
        outputs = [(None, given)] if isinstance(given, Tensor) else _numbered(given)
        for item, out in outputs:
            if not isinstance(out, Tensor):
                continue
            if out.is_complex():
                raise TapeError(no_complex(op.name))
            if not out.dtype.is_floating_point:
                self._make(out)
                continue
            if id(out) in self.live and out is not target:
                continue  # the call returned its own input, e.g. contiguous()
            self._add(out)
            owner, counted = self._owner(constants), tuple(map(_version, constants))
            if owner is None and op.kind == "weighted":
                owner = self.fused  # its weights are a part of a parameter
            if joined is not None:
                owner, counted = joined.owner or owner, joined.versions + counted
            self.consumed.update(inputs)
            self.notes.append(
                Note(op, call, recorded_args, recorded_kwargs, tuple(inputs), owner, counted, item)
            )
        return result

    def _make(self, constants: Any) -> None:
        for t in tensors_in(constants):
            self.made[id(t)] = (t, written_state(t)[1])

    def _write_before(self, op: Op, target: Tensor | None) -> Note | None:
        """The assignment to the same tensor that nobody has read since: the two are one step (a loop that fills rows)."""
        if op.kind != "overwrite" or id(target) not in self.live:
            return None
        _, number, version = self.live[id(target)]
        last = self.notes[number - 1] if number else None
        if last is None or last.call is not assigned or number in self.consumed or version == NEVER:
            return None
        self.values[number] = self.values[number].new_empty(0)  # of no use to anyone: not to be copied
        return last

    def _add(self, out: Tensor) -> None:
        """One more live value."""
        self.live[id(out)] = (out, len(self.values), _version(out))
        self.values.append(out.detach())
        self.versions.append(out._version)

    def _owner(self, constants: list[Tensor]) -> str | None:
        for t in constants:
            if t.numel() and t.data_ptr() in self.names:
                return self.names[t.data_ptr()]
        return None

    def _keep_before_write(self, t: Tensor) -> Tensor:
        """Before an in-place call: give earlier steps their own copy of what is about to be overwritten
        (also where they hold the same storage through a view)."""
        storage = storage_of(t)
        self._copy_values({storage})
        if any(storage_of(constant) == storage for constant in self.constants):
            self.notes = [with_constants_copied(note, storage) for note in self.notes]
        return t.detach().clone()

    def _copy_values(self, storages: set[int]) -> None:
        """Live values that lie there, in memory of their own: as untouched as what they are copies of."""
        for number, value in enumerate(self.values):
            if storage_of(value) in storages:
                untouched = value._version == self.versions[number]
                self.values[number] = copy = value.clone()
                self.versions[number] = copy._version if untouched else NEVER

    def _mark_written(self, target: Tensor, *, joined: bool) -> None:
        """After an in-place call: no other tensor over the same memory shows what the tape believes."""
        self.writes.add(target, len(self.values), joined=joined)
        storage = storage_of(target)
        for key, (t, value, _) in list(self.live.items()) if not joined else ():
            if t is not target and storage_of(t) == storage:
                self.live[key] = (t, value, NEVER)

    def _follow_writes(self, t: Tensor, op: str) -> None:
        """A tensor whose memory was written to through another one: what it holds now is a step of its own."""
        _, number, version = self.live.get(id(t), (t, -1, NEVER))
        writes = self.writes.since(t, number)
        if not writes or version == _version(t) or not t.dtype.is_floating_point:
            return
        if writes[-1].version != _version(t) or any(write.target.dtype != t.dtype for write in writes):
            self.writes.refuse(t, op)
        self.consumed.update(write.number for write in writes)
        sources, needed = written_over(t, [write.target for write in writes])
        if not needed:  # other places of the same memory
            if number >= 0:
                self.live[id(t)] = (t, number, _version(t))
            return
        inputs = [writes[i].number for i in needed]
        base: Any = t.detach().clone()
        if number >= 0:
            inputs, base = [number, *inputs], Slot(0)
        slots = [Slot(i) for i in range(number >= 0, len(inputs))]
        self._add(t)
        self.consumed.update(inputs)
        held = tuple(map(_version, tensors_in((sources, base))))
        op_row = self.operations.find("__setitem__")
        self.notes.append(Note(op_row, picked, (sources, base, *slots), {}, tuple(inputs), None, held, None))

    def _use_weight(self, t: Tensor) -> None:
        known = id(t) in self.made or id(t) in self.live or id(t) in self.weights
        if known or not t.dtype.is_floating_point:
            return
        if isinstance(t, nn.Parameter) or t.data_ptr() in self.names:
            self.weights[id(t)] = t
        elif not on_host(t) and is_comparable(t):  # asked when the run has ended, with all others
            self.weights[id(t)], self.masks[id(t)] = t, torch.stack([*mask_signs(t)]).any()
        elif not is_mask(t):
            self.weights[id(t)] = t

    def _notice_writes(self, t: Tensor, op: str) -> None:
        if _version(t) != self.live[id(t)][2]:
            self.writes.refuse(t, op)

    def _notice_unseen(self, tensors: list[Tensor], op: str) -> None:
        for t in tensors:
            if id(t) in self.live:
                continue
            if t.grad_fn is None or id(t) in self.made:
                if t.dtype.is_floating_point and t.layout == torch.strided and not self._is_known(t):
                    self.unknown[id(t), written_state(t)[1]] = Unknown(
                        t, t.detach().clone(), op, self.writes.place()
                    )
                continue
            if depends_on(t.grad_fn, self.origin):
                raise TapeError(
                    f"'{op}' received a tensor of shape {tuple(t.shape)} from calls the tape cannot see (scripted or "
                    "compiled code, or a custom autograd function): use the plain Python module instead"
                )

    def _is_known(self, t: Tensor) -> bool:
        """Was it there before the run, as far as one can see, or made and written to by recorded calls alone?"""
        state = written_state(t)
        if (id(t), state[1]) in self.unknown:
            return True  # it has been noted
        if id(t) in self.made:
            seen = state[1] == self.made[id(t)][1]
        elif id(t) in self.held:
            seen = state == self.held[id(t)][1]
        else:  # another look at the same memory
            seen = state in self.held_memory
        return seen or state[0] in self.rewritten

    def finish(self, x: Tensor, result: object) -> Tape:
        if not isinstance(result, Tensor):
            raise InputError(no_tensor(result))
        self._follow_writes(result, "return")
        if id(result) not in self.live:
            raise TapeError(
                "the embedding does not depend on the input through any recorded torch call: scripted, compiled or "
                "numpy code cannot be explained, and neither can a constant"
            )
        self._notice_writes(result, "return")
        output = self.live[id(result)][1]
        self._copy_values(self.rewritten)
        for storage in self.rewritten.intersection(map(storage_of, self.constants)):
            self.notes = [with_constants_copied(note, storage) for note in self.notes]
        steps = leading_to(output, steps_of(self.notes, self.values, self.versions))
        masks = [key for key, holds in zip(self.masks, read([*self.masks.values()]), strict=True) if holds]
        weights = tuple(w.detach() for key, w in self.weights.items() if key not in masks)
        return Tape(steps=steps, x=x, result=self.values[output], output=output, weights=weights)


def _version(t: Tensor) -> int:
    try:
        return t._version
    except RuntimeError:  # torch counts no writes in inference mode
        raise TapeError(
            "the model runs in torch.inference_mode, which hides writes from the tape: call its undecorated forward"
        ) from None


def _numbered(result: Any) -> list[tuple[int, Any]]:
    return list(enumerate(result)) if isinstance(result, tuple | list) else []
