"""What a trial may cost: processor seconds and memory, measured around it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES, MOST_SECONDS = 1_000_000_000, 5.0


@dataclass
class Cost:
    seconds: float = 0.0
    bytes: int = 0

    @property
    def over(self) -> bool:
        return self.seconds > MOST_SECONDS or self.bytes > MOST_BYTES

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.bytes / 1e6:.0f} MB"


@contextmanager
def measure_cost() -> Iterator[Cost]:
    """The processor time inside, and how far the memory rose over what it was before.

    Seconds of the processor, not of the clock: another process must not make a trial fail.
    """
    cost = Cost()
    _forget_peak()
    before, started = _memory("VmRSS"), time.process_time()
    try:
        yield cost
    finally:
        cost.seconds = time.process_time() - started
        cost.bytes = max(0, _memory("VmHWM") - before)


def _forget_peak() -> None:
    with suppress(OSError):  # not Linux, or not allowed: then only time is measured
        Path("/proc/self/clear_refs").write_text("5")


def _memory(name: str) -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(name)), 0)
