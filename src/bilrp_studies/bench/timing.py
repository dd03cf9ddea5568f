"""Wall-clock time and peak memory of a function call."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measurement:
    """One value of a benchmark; `note` holds its goal and further details."""

    name: str
    value: float
    unit: str
    note: str


def measure_cost(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall-clock seconds and peak memory above the start in MB (Linux; 0 elsewhere).

    >>> seconds, megabytes = measure_cost(lambda: sum(range(1000)))
    >>> seconds > 0
    True
    """
    gc.collect()  # earlier garbage freed during the measurement would lower the measured peak
    before, most, done = _resident_mb(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, _resident_mb() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start = time.perf_counter()
    try:
        work()
    finally:
        seconds = time.perf_counter() - start
        most = max(most, _resident_mb() - before)
        done.set()
        watcher.join()
    return seconds, most


def _resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * 4096 / 2**20
