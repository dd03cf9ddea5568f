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

ROOM = 2  # times the memory of the weights: what more was made, by other rules, is dropped, the oldest first
State = tuple[str, tuple[torch.device, ...]]  # the weights' hash, and where they are
Key = tuple[State, Hashable, Hashable]  # of which state, what was made, and of which of the weights
Made = dict[Key, tuple[Tensor, int]]  # with the version that it was kept in

_SHELVES: WeakKeyDictionary[Any, Made] = WeakKeyDictionary()
_OPEN: ContextVar[_Open | None] = ContextVar("shelf", default=None)


@dataclass(frozen=True)
class _Open:
    made: Made
    state: State
    # Which of the weights (by their number), or of what is kept, lies where. Only while the shelf is open, and with all of
    # it held: the same numbers may lie elsewhere for the next input, and others in their place.
    names: dict[Hashable, Hashable]
    held: list[Tensor]


@contextmanager
def shelf(model: object, weights: Sequence[Tensor], state: str) -> Iterator[None]:
    """Within it, `kept` keeps what is made of these weights for as long as the model lives; `state` is their hash."""
    made, now = _of(model), (state, tuple(t.device for t in weights))
    for key in [key for key in list(made) if key[0] != now]:
        made.pop(key, None)
    _make_room(made, weights)
    names: dict[Hashable, Hashable] = dict(zip(places(weights), range(len(weights)), strict=True))
    token = _OPEN.set(_Open(made, now, names, list(weights)))
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
    of = tuple(None if t is None else now.names.get(places([t])[0], UNKNOWN) for t in sources)
    if UNKNOWN in of:
        return make()
    key = (now.state, name, of)
    found, version = now.made.get(key, (None, 0))
    if found is None or found._version != version:
        now.made.pop(key, None)
        found = make()
        found, _ = now.made.setdefault(key, (found, found._version))  # another thread's, where it was faster
    now.names[places([found])[0]] = key  # of what is kept, more can be made
    now.held.append(found)
    return found


UNKNOWN = object()


def _make_room(made: Made, weights: Sequence[Tensor]) -> None:
    """Drop the oldest until the rest fits; what lies in the weights' own memory, or twice in the same, takes none."""
    seen = {t.untyped_storage().data_ptr() for t in weights}
    room = ROOM * sum(t.numel() * t.element_size() for t in weights)
    for key, (t, _) in reversed(list(made.items())):
        at, size = t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()
        room -= 0 if at in seen else size
        seen.add(at)
        if room < 0:
            made.pop(key, None)


def _of(model: object) -> Made:
    try:
        return _SHELVES.setdefault(model, {})
    except TypeError:  # nothing can be said about how long it lives
        return {}
