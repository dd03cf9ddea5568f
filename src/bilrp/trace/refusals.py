"""Models that are refused before or while they run: scripted, compiled, random, in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bilrp.errors import InputError, TapeError


def refuse_what_cannot_be_seen(encoder: Any, modules: list[nn.Module]) -> None:
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


def refuse_training(op: str, args: Any, kwargs: dict[str, Any]) -> None:
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


def _training(what: str) -> str:
    return f"the model is in training mode ({what} is active), so its embedding is not fixed: call model.eval() first"
