"""record(encoder, x): run an untouched encoder once and write down what it did.

The run happens under a `TorchFunctionMode`: every torch call that touches a tensor depending on the
input (a *live* tensor) becomes one `Step` holding its real tensors. Nothing is patched, hooked or changed.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bilrp.errors import InputError, TapeError

# Calls that read a live tensor's numbers out of torch: what happens to them next cannot be seen.
LEAVES_TORCH = {"item", "tolist", "numpy", "__float__", "__int__", "__array__", "__dlpack__"}
# Calls whose result has the input's shape or type but not its values: constants of the run.
FORGETS_VALUES = {
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"),
}
# Calls that only move numbers about, or pass them on unchanged.
STRUCTURAL = {
    *("reshape", "view", "view_as", "reshape_as", "flatten", "unflatten", "ravel", "permute", "transpose"),
    *(
        "t",
        "T",
        "mT",
        "H",
        "mH",
        "adjoint",
        "swapaxes",
        "swapdims",
        "movedim",
        "moveaxis",
        "squeeze",
        "unsqueeze",
    ),
    *("expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave", "contiguous", "clone"),
    *(
        "detach",
        "data",
        "real",
        "to",
        "type",
        "type_as",
        "float",
        "double",
        "half",
        "bfloat16",
        "cpu",
        "cuda",
    ),
    *(
        "cat",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "column_stack",
        "split",
        "tensor_split",
        "chunk",
        "unbind",
    ),
    *("split_with_sizes", "unsafe_chunk", "unsafe_split", "hsplit", "vsplit", "dsplit", "diag", "diag_embed"),
    *(
        "narrow",
        "select",
        "index_select",
        "__getitem__",
        "take_along_dim",
        "gather",
        "masked_select",
        "unfold",
    ),
    *("pad", "constant_pad_nd", "roll", "flip", "fliplr", "flipud", "rot90", "diagonal", "pixel_shuffle"),
    *(
        "pixel_unshuffle",
        "channel_shuffle",
        "tril",
        "triu",
        "alias",
        "broadcast_tensors",
    ),
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
    *("feature_dropout", "native_dropout", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d", "positive"),
}
FIRST = {"input", "self"}  # what torch calls a function's first operand
VIEWS = {"view", "view_as"}  # run again as reshapes: other tensors may lie in memory in another order
# Calls that stay linear in a live tensor while their other operand is a constant.
ARITHMETIC = {"add", "sub", "rsub", "__rsub__", "mul", "div", "neg"}
INPLACE_OPERATORS = {
    "__iadd__": "add",
    "__isub__": "sub",
    "__imul__": "mul",
    "__itruediv__": "div",
    "__idiv__": "div",
    "__ipow__": "pow",
}
ALIASES = {
    "__add__": "add",
    "__radd__": "add",
    "__sub__": "sub",
    "__mul__": "mul",
    "__rmul__": "mul",
    "__truediv__": "div",
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "__neg__": "neg",
    "negative": "neg",
    "__matmul__": "matmul",
    "__rmatmul__": "matmul",
    "mm": "matmul",
    "__pow__": "pow",
    "concat": "cat",
    "concatenate": "cat",
    "absolute": "abs",
    "clip": "clamp",
}


@dataclass(frozen=True)
class Slot:
    """The place of the k-th live tensor in the arguments of a step."""

    index: int


@dataclass(frozen=True, eq=False)
class Step:
    """One torch call of the run: what was called, on which values, with what result.

    `inputs[k]` is the number of the live value that stands at `Slot(k)`, `values[k]` its tensor; all other
    arguments are constants of the run. `sources[k]` is the operation that made it, looking through reshapes and
    arithmetic with constants. `gate`, where set, is the 0/1 mask of the ReLU that alone consumes
    this step and was fused into it (then `output` is the ReLU's value, `result` still the one before it).
    """

    op: str
    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[int, ...]
    values: tuple[Tensor, ...]
    output: int
    result: Tensor
    sources: tuple[str, ...] = ()
    item: int | None = None
    gate: Tensor | None = None

    def run(self, *live: Tensor) -> Tensor:
        """Call the step again with other tensors in the places of the live ones."""
        args, kwargs = fill(self.args, live), fill(self.kwargs, live)
        result = self.call(*args, **kwargs)
        return result if self.item is None else result[self.item]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """The argument given at `position` or as keyword `name`; live tensors come as their recorded values."""
        if position < len(self.args):
            return fill(self.args[position], self.values)
        return fill(self.kwargs.get(name, default), self.values)

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

    def consumers(self) -> dict[int, list[Step]]:
        """Which steps use each value."""
        uses: dict[int, list[Step]] = {}
        for step in self.steps:
            for value in dict.fromkeys(step.inputs):
                uses.setdefault(value, []).append(step)
        return uses

    def fingerprint(self) -> str:
        """A sha256 over the weights the run used, so that decompositions of different weights never pair."""
        digest = hashlib.sha256()
        for weight in self.weights:
            digest.update(f"{tuple(weight.shape)}{weight.dtype}".encode())
            data = weight.detach().contiguous().cpu().reshape(-1)
            digest.update(data.view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]


def op_name(func: Callable[..., Any]) -> str:
    """The plain name of a torch function: `Tensor.add_`, `torch.add` and `+` are all 'add'."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(func.__self__, "__name__", name)  # type: ignore[attr-defined]
    name = INPLACE_OPERATORS.get(name, name)
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return ALIASES.get(name, name)


def record(encoder: Callable[[Tensor], Tensor], x: Float[Tensor, ...]) -> Tape:
    """Run `encoder(x)` once and return the tape of everything that led from `x` to the output.

    >>> import torch.nn.functional as F
    >>> [step.op for step in record(lambda x: F.relu(x) + x, torch.ones(1, 4)).steps]
    ['relu', 'add']
    """
    modules = modules_of(encoder)
    _refuse_what_cannot_be_seen(encoder, modules)
    _refuse_moving_targets(modules)
    recorder = _Recorder(_parameter_names(modules))
    if isinstance(
        encoder, nn.Module
    ):  # all of it, so that a branch not taken for this input does not change the origin
        for weight in (*encoder.parameters(), *encoder.buffers()):
            recorder._use_weight(weight)
    drawn = _random_state(x)
    # Gradients are on (for a copy of x) only so that a tensor made by calls we could not see still shows
    # that it depends on the input. Nothing is ever back-propagated.
    try:
        with torch.inference_mode(False), torch.enable_grad():
            start = x.detach().clone().requires_grad_().clone()
            recorder.begin(start)
            with recorder:
                result = encoder(start)
        tape = recorder.finish(x.detach(), result)
    except RuntimeError as error:
        if "modified inplace" in str(error) or "modified by an inplace" in str(error):
            raise TapeError(
                "the model writes in place into one of several views of a tensor (chunk, split, unbind), which the "
                "tape cannot follow: write out of place in the model"
            ) from error
        raise
    finally:
        moved = _put_back(drawn, x)
    if moved:
        raise InputError(
            "the model draws random numbers as it runs, so its embedding is not fixed: call model.eval(), or switch "
            "the randomness off"
        )
    _replay(tape)
    return tape


def _random_state(x: Tensor) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(x.device)] if x.is_cuda else states


