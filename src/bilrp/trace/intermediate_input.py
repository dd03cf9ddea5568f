"""Runs that begin inside a model: one module's output is the input that is explained.

A model that takes token numbers has nothing to share relevance among before it looks them up. Under a
`TorchFunctionMode` the call that uses a module's weights gives the tensor that is asked about instead of what it
computed, so the model is neither patched nor hooked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bilrp.errors import InputError, TapeError
from bilrp.trace.replay import is_close
from bilrp.trace.tape import collect_tensors


class _OutputSubstitution(TorchFunctionMode):
    """The first call that makes a tensor with `weight`: what it gave, and what is given instead."""

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
        # A copy of its own on either side: models write into this value (h = words(ids); h += positions).
        self.output = result.detach().clone()
        return result if self.replacement is None else self.replacement.clone()


def compute_module_output(module: Callable[[Any], Tensor], input_layer: str, model_input: Any) -> Tensor:
    """What the module called `start` makes of what the whole is given: the input that is explained.

    >>> net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2))
    >>> compute_module_output(net, "0", torch.tensor([[3, 5]])).shape
    torch.Size([1, 2, 4])
    """
    with torch.no_grad():
        with _OutputSubstitution(_find_weight(module, input_layer), None) as at:
            embedding = module(model_input)
        value = _require_called(at.output, input_layer)
        _verify_resumed(_run_from(module, input_layer, model_input, value), embedding, input_layer)
    return value


def _verify_resumed(resumed: Any, embedding: Any, input_layer: str) -> None:
    """Refuse a run from `start` on that does not give the model's own embedding."""
    both = isinstance(resumed, Tensor) and isinstance(embedding, Tensor)  # what is no tensor is refused later
    if both and not is_close(resumed, embedding):
        raise TapeError(
            f"a run resumed at {input_layer!r} gives another embedding than the whole model: it changes "
            f"from run to run (call "
            "model.eval()), or changes that value unseen; make its forward repeatable, or explain it from inputs_embeds"
        )


def run_from_module(
    module: Callable[[Any], Tensor], input_layer: str, model_input: Any
) -> Callable[[Tensor], Tensor]:
    """x ↦ embedding: the module at what it is given, but for x as the output of the module called `start`.

    >>> net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2))
    >>> run_from_module(net, "0", torch.tensor([[3, 5]]))(torch.zeros(1, 2, 4)).shape
    torch.Size([1, 2])
    """
    return partial(_run_from, module, input_layer, model_input)


def _run_from(module: Callable[[Any], Tensor], input_layer: str, model_input: Any, x: Tensor) -> Tensor:
    with _OutputSubstitution(_find_weight(module, input_layer), x) as at:
        result = module(model_input)
    if _require_called(at.output, input_layer).shape != x.shape:
        raise InputError(
            f"{input_layer} makes a tensor of shape {tuple(_require_called(at.output, input_layer).shape)}, "
            f"not {tuple(x.shape)}: "
            "give an input of the same length"
        )
    return result


def _find_weight(module: Any, input_layer: str) -> Tensor:
    if not isinstance(module, nn.Module):
        raise InputError(
            f"input_layer={input_layer!r} names a module inside the encoder's, which is {type(module).__name__} and has none"
        )
    try:
        inner = module.get_submodule(input_layer)
    except AttributeError:
        known = [name for name, inner in module.named_modules() if isinstance(inner, nn.Embedding)]
        raise InputError(
            f"there is no module {input_layer!r} in {type(module).__name__}: "
            f"give {' or '.join(map(repr, known)) or 'the name of one with weights'}"
        ) from None
    parts = [
        (f"{input_layer}.{name}", any(True for _ in part.parameters()))
        for name, part in inner.named_children()
    ]
    if parts:  # its weights are used by several calls, and none of them need be its output
        way = (
            "name the one whose output is meant"
            if any(weighted for _, weighted in parts)
            else "none of them has weights to tell its call by, so explain the model from its inputs_embeds"
        )
        raise InputError(
            f"the module {input_layer!r} is made of others ({', '.join(name for name, _ in parts)}): {way}"
        )
    weights = list(inner.parameters())
    if not weights:
        raise InputError(f"the module {input_layer!r} has no weights, so its call cannot be told from others")
    return weights[0]


def _require_called(output: Tensor | None, input_layer: str) -> Tensor:
    if output is None:
        raise InputError(
            f"the module {input_layer!r} was not called for this input: nothing can begin at its output"
        )
    return output
