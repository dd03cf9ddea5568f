"""Everything that depends on the device: free memory, memory budget, float64, deferred checks.

Reading a value of an accelerator (`bool`, `item`, `torch.equal`) synchronizes it with the host. Checks of a run are
therefore collected and read in one transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bilrp.errors import InputError

DEFAULT_BUDGET_BYTES = 512 * 2**20  # tangents in memory at once: on the CPU, and if free memory is unknown
FREE_MEMORY_DIVISOR = 4  # an accelerator's budget is its free memory divided by this
DEVICES_WITHOUT_FLOAT64 = {"mps"}

DeferredCheck = tuple[Tensor, Callable[[], object]]
_DEFERRED_CHECKS: ContextVar[list[DeferredCheck] | None] = ContextVar("deferred_checks", default=None)


def is_on_cpu(t: Tensor) -> bool:
    """Return whether the tensor is in CPU memory."""
    return t.device.type == "cpu"


def can_push_sparse(t: Tensor) -> bool:
    """Return whether windows, sparse rows, tiles and native code apply: accelerators run whole values faster."""
    return is_on_cpu(t)


# ---------------------------------------------------------------- types


def has_float64(device: torch.device) -> bool:
    """Return whether the device supports float64.

    >>> has_float64(torch.device("cpu")), has_float64(torch.device("mps"))
    (True, False)
    """
    return device.type not in DEVICES_WITHOUT_FLOAT64


def to_float64(t: Tensor) -> Tensor:
    """Return the tensor in float64, on the CPU if its device does not support it."""
    return t.double() if has_float64(t.device) else t.cpu().double()


# ---------------------------------------------------------------- memory


@runtime_checkable
class DeviceBackend(Protocol):
    """The memory functions of `torch.cuda` and `torch.xpu`."""

    def mem_get_info(self, device: torch.device) -> tuple[int, int]: ...
    def memory_reserved(self, device: torch.device) -> int: ...
    def memory_allocated(self, device: torch.device) -> int: ...


def get_free_bytes(device: torch.device) -> int | None:
    """Return free bytes, including those cached by torch's allocator; None if unknown."""
    if device.type == "cpu":
        limits = read_system_free_bytes(Path("/proc/meminfo")), read_cgroup_free_bytes(Path("/sys/fs/cgroup"))
        return min((limit for limit in limits if limit is not None), default=None)
    try:
        if device.type == "mps":
            return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
        return get_device_free_bytes(torch.get_device_module(device), device)
    except (AttributeError, RuntimeError, AssertionError, NotImplementedError):
        return None  # the backend does not report its memory


def get_device_free_bytes(backend: DeviceBackend, device: torch.device) -> int:
    """Return free bytes of the device plus unused bytes of torch's caching allocator."""
    cached = backend.memory_reserved(device) - backend.memory_allocated(device)
    return backend.mem_get_info(device)[0] + cached


def get_memory_budget(device: torch.device) -> int:
    """Return how many bytes of tangents may be in memory at once; more helps accelerators but not the CPU."""
    free = None if device.type == "cpu" else get_free_bytes(device)
    return DEFAULT_BUDGET_BYTES if free is None else free // FREE_MEMORY_DIVISOR


def check_fits(needed_bytes: int, device: torch.device, task: str, advice: str) -> None:
    """Raise InputError if a task does not fit into the device's free memory.

    Args:
        needed_bytes: Estimated peak of the task.
        device: Where it runs.
        task: What needs the memory, first words of the message.
        advice: What the user can do, last words of the message.
    """
    free = get_free_bytes(device)
    if free is not None and needed_bytes > free:
        raise InputError(
            f"{task} needs about {needed_bytes / 2**30:.1f} GB, and {free / 2**30:.1f} GB are free: {advice}"
        )


def read_system_free_bytes(meminfo: Path) -> int | None:
    """Return available memory plus free swap, in bytes; None if unknown."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith(("MemAvailable:", "SwapFree:"))]
    return 1024 * sum(kilobytes) if kilobytes else None


def read_cgroup_free_bytes(folder: Path) -> int | None:
    """Return the bytes left under the container's limit, counting reclaimable file pages as free; None if unlimited."""
    try:
        limit, current = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - int(current) + int(stat.get("inactive_file", 0))


# ---------------------------------------------------------------- reading numbers


def read_scalars(scalars: Sequence[Tensor]) -> list[float]:
    """Return the values of one-element tensors, with one transfer per device."""
    values = [0.0] * len(scalars)
    for device in dict.fromkeys(t.device for t in scalars):
        indices = [i for i, t in enumerate(scalars) if t.device == device]
        dtype = torch.float64 if has_float64(device) else torch.float32
        stacked = torch.stack([scalars[i].detach().reshape(()).to(dtype) for i in indices])
        for i, value in zip(indices, stacked.tolist(), strict=True):
            values[i] = value
    return values


def require(condition: Tensor, on_failure: Callable[[], object]) -> None:
    """Call `on_failure`, which raises, unless the condition is true; on an accelerator at the end of `defer_checks`."""
    checks = _DEFERRED_CHECKS.get()
    if checks is None or is_on_cpu(condition):
        if not bool(condition):
            on_failure()
    else:
        checks.append((condition, on_failure))


@contextmanager
def defer_checks() -> Iterator[None]:
    """Collect the `require` conditions of accelerators and read all of them at the end, in one transfer.

    If the block raises and a check fails too, the check's error is raised: it is the likely cause. A nested block adds
    its checks to the outer one.
    """
    if _DEFERRED_CHECKS.get() is not None:
        yield
        return
    checks: list[DeferredCheck] = []
    token = _DEFERRED_CHECKS.set(checks)
    try:
        yield
    finally:
        _DEFERRED_CHECKS.reset(token)
        for is_true, (_, on_failure) in zip(read_scalars([c for c, _ in checks]), checks, strict=True):
            if not is_true:
                on_failure()


class ValueRanges:
    """Smallest and largest value of several tensors, all read in one transfer at the first `get`."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = {id(t): t for t in tensors if t.numel()}
        self._ranges: dict[int, tuple[float, float]] = {}

    def get(self, t: Tensor) -> tuple[float, float] | None:
        """Return (smallest, largest) value, or None for a tensor that is not included."""
        if id(t) not in self._tensors:
            return None
        if not self._ranges:
            extremes = read_scalars([e for t in self._tensors.values() for e in torch.aminmax(t.detach())])
            pairs = zip(extremes[::2], extremes[1::2], strict=True)
            self._ranges = dict(zip(self._tensors, pairs, strict=True))
        return self._ranges[id(t)]
