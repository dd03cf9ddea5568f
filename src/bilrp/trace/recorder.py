"""record(encoder, x): run an untouched encoder once and write down what it did.

The run happens under a `TorchFunctionMode`: every torch call that touches a tensor depending on the
input (a *live* tensor) becomes one `Step` holding its real tensors. Nothing is patched, hooked or changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bilrp.errors import InputError, TapeError
from bilrp.trace.calls import is_inplace, out_of_place, run_again_by, written
from bilrp.trace.names import modules_of, named_weights, operation_of, owners, parts_of
from bilrp.trace.notes import NEVER, Note, leading_to, steps_of, with_constants_copied
from bilrp.trace.operation import Op, Table
from bilrp.trace.ops import OPERATIONS
from bilrp.trace.refusals import (
    in_our_words,
    no_tensor,
    refuse_call,
    refuse_moving_targets,
    refuse_what_cannot_be_seen,
)
from bilrp.trace.replay import replay
from bilrp.trace.tape import Slot, Tape, mapped, storage_of, tensors_in

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
FIRST = {"input", "self"}  # what torch calls a function's first operand
COMPARABLE = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
NOTHING = nullcontext()
HIDDEN = -1e4  # added to the score of a position, this or less hides it in every one of these types


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
    recorder = Recorder(owners(named), operations)
    if isinstance(
        encoder, nn.Module
    ):  # all of it, so that a branch not taken for this input does not change the origin
        for _, weight in named:
            recorder._use_weight(weight)
    # Gradients are on (for a copy of x) only so that a tensor made by calls we could not see still shows
    # that it depends on the input. Nothing is ever back-propagated.
    try:
        with torch.inference_mode(False), torch.enable_grad():
            start = x.detach().clone().requires_grad_().clone()
            recorder.begin(start)
            with recorder:
                result = encoder(start)
        return recorder.finish(x.detach(), result)
    except RuntimeError as error:
        ours = in_our_words(error)
        if ours is None:
            raise
        raise TapeError(ours) from error


class _Fixed(TorchDispatchMode):
    """Refuses random numbers before they are drawn. Modes belong to one thread; the generator belongs to all of them,
    so it is neither looked at nor put back."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would load its compiler (800 modules, two seconds) to keep it out of here, where nothing is compiled."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs):
            raise InputError(
                "the model draws random numbers as it runs, so its embedding is not fixed: call model.eval(), or switch "
                "the randomness off"
            )
        with (
            torch._C.DisableTorchFunction()
        ):  # this is below the tape: it must not see the call a second time
            return func(*args, **kwargs)


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Would this call draw from the shared generator? Not with one of its own, nor where dropout is off."""
    arguments = func._schema.arguments
    given = {each.name: each.default_value for each in arguments if each.has_default_value()}
    given |= dict(zip((each.name for each in arguments), args, strict=False)) | kwargs
    trained = given.get("train", given.get("training", True))
    rate = given.get("dropout_p", given.get("dropout", given.get("p") if "train" in given else None))
    return given.get("generator") is None and trained is not False and rate != 0


class Recorder(TorchFunctionMode):
    """Takes notes of calls. A tensor is known by its id (kept alive here) together with its version counter,
    so that a write that was not seen (through a view, or by scripted code) is noticed at the next use."""

    def __init__(self, names: dict[int, str], operations: Table):
        super().__init__()
        self.names = names
        self.operations = operations
        self.known: dict[Any, Op] = {}  # what each function called so far is
        self.notes: list[Note] = []
        self.live: dict[int, tuple[Tensor, int, int]] = {}  # id -> tensor, value number, version
        self.values: list[Tensor] = []  # the input, and what each call gave
        self.versions: list[int] = []  # of the values
        self.made: dict[int, Tensor] = {}  # constants computed during the run
        self.weights: dict[int, Tensor] = {}
        self.origin: Any = None  # the autograd node of the input
        self.written: dict[int, Tensor] = {}  # storages that received live values by a write in place
        self.constants: list[Tensor] = []  # those that steps hold
        self.rewritten: set[int] = (
            set()
        )  # storages of constants that were written to, also by live values, and will be in the next run

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
        tensors = tensors_in((*args, *kwargs.values()))
        live = [t for t in tensors if id(t) in self.live]
        if op.kind == "switch":
            return None  # gradients stay on, also where the model turns them off: see record
        self._notice_unseen(tensors, op.name)
        lent = op.lends and id(args[0]) not in self.live  # a constant in the shape or type of a live tensor
        if not live or lent:
            constants = [t for t in tensors if id(t) not in self.live]
            return self._compute_constant(op, func, args, kwargs, constants)
        if op.kind == "iteration":
            with self:
                return iter(args[0].unbind(0))
        refuse_call(op, args, kwargs, live[0])
        for t in live:
            self._notice_writes(t, op.name)
        return self._record(op, func, args, kwargs, tensors)

    def _compute_constant(self, op: Op, func, args, kwargs, tensors: list[Tensor]) -> Any:
        """A call that no live tensor takes part in: its result is a constant of the run."""
        writes = is_inplace(op, func, args, kwargs) or op.kind == "overwrite" or "out" in kwargs
        if tensors and writes:
            for t in (tensors[0], *tensors_in(kwargs.get("out"))):
                self._keep_before_write(t)
        for t in tensors:
            self._use_weight(t)
        with _Fixed():
            result = func(*args, **kwargs)
        for t in tensors_in(result):
            self.made[id(t)] = t
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
        before = None if target is None else self._keep_before_write(target)
        versions = _versions(tensors)
        inputs: list[int] = []
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
            mapped(recorded[0], slot),
            mapped(recorded[1], slot) if kwargs else {},
        )
        fixed = op.kind in NEVER_RANDOM or op.active  # dropout that is active was refused
        with NOTHING if fixed else _Fixed():
            result = func(*args, **kwargs)
        if target is not None:
            if id(target) not in self.live:  # perhaps the model's own, and written to again in the next run
                self.rewritten.add(storage_of(target))
            self._mark_written(target)
        elif _versions(tensors) != versions:
            raise TapeError(
                f"'{op.name}' writes into its arguments, which the tape cannot follow: write out of place"
            )
        if op.kind == "blank" and all(id(t) not in self.live for t in tensors_in((args[1:], kwargs))):
            for t in tensors_in(result):
                self.made[id(t)] = t
            return result
        outputs = [(None, result)] if isinstance(result, Tensor) else _numbered(result)
        for item, out in outputs:
            if not isinstance(out, Tensor):
                continue
            if out.is_complex():
                raise TapeError(
                    f"'{op.name}' makes complex numbers of a live tensor, which cannot be followed: write it with real "
                    "ones (a rotation by cos and sin, a transform by its matrix)"
                )
            if not out.dtype.is_floating_point:
                self.made[id(out)] = out
                continue
            if id(out) in self.live and out is not target:
                continue  # the call returned its own input, e.g. contiguous()
            self._add(out)
            owner, counted = self._owner(constants), tuple(_versions(constants))
            self.notes.append(
                Note(op, call, recorded_args, recorded_kwargs, tuple(inputs), owner, counted, item)
            )
        return result

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

    def _mark_written(self, target: Tensor) -> None:
        """After an in-place call: no other tensor over the same memory shows what the tape believes."""
        storage = storage_of(target)
        self.written[storage] = target
        for key, (t, value, _) in list(self.live.items()):
            if t is not target and storage_of(t) == storage:
                self.live[key] = (t, value, NEVER)

    def _use_weight(self, t: Tensor) -> None:
        known = id(t) in self.made or id(t) in self.live or id(t) in self.weights
        if known or not t.dtype.is_floating_point:
            return
        if isinstance(t, nn.Parameter) or t.data_ptr() in self.names or not _is_mask(t):
            self.weights[id(t)] = t

    def _notice_writes(self, t: Tensor, op: str) -> None:
        if _version(t) != self.live[id(t)][2]:
            raise TapeError(_overwritten(t, op))

    def _notice_unseen(self, tensors: list[Tensor], op: str) -> None:
        for t in tensors:
            if id(t) in self.live:
                continue
            if self.written and storage_of(t) in self.written:
                raise TapeError(_overwritten(t, op))
            if t.grad_fn is None or id(t) in self.made:
                continue
            if _depends_on(t.grad_fn, self.origin):
                raise TapeError(
                    f"'{op}' received a tensor of shape {tuple(t.shape)} from calls the tape cannot see (scripted or "
                    "compiled code, or a custom autograd function): use the plain Python module instead"
                )

    def finish(self, x: Tensor, result: object) -> Tape:
        if not isinstance(result, Tensor):
            raise InputError(no_tensor(result))
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
        weights = tuple(w.detach() for w in self.weights.values())
        return Tape(steps=steps, x=x, result=self.values[output], output=output, weights=weights)


def _is_mask(t: Tensor) -> bool:
    """A mask in numbers, which belongs to the item as a boolean one does: 0 and 1 to multiply, 0 and −∞ (or so) to add."""
    if t.dtype not in COMPARABLE or t.layout != torch.strided or t.is_meta or not t.dim():
        return False
    zero = t == 0
    return bool((zero | (t == 1)).all()) or bool((zero | (t <= HIDDEN)).all())


def _version(t: Tensor) -> int:
    try:
        return t._version
    except RuntimeError:  # torch counts no writes in inference mode
        raise TapeError(
            "the model runs in torch.inference_mode, which hides writes from the tape: call its undecorated forward"
        ) from None


def _versions(tensors: list[Tensor]) -> list[int]:
    return [_version(t) for t in tensors]


def _overwritten(t: Tensor, op: str) -> str:
    return (
        f"a tensor of shape {tuple(t.shape)} was overwritten through a view before '{op}' used it, which "
        "the tape cannot follow: write out of place (torch.cat, torch.where, masked_fill, index_fill, x = x + y)"
    )


def _depends_on(node: Any, origin: Any) -> bool:
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


def _numbered(result: Any) -> list[tuple[int, Any]]:
    return list(enumerate(result)) if isinstance(result, tuple | list) else []
