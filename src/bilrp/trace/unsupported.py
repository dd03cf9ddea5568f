"""Models that are refused before or while they run: scripted, compiled, random, in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.errors import InputError, TapeError
from bilrp.trace.introspection import NamedModules
from bilrp.trace.operation import Op


def reject_compiled_code(encoder: Callable[..., object], modules: list[NamedModules]) -> None:
    for part in [encoder, *(part for parts in modules for _, part in parts)]:
        scripted = issubclass(type(part), SCRIPTED_TYPES)
        # a module's `hasattr` is slow where the answer is no
        marked = (
            COMPILED_ATTRIBUTE in vars(part)
            if isinstance(part, nn.Module)
            else hasattr(part, COMPILED_ATTRIBUTE)
        )
        if scripted or marked or type(part).__name__ == "OptimizedModule":
            kind = "scripted" if scripted else "compiled"
            raise TapeError(
                f"{type(part).__name__} is {kind}, so its calls cannot be seen: explain the plain Python module "
                "it was made from"
            )


COMPILED_ATTRIBUTE = "_torchdynamo_orig_callable"
SCRIPTED_TYPES = (torch.jit.ScriptModule, torch.jit.ScriptFunction)


def reject_training_mode(modules: list[NamedModules]) -> None:
    """The same, before anything runs: batch norm in training mode would change its statistics."""
    for name, part in (each for parts in modules for each in parts if each[1].training):
        dropping = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        counting = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
        if dropping or counting:
            raise InputError(_format_training_error(f"{type(part).__name__} '{name}'", True))


def reject_unsupported_call(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], live: Tensor, training: bool | None = None
) -> None:
    """A call on live tensors that no tape can hold; `training` says of the model whether it is in training mode."""
    if op.kind == "host_read":
        raise TapeError(
            f"the model reads numbers out of a live tensor with '{op.name}', where the tape cannot follow: "
            "keep them as tensors (or compute them before the model)"
        )
    if kwargs.get("out") is not None:
        raise TapeError(f"'{op.name}(..., out=...)' writes where the tape cannot follow: drop out=")
    # on any device: one quick question, which is nearly always the last
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(live.device.type):
        raise InputError(
            "the model runs under autocast, which rounds where the tape cannot see it: leave the autocast block, "
            "or convert the model, e.g. model.to(torch.bfloat16)"
        )
    if op.training_args:
        reject_training_call(op, args, kwargs, training)


def reject_training_call(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool | None
) -> None:
    """Random or batch-dependent layers make the embedding a moving target: refuse them."""
    given = [argument.get(args, kwargs) for argument in op.training_args]
    if given and all(True if isinstance(value, Tensor) else bool(value) for value in given):
        raise InputError(_format_training_error(f"'{op.name}'", training))


def _format_training_error(what: str, training: bool | None) -> str:
    """`training`: of the model; None where no module of it is known."""
    if training:
        return f"the model is in training mode ({what} is active), so its embedding is not fixed: call model.eval() first"
    way = "pass training=self.training to it, or dropout_p=0.0"
    way = way if training is False else f"call model.eval() first; where that changes nothing, {way}"
    return f"{what} is active, so the embedding is not fixed: {way}"


def translate_torch_error(error: RuntimeError) -> str | None:
    """What to do about an error of torch that comes of being watched; None where the model itself fails."""
    said = str(error)
    if "modified inplace" in said or "modified by an inplace" in said:
        return (
            "the model writes in place into one of several views of a tensor (chunk, split, unbind), which the tape cannot "
            "follow: write out of place in the model"
        )
    if said.startswith("vmap:") or "Cannot access data pointer of Tensor" in said:
        return (
            "the model transforms a function inside (torch.vmap, torch.func.jvp, torch.func.grad), where the tape cannot "
            "see numbers: write it with plain calls on the whole batch"
        )
    if any("flex_attention" in frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)):
        return (
            "flex_attention cannot be followed: use torch.nn.functional.scaled_dot_product_attention with attn_mask, or "
            "load a transformers model with attn_implementation='sdpa'"
        )
    if type(error).__module__.startswith(("torch._dynamo", "torch._subclasses", "torch._inductor")):
        return (
            "a part of the model is compiled (torch.compile), so its calls cannot be seen: explain the plain Python model, "
            "or run with TORCH_COMPILE_DISABLE=1"
        )
    return None


def describe_non_tensor(result: object) -> str:
    """What the encoder returned instead of an embedding, and how to take one out of it."""
    if result is None:
        return "the encoder returned None, not a tensor: its forward needs a return"
    names = list(result) if isinstance(result, Mapping) else list(getattr(result, "_fields", ()))
    if not names:
        way = "model(x)[0]" if isinstance(result, tuple | list) else "model(x).pooler_output"
        return _format_wrapper_advice(type(result).__name__, way)
    chosen = next((name for name in ("embedding", "pooler_output") if name in names), names[0])
    way = f"model(x).{chosen}" if hasattr(result, str(chosen)) else f"model(x)[{_quote(chosen)}]"
    return _format_wrapper_advice(f"{type(result).__name__} with {', '.join(map(str, names[:8]))}", way)


def _quote(key: object) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def _format_wrapper_advice(returned: str, expression: str) -> str:
    return (
        f"the encoder returned {returned}, not a tensor: wrap it so that it returns the embedding, e.g. lambda "
        f"x: {expression}"
    )
