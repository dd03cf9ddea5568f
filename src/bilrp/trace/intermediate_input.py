"""Explain a model from the output of one of its modules, e.g. from its token embeddings.

Token ids are integers and cannot carry relevance. Under a `TorchFunctionMode` the call that uses the module's weights
returns the explained tensor instead of its own result; the model is neither patched nor hooked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bilrp.errors import InputError, TapeError
from bilrp.trace.numerics import is_close
from bilrp.trace.tape import collect_tensors


class _OutputSubstitution(TorchFunctionMode):
    """Store the result of the first call that uses `weight`, and replace it if there is a replacement."""

    def __init__(self, weight: Tensor, replacement: Tensor | None):
        super().__init__()
        self.weight, self.replacement, self.output = weight, replacement, None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.output is not None or getattr(func, "__name__", "") == "__get__":
            return result
        uses = any(t is self.weight for t in collect_tensors((args, kwargs)))
        if not (uses and isinstance(result, Tensor) and result.dtype.is_floating_point):
            return result
        # Copies, because models write into this tensor (h = words(ids); h += positions).
        self.output = result.detach().clone()
        return result if self.replacement is None else self.replacement.clone()


def compute_module_output(
    module: Callable[[Tensor], Tensor], input_layer: str, model_input: Tensor
) -> Tensor:
    """Return the output of the submodule `input_layer` when the module runs on `model_input`.

    Args:
        module: the whole model.
        input_layer: name of a submodule with weights.
        model_input: input of the whole model, e.g. token ids.
    """
    with torch.no_grad():
        with _OutputSubstitution(_find_weight(module, input_layer), None) as substitution:
            embedding = module(model_input)
        output = _check_called(substitution.output, input_layer)
        _check_embedding(_run_from(module, input_layer, model_input, output), embedding, input_layer)
    return output


def _check_embedding(resumed: Any, embedding: Any, input_layer: str) -> None:
    """Raise `TapeError` if the run from `input_layer` does not give the model's own embedding."""
    # other types: the recorder raises later
    are_tensors = isinstance(resumed, Tensor) and isinstance(embedding, Tensor)
    if are_tensors and not is_close(resumed, embedding):
        raise TapeError(
            f"a run resumed at {input_layer!r} gives another embedding than the whole model, which is random (call "
            "model.eval()) or modifies that value outside torch: make its forward repeatable, or explain it from "
            "inputs_embeds"
        )


def run_from_module(
    module: Callable[..., Tensor], input_layer: str, model_input: Tensor, **options: object
) -> Callable[[Tensor], Tensor]:
    """Return the function x ↦ embedding that runs the module with x as the output of `input_layer`.

    Args:
        module, input_layer, model_input: as for `compute_module_output`.
        options: Keyword arguments of the module.
    """
    return partial(_run_from, module, input_layer, model_input, **options)


def _run_from(
    module: Callable[..., Tensor], input_layer: str, model_input: Tensor, x: Tensor, **options: object
) -> Tensor:
    with _OutputSubstitution(_find_weight(module, input_layer), x) as substitution:
        result = module(model_input, **options)
    shape = _check_called(substitution.output, input_layer).shape
    if shape != x.shape:
        raise InputError(
            f"{input_layer} returns a tensor of shape {tuple(shape)}, not {tuple(x.shape)}: give an input of the same length"
        )
    return result


def _find_weight(module: object, input_layer: str) -> Tensor:
    if not isinstance(module, nn.Module):
        raise InputError(
            f"input_layer={input_layer!r} must name a submodule, but {type(module).__name__} is not an nn.Module"
        )
    try:
        inner = module.get_submodule(input_layer)
    except AttributeError:
        embeddings = [name for name, inner in module.named_modules() if isinstance(inner, nn.Embedding)]
        raise InputError(
            f"{type(module).__name__} has no module {input_layer!r}: "
            f"use {' or '.join(map(repr, embeddings)) or 'the name of one with weights'}"
        ) from None
    parts = [
        (f"{input_layer}.{name}", any(True for _ in part.parameters()))
        for name, part in inner.named_children()
    ]
    if parts:  # several calls use its weights, and none of them may compute its output
        advice = (
            "name one of them"
            if any(has_weights for _, has_weights in parts)
            else "none of them has weights that identify its call, so explain the model from its inputs_embeds"
        )
        raise InputError(
            f"the module {input_layer!r} consists of others ({', '.join(name for name, _ in parts)}): {advice}"
        )
    weights = list(inner.parameters())
    if not weights:
        raise InputError(
            f"the module {input_layer!r} has no weights, so its call cannot be identified: name another"
        )
    return weights[0]


def _check_called(output: Tensor | None, input_layer: str) -> Tensor:
    if output is None:
        raise InputError(f"the module {input_layer!r} was not called for this input: name a module that is")
    return output
