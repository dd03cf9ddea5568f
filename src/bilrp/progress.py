"""Progress on long work, with rich; silent and free when not asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

Watcher = Callable[[str, int, int], None]
"""Is told (what, done, total) as work goes on; whatever it raises ends the work."""

_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@dataclass
class Progress:
    """Counts work done; `start` names a new piece of work."""

    bar: Any = None
    task: Any = None
    watcher: Watcher | None = None
    what: str = ""
    done: int = 0
    total: int = 0

    def start(self, what: str, total: int) -> None:
        self.what, self.done, self.total = what, 0, total
        self._tell()
        if self.bar is not None:
            self.task = self.bar.add_task(what, total=total)

    def advance(self, done: int = 1) -> None:
        self.done += done
        self._tell()
        if self.bar is not None:
            self.bar.advance(self.task, done)

    def _tell(self) -> None:
        if self.watcher is not None:
            self.watcher(self.what, self.done, self.total)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tell a watcher of all work inside, on this thread: to show it elsewhere, or to end it by raising.

    >>> seen = []
    >>> with watched(lambda *step: seen.append(step)), tracking(False) as bar:
    ...     bar.start("regions", 2)
    ...     bar.advance(2)
    >>> seen
    [('regions', 0, 2), ('regions', 2, 2)]
    """
    before = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(before)


@contextmanager
def tracking(show: bool) -> Iterator[Progress]:
    """A progress bar with time left on stderr, if wanted."""
    watcher = _WATCHER.get()
    if not show:
        yield Progress(watcher=watcher)
        return
    from rich.console import Console
    from rich.progress import Progress as Rich

    with Rich(console=Console(stderr=True), transient=True) as bar:
        yield Progress(bar, watcher=watcher)
