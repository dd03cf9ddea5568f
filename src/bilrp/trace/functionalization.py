"""In-place calls and their out-of-place equivalents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from bilrp.errors import TapeError
from bilrp.trace.aliased_writes import apply_assignments, make_strided_reader
from bilrp.trace.introspection import get_function_name, has_inplace_suffix
from bilrp.trace.operation import Op


def is_inplace(
    op: Op, func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> bool:
    """Return whether a call writes into its first argument.

    Args:
        op, func, args, kwargs: the operation, and the call.
    """
    name = get_function_name(func)
    underscore = has_inplace_suffix(name) and name != "requires_grad_"
    return (
        op.kind == "overwrite"
        or name in op.inplace_aliases
        or underscore
        or _inplace_flag(func, args, kwargs)[1]
    )


def _inplace_flag(
    func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[int, bool]:
    """Return position (-1: keyword or absent) and value of the argument `inplace`, as in F.leaky_relu(x, 0.1, True)."""
    code = getattr(func, "__code__", None)
    if code is not None and "inplace" in code.co_varnames[: code.co_argcount]:
        position = code.co_varnames.index("inplace")
        if position < len(args):
            return position, args[position] is True
    return -1, kwargs.get("inplace") is True


# torch.batch_norm takes weights before statistics, torch.nn.functional.batch_norm after them.
_STATISTICS_LAST = "input weight bias running_mean running_var {} momentum eps cudnn_enabled"
_STATISTICS_FIRST = "input running_mean running_var weight bias {} momentum eps"
_FUNCTIONAL_NORMS: dict[Callable[..., Any], tuple[Callable[..., Any], str]] = {
    torch.batch_norm: (F.batch_norm, "training"),
    torch.ops.aten.batch_norm.default: (F.batch_norm, "training"),
    torch.instance_norm: (F.instance_norm, "use_input_stats"),
    torch.ops.aten.instance_norm.default: (F.instance_norm, "use_input_stats"),
}


def normalize_argument_order(
    func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the call with its arguments in the order of the table of operations.

    Args:
        func, args, kwargs: the call.
    """
    if func not in _FUNCTIONAL_NORMS:
        return func, args, kwargs
    functional, mode = _FUNCTIONAL_NORMS[func]
    arguments = dict(zip(_STATISTICS_LAST.format(mode).split(), args, strict=False)) | kwargs
    return functional, tuple(arguments[name] for name in _STATISTICS_FIRST.format(mode).split()), {}


def find_inplace_target(
    op: Op, func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Tensor | None:
    """Return the tensor an in-place call writes into; None for other calls.

    Args:
        op, func, args, kwargs: the operation, and the call.
    """
    if not is_inplace(op, func, args, kwargs):
        return None
    target = args[0] if args else kwargs.get("input", kwargs.get("self"))
    if not isinstance(target, Tensor):
        raise TapeError(f"the in-place call '{op.name}' writes into several tensors: write out of place")
    return target


def make_out_of_place(
    op: Op, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the function and arguments of the out-of-place equivalent, which can be replayed on other tensors.

    Args:
        op, func, args, kwargs: the operation, and the call.
    """
    if op.kind == "overwrite":
        return apply_assignments, ((args[0], args[1:]), {})
    position, has_flag = _inplace_flag(func, args, kwargs)
    if has_flag and position >= 0:
        return func, ((*args[:position], False, *args[position + 1 :]), kwargs)
    if has_flag:
        return func, (args, {**kwargs, "inplace": False})
    name = get_function_name(func)
    plain = op.name if name in op.inplace_aliases else name.rstrip("_")
    if isinstance(func, OpOverload):
        call = getattr(getattr(torch.ops.aten, plain, None), func._overloadname, None)
    else:
        call = getattr(torch.Tensor, plain, None) or getattr(torch, plain, None)
    call = _copy if name == "copy_" else call
    if call is None:
        raise TapeError(
            f"the in-place call '{name}' has no out-of-place version in torch: write it out of place, e.g. "
            "x.masked_fill(mask, 0) or x.index_fill(1, torch.tensor([0]), 0)"
        )
    return call, (args, kwargs)


def make_replay_call(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Return a function that gives the same result for tensors with another memory layout.

    Args:
        op, args, kwargs: the operation, and the arguments of the call.
    """
    if op.name == "as_strided":
        return make_strided_reader(args[0] if args else kwargs["input"])
    if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
        raise TapeError(
            "the model reinterprets a tensor's bits with view(dtype), which cannot be explained: use .to(dtype)"
        )
    return getattr(torch.Tensor, op.replay_as)


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(target.dtype).expand_as(target)
