"""Calls that write in place, and the same calls without the write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.names import has_underscore
from bilrp.trace.operation import Op


def is_inplace(op: Op, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    underscore = has_underscore(name) and name != "requires_grad_"
    return name in op.inplace or underscore or _inplace_flag(func, args, kwargs)[1]


def _inplace_flag(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, bool]:
    """Where the argument `inplace` stands (-1: a keyword, or nowhere) and what it says: F.leaky_relu(x, 0.1, True)."""
    code = getattr(func, "__code__", None)
    if code is not None and "inplace" in code.co_varnames[: code.co_argcount]:
        place = code.co_varnames.index("inplace")
        if place < len(args):
            return place, args[place] is True
    return -1, kwargs.get("inplace") is True


def written(op: Op, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor an in-place call writes into; None for other calls."""
    if not is_inplace(op, func, args, kwargs):
        return None
    target = args[0] if args else kwargs.get("input", kwargs.get("self"))
    if not isinstance(target, Tensor):
        raise TapeError(f"the in-place call '{op.name}' writes into several tensors: write out of place")
    return target


def out_of_place(
    op: Op, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[tuple[Any, ...], dict[str, Any]]]:
    """The same call without the write, so that a step can be run again on other tensors."""
    place, flagged = _inplace_flag(func, args, kwargs)
    if flagged and place >= 0:
        return func, ((*args[:place], False, *args[place + 1 :]), kwargs)
    if flagged:
        return func, (args, {**kwargs, "inplace": False})
    name = getattr(func, "__name__", "")
    plain = op.name if name in op.inplace else name.rstrip("_")
    call = _copy if name == "copy_" else getattr(torch.Tensor, plain, None) or getattr(torch, plain, None)
    if call is None:
        raise TapeError(
            f"the in-place call '{name}' has no out-of-place twin in torch: write it out of place, e.g. "
            "x.masked_fill(mask, 0) or x.index_fill(1, torch.tensor([0]), 0)"
        )
    return call, (args, kwargs)


def run_again_by(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """The Tensor method that does the same for tensors which lie in memory in another order."""
    if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
        raise TapeError(
            "the model reads a tensor's bits as another type with view(dtype), which no rule can share"
        )
    return getattr(torch.Tensor, op.again)


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(target.dtype).expand_as(target)
