"""record(encoder, x): run an untouched encoder once and write down what it did.

The run happens under a `TorchFunctionMode`: every torch call that touches a tensor depending on the
input (a *live* tensor) becomes one `Step` holding its real tensors. Nothing is patched, hooked or changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
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
    *("split_with_sizes", "unsafe_chunk", "unsafe_split"),
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
        "view_as_real",
        "as_strided",
        "broadcast_tensors",
    ),
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
    *("feature_dropout", "native_dropout", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d", "positive"),
}
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
            digest.update(memoryview(data.view(torch.uint8).numpy()))
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


def record(encoder: Callable[[Tensor], Tensor], x: Tensor) -> Tape:
    """Run `encoder(x)` once and return the tape of everything that led from `x` to the output.

    >>> import torch.nn.functional as F
    >>> [step.op for step in record(lambda x: F.relu(x) + x, torch.ones(1, 4)).steps]
    ['relu', 'add']
    """
    module = encoder if isinstance(encoder, nn.Module) else None
    _refuse_what_cannot_be_seen(encoder)
    recorder = _Recorder(_parameter_names(module))
    # Gradients are on (for a copy of x) only so that a tensor made by calls we could not see still shows
    # that it depends on the input. Nothing is ever back-propagated.
    with torch.enable_grad():
        start = x.detach().clone().requires_grad_().clone()
        recorder.begin(start)
        with recorder:
            result = encoder(start)
    return recorder.finish(x.detach(), result)


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

    def begin(self, x: Tensor) -> None:
        self.live[id(x)] = (x, 0, x._version)
        self.values.append(x.detach())

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = list(_tensors((args, kwargs)))
        live = [t for t in tensors if id(t) in self.live]
        op = op_name(func)
        if not live:
            self._notice_unseen(tensors, op)
            result = func(*args, **kwargs)
            for t in _tensors(result):
                self.made[id(t)] = t
            return result
        self._refuse(op, func, args, kwargs)
        self._notice_unseen(tensors, op)
        for t in live:
            self._notice_writes(t, op)
        return self._record(op, func, args, kwargs)

    def _record(
        self, op: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        inplace = _is_inplace(func, kwargs)
        call, recorded_kwargs = _out_of_place(func, kwargs) if inplace else (func, kwargs)
        before = self._keep_before_write(args[0]) if inplace else None
        slots: list[tuple[int, Tensor]] = []
        written = id(args[0]) if inplace else None

        def slot(t: Tensor) -> Any:
            if id(t) in self.live:
                value = self.live[id(t)][1]
                slots.append((value, self.values[value]))
                return Slot(len(slots) - 1)
            if id(t) == written:
                return before  # a constant about to receive live values: record what it was
            self._use_weight(t)
            return t.detach()

        recorded_args, recorded_kwargs = _map(args, slot), _map(recorded_kwargs, slot)
        result = func(*args, **kwargs)
        if op in FORGETS_VALUES:
            for t in _tensors(result):
                self.made[id(t)] = t
            return result
        outputs = [(None, result)] if isinstance(result, Tensor) else _numbered(result)
        for item, out in outputs:
            if isinstance(out, Tensor) and out.is_complex():
                raise TapeError(
                    f"'{op}' makes complex numbers of a live tensor, which cannot be followed: write it with real "
                    "ones (a rotation by cos and sin, a transform by its matrix)"
                )
            if not isinstance(out, Tensor) or not out.dtype.is_floating_point:
                if isinstance(out, Tensor):
                    self.made[id(out)] = out
                continue
            if id(out) in self.live and id(out) != written:
                continue  # the call returned its own input, e.g. contiguous()
            self._add(op, call, recorded_args, recorded_kwargs, slots, out, item)
        return result

    def _add(self, op, call, args, kwargs, slots, out: Tensor, item: int | None) -> None:
        number = len(self.values)
        self.values.append(out.detach())
        self.live[id(out)] = (out, number, out._version)
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
        storage = t.untyped_storage().data_ptr()
        for number, value in enumerate(self.values):
            if value.untyped_storage().data_ptr() == storage:
                copy = value.clone()
                self.values[number] = copy
                self.steps = [_with_value(step, number, copy) for step in self.steps]
        return t.detach().clone()

    def _use_weight(self, t: Tensor) -> None:
        if id(t) not in self.made and t.dtype.is_floating_point:
            self.weights.setdefault(id(t), t)

    def _notice_writes(self, t: Tensor, op: str) -> None:
        if t._version != self.live[id(t)][2]:
            raise TapeError(
                f"a tensor of shape {tuple(t.shape)} was overwritten through a view before '{op}' used it, which "
                "the tape cannot follow: write out of place (torch.cat, torch.where, x = x + y) in the model"
            )

    def _notice_unseen(self, tensors: list[Tensor], op: str) -> None:
        for t in tensors:
            if t.grad_fn is not None and id(t) not in self.live and id(t) not in self.made:
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


def _is_inplace(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    underscore = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    return name in INPLACE_OPERATORS or underscore or bool(kwargs.get("inplace"))


def _out_of_place(
    func: Callable[..., Any], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The same call without the write, so that a step can be run again on other tensors."""
    if kwargs.get("inplace"):
        return func, {**kwargs, "inplace": False}
    name = getattr(func, "__name__", "")
    plain = INPLACE_OPERATORS.get(name, name.rstrip("_"))
    call = getattr(torch.Tensor, plain, None) or getattr(torch, plain, None)
    if name == "copy_":
        return (lambda target, source: source.to(target.dtype).expand_as(target)), kwargs
    if call is None:
        raise TapeError(
            f"the in-place call '{name}' has no out-of-place twin in torch: write it out of place"
        )
    return call, kwargs


def _refuse_training(op: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Random or batch-dependent layers make the embedding a moving target: refuse them."""
    dropping = "dropout" in op and kwargs.get("training", args[2:3] == (True,)) and kwargs.get("p", 0.5) > 0
    if op == "scaled_dot_product_attention":
        dropping = kwargs.get("dropout_p", 0.0) > 0
    if op == "multi_head_attention_forward":
        dropping = bool(kwargs.get("training")) and args[10] > 0
    if dropping or (op == "batch_norm" and kwargs.get("training")):
        raise InputError(
            f"the model is in training mode ('{op}' is active), so its embedding is not fixed: call model.eval() first"
        )


def _refuse_what_cannot_be_seen(encoder: Any) -> None:
    modules = encoder.modules() if isinstance(encoder, nn.Module) else [encoder]
    for module in modules:
        scripted = isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction)
        compiled = type(module).__name__ == "OptimizedModule" or hasattr(module, "_torchdynamo_orig_callable")
        if scripted or compiled:
            kind = "scripted" if scripted else "compiled"
            raise TapeError(
                f"{type(module).__name__} is {kind}, so its calls cannot be seen: explain the plain Python module "
                "it was made from"
            )


def _parameter_names(module: nn.Module | None) -> dict[int, str]:
    """Where each weight lives -> the name of the module that owns it."""
    if module is None:
        return {}
    named = [*module.named_parameters(), *module.named_buffers()]
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