def _put_back(states: list[Tensor], x: Tensor) -> bool:
    """Restore the generators; True if the run had moved them."""
    moved = any(not torch.equal(a, b) for a, b in zip(states, _random_state(x), strict=True))
    if moved:
        torch.set_rng_state(states[0])
        if x.is_cuda:
            torch.cuda.set_rng_state(states[1], x.device)
    return moved


def _replay(tape: Tape) -> None:
    """Run the tape once more, from the input: a step that now gives other numbers was not seen as it was."""
    with torch.no_grad():
        values = {tape.input: tape.x}
        last = {value: i for i, step in enumerate(tape.steps) for value in step.inputs}
        for i, step in enumerate(tape.steps):
            try:
                values[step.output] = step.run(*(values[v] for v in step.inputs))
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise TapeError(
                    f"{step.describe()} cannot be run again by itself ({reason}): compute it outside the model"
                ) from error
            if not _same_numbers(values[step.output], step.result):
                raise TapeError(
                    f"running {step.describe()} again gives other numbers: the model is random, or overwrites its "
                    "constants while it runs; make it write out of place"
                )
            for value in set(step.inputs):
                if last[value] == i:
                    del values[value]


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if torch.equal(a, b):
        return True
    finite = torch.nan_to_num(b.detach(), nan=0.0, posinf=0.0, neginf=0.0)
    slack = 100 * max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps)
    slack = max(slack, 1e-9)
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(a.to(b.dtype), b, rtol=slack, atol=slack * largest, equal_nan=True)


