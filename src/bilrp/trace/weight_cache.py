"""Per-model cache of tensors computed from the weights (folded batch norm, γ), reused for the next input.

Computing them takes as long as running the model (ResNet-50). The hash of the weights (`fingerprint`) shows whether they
are still valid.
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

MAX_RATIO = 2  # cache size relative to the weights; the oldest entries are dropped first
NOT_A_WEIGHT = object()
WeightState = tuple[str, tuple[torch.device, ...]]  # hash and devices of the weights
CacheKey = tuple[WeightState, Hashable, Hashable]  # state of the weights, name of the result, its sources
CacheEntries = dict[CacheKey, tuple[Tensor, int]]  # result, and its version counter when it was stored

_CACHES: WeakKeyDictionary[Any, CacheEntries] = WeakKeyDictionary()
_ACTIVE: ContextVar[_ActiveCache | None] = ContextVar("weight_cache", default=None)


@dataclass(frozen=True)
class _ActiveCache:
    entries: CacheEntries
    state: WeightState
    # Index of a weight, or key of a cached tensor, by memory key. Memory keys identify tensors only while all of them
    # are kept alive: later, other tensors may use the same memory.
    source_ids: dict[Hashable, Hashable]
    kept_alive: list[Tensor]


@contextmanager
def use_weight_cache(model: object, weights: Sequence[Tensor], state: str) -> Iterator[None]:
    """Within the block, let `cache_tensor` store what is computed from the weights.

    Args:
        model: the model; its cache is dropped with it.
        weights: the weights of the run.
        state: hash of the weights.
    """
    entries, current = _entries_for(model), (state, tuple(t.device for t in weights))
    for key in [key for key in list(entries) if key[0] != current]:
        entries.pop(key, None)
    _evict(entries, weights)
    source_ids: dict[Hashable, Hashable] = dict(
        zip(get_memory_keys(weights), range(len(weights)), strict=True)
    )
    token = _ACTIVE.set(_ActiveCache(entries, current, source_ids, list(weights)))
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def cache_tensor(name: Hashable, sources: Sequence[Tensor | None], compute: Callable[[], Tensor]) -> Tensor:
    """Return `compute()`, or the cached result of an earlier input if all sources are weights or cached tensors.

    Args:
        name: identifies the computation.
        sources: the tensors that it uses.
        compute: the computation.
    """
    cache = _ACTIVE.get()
    if cache is None or torch.is_inference_mode_enabled():  # inference mode has no version counters
        return compute()
    source_ids = tuple(
        None if t is None else cache.source_ids.get(get_memory_keys([t])[0], NOT_A_WEIGHT) for t in sources
    )
    if NOT_A_WEIGHT in source_ids:
        return compute()
    key = (cache.state, name, source_ids)
    result, version = cache.entries.get(key, (None, 0))
    if result is None or result._version != version:
        cache.entries.pop(key, None)
        result = compute()
        # if another thread was faster, use its result
        result, _ = cache.entries.setdefault(key, (result, result._version))
    cache.source_ids[get_memory_keys([result])[0]] = key  # it can be a source itself
    cache.kept_alive.append(result)
    return result


def _evict(entries: CacheEntries, weights: Sequence[Tensor]) -> None:
    """Drop the oldest entries until the rest fits; tensors that alias the weights or each other count once."""
    storages = {t.untyped_storage().data_ptr() for t in weights}
    free = MAX_RATIO * sum(t.numel() * t.element_size() for t in weights)
    for key, (t, _) in reversed(list(entries.items())):
        address, size = t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()
        free -= 0 if address in storages else size
        storages.add(address)
        if free < 0:
            entries.pop(key, None)


def _entries_for(model: object) -> CacheEntries:
    try:
        return _CACHES.setdefault(model, {})
    except TypeError:  # no weak references, so its lifetime is unknown
        return {}
