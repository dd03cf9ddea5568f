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

BUDGET = 512 * 2**20  # bytes of tangents alive at once: on the CPU, and where nobody says how much is free
SHARE = 4  # one in so many of an accelerator's free bytes is its budget
WITHOUT_FLOAT64 = {"mps"}

Check = tuple[Tensor, Callable[[], object]]
_CHECKS: ContextVar[list[Check] | None] = ContextVar("checks", default=None)


def on_host(t: Tensor) -> bool:
    """The CPU can read the tensor's numbers at once."""
    return t.device.type == "cpu"


# ---------------------------------------------------------------- types


def has_float64(device: torch.device) -> bool:
    """Does the device have float64?

    >>> has_float64(torch.device("cpu")), has_float64(torch.device("mps"))
    (True, False)
    """
    return device.type not in WITHOUT_FLOAT64


def to_float64(t: Tensor) -> Tensor:
    """The tensor in float64, on its device or, where that has none, on the CPU."""
    return t.double() if has_float64(t.device) else t.cpu().double()


# ---------------------------------------------------------------- memory


@runtime_checkable
class Backend(Protocol):
    """What `torch.cuda` and `torch.xpu` tell about a device's memory."""

    def mem_get_info(self, device: torch.device) -> tuple[int, int]: ...
    def memory_reserved(self, device: torch.device) -> int: ...
    def memory_allocated(self, device: torch.device) -> int: ...


def free(device: torch.device) -> int | None:
    """Bytes that can still be taken there, with those that torch's allocator holds and does not use; None if unknown."""
    if device.type == "cpu":
        known = [available(Path("/proc/meminfo")), group(Path("/sys/fs/cgroup"))]
        return min((bytes for bytes in known if bytes is not None), default=None)
    try:
        if device.type == "mps":
            return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
        return left(torch.get_device_module(device), device)
    except (
        AttributeError,
        RuntimeError,
        AssertionError,
        NotImplementedError,
    ):  # a backend that does not tell
        return None


def left(backend: Backend, device: torch.device) -> int:
    """Free bytes of the device, and bytes that torch's caching allocator holds for tensors to come."""
    cached = backend.memory_reserved(device) - backend.memory_allocated(device)
    return backend.mem_get_info(device)[0] + cached


def budget(device: torch.device) -> int:
    """Bytes of tangents that may be alive at once: more of them keep an accelerator busy, and the CPU no faster."""
    room = None if device.type == "cpu" else free(device)
    return BUDGET if room is None else room // SHARE


def available(meminfo: Path) -> int | None:
    """What the system says is available, in bytes."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith(("MemAvailable:", "SwapFree:"))]
    return 1024 * sum(kilobytes) if kilobytes else None


def group(folder: Path) -> int | None:
    """What a container's limit leaves, in bytes: pages of files it has read can be given back."""
    try:
        limit, current = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - int(current) + int(stat.get("inactive_file", 0))


# ---------------------------------------------------------------- reading numbers


def read(numbers: Sequence[Tensor]) -> list[float]:
    """Tensors of one number each as numbers, in one transfer from each device.

    >>> read([torch.tensor(True), torch.tensor(2.5)])
    [1.0, 2.5]
    """
    known = [0.0] * len(numbers)
    for device in dict.fromkeys(t.device for t in numbers):
        places = [i for i, t in enumerate(numbers) if t.device == device]
        dtype = torch.float64 if has_float64(device) else torch.float32
        values = torch.stack([numbers[i].detach().reshape(()).to(dtype) for i in places]).tolist()
        for i, value in zip(places, values, strict=True):
            known[i] = value
    return known


def require(holds: Tensor, otherwise: Callable[[], object]) -> None:
    """Call `otherwise`, which says what is wrong, unless `holds` is true; on an accelerator at the end of `gather`."""
    checks = _CHECKS.get()
    if checks is None or on_host(holds):
        if not bool(holds):
            otherwise()
    else:
        checks.append((holds, otherwise))


@contextmanager
def gather() -> Iterator[None]:
    """Within it, accelerators are asked nothing by `require`: all answers are read at its end, in one transfer.

    An error within it may follow from what a check would have said: the first check that fails goes before. One within
    another leaves its checks to that.
    """
    if _CHECKS.get() is not None:
        yield
        return
    checks: list[Check] = []
    token = _CHECKS.set(checks)
    try:
        yield
    finally:
        _CHECKS.reset(token)
        for true, (_, otherwise) in zip(read([holds for holds, _ in checks]), checks, strict=True):
            if not true:
                otherwise()


class Ranges:
    """The smallest and largest number of some tensors; all of them are read in one transfer when one is asked for."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = {id(t): t for t in tensors if t.numel()}
        self._known: dict[int, tuple[float, float]] = {}

    def of(self, t: Tensor) -> tuple[float, float] | None:
        """(smallest, largest), None of a tensor that is not among them."""
        if id(t) not in self._tensors:
            return None
        if not self._known:
            ends = [end for each in self._tensors.values() for end in torch.aminmax(each.detach())]
            numbers = read(ends)
            self._known = dict(zip(self._tensors, zip(numbers[::2], numbers[1::2], strict=True), strict=True))
        return self._known[id(t)]
