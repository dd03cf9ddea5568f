"""Names of torch functions, and the modules, weights and tensors that an encoder refers to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket

from bilrp.trace.operation import Op, OperationTable
from bilrp.trace.operation_table import OPERATIONS

NamedModules = list[tuple[str, nn.Module]]


def find_operation(func: Callable[..., object], operations: OperationTable = OPERATIONS) -> Op:
    """Return the operation of a torch function: `Tensor.add_`, `torch.add` and `+` are all 'add'."""
    name = get_function_name(func)
    return operations.find(name[:-1] if has_inplace_suffix(name) else name)


def get_function_name(func: Callable[..., object]) -> str:
    """Return torch's name of a function, attribute or overload; other libraries' operators keep their namespace.

    >>> import torch
    >>> get_function_name(torch.Tensor.add_), get_function_name(torch.ops.aten.linear.default)
    ('add_', 'linear')
    """
    if isinstance(func, OpOverload | OpOverloadPacket):
        full = func._schema.name if isinstance(func, OpOverload) else func._qualified_op_name
        return full.removeprefix("aten::")
    name = getattr(func, "__name__", None) or str(func)
    return getattr(func.__self__, "__name__", name) if name == "__get__" else name  # type: ignore[attr-defined]


def has_inplace_suffix(name: str) -> bool:
    """Return whether the name marks an in-place call: add_, but not __add__."""
    return name.endswith("_") and not name.endswith("__")


def find_modules(encoder: object) -> list[nn.Module]:
    """Return the modules an encoder runs: itself, or those a function, method or partial refers to."""
    if isinstance(encoder, nn.Module):
        return [encoder]
    if isinstance(encoder, functools.partial):
        reached = [encoder.func, *encoder.args, *encoder.keywords.values()]
        return [m for value in reached if callable(value) for m in find_modules(value)]
    owner = getattr(encoder, "__self__", None)
    return [value for value in (owner, *_referenced_values(encoder)) if isinstance(value, nn.Module)]


def find_referenced_tensors(encoder: object, modules: Iterable[NamedModules]) -> list[Tensor]:
    """Return the tensors that an encoder refers to besides weights: module attributes, a function's variables."""
    values = [value for parts in modules for _, part in parts for value in vars(part).values()]
    return [value for value in (*values, *_referenced_values(encoder)) if isinstance(value, Tensor)]


def _referenced_values(encoder: object) -> list[Any]:
    """Return the nonlocal and global values that a plain function uses."""
    if not inspect.isfunction(encoder):
        return []
    names = inspect.getclosurevars(encoder)
    return [*names.nonlocals.values(), *names.globals.values()]


def list_submodules(module: nn.Module) -> NamedModules:
    """Return the module and all modules inside it, with their names, as the recursive `module.named_modules()` does."""
    listed: NamedModules = []
    seen = set[int]()
    waiting = [("", module)]
    while waiting:
        prefix, part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            listed.append((prefix, part))
            children = [(name, child) for name, child in part._modules.items() if child is not None]
            waiting += [(f"{prefix}.{name}" if prefix else name, child) for name, child in reversed(children)]
    return listed


def list_named_weights(modules: Iterable[NamedModules]) -> list[tuple[str, Tensor]]:
    """Return parameters, then buffers, each once and in torch's order, with their names."""
    weights: dict[int, tuple[str, Tensor]] = {}
    for parts in modules:
        for kind in ("_parameters", "_buffers"):
            for prefix, part in parts:
                for name, t in getattr(part, kind).items():
                    if t is not None and id(t) not in weights:
                        weights[id(t)] = (f"{prefix}.{name}" if prefix else name, t)
    return list(weights.values())


def map_weight_owners(weights: Sequence[tuple[str, Tensor]]) -> dict[int, str]:
    """Map the address of each weight to the name of the module that owns it."""
    return {t.data_ptr(): name.rpartition(".")[0] or name for name, t in reversed(weights) if t.numel()}
