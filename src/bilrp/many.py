"""Decompose many inputs in parallel, reading ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from bilrp.decomposition import Decomposition
from bilrp.encoder import CompositeLike, EncoderLike, InputLike, as_encoder, read_item
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.pipeline import Mode, decompose_item
from bilrp.regions import RegionSpec

PREFETCH_INPUTS = 2  # inputs that are read while others are decomposed
MAX_PARALLEL_INPUTS = 4  # default number of workers; each needs the memory of one decomposition


def decompose_many(
    encoder: EncoderLike,
    inputs: Iterable[InputLike],
    *,
    regions: RegionSpec | None = None,
    composite: CompositeLike | None = None,
    project: int | None = None,
    mode: Mode = "auto",
    workers: int | None = None,
) -> Iterator[Decomposition]:
    """Yield the decomposition of each input in order; several are computed in parallel while the next ones are read.

    Args:
        encoder, regions, composite, project, mode: as for `decompose`.
        inputs: may be a generator; only a few inputs are in memory at a time.
        workers: inputs decomposed at once, each in a thread; None is torch's number of threads, at most 4.

    >>> [d.parts.shape[0] for d in decompose_many(torch.nn.Linear(4, 3), [torch.rand(1, 4)] * 3)]
    [4, 4, 4]
    """
    threads = torch.get_num_threads()
    workers = min(threads, MAX_PARALLEL_INPUTS) if workers is None else workers
    if workers < 1:
        raise InputError(f"decompose_many needs at least one worker, got {workers}")
    chosen, pending = as_encoder(encoder), deque[Future[Decomposition]]()
    decompose = partial(
        decompose_item, chosen, regions=regions, composite=composite, project=project, mode=mode
    )

    def run(item: Future[Item]) -> Decomposition:
        return decompose(item.result())[None]

    # Workers already use all cores; more torch threads inside each would only compete.
    inside = partial(torch.set_num_threads, max(1, threads // workers))
    with ThreadPoolExecutor(1) as readers, ThreadPoolExecutor(workers, initializer=inside) as pool:
        try:
            for x in inputs:
                pending.append(pool.submit(run, readers.submit(read_item, chosen, x)))
                if len(pending) >= workers + PREFETCH_INPUTS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # also when the caller stops early
            readers.shutdown(cancel_futures=True)
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # the initializer changed it for new threads
