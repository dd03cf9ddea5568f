"""Simulated devices: every number is in host memory, and a mode keeps account of the device it would be on.

Torch's own Python backend (`privateuseone`) needs a kernel for each operation, stays registered until the process ends,
and is not in the oldest torch supported. A `TorchFunctionMode` sees every call from Python, which is where devices are
mixed and where the host waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_iter

CPU = torch.device("cpu")
FIRST, SECOND = torch.device("xpu:0"), torch.device("xpu:1")
NARROW = torch.device("mps:0")  # a device without float64

# Calls that make the host wait for the device: they return numbers, or a shape that depends on numbers.
READING = {
    "item", "__bool__", "__int__", "__float__", "__index__", "__contains__", "__complex__", "is_nonzero", "tolist", "equal",
    "allclose", "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount", "__repr__",
    "__format__", "__reversed__", "histc",
}  # fmt: skip
INDEXING = {"__getitem__", "__setitem__", "index_put", "index_put_"}
MIXING = {"copy_", "_has_compatible_shallow_copy_type"}  # calls that may be given two devices


class MixedDevices(RuntimeError):
    """A call was given tensors of two devices."""


class Simulated(TorchFunctionMode):
    """Within it, tensors can be moved to devices that this machine does not have.

    It raises where a call takes tensors of two devices (single numbers on the host are allowed, and indices, as by
    CUDA), where `.numpy()` is asked of a device, and where float64 would be on one that has none. `syncs` counts, by name,
    the calls that make the host wait for a device, `calls` all others on a device, `bytes_read` what is copied to the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.where: dict[int, torch.device] = {}  # by the storage's identity
        self.held: list[Any] = []  # these storages, so that no other takes their identity
        self.syncs: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.bytes_read = 0
        self.names: dict[Any, str] = {}  # of functions called so far

    @property
    def waits(self) -> int:
        """How often the host waited for a device."""
        return sum(self.syncs.values())

    def forget(self) -> None:
        """Count from zero."""
        self.syncs.clear()
        self.calls.clear()
        self.bytes_read = 0

    def device(self, t: Tensor) -> torch.device:
        """Where the tensor would be."""
        return self.where.get(_identity(t), t.device)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return self.device(args[0])
        name = self.names.get(func)
        if name is None:
            name = self.names[func] = (resolve_name(func) or getattr(func, "__name__", "")).split(".")[-1]
        if name in ("__get__", "__set__"):
            return func(*args, **kwargs)
        there = {self.device(t) for t in _tensors((args, kwargs))} - {CPU}
        if not (there or any(map(_simulated, tree_iter((args, kwargs))))):
            return func(*args, **kwargs)
        if name in ("numpy", "__array__"):
            raise TypeError("can't convert a device's tensor to numpy: copy it to the host first")
        if name == "to":
            return self._to(args[0], args[1:], kwargs)
        if name == "cpu":
            return self._at(args[0], CPU, args[0])
        self._refuse_mixing(name, args, kwargs)
        self._count(name, args)
        target = next(iter(there), CPU)
        if kwargs.get("device") is not None:
            target = torch.device(kwargs["device"])
            kwargs["device"] = CPU if _simulated(target) else target
        given = {_identity(t) for t in _tensors((args, kwargs))}
        out = func(*args, **kwargs)
        for t in _tensors(out):
            if _identity(t) not in given and _identity(t) not in self.where:
                self._tag(t, target)
        return out

    def _tag(self, t: Tensor, device: torch.device) -> Tensor:
        if _simulated(device):
            _refuse_float64(t.dtype, device)
            self.where[_identity(t)] = device
            self.held.append(_storage(t))
        return t

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        index = _tensors(args[1:2] if name in INDEXING else ())
        masked = any(t.dtype == torch.bool and self.device(t) != CPU for t in index)
        waits = name in READING or masked or (name == "where" and len(args) == 1)
        (self.syncs if waits else self.calls)[name] += 1

    def _refuse_mixing(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        looked_at = (args[:1], args[2:], kwargs) if name in INDEXING else (args, kwargs)
        tensors = list(_tensors(looked_at))
        there = {self.device(t) for t in tensors}
        single = all(not t.dim() for t in tensors if self.device(t) == CPU)
        if name not in MIXING and len(there) > 1 and not (single and len(there - {CPU}) == 1):
            raise MixedDevices(f"{name} was given tensors on {', '.join(sorted(map(str, there)))}")

    def _to(self, t: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        like = kwargs.get("other", rest[0] if rest and isinstance(rest[0], Tensor) else None)
        copy, order = bool(kwargs.pop("copy", False)), kwargs.pop("memory_format", torch.preserve_format)
        if like is not None:
            device, dtype = self.device(like), like.dtype
        else:
            device, dtype, *_ = vars(torch._C)["_nn"]._parse_to(*rest, **kwargs)
        device, dtype = device or self.device(t), dtype or t.dtype
        if dtype != t.dtype:
            _refuse_float64(dtype, self.device(t))
        moved = t.to(dtype, copy=copy, memory_format=order)
        return moved.to(device) if device.type == "meta" else self._at(moved, device, t)

    def _at(self, moved: Tensor, device: torch.device, source: Tensor) -> Tensor:
        """What was made of the source, on another device."""
        if self.device(source) == device:
            return moved if moved is source else self._tag(moved, device)
        if device == CPU:
            self.syncs["cpu"] += 1
            self.bytes_read += moved.numel() * moved.element_size()
        return self._tag(moved.clone() if moved is source else moved, device)


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (item for item in tree_iter(tree) if isinstance(item, Tensor))


def _simulated(item: object) -> bool:
    """A device, or the name of one, that this machine does not have."""
    kinds = (FIRST.type, NARROW.type)
    return (
        item.type in kinds
        if isinstance(item, torch.device)
        else isinstance(item, str) and item.split(":")[0] in kinds
    )


def _refuse_float64(dtype: torch.dtype, device: torch.device) -> None:
    if device.type == NARROW.type and dtype == torch.float64:
        raise TypeError(f"there is no float64 on {device.type}")


def _storage(t: Tensor) -> Any:
    """The memory below all wrappers of torch.func; None of a sparse tensor."""
    while is_functorch_wrapped_tensor(t):
        t = get_unwrapped(t)
    try:
        return t.untyped_storage()
    except NotImplementedError:
        return None


def _identity(t: Tensor) -> int:
    storage = _storage(t)
    return 0 if storage is None else storage._cdata
