"""Many small products: torch's threads would wait for each other at every one of them, so each takes whole tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Task = TypeVar("Task")


def parallel_for(function: Callable[[Task], None], tasks: Iterable[Task]) -> None:
    """Call `function` on every task, on as many threads as torch may use; each thread calls torch alone.

    Modes of torch belong to one thread: where one listens (who counts operations), all is done in this one.

    >>> seen = []
    >>> parallel_for(seen.append, range(3))
    >>> sorted(seen)
    [0, 1, 2]
    """
    count, listening = torch.get_num_threads(), torch._C._len_torch_dispatch_stack()
    waiting = iter(tasks)
    if count == 1 or listening:
        for task in waiting:
            function(task)
        return
    frozen = torch.is_inference_mode_enabled()

    def work() -> None:
        torch.set_num_threads(1)  # in this thread; and for threads to come, which is undone below
        with torch.inference_mode(frozen), torch.no_grad():
            for task in waiting:
                function(task)

    with ThreadPoolExecutor(count) as pool:
        try:
            running = [pool.submit(work) for _ in range(count)]
            for each in running:
                each.result()
        finally:
            for _ in waiting:  # after an error: what nobody has begun is left
                pass
            torch.set_num_threads(count)