class _Recorder(TorchFunctionMode):
    """Collects steps. A tensor is known by its id (kept alive here) together with its version counter,
    so that a write that was not seen (through a view, or by scripted code) is noticed at the next use."""

    def __init__(self, names: dict[int, str]):
        super().__init__()
        self.names = names
        self.steps: list[Step] = []
        self.live: dict[int, tuple[Tensor, int, int]] = {}  # id -> tensor, value number, version
        self.values: list[Tensor] = []
        self.made: dict[int, Tensor] = {}  # constants computed during the run
        self.weights: dict[int, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.sources: list[str] = ["input"]
        self.origin: Any = None  # the autograd node of the input
        self.written: dict[int, Tensor] = {}  # storages that received live values by a write in place
        self.constants: set[int] = set()  # storages of the constants that steps hold

    def begin(self, x: Tensor) -> None:
        self.live[id(x)] = (x, 0, x._version)
        self.values.append(x.detach())
        self.origin = x.grad_fn

    def __torch_function__(self, func, types, args=(), kwargs=None):
        # Rules count operands in the order of the signature: torch.div(other=b, input=a) is a / b, not b / a.
        kwargs = dict(sorted((kwargs or {}).items(), key=lambda given: given[0] not in FIRST))
        tensors = list(_tensors((args, kwargs)))
        live = [t for t in tensors if id(t) in self.live]
        op = op_name(func)
        if op == "_set_grad_enabled":
            return None  # gradients stay on, also where the model turns them off: see record
        self._notice_unseen(tensors, op)
        if not live:
            return self._compute_constant(func, args, kwargs, tensors)
        if op == "__iter__":
            with self:
                return iter(args[0].unbind(0))
        self._refuse(op, func, args, kwargs)
        for t in live:
            self._notice_writes(t, op)
        return self._record(op, func, args, kwargs)

    def _compute_constant(self, func, args, kwargs, tensors: list[Tensor]) -> Any:
        """A call that no live tensor takes part in: its result is a constant of the run."""
        if tensors and (
            _is_inplace(func, args, kwargs) or func is torch.Tensor.__setitem__ or "out" in kwargs
        ):
            for t in (tensors[0], *_tensors(kwargs.get("out"))):
                self._keep_before_write(t)
        for t in tensors:
            self._use_weight(t)
        result = func(*args, **kwargs)
        for t in _tensors(result):
            self.made[id(t)] = t
        return result

    def _record(
        self, op: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        target = _written(func, args, kwargs)
        call, recorded = _out_of_place(func, args, kwargs) if target is not None else (func, (args, kwargs))
        before = None if target is None else self._keep_before_write(target)
        versions = [(t, _version(t)) for t in _tensors((args, kwargs)) if t is not target]
        slots: list[tuple[int, Tensor]] = []

        def slot(t: Tensor) -> Any:
            if id(t) in self.live:
                value = self.live[id(t)][1]
                slots.append((value, self.values[value]))
                return Slot(len(slots) - 1)
            if t is target:
                return before  # a constant about to receive live values: record what it was
            if t.layout != torch.strided:
                raise TapeError(
                    f"'{op}' takes a sparse tensor of shape {tuple(t.shape)}, which cannot be followed: use its .to_dense()"
                )
            self._use_weight(t)
            self.constants.add(_storage(t))
            return t.detach()

        if op in VIEWS:
            call = _reshaping(op, call, args, kwargs)
        recorded_args, recorded_kwargs = _map(recorded[0], slot), _map(recorded[1], slot)
        result = func(*args, **kwargs)
        if target is not None:
            self._mark_written(target)
        elif any(_version(t) != version for t, version in versions):
            raise TapeError(
                f"'{op}' writes into its arguments, which the tape cannot follow: write out of place"
            )
        if op in FORGETS_VALUES and all(id(t) not in self.live for t in _tensors((args[1:], kwargs))):
            for t in _tensors(result):
                self.made[id(t)] = t
            return result
        outputs = [(None, result)] if isinstance(result, Tensor) else _numbered(result)
        for item, out in outputs:
            if not isinstance(out, Tensor):
                continue
            if out.is_complex():
                raise TapeError(
                    f"'{op}' makes complex numbers of a live tensor, which cannot be followed: write it with real "
                    "ones (a rotation by cos and sin, a transform by its matrix)"
                )
            if not out.dtype.is_floating_point:
                self.made[id(out)] = out
                continue
            if id(out) in self.live and out is not target:
                continue  # the call returned its own input, e.g. contiguous()
            self._add(op, call, recorded_args, recorded_kwargs, slots, out, item)
        return result

    def _add(self, op, call, args, kwargs, slots, out: Tensor, item: int | None) -> None:
        number = len(self.values)
        self.values.append(out.detach())
        self.live[id(out)] = (out, number, _version(out))
        sources = tuple(self.sources[v] for v, _ in slots)
        transparent = op in STRUCTURAL or (op in ARITHMETIC and len(slots) == 1)
        self.sources.append(sources[0] if transparent and sources else op)
        self.steps.append(
            Step(
                op=op,
                name=self._name(op, (args, kwargs)),
                call=call,
                args=args,
                kwargs=kwargs,
                inputs=tuple(v for v, _ in slots),
                values=tuple(t for _, t in slots),
                output=number,
                result=out.detach(),
                sources=sources,
                item=item,
            )
        )

    def _name(self, op: str, arguments: Any) -> str:
        for t in _tensors(arguments):
            name = self.names.get(t.data_ptr()) if t.numel() else None
            if name is not None:
                return name
        self.counts[op] = self.counts.get(op, 0) + 1
        return f"{op}_{self.counts[op]}"

    def _keep_before_write(self, t: Tensor) -> Tensor:
        """Before an in-place call: give earlier steps their own copy of what is about to be overwritten
        (also where they hold the same storage through a view)."""
        storage = _storage(t)
        for number, value in enumerate(self.values):
            if _storage(value) == storage:
                copy = value.clone()
                self.values[number] = copy
                self.steps = [_with_value(step, number, copy) for step in self.steps]
        if storage in self.constants:
            self.steps = [_with_constants_copied(step, storage) for step in self.steps]
        return t.detach().clone()

    def _mark_written(self, target: Tensor) -> None:
        """After an in-place call: no other tensor over the same memory shows what the tape believes."""
        storage = _storage(target)
        self.written[storage] = target
        for key, (t, value, _) in list(self.live.items()):
            if t is not target and _storage(t) == storage:
                self.live[key] = (t, value, -1)

    def _use_weight(self, t: Tensor) -> None:
        if id(t) not in self.made and id(t) not in self.live and t.dtype.is_floating_point:
            self.weights.setdefault(id(t), t)

    def _notice_writes(self, t: Tensor, op: str) -> None:
        if _version(t) != self.live[id(t)][2]:
            raise TapeError(_overwritten(t, op))

    def _notice_unseen(self, tensors: list[Tensor], op: str) -> None:
        for t in tensors:
            if id(t) in self.live:
                continue
            if self.written and _storage(t) in self.written:
                raise TapeError(_overwritten(t, op))
            if t.grad_fn is None or id(t) in self.made:
                continue
            if _depends_on(t.grad_fn, self.origin):
                raise TapeError(
                    f"'{op}' received a tensor of shape {tuple(t.shape)} from calls the tape cannot see (scripted or "
                    "compiled code, or a custom autograd function): use the plain Python module instead"
                )

    def _refuse(self, op: str, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
        if op in LEAVES_TORCH:
            raise TapeError(
                f"the model reads numbers out of a live tensor with '{op}', where the tape cannot follow: "
                "keep them as tensors (or compute them before the model)"
            )
        if op == "__setitem__":
            raise TapeError(
                "the model writes into a tensor with x[...] = y, which the tape cannot follow: "
                "build the result with torch.cat, torch.where or masked_fill instead"
            )
        if kwargs.get("out") is not None:
            raise TapeError(f"'{op}(..., out=...)' writes where the tape cannot follow: drop out=")
        if torch.is_autocast_enabled(next(_tensors((args, kwargs))).device.type):
            raise InputError(
                "the model runs under autocast, which rounds where the tape cannot see it: leave the autocast block, "
                "or convert the model, e.g. model.to(torch.bfloat16)"
            )
        _refuse_training(op, args, kwargs)

    def finish(self, x: Tensor, result: Any) -> Tape:
        if not isinstance(result, Tensor):
            raise InputError(
                f"the encoder returned {type(result).__name__}, not a tensor: wrap it so that it returns the "
                "embedding, e.g. lambda x: model(x).pooler_output"
            )
        if id(result) not in self.live:
            raise TapeError(
                "the embedding does not depend on the input through any recorded torch call: scripted, compiled or "
                "numpy code cannot be explained, and neither can a constant"
            )
        self._notice_writes(result, "return")
        output = self.live[id(result)][1]
        steps = _leading_to(output, self.steps)
        weights = tuple(w.detach() for w in self.weights.values())
        return Tape(steps=steps, x=x, result=self.values[output], output=output, weights=weights)


def _leading_to(output: int, steps: list[Step]) -> tuple[Step, ...]:
    """Only the steps the output depends on."""
    needed, kept = {output}, []
    for step in reversed(steps):
        if step.output in needed:
            kept.append(step)
            needed.update(step.inputs)
    return tuple(reversed(kept))


def _with_value(step: Step, value: int, tensor: Tensor) -> Step:
    if value != step.output and value not in step.inputs:
        return step
    values = tuple(tensor if i == value else v for i, v in zip(step.inputs, step.values, strict=True))
    return replace(step, values=values, result=tensor if value == step.output else step.result)


def _with_constants_copied(step: Step, storage: int) -> Step:
    """The step with its own copy of every constant that lives in a storage about to be overwritten."""

    def copied(t: Tensor) -> Tensor:
        return t.clone() if _storage(t) == storage else t

    return replace(step, args=_map(step.args, copied), kwargs=_map(step.kwargs, copied))


def _storage(t: Tensor) -> int:
    """Where the tensor's memory starts; tensors without memory of their own share it with none."""
    try:
        return t.untyped_storage().data_ptr() or -id(t)
    except NotImplementedError:  # sparse tensors
        return -id(t)


def _version(t: Tensor) -> int:
    if t.is_inference():
        raise TapeError(
            "the model runs in torch.inference_mode, which hides writes from the tape: call its undecorated forward"
        )
    return t._version


def _overwritten(t: Tensor, op: str) -> str:
    return (
        f"a tensor of shape {tuple(t.shape)} was overwritten through a view before '{op}' used it, which "
        "the tape cannot follow: write out of place (torch.cat, torch.where, x = x + y) in the model"
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


def _is_inplace(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    underscore = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    return name in INPLACE_OPERATORS or underscore or bool(_inplace_flag(func, args, kwargs)[1])


def _inplace_flag(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, bool]:
    """Where the argument `inplace` stands (-1: a keyword, or nowhere) and what it says: F.leaky_relu(x, 0.1, True)."""
    code = getattr(func, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    if "inplace" in names and names.index("inplace") < len(args):
        place = names.index("inplace")
        return place, args[place] is True
    return -1, kwargs.get("inplace") is True


def _written(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor an in-place call writes into; None for other calls."""
    if not _is_inplace(func, args, kwargs):
        return None
    target = args[0] if args else kwargs.get("input", kwargs.get("self"))
    if not isinstance(target, Tensor):
        raise TapeError(
            f"the in-place call '{op_name(func)}' writes into several tensors: write out of place"
        )
    return target


def _out_of_place(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[tuple[Any, ...], dict[str, Any]]]:
    """The same call without the write, so that a step can be run again on other tensors."""
    place, flagged = _inplace_flag(func, args, kwargs)
    if flagged and place >= 0:
        return func, ((*args[:place], False, *args[place + 1 :]), kwargs)
    if flagged:
        return func, (args, {**kwargs, "inplace": False})
    name = getattr(func, "__name__", "")
    plain = INPLACE_OPERATORS.get(name, name.rstrip("_"))
    call = _copy if name == "copy_" else getattr(torch.Tensor, plain, None) or getattr(torch, plain, None)
    if call is None:
        raise TapeError(
            f"the in-place call '{name}' has no out-of-place twin in torch: write it out of place"
        )
    return call, (args, kwargs)


def _reshaping(
    op: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
        raise TapeError(
            "the model reads a tensor's bits as another type with view(dtype), which no rule can share"
        )
    return torch.Tensor.reshape if op == "view" else torch.Tensor.reshape_as


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(target.dtype).expand_as(target)


def _refuse_training(op: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Random or batch-dependent layers make the embedding a moving target: refuse them."""

    def given(position: int, *names: str, default: Any) -> Any:
        if position < len(args):
            return args[position]
        return next((kwargs[name] for name in names if name in kwargs), default)

    active = False
    if "dropout" in op:
        active = given(2, "training", "train", default="alpha" not in op) and given(1, "p", default=0.5) > 0
    elif op == "scaled_dot_product_attention":
        active = given(4, "dropout_p", default=0.0) > 0
    elif op == "multi_head_attention_forward":
        active = given(13, "training", default=True) and given(10, "dropout_p", default=0.0) > 0
    elif op == "batch_norm":
        active = given(5, "training", default=False) and given(1, "running_mean", default=None) is not None
    if active:
        raise InputError(_training(f"'{op}'"))


def _refuse_moving_targets(modules: list[nn.Module]) -> None:
    """The same, before anything runs: batch norm in training mode would change its statistics."""
    for module in modules:
        for name, part in module.named_modules():
            dropping = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
            counting = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
            if part.training and (dropping or counting):
                raise InputError(_training(f"{type(part).__name__} '{name}'"))


def _training(what: str) -> str:
    return f"the model is in training mode ({what} is active), so its embedding is not fixed: call model.eval() first"


def modules_of(encoder: Any) -> list[nn.Module]:
    """The modules an encoder runs: itself, or those a function, method or partial refers to.

    >>> net = nn.Linear(2, 1)
    >>> modules_of(lambda x: net(x)) == modules_of(net.forward) == [net]
    True
    """
    if isinstance(encoder, nn.Module):
        return [encoder]
    if isinstance(encoder, functools.partial):
        reached = [encoder.func, *encoder.args, *encoder.keywords.values()]
        return [m for value in reached for m in modules_of(value)]
    owner = getattr(encoder, "__self__", None)
    found = [owner] if isinstance(owner, nn.Module) else []
    if inspect.isfunction(encoder):
        names = inspect.getclosurevars(encoder)
        values = [*names.nonlocals.values(), *names.globals.values()]
        found += [value for value in values if isinstance(value, nn.Module)]
    return found


def _refuse_what_cannot_be_seen(encoder: Any, modules: list[nn.Module]) -> None:
    for part in [encoder, *(p for module in modules for p in module.modules())]:
        scripted = isinstance(part, torch.jit.ScriptModule | torch.jit.ScriptFunction)
        compiled = type(part).__name__ == "OptimizedModule" or hasattr(part, "_torchdynamo_orig_callable")
        if scripted or compiled:
            kind = "scripted" if scripted else "compiled"
            raise TapeError(
                f"{type(part).__name__} is {kind}, so its calls cannot be seen: explain the plain Python module "
                "it was made from"
            )


def _parameter_names(modules: list[nn.Module]) -> dict[int, str]:
    """Where each weight lives -> the name of the module that owns it."""
    named = [pair for module in modules for pair in (*module.named_parameters(), *module.named_buffers())]
    return {t.data_ptr(): name.rpartition(".")[0] or name for name, t in reversed(named) if t.numel()}


def _numbered(result: Any) -> list[tuple[int, Any]]:
    return list(enumerate(result)) if isinstance(result, tuple | list) else []


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
    elif isinstance(tree, slice):
        yield from _tensors([tree.start, tree.stop, tree.step])


def _map(tree: Any, leaf: Callable[[Any], Any], kind: type = Tensor) -> Any:
    """Replace every `kind` in nested arguments by `leaf(it)`."""
    if isinstance(tree, kind):
        return leaf(tree)
    if isinstance(tree, list | tuple):
        items = [_map(item, leaf, kind) for item in tree]
        return items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, dict):
        return {key: _map(value, leaf, kind) for key, value in tree.items()}
    return tree


def fill(tree: Any, live: tuple[Tensor, ...]) -> Any:
    """Put live tensors back in the places of their slots."""
    return _map(tree, lambda slot: live[slot.index], Slot)
