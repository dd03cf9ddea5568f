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
from bilrp.trace.replay import same_numbers
from bilrp.trace.tape import tensors_in


class _At(TorchFunctionMode):
    """The first call that makes a tensor with `weight`: what it gave, and what is given instead."""

    def __init__(self, weight: Tensor, instead: Tensor | None):
        super().__init__()
        self.weight, self.instead, self.found = weight, instead, None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.found is not None or getattr(func, "__name__", "") == "__get__":
            return result
        uses = any(t is self.weight for t in tensors_in((args, kwargs)))
        if not (uses and isinstance(result, Tensor) and result.dtype.is_floating_point):
            return result
        # A copy of its own on either side: models write into this value (h = words(ids); h += positions).
        self.found = result.detach().clone()
        return result if self.instead is None else self.instead.clone()


def value_at(module: Callable[[Any], Tensor], start: str, given: Any) -> Tensor:
    """What the module called `start` makes of what the whole is given: the input that is explained.

    >>> net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2))
    >>> value_at(net, "0", torch.tensor([[3, 5]])).shape
    torch.Size([1, 2, 4])
    """
    with torch.no_grad():
        with _At(_weight(module, start), None) as at:
            embedding = module(given)
        value = _met(at.found, start)
        _verify_resumed(_run(module, start, given, value), embedding, start)
    return value


def _verify_resumed(resumed: Any, embedding: Any, start: str) -> None:
    """Refuse a run from `start` on that does not give the model's own embedding."""
    both = isinstance(resumed, Tensor) and isinstance(embedding, Tensor)  # what is no tensor is refused later
    if both and not same_numbers(resumed, embedding):
        raise TapeError(
            f"a run resumed at {start!r} gives another embedding than the whole model: it changes from run to run (call "
            "model.eval()), or changes that value unseen; make its forward repeatable, or explain it from inputs_embeds"
        )


def running_from(module: Callable[[Any], Tensor], start: str, given: Any) -> Callable[[Tensor], Tensor]:
    """x ↦ embedding: the module at what it is given, but for x as the output of the module called `start`.

    >>> net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2))
    >>> running_from(net, "0", torch.tensor([[3, 5]]))(torch.zeros(1, 2, 4)).shape
    torch.Size([1, 2])
    """
    return partial(_run, module, start, given)


def _run(module: Callable[[Any], Tensor], start: str, given: Any, x: Tensor) -> Tensor:
    with _At(_weight(module, start), x) as at:
        result = module(given)
    if _met(at.found, start).shape != x.shape:
        raise InputError(
            f"{start} makes a tensor of shape {tuple(_met(at.found, start).shape)}, not {tuple(x.shape)}: "
            "give an input of the same length"
        )
    return result


def _weight(module: Any, start: str) -> Tensor:
    if not isinstance(module, nn.Module):
        raise InputError(
            f"start={start!r} names a module inside the encoder's, which is {type(module).__name__} and has none"
        )
    try:
        inner = module.get_submodule(start)
    except AttributeError:
        known = [name for name, inner in module.named_modules() if isinstance(inner, nn.Embedding)]
        raise InputError(
            f"there is no module {start!r} in {type(module).__name__}: "
            f"give {' or '.join(map(repr, known)) or 'the name of one with weights'}"
        ) from None
    parts = [
        (f"{start}.{name}", any(True for _ in part.parameters())) for name, part in inner.named_children()
    ]
    if parts:  # its weights are used by several calls, and none of them need be its output
        way = (
            "name the one whose output is meant"
            if any(weighted for _, weighted in parts)
            else "none of them has weights to tell its call by, so explain the model from its inputs_embeds"
        )
        raise InputError(
            f"the module {start!r} is made of others ({', '.join(name for name, _ in parts)}): {way}"
        )
    weights = list(inner.parameters())
    if not weights:
        raise InputError(f"the module {start!r} has no weights, so its call cannot be told from others")
    return weights[0]


def _met(found: Tensor | None, start: str) -> Tensor:
    if found is None:
        raise InputError(
            f"the module {start!r} was not called for this input: nothing can begin at its output"
        )
    return found
