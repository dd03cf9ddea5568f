"""Models that are refused before or while they run: scripted, compiled, random, in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.errors import InputError, TapeError
from bilrp.trace.operation import Op


def refuse_what_cannot_be_seen(encoder: Callable[..., object], modules: list[nn.Module]) -> None:
    for part in [encoder, *(p for module in modules for p in module.modules())]:
        scripted = isinstance(part, torch.jit.ScriptModule | torch.jit.ScriptFunction)
        compiled = type(part).__name__ == "OptimizedModule" or hasattr(part, "_torchdynamo_orig_callable")
        if scripted or compiled:
            kind = "scripted" if scripted else "compiled"
            raise TapeError(
                f"{type(part).__name__} is {kind}, so its calls cannot be seen: explain the plain Python module "
                "it was made from"
            )


def refuse_moving_targets(modules: list[nn.Module]) -> None:
    """The same, before anything runs: batch norm in training mode would change its statistics."""
    for module in modules:
        for name, part in module.named_modules():
            dropping = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
            counting = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
            if part.training and (dropping or counting):
                raise InputError(_training(f"{type(part).__name__} '{name}'"))


def refuse_training(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Random or batch-dependent layers make the embedding a moving target: refuse them."""
    given = [argument.of(args, kwargs) for argument in op.active]
    if given and all(True if isinstance(value, Tensor) else bool(value) for value in given):
        raise InputError(_training(f"'{op.name}'"))


def _training(what: str) -> str:
    return f"the model is in training mode ({what} is active), so its embedding is not fixed: call model.eval() first"
