"""Progress of long computations: a rich progress bar, a callback, or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

ProgressCallback = Callable[[str, int, int], None]
"""Called with (description, done, total); an exception it raises stops the computation."""

_CALLBACK: ContextVar[ProgressCallback | None] = ContextVar("progress_callback", default=None)


@dataclass
class Progress:
    """Counter of completed steps, shown on a bar and reported to a callback where there is one.

    Args:
        bar: `rich.progress.Progress` to update, or None for no output.
        task: rich task id of the current bar; set by `start`.
        callback: Called after every change with (description, done, total).
        description: Name of the current task.
        done: Steps completed so far.
        total: Steps in all.
    """

    bar: Any = None
    task: Any = None
    callback: ProgressCallback | None = None
    description: str = ""
    done: int = 0
    total: int = 0

    def start(self, description: str, total: int) -> None:
        """Begin a new task of `total` steps."""
        self.description, self.done, self.total = description, 0, total
        self._notify()
        if self.bar is not None:
            self.task = self.bar.add_task(description, total=total)

    def advance(self, count: int = 1) -> None:
        """Add `count` completed steps."""
        self.done += count
        self._notify()
        if self.bar is not None:
            self.bar.advance(self.task, count)

    def _notify(self) -> None:
        if self.callback is not None:
            self.callback(self.description, self.done, self.total)


@contextmanager
def report_progress_to(callback: ProgressCallback) -> Iterator[None]:
    """Report all progress inside the block, on this thread, to a callback, which may raise to cancel it.

    >>> calls = []
    >>> with report_progress_to(lambda *step: calls.append(step)), progress_bar(False) as bar:
    ...     bar.start("regions", 2)
    ...     bar.advance(2)
    >>> calls
    [('regions', 0, 2), ('regions', 2, 2)]
    """
    token = _CALLBACK.set(callback)
    try:
        yield
    finally:
        _CALLBACK.reset(token)


@contextmanager
def progress_bar(show: bool) -> Iterator[Progress]:
    """Yield a `Progress`, with a bar and the remaining time on stderr if `show`."""
    callback = _CALLBACK.get()
    if not show:
        yield Progress(callback=callback)
        return
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    with RichProgress(console=Console(stderr=True), transient=True) as bar:
        yield Progress(bar, callback=callback)
