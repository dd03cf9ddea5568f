"""Errors for models that cannot be recorded: scripted, compiled, random, in training mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from traceback import walk_tb

import torch
from torch import Tensor, nn

from bilrp.errors import InputError, TapeError
from bilrp.trace.introspection import NamedModules
from bilrp.trace.operation import Op

COMPILED_ATTRIBUTE = "_torchdynamo_orig_callable"
SCRIPTED_TYPES = (torch.jit.ScriptModule, torch.jit.ScriptFunction)


def reject_compiled_code(encoder: Callable[..., object], modules: list[NamedModules]) -> None:
    """Raise `TapeError` if the encoder or one of its modules is scripted or compiled."""
    for part in [encoder, *(part for parts in modules for _, part in parts)]:
        scripted = issubclass(type(part), SCRIPTED_TYPES)
        # hasattr of a missing attribute is slow for modules
        is_marked = (
            COMPILED_ATTRIBUTE in vars(part)
            if isinstance(part, nn.Module)
            else hasattr(part, COMPILED_ATTRIBUTE)
        )
        if scripted or is_marked or type(part).__name__ == "OptimizedModule":
            kind = "scripted" if scripted else "compiled"
            raise TapeError(
                f"{type(part).__name__} is {kind}, so its calls cannot be seen: explain the plain Python module "
                "it was made from"
            )


def reject_training_mode(modules: list[NamedModules]) -> None:
    """Raise `InputError` before the run if dropout or batch norm is in training mode: the run would change statistics."""
    for name, part in ((name, part) for parts in modules for name, part in parts if part.training):
        is_dropout = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        is_batch_norm = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
        if is_dropout or is_batch_norm:
            raise InputError(_format_training_error(f"{type(part).__name__} '{name}'", True))


def reject_unsupported_call(
    op: Op, args: tuple[object, ...], kwargs: Mapping[str, object], live: Tensor, training: bool | None = None
) -> None:
    """Raise if a call on live tensors cannot be recorded.

    Args:
        op: the operation.
        args, kwargs: its arguments.
        live: one of its live tensors.
        training: the model is in training mode; None if unknown.
    """
    if op.kind == "host_read":
        raise TapeError(
            f"the model reads numbers out of a live tensor with '{op.name}', which cannot be recorded: "
            "keep them as tensors, or compute them before the model"
        )
    if kwargs.get("out") is not None:
        raise TapeError(f"'{op.name}(..., out=...)' cannot be recorded: drop out=")
    # the first call is faster, and almost always false
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(live.device.type):
        raise InputError(
            "the model runs under autocast, whose rounding cannot be recorded: leave the autocast block, "
            "or convert the model, e.g. model.to(torch.bfloat16)"
        )
    if op.training_args:
        reject_training_call(op, args, kwargs, training)


def reject_training_call(
    op: Op, args: tuple[object, ...], kwargs: Mapping[str, object], training: bool | None
) -> None:
    """Raise `InputError` if a call is random or batch-dependent, so that the embedding is not fixed.

    Args:
        op, args, kwargs, training: as for `reject_unsupported_call`.
    """
    values = [argument.get(args, kwargs) for argument in op.training_args]
    if values and all(True if isinstance(value, Tensor) else bool(value) for value in values):
        raise InputError(_format_training_error(f"'{op.name}'", training))


def _format_training_error(layer: str, training: bool | None) -> str:
    """Return the message; `training`: the model is in training mode, None if unknown."""
    if training:
        return f"the model is in training mode ({layer} is active), so its embedding is not fixed: call model.eval() first"
    advice = "pass training=self.training to it, or dropout_p=0.0"
    advice = advice if training is False else f"call model.eval() first; if that does not help, {advice}"
    return f"{layer} is active, so the embedding is not fixed: {advice}"


def translate_torch_error(error: RuntimeError) -> str | None:
    """Return a message for a torch error that is caused by recording; None if the model itself fails."""
    message = str(error)
    if "modified inplace" in message or "modified by an inplace" in message:
        return (
            "the model writes in place into one of several views of a tensor (chunk, split, unbind), which cannot be "
            "recorded: write out of place in the model"
        )
    if message.startswith("vmap:") or "Cannot access data pointer of Tensor" in message:
        return (
            "the model uses function transforms (torch.vmap, torch.func.jvp, torch.func.grad), which cannot be recorded: "
            "use plain calls on the whole batch"
        )
    if any("flex_attention" in frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)):
        return (
            "flex_attention cannot be recorded: use torch.nn.functional.scaled_dot_product_attention with attn_mask, or "
            "load a transformers model with attn_implementation='sdpa'"
        )
    if type(error).__module__.startswith(("torch._dynamo", "torch._subclasses", "torch._inductor")):
        return (
            "a part of the model is compiled (torch.compile), so its calls cannot be seen: explain the plain Python model, "
            "or run with TORCH_COMPILE_DISABLE=1"
        )
    return None


def describe_non_tensor(result: object) -> str:
    """Return a message for an encoder that did not return a tensor, with a wrapper that does."""
    if result is None:
        return "the encoder returned None, not a tensor: its forward needs a return"
    names = list(result) if isinstance(result, Mapping) else list(getattr(result, "_fields", ()))
    if not names:
        expression = "model(x)[0]" if isinstance(result, tuple | list) else "model(x).pooler_output"
        return _format_wrapper_advice(type(result).__name__, expression)
    name = next((name for name in ("embedding", "pooler_output") if name in names), names[0])
    expression = f"model(x).{name}" if hasattr(result, str(name)) else f"model(x)[{_quote(name)}]"
    return _format_wrapper_advice(
        f"{type(result).__name__} with {', '.join(map(str, names[:8]))}", expression
    )


def _quote(key: object) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def _format_wrapper_advice(returned: str, expression: str) -> str:
    return (
        f"the encoder returned {returned}, not a tensor: wrap it so that it returns the embedding, e.g. lambda "
        f"x: {expression}"
    )
