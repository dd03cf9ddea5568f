"""Parallel for over many small tasks: threads inside each torch call would spend their time synchronising."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Task = TypeVar("Task")


def parallel_for(function: Callable[[Task], None], tasks: Iterable[Task]) -> None:
    """Call `function` on every task on `torch.get_num_threads()` threads, with torch single-threaded in each.

    Runs serially while a `TorchDispatchMode` (e.g. `FlopCounterMode`) is active: modes are thread-local.
    """
    count, in_dispatch_mode = torch.get_num_threads(), torch._C._len_torch_dispatch_stack()
    pending = iter(tasks)
    if count == 1 or in_dispatch_mode:
        for task in pending:
            function(task)
        return
    inference = torch.is_inference_mode_enabled()

    def work() -> None:
        torch.set_num_threads(1)  # also changes the default of later threads: restored below
        with torch.inference_mode(inference), torch.no_grad():
            for task in pending:
                function(task)

    with ThreadPoolExecutor(count) as pool:
        try:
            futures = [pool.submit(work) for _ in range(count)]
            for future in futures:
                future.result()
        finally:
            for _ in pending:  # after an error, skip the tasks not yet started
                pass
            torch.set_num_threads(count)
