"""Progress on long work, with rich; silent and free when not asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

ProgressCallback = Callable[[str, int, int], None]
"""Is told (what, done, total) as work goes on; whatever it raises ends the work."""

_CALLBACK: ContextVar[ProgressCallback | None] = ContextVar("progress_callback", default=None)


@dataclass
class Progress:
    """Counts work done; `start` names a new piece of work."""

    bar: Any = None
    task: Any = None
    callback: ProgressCallback | None = None
    description: str = ""
    done: int = 0
    total: int = 0

    def start(self, description: str, total: int) -> None:
        self.description, self.done, self.total = description, 0, total
        self._notify()
        if self.bar is not None:
            self.task = self.bar.add_task(description, total=total)

    def advance(self, count: int = 1) -> None:
        self.done += count
        self._notify()
        if self.bar is not None:
            self.bar.advance(self.task, count)

    def _notify(self) -> None:
        if self.callback is not None:
            self.callback(self.description, self.done, self.total)


@contextmanager
def report_progress_to(callback: ProgressCallback) -> Iterator[None]:
    """Tell a watcher of all work inside, on this thread: to show it elsewhere, or to end it by raising.

    >>> seen = []
    >>> with report_progress_to(lambda *step: seen.append(step)), progress_bar(False) as bar:
    ...     bar.start("regions", 2)
    ...     bar.advance(2)
    >>> seen
    [('regions', 0, 2), ('regions', 2, 2)]
    """
    before = _CALLBACK.set(callback)
    try:
        yield
    finally:
        _CALLBACK.reset(before)


@contextmanager
def progress_bar(show: bool) -> Iterator[Progress]:
    """A progress bar with time left on stderr, if wanted."""
    watcher = _CALLBACK.get()
    if not show:
        yield Progress(callback=watcher)
        return
    from rich.console import Console
    from rich.progress import Progress as Rich

    with Rich(console=Console(stderr=True), transient=True) as bar:
        yield Progress(bar, callback=watcher)
