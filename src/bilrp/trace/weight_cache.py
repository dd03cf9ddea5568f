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

from bilrp.trace.fingerprint import get_memory_keys

MAX_RATIO = (
    2  # times the memory of the weights: what more was made, by other rules, is dropped, the oldest first
)
WeightState = tuple[str, tuple[torch.device, ...]]  # the weights' hash, and where they are
CacheKey = tuple[
    WeightState, Hashable, Hashable
]  # of which state, what was made, and of which of the weights
CacheEntries = dict[CacheKey, tuple[Tensor, int]]  # with the version that it was kept in

_CACHES: WeakKeyDictionary[Any, CacheEntries] = WeakKeyDictionary()
_ACTIVE: ContextVar[_ActiveCache | None] = ContextVar("shelf", default=None)


@dataclass(frozen=True)
class _ActiveCache:
    entries: CacheEntries
    state: WeightState
    # Which of the weights (by their number), or of what is kept, lies where. Only while the shelf is open, and with all of
    # it held: the same numbers may lie elsewhere for the next input, and others in their place.
    source_ids: dict[Hashable, Hashable]
    kept_alive: list[Tensor]


@contextmanager
def use_weight_cache(model: object, weights: Sequence[Tensor], state: str) -> Iterator[None]:
    """Within it, `cached_tensor` keeps what is made of these weights for as long as the model lives; `state` is their
    hash.
    """
    made, now = _entries_for(model), (state, tuple(t.device for t in weights))
    for key in [key for key in list(made) if key[0] != now]:
        made.pop(key, None)
    _evict(made, weights)
    names: dict[Hashable, Hashable] = dict(zip(get_memory_keys(weights), range(len(weights)), strict=True))
    token = _ACTIVE.set(_ActiveCache(made, now, names, list(weights)))
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def cached_tensor(name: Hashable, sources: Sequence[Tensor | None], compute: Callable[[], Tensor]) -> Tensor:
    """What `make` makes of weights, or made for an earlier input; of anything else it is made anew.

    >>> net = torch.nn.Linear(2, 2)
    >>> with use_weight_cache(net, [net.weight], "as they are"):
    ...     cached_tensor("size", [net.weight], net.weight.abs) is cached_tensor("size", [net.weight], net.weight.abs)
    True
    """
    now = _ACTIVE.get()
    if now is None or torch.is_inference_mode_enabled():  # where torch counts no writes
        return compute()
    of = tuple(
        None if t is None else now.source_ids.get(get_memory_keys([t])[0], NOT_A_WEIGHT) for t in sources
    )
    if NOT_A_WEIGHT in of:
        return compute()
    key = (now.state, name, of)
    found, version = now.entries.get(key, (None, 0))
    if found is None or found._version != version:
        now.entries.pop(key, None)
        found = compute()
        found, _ = now.entries.setdefault(
            key, (found, found._version)
        )  # another thread's, where it was faster
    now.source_ids[get_memory_keys([found])[0]] = key  # of what is kept, more can be made
    now.kept_alive.append(found)
    return found


NOT_A_WEIGHT = object()


def _evict(entries: CacheEntries, weights: Sequence[Tensor]) -> None:
    """Drop the oldest until the rest fits; what lies in the weights' own memory, or twice in the same, takes none."""
    seen = {t.untyped_storage().data_ptr() for t in weights}
    room = MAX_RATIO * sum(t.numel() * t.element_size() for t in weights)
    for key, (t, _) in reversed(list(entries.items())):
        at, size = t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()
        room -= 0 if at in seen else size
        seen.add(at)
        if room < 0:
            entries.pop(key, None)


def _entries_for(model: object) -> CacheEntries:
    try:
        return _CACHES.setdefault(model, {})
    except TypeError:  # nothing can be said about how long it lives
        return {}
