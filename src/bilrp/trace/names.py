"""Names: of torch's functions, of the modules an encoder runs, of the weights they own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from bilrp.trace.operation import Op, Table
from bilrp.trace.ops import OPERATIONS


def operation_of(func: Callable[..., Any], table: Table = OPERATIONS) -> Op:
    """The row of a torch function: `Tensor.add_`, `torch.add` and `+` are all 'add'.

    >>> import torch
    >>> operation_of(torch.Tensor.add_).name
    'add'
    """
    name = getattr(func, "__name__", None) or str(func)
    if name == "__get__":
        name = getattr(func.__self__, "__name__", name)  # type: ignore[attr-defined]
    return table.find(name[:-1] if has_underscore(name) else name)


def has_underscore(name: str) -> bool:
    """Torch's sign for a call that writes in place: add_, but not __add__."""
    return name.endswith("_") and not name.endswith("__")


def modules_of(encoder: object) -> list[nn.Module]:
    """The modules an encoder runs: itself, or those a function, method or partial refers to.

    >>> net = nn.Linear(2, 1)
    >>> modules_of(lambda x: net(x)) == modules_of(net.forward) == [net]
    True
    """
    if isinstance(encoder, nn.Module):
        return [encoder]
    if isinstance(encoder, functools.partial):
        reached = [encoder.func, *encoder.args, *encoder.keywords.values()]
        return [m for value in reached if callable(value) for m in modules_of(value)]
    owner = getattr(encoder, "__self__", None)
    found = [owner] if isinstance(owner, nn.Module) else []
    if inspect.isfunction(encoder):
        names = inspect.getclosurevars(encoder)
        values = [*names.nonlocals.values(), *names.globals.values()]
        found += [value for value in values if isinstance(value, nn.Module)]
    return found


Parts = list[tuple[str, nn.Module]]


def parts_of(module: nn.Module) -> Parts:
    """Every module inside a module, itself included, with its name."""
    return list(module.named_modules())


def named_weights(modules: Iterable[Parts]) -> list[tuple[str, Tensor]]:
    """Of each module its parameters, then its buffers, each once: what torch says, without a walk for every question."""
    found: dict[int, tuple[str, Tensor]] = {}
    for parts in modules:
        for kind in ("_parameters", "_buffers"):
            for prefix, part in parts:
                for name, t in getattr(part, kind).items():
                    if t is not None and id(t) not in found:
                        found[id(t)] = (f"{prefix}.{name}" if prefix else name, t)
    return list(found.values())


def owners(named: Sequence[tuple[str, Tensor]]) -> dict[int, str]:
    """Where each weight lives -> the name of the module that owns it."""
    return {t.data_ptr(): name.rpartition(".")[0] or name for name, t in reversed(named) if t.numel()}
