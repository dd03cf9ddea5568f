"""What is made of a model's weights (folded, shared out by γ), kept for its next input.

Freezing writes about as many numbers as a model has weights, into fresh memory, and would for every input anew: on
ResNet-50 as long as running it. The numbers of the weights say whether they are still the same ones (`fingerprint`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bilrp.trace.fingerprint import places

ROOM = 2  # times the memory of the weights: where more was made, by other rules, all of it is dropped
Made = dict[tuple[str, Hashable, Hashable], tuple[Tensor, int]]  # with the version that it was kept in

_SHELVES: WeakKeyDictionary[Any, Made] = WeakKeyDictionary()
_OPEN: ContextVar[_Open | None] = ContextVar("shelf", default=None)


@dataclass(frozen=True)
class _Open:
    made: Made
    state: str
    known: set[Hashable]  # tensors whose numbers `state` speaks of, by their places


@contextmanager
def shelf(model: object, weights: Sequence[Tensor], state: str) -> Iterator[None]:
    """Within it, `kept` keeps what is made of these weights for as long as the model lives; `state` is their hash."""
    made = _of(model)
    sizes = [t.numel() * t.element_size() for t, _ in list(made.values())]
    crowded = sum(sizes) > ROOM * sum(w.numel() * w.element_size() for w in weights)
    for key in list(made):
        if crowded or key[0] != state:
            made.pop(key, None)
    token = _OPEN.set(_Open(made, state, set(places(weights))))
    try:
        yield
    finally:
        _OPEN.reset(token)


def kept(name: Hashable, sources: Sequence[Tensor | None], make: Callable[[], Tensor]) -> Tensor:
    """What `make` makes of weights, or made for an earlier input; of anything else it is made anew.

    >>> net = torch.nn.Linear(2, 2)
    >>> with shelf(net, [net.weight], "as they are"):
    ...     kept("size", [net.weight], net.weight.abs) is kept("size", [net.weight], net.weight.abs)
    True
    """
    now = _OPEN.get()
    if now is None or torch.is_inference_mode_enabled():  # where torch counts no writes
        return make()
    at = places(t for t in sources if t is not None)
    if not now.known.issuperset(at):
        return make()
    key = (now.state, name, at)
    found, version = now.made.get(key, (None, 0))
    if found is None or found._version != version:
        found = make()
        now.made[key] = (found, found._version)
    now.known.add(places([found])[0])  # of what is kept, more can be made
    return found


def _of(model: object) -> Made:
    try:
        return _SHELVES.setdefault(model, {})
    except TypeError:  # nothing can be said about how long it lives
        return {}
