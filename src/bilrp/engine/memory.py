"""Estimate the peak memory of a plan.

The tensors of the frozen program (weights modified by γ, factors, recorded values) are counted exactly. The memory of
the stages is estimated from the shapes of the values alive at the same time and from the workspace of each map.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.engine.costs import Schedule
from bilrp.engine.executors import sparse
from bilrp.engine.maps import Mean
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key, Link, Program
from bilrp.engine.tapped_parts import choose_sparse_taps

# Types that contain no tensors, or only the model's own.
TENSOR_FREE_TYPES = (str, int, float, type(None), torch.dtype, nn.Module)
INDEX_BYTES = 8  # bytes of one int64 index


# ---------------------------------------------------------------- the frozen program


def program_bytes(program: Program) -> int:
    """Return the bytes of all tensors the maps hold, without the model's own weights."""
    own = {weight.untyped_storage().data_ptr() for weight in program.weights}
    storages = {}
    for tensor in _tensors([link.map for link in program.links]):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(size for address, size in storages.items() if address not in own)


def _tensors(roots: list[Any]) -> Iterator[Tensor]:
    """Yield the tensors in maps, in their functions and in the closures of these."""
    visited, pending = set(), list(roots)
    while pending:
        obj = pending.pop()
        if isinstance(obj, TENSOR_FREE_TYPES) or id(obj) in visited:
            continue
        visited.add(id(obj))
        if isinstance(obj, Tensor):
            yield obj
        else:
            pending.extend(_children(obj))


def _children(obj: Any) -> Iterable[Any]:
    if isinstance(obj, (tuple, list)):
        return obj
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return [getattr(obj, each.name) for each in dataclasses.fields(obj)]
    if isinstance(obj, dict):
        return obj.values()
    if isinstance(obj, types.MethodType):
        return (obj.__self__,)
    if isinstance(obj, functools.partial):
        return (obj.func, *obj.args, *obj.keywords.values())
    if isinstance(obj, types.FunctionType):
        return (cell.cell_contents for cell in obj.__closure__ or () if _has_contents(cell))
    return ()


def _has_contents(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


# ---------------------------------------------------------------- the stages


def peak_push_numel(links: Sequence[Link], outputs: Iterable[Key] = ()) -> int:
    """Return the peak number of elements alive while one vector is pushed through these links."""
    return _peak_numel(links, frozenset(outputs), back=False)


def peak_pull_numel(links: Sequence[Link]) -> int:
    """Return the peak number of elements alive while one vector is pulled through these links."""
    return _peak_numel(links, frozenset(), back=True)


def _peak_numel(links: Sequence[Link], outputs: frozenset[Key], *, back: bool) -> int:
    """Return the peak of live elements plus workspace; a value is alive from its producer to its last use."""
    sizes = {link.target: link.shape.numel() for link in links}
    for link in links:
        sizes |= {s: shape.numel() for s, shape in zip(link.sources, link.shapes.sources, strict=True)}
    producer = {link.target: i for i, link in enumerate(links)}
    first = {source: i for i, link in reversed(list(enumerate(links))) for source in link.sources}
    last = {source: i for i, link in enumerate(links) for source in link.sources}
    change = [0] * (len(links) + 1)  # of the number of live elements, from one link to the next

    def add_lifetime(size: int, begin: int, end: int) -> None:
        """Count a value as alive from link `begin` to link `end`.

        Args:
            size: Elements of the value.
            begin: First link; −1 for a value that exists before the links.
            end: Last link, inclusive.
        """
        change[max(begin, 0)] += size
        change[end + 1] -= size

    for key, size in sizes.items():
        birth = producer.get(key, -1)
        end = last.get(key, birth)
        if not back:  # from its producer to its last use
            add_lifetime(size, birth, len(links) - 1 if key in outputs else end)
        elif key in first:  # from its last use to its first, and at its producer
            add_lifetime(size, first[key], end)
            if birth >= 0:
                add_lifetime(size, birth, birth)
        else:
            add_lifetime(size, birth, end)
    alive = itertools.accumulate(change)
    workspaces = (link.cost(back=back).workspace for link in links)
    return max((a + s for a, s in zip(alive, workspaces, strict=False)), default=0)


def peak_window_numel(context: PlanContext, end: int) -> int:
    """Return the peak number of elements for one window in the windowed push: sources, field, factor and sum."""
    peak = 1
    for link in context.links[:end]:
        assert link.geometry is not None
        size = context.cones[link.target].max_extent()
        height, width = link.geometry.input_size(size)
        sources = sum(
            math.prod(context.cones[s].max_extent()) * shape[1]
            for s, shape in zip(link.sources, link.shapes.sources, strict=True)
        )
        # a mean reads whole windows; other maps may copy the field of their window
        field = 0 if isinstance(link.map, Mean) else height * width * link.shapes.sources[0][1]
        peak = max(peak, sources + field + 2 * size[0] * size[1] * link.shape[1])
    return peak


def peak_sparse_numel(links: Sequence[Link], sizes: dict[Key, int]) -> int:
    """Return the peak number of elements in sparse tangents, given the size of each value."""
    last = {source: i for i, link in enumerate(links) for source in link.sources}
    producer = {link.target: i for i, link in enumerate(links)}
    peak = 1
    for i in range(len(links)):
        alive = [key for key in sizes if producer.get(key, -1) <= i <= last.get(key, producer.get(key, -1))]
        peak = max(peak, sum(sizes[key] for key in alive))
    return peak


def run_bytes(
    context: PlanContext, schedule: Schedule, sizes: tuple[int, int, int], sparse_numel: Sequence[int]
) -> int:
    """Return the peak bytes that executing a schedule allocates: parts and the largest stage.

    Args:
        context: Program, regions and taps.
        schedule: Where the stages change.
        sizes: Regions, windows and coordinates computed at once.
        sparse_numel: Most elements in sparse tangents for a chunk: at the start of their stage, during it, and at its end.
    """
    links, (chunk, batch, coordinates) = context.links, sizes
    direction, windowed_end, sparse_end, tiled_end = schedule
    item, x = context.program.x.element_size(), context.program.x.numel()
    sparse_taps = choose_sparse_taps(context, schedule)
    dense_taps = context.taps - sparse_taps.keys() - {context.program.output}
    taps = sum(link.shape.numel() for link in links if link.target in dense_taps)
    parts = context.region_count * (context.coordinate_count + taps) + sum(sparse_taps.values())
    if direction == "pull":
        back = peak_pull_numel(links[tiled_end:]) + context.program.result.numel()
        inputs = 3 * x  # x, c and x ⊙ c; with tiles, in addition to the cotangents
        return item * (parts + coordinates * (back + inputs if tiled_end else max(back, inputs)))
    start = links[sparse_end - 1].shape.numel() if 0 < sparse_end < len(links) else 0
    dense = chunk * (peak_push_numel(links[sparse_end:], context.taps) + (0 if windowed_end else 2 * x))
    first, peak, final = sparse_numel
    rows = links[windowed_end:sparse_end]
    shares = max((sparse.count_shares(link.map) * link.shape.numel() for link in rows), default=0)
    stages = [dense, peak + shares, final + chunk * start]
    if windowed_end:
        images = chunk * start if sparse_end == windowed_end else 0
        stages.append(batch * peak_window_numel(context, windowed_end) + first + images)
    index = sum(link.shape.numel() for link in links[: context.spatial_count]) * 3 if sparse_end else 0
    index += INDEX_BYTES * sum(link.shape.numel() for link in rows)
    return item * (parts + max(stages)) + index
