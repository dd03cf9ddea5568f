"""Hashes of the weights and code of an encoder; decompositions with different hashes cannot be paired."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import getclosurevars
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from bilrp.trace.checksum import compute_checksum, view_bytes

HASH_DIGITS = 16  # hexadecimal digits
MAX_CACHED_HASHES = 32  # sets of weights
_HASH_CACHE: dict[Any, str] = {}
_HASH_CACHE_LOCK = Lock()
# device, address, version, shape, strides and dtype of a tensor
MemoryKey: TypeAlias = tuple[torch.device, int, int, torch.Size, tuple[int, ...], torch.dtype]
_KNOWN_HASHES: ContextVar[dict[Any, str] | None] = ContextVar("known_hashes", default=None)
LITERAL_TYPES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(...),
    torch.dtype,
    torch.device,
    range,
    slice,
)


def hash_tensors(tensors: Iterable[Tensor]) -> str:
    """Return a hash of the tensors' values, shapes and dtypes."""
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(f"{tuple(t.shape)}{t.dtype}".encode())
        digest.update(view_bytes(t).data)
    return digest.hexdigest()[:HASH_DIGITS]


def hash_weights(weights: Sequence[Tensor]) -> str:
    """Return `hash_tensors(weights)`, cached by memory addresses, version counters and a checksum.

    Addresses and versions are not enough: writes through `.data` or numpy change neither. Within `hash_weights_once`
    they are.
    """
    keys, known = get_memory_keys(weights), _KNOWN_HASHES.get()
    if known is not None and keys in known:
        return known[keys]
    key = (keys, compute_checksum(weights))
    with _HASH_CACHE_LOCK:
        weights_hash = _HASH_CACHE.get(key)
    if weights_hash is None:
        weights_hash = hash_tensors(weights)
        with _HASH_CACHE_LOCK:
            _HASH_CACHE[key] = weights_hash
            for oldest in list(_HASH_CACHE)[:-MAX_CACHED_HASHES]:
                del _HASH_CACHE[oldest]
    if known is not None:
        known[keys] = weights_hash
    return weights_hash


@contextmanager
def hash_weights_once() -> Iterator[None]:
    """Within the block, hash each set of weights once: for one call that runs the same model on many inputs."""
    token = _KNOWN_HASHES.set({})
    try:
        yield
    finally:
        _KNOWN_HASHES.reset(token)


def get_memory_keys(tensors: Iterable[Tensor]) -> tuple[MemoryKey, ...]:
    """Return device, address, version, shape, strides and dtype of each tensor (see `hash_weights`)."""
    return tuple((t.device, t.data_ptr(), t._version, t.shape, t.stride(), t.dtype) for t in tensors)


def hash_code(function: Callable[..., object], *, tensors: bool = True) -> str:
    """Return a hash of a plain function: its code, its constants, and the values it refers to.

    Modules are included by class only; `hash_weights` covers their weights. `tensors=False` leaves out tensors too.

    >>> hash_code(lambda x: x * 2) == hash_code(lambda x: x * 2), hash_code(lambda x: x * 2) == hash_code(lambda x: x * 3)
    (True, False)
    """
    digest = hashlib.sha256()
    for piece in _hash_tokens(function, getattr(function, "__module__", None), tensors, {}):
        digest.update(piece.encode() + b"\0")
    return digest.hexdigest()[:HASH_DIGITS]


def _hash_tokens(value: Any, module_name: str | None, tensors: bool, seen: dict[int, Any]) -> Iterator[str]:
    """Yield strings that identify a value; functions of other modules are identified by name."""
    yield type(value).__qualname__
    if isinstance(value, LITERAL_TYPES):
        yield repr(value)
    elif isinstance(value, np.ndarray | np.generic):
        yield hash_tensors([torch.from_numpy(np.atleast_1d(value).copy())])
    elif isinstance(value, Tensor):
        if tensors:
            yield hash_tensors([value])
    elif isinstance(value, types.ModuleType):
        yield value.__name__
    elif _has_name(value):
        yield value.name
    elif id(value) not in seen:
        seen[id(value)] = value  # keeps it alive, so that its id stays unique
        for part in _components(value, module_name):
            yield from _hash_tokens(part, module_name, tensors, seen)


def _has_name(value: Any) -> bool:
    """Return whether a value is a rule or composite, which its name identifies."""
    is_class_or_module = isinstance(value, type | nn.Module)
    return not is_class_or_module and callable(value) and isinstance(getattr(value, "name", None), str)


def _components(value: Any, module_name: str | None) -> list[Any]:
    """Return the components of a compound value."""
    if isinstance(value, type):
        own = sorted(vars(value).items()) if value.__module__ == module_name else []
        return [value.__module__, value.__qualname__, *(member for _, member in own if _is_code(member))]
    if isinstance(value, nn.Module):
        return [type(value)]
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_names, *value.co_consts]
    if isinstance(value, types.FunctionType):
        if value.__module__ != module_name and "<" not in value.__qualname__:
            return [value.__module__, value.__qualname__]
        outside = getclosurevars(value)
        return [
            *(value.__code__, value.__defaults__, value.__kwdefaults__),
            *(dict(outside.nonlocals), dict(outside.globals)),
        ]
    if isinstance(value, types.MethodType | staticmethod | classmethod):
        return [value.__func__, getattr(value, "__self__", None)]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.BuiltinFunctionType):
        return [value.__name__]
    call_method = type(value).__call__ if callable(value) else None
    return [type(value), call_method, *(getattr(value, "__dict__", {}).items())]


def _is_code(member: Any) -> bool:
    return isinstance(member, types.FunctionType | staticmethod | classmethod)
