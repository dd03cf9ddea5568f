"""All that depends on the device: free memory, the memory budget, float64, and how often the host waits for its numbers.

The host waits for an accelerator whenever it asks for a number (`bool`, `item`, `torch.equal`), and the accelerator is
idle until the host goes on. What a run has to be asked is therefore gathered, and read in one transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

DEFAULT_BUDGET_BYTES = (
    512 * 2**20
)  # bytes of tangents alive at once: on the CPU, and where nobody says how much is free
FREE_MEMORY_DIVISOR = 4  # one in so many of an accelerator's free bytes is its budget
DEVICES_WITHOUT_FLOAT64 = {"mps"}

DeferredCheck = tuple[Tensor, Callable[[], object]]
_DEFERRED_CHECKS: ContextVar[list[DeferredCheck] | None] = ContextVar("checks", default=None)


def is_on_cpu(t: Tensor) -> bool:
    """The CPU can read the tensor's numbers at once."""
    return t.device.type == "cpu"


# ---------------------------------------------------------------- types


def has_float64(device: torch.device) -> bool:
    """Does the device have float64?

    >>> has_float64(torch.device("cpu")), has_float64(torch.device("mps"))
    (True, False)
    """
    return device.type not in DEVICES_WITHOUT_FLOAT64


def to_float64(t: Tensor) -> Tensor:
    """The tensor in float64, on its device or, where that has none, on the CPU."""
    return t.double() if has_float64(t.device) else t.cpu().double()


# ---------------------------------------------------------------- memory


@runtime_checkable
class DeviceBackend(Protocol):
    """What `torch.cuda` and `torch.xpu` tell about a device's memory."""

    def mem_get_info(self, device: torch.device) -> tuple[int, int]: ...
    def memory_reserved(self, device: torch.device) -> int: ...
    def memory_allocated(self, device: torch.device) -> int: ...


def get_free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be taken there, with those that torch's allocator holds and does not use; None if unknown."""
    if device.type == "cpu":
        known = [
            read_system_free_bytes(Path("/proc/meminfo")),
            read_cgroup_free_bytes(Path("/sys/fs/cgroup")),
        ]
        return min((bytes for bytes in known if bytes is not None), default=None)
    try:
        if device.type == "mps":
            return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
        return get_device_free_bytes(torch.get_device_module(device), device)
    except (
        AttributeError,
        RuntimeError,
        AssertionError,
        NotImplementedError,
    ):  # a backend that does not tell
        return None


def get_device_free_bytes(backend: DeviceBackend, device: torch.device) -> int:
    """Free bytes of the device, and bytes that torch's caching allocator holds for tensors to come."""
    cached = backend.memory_reserved(device) - backend.memory_allocated(device)
    return backend.mem_get_info(device)[0] + cached


def get_memory_budget(device: torch.device) -> int:
    """Bytes of tangents that may be alive at once: more of them keep an accelerator busy, and the CPU no faster."""
    room = None if device.type == "cpu" else get_free_bytes(device)
    return DEFAULT_BUDGET_BYTES if room is None else room // FREE_MEMORY_DIVISOR


def read_system_free_bytes(meminfo: Path) -> int | None:
    """What the system says is available, in bytes."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith(("MemAvailable:", "SwapFree:"))]
    return 1024 * sum(kilobytes) if kilobytes else None


def read_cgroup_free_bytes(folder: Path) -> int | None:
    """What a container's limit leaves, in bytes: pages of files it has read can be given back."""
    try:
        limit, current = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - int(current) + int(stat.get("inactive_file", 0))


# ---------------------------------------------------------------- reading numbers


def read_scalars(scalars: Sequence[Tensor]) -> list[float]:
    """Tensors of one number each as numbers, in one transfer from each device.

    >>> read_scalars([torch.tensor(True), torch.tensor(2.5)])
    [1.0, 2.5]
    """
    known = [0.0] * len(scalars)
    for device in dict.fromkeys(t.device for t in scalars):
        places = [i for i, t in enumerate(scalars) if t.device == device]
        dtype = torch.float64 if has_float64(device) else torch.float32
        values = torch.stack([scalars[i].detach().reshape(()).to(dtype) for i in places]).tolist()
        for i, value in zip(places, values, strict=True):
            known[i] = value
    return known


def require(condition: Tensor, on_failure: Callable[[], object]) -> None:
    """Call `otherwise`, which says what is wrong, unless `holds` is true; on an accelerator at the end of `defer_checks`."""
    checks = _DEFERRED_CHECKS.get()
    if checks is None or is_on_cpu(condition):
        if not bool(condition):
            on_failure()
    else:
        checks.append((condition, on_failure))


@contextmanager
def defer_checks() -> Iterator[None]:
    """Within it, accelerators are asked nothing by `require`: all answers are read at its end, in one transfer.

    An error within it may follow from what a check would have said: the first check that fails goes before. One within
    another leaves its checks to that.
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
        for true, (_, otherwise) in zip(read_scalars([holds for holds, _ in checks]), checks, strict=True):
            if not true:
                otherwise()


class ValueRanges:
    """The smallest and largest number of some tensors; all of them are read in one transfer when one is asked for."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = {id(t): t for t in tensors if t.numel()}
        self._ranges: dict[int, tuple[float, float]] = {}

    def get(self, t: Tensor) -> tuple[float, float] | None:
        """(smallest, largest), None of a tensor that is not among them."""
        if id(t) not in self._tensors:
            return None
        if not self._ranges:
            ends = [end for each in self._tensors.values() for end in torch.aminmax(each.detach())]
            numbers = read_scalars(ends)
            self._ranges = dict(
                zip(self._tensors, zip(numbers[::2], numbers[1::2], strict=True), strict=True)
            )
        return self._ranges[id(t)]
