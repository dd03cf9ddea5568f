"""Short hashes of what a run depends on, so that decompositions made by different things never pair."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import getclosurevars
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp.trace.checksum import compute_checksum, view_bytes

HASH_DIGITS = 16  # hexadecimal digits
MAX_CACHED_HASHES = 32  # sets of weights whose hash is remembered
_HASH_CACHE: dict[Any, str] = {}
_HASH_CACHE_LOCK = Lock()
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
    """A hash over the numbers of some tensors, with their shapes and types."""
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(f"{tuple(t.shape)}{t.dtype}".encode())
        digest.update(view_bytes(t).data)
    return digest.hexdigest()[:HASH_DIGITS]


def hash_weights(weights: Sequence[Tensor]) -> str:
    """`hash_tensors`, of numbers that were hashed before from memory: their places, versions and a checksum tell.

    Places and versions alone would not do: what is written through `.data` or numpy changes neither.
    """
    key = (get_memory_keys(weights), compute_checksum(weights))
    with _HASH_CACHE_LOCK:
        found = _HASH_CACHE.get(key)
    if found is None:
        found = hash_tensors(weights)
        with _HASH_CACHE_LOCK:
            _HASH_CACHE[key] = found
            for oldest in list(_HASH_CACHE)[:-MAX_CACHED_HASHES]:
                del _HASH_CACHE[oldest]
    return found


def get_memory_keys(tensors: Iterable[Tensor]) -> tuple[Any, ...]:
    """Where the tensors' numbers lie, in what shape, and how often they were written to (but see `hash_weights`).

    Two devices may give out the same address.
    """
    return tuple((t.device, t.data_ptr(), t._version, t.shape, t.stride(), t.dtype) for t in tensors)


def hash_code(function: Callable[..., object], *, tensors: bool = True) -> str:
    """A hash over what a plain function does: its code, its constants, and what it refers to.

    Modules count by their class: their weights are seen when they run. Without `tensors`, tensors don't count either.

    >>> hash_code(lambda x: x * 2) == hash_code(lambda x: x * 2), hash_code(lambda x: x * 2) == hash_code(lambda x: x * 3)
    (True, False)
    """
    digest = hashlib.sha256()
    for piece in _hash_tokens(function, getattr(function, "__module__", None), tensors, {}):
        digest.update(piece.encode() + b"\0")
    return digest.hexdigest()[:HASH_DIGITS]


def _hash_tokens(value: Any, module_name: str | None, tensors: bool, seen: dict[int, Any]) -> Iterator[str]:
    """Words that tell one value from another; functions of other modules count by their name."""
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
        seen[id(value)] = value  # kept, so that no other value takes its place in memory
        for part in _components(value, module_name):
            yield from _hash_tokens(part, module_name, tensors, seen)


def _has_name(value: Any) -> bool:
    """A rule or a composite: its name says what it is."""
    bare = isinstance(value, type | nn.Module)
    return not bare and callable(value) and isinstance(getattr(value, "name", None), str)


def _components(value: Any, module_name: str | None) -> list[Any]:
    """What a compound value is made of."""
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
    called = type(value).__call__ if callable(value) else None
    return [type(value), called, *(getattr(value, "__dict__", {}).items())]


def _is_code(member: Any) -> bool:
    return isinstance(member, types.FunctionType | staticmethod | classmethod)
