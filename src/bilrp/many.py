"""Many inputs, each by itself: read ahead, several at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from bilrp.decomposition import Decomposition, Mode, decompose_item
from bilrp.encoder import CompositeLike, EncoderLike, InputLike, as_encoder, read_item
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.regions import RegionSpec

PREFETCH_INPUTS = 2  # inputs read while others are decomposed
MAX_PARALLEL_INPUTS = 4  # inputs decomposed at once, unless told: each takes what one decomposition takes


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
    """The decomposition of each input, in order: what `decompose` gives, with the next ones read in the meantime.

    `inputs` may be a generator: a few are held at a time. As many are decomposed at once as torch has threads, unless
    `workers` says how many; each has a thread of its own.

    >>> [found.parts.shape[0] for found in decompose_many(torch.nn.Linear(4, 3), [torch.rand(1, 4)] * 3)]
    [4, 4, 4]
    """
    threads = torch.get_num_threads()
    workers = min(threads, MAX_PARALLEL_INPUTS) if workers is None else workers
    if workers < 1:
        raise InputError(f"decompose_many needs at least one worker, got {workers}")
    chosen, waiting = as_encoder(encoder), deque[Future[Decomposition]]()
    how = partial(decompose_item, chosen, regions=regions, composite=composite, project=project, mode=mode)

    def made(item: Future[Item]) -> Decomposition:
        return how(item.result())[None]

    # Several at once keep all processors busy; threads of torch's inside each would only wait for each other.
    inside = partial(torch.set_num_threads, max(1, threads // workers))
    with ThreadPoolExecutor(1) as readers, ThreadPoolExecutor(workers, initializer=inside) as makers:
        try:
            for thing in inputs:
                waiting.append(makers.submit(made, readers.submit(read_item, chosen, thing)))
                if len(waiting) >= workers + PREFETCH_INPUTS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # also where nobody asks for the rest
            readers.shutdown(cancel_futures=True)
            makers.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # for threads to come
