"""Progress on long work, with rich; silent and free when not asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Progress:
    """Counts work done; `start` names a new piece of work."""

    bar: Any = None
    task: Any = None

    def start(self, what: str, total: int) -> None:
        if self.bar is not None:
            self.task = self.bar.add_task(what, total=total)

    def advance(self, done: int = 1) -> None:
        if self.bar is not None:
            self.bar.advance(self.task, done)


@contextmanager
def tracking(show: bool) -> Iterator[Progress]:
    """A progress bar with time left on stderr, if wanted."""
    if not show:
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import Progress as Rich

    with Rich(console=Console(stderr=True), transient=True) as bar:
        yield Progress(bar)
