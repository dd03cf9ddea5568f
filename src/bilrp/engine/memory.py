"""Memory: how much a plan takes at its worst moment, and whether that much is free.

What the frozen program holds (weights changed by γ, factors, recorded values) is counted as it is; what the stages add is
added up from the shapes of the values alive at once and what each map needs beside them.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from bilrp.engine.costs import Schedule
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key, Link, Program
from bilrp.engine.sparse_parts import choose_sparse_taps
from bilrp.errors import InputError
from bilrp.trace.devices import get_free_bytes

TENSOR_FREE_TYPES = (
    str,
    int,
    float,
    type(None),
    torch.dtype,
    nn.Module,
)  # they hold no tensors, or the model's own
INDEX_BYTES = 8  # bytes of one place in memory, where numbers are moved by index


# ---------------------------------------------------------------- what is held


def program_bytes(program: Program) -> int:
    """Bytes of all tensors the maps keep, but for the model's own weights."""
    own = {weight.untyped_storage().data_ptr() for weight in program.weights}
    storages = {}
    for tensor in _tensors([link.map for link in program.links]):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(size for place, size in storages.items() if place not in own)


def _tensors(roots: list[Any]) -> Iterator[Tensor]:
    """Tensors in maps, in the functions they were made from and in what these remember."""
    seen, waiting = set(), list(roots)
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, TENSOR_FREE_TYPES) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            yield thing
        else:
            waiting.extend(_children(thing))


def _children(obj: Any) -> Iterable[Any]:
    if isinstance(obj, (tuple, list)):
        return obj
    if hasattr(obj, "__dataclass_fields__") and not isinstance(obj, type):
        return vars(obj).values()  # with what it made since
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


# ---------------------------------------------------------------- what the stages add


def peak_push_numel(links: Sequence[Link], outputs: Iterable[Key] = ()) -> int:
    """Numbers alive for one vector at the worst moment of a push through these links."""
    return _peak_numel(links, frozenset(outputs), back=False)


def peak_pull_numel(links: Sequence[Link]) -> int:
    """Numbers alive for one vector at the worst moment of a pull through these links."""
    return _peak_numel(links, frozenset(), back=True)


def _peak_numel(links: Sequence[Link], outputs: frozenset[Key], *, back: bool) -> int:
    """Values are alive from the link that makes them to the last that uses them, in either direction."""
    sizes = {link.target: link.shape.numel() for link in links}
    for link in links:
        sizes |= {s: shape.numel() for s, shape in zip(link.sources, link.shapes.sources, strict=True)}
    made = {link.target: i for i, link in enumerate(links)}
    first = {source: i for i, link in reversed(list(enumerate(links))) for source in link.sources}
    last = {source: i for i, link in enumerate(links) for source in link.sources}
    grows = [0] * (len(links) + 1)  # by how much what is alive grows from one link to the next

    def lives(size: int, begin: int, end: int) -> None:
        grows[max(begin, 0)] += size
        grows[end + 1] -= size

    for key, size in sizes.items():
        birth = made.get(key, -1)
        end = last.get(key, birth)
        if not back:  # from where it is made to its last use
            lives(size, birth, len(links) - 1 if key in outputs else end)
        elif key in first:  # from its last use to its first, and where it was made
            lives(size, first[key], end)
            if birth >= 0:
                lives(size, birth, birth)
        else:
            lives(size, birth, end)
    alive = itertools.accumulate(grows)
    scratch = (link.map.workspace(link.shapes, back=back) for link in links)
    return max((a + s for a, s in zip(alive, scratch, strict=False)), default=0)


def peak_window_numel(context: PlanContext, end: int) -> int:
    """Numbers for one window at the worst link of the crops stage: alive ones, its field, its factor, what is added."""
    worst = 1
    for link in context.links[:end]:
        assert link.geometry is not None
        size = _mean_window_size(context, link.target)
        height, width = link.geometry.input_size(size)
        sources = sum(
            _window_numel(context, s, shape)
            for s, shape in zip(link.sources, link.shapes.sources, strict=True)
        )
        field = height * width * link.shapes.sources[0][1]
        worst = max(worst, sources + field + 2 * size[0] * size[1] * link.shape[1])
    return worst


def _window_numel(context: PlanContext, key: Key, shape: torch.Size) -> int:
    height, width = _mean_window_size(context, key)
    return height * width * shape[1]


def _mean_window_size(context: PlanContext, key: Key) -> tuple[int, int]:
    """The window of an ordinary region: those at the border are smaller."""
    cone = context.cones[key]
    height, width = (cone.high - cone.low).double().mean(0).ceil().int().tolist()
    return height, width


def peak_sparse_numel(links: Sequence[Link], sizes: dict[Key, int]) -> int:
    """Numbers in rows at the worst link, of all values that are in use."""
    used = {source: i for i, link in enumerate(links) for source in link.sources}
    made = {link.target: i for i, link in enumerate(links)}
    worst = 1
    for i in range(len(links)):
        alive = [key for key in sizes if made.get(key, -1) <= i <= used.get(key, made.get(key, -1))]
        worst = max(worst, sum(sizes[key] for key in alive))
    return worst


def run_bytes(
    context: PlanContext, schedule: Schedule, sizes: tuple[int, int, int], sparse_numel: tuple[int, int]
) -> int:
    """Bytes that the run adds at its worst moment: parts, what waits for the coordinates, and the largest stage."""
    links, total, (chunk, batch, at_once) = context.links, len(context.links), sizes
    item, x = context.program.x.element_size(), context.program.x.numel()
    scattered = choose_sparse_taps(context, schedule)
    whole = context.taps - scattered.keys() - {context.program.output}
    taps = sum(link.shape.numel() for link in links if link.target in whole)
    arrived = context.region_count * context.numel_after(schedule.cut) if 0 < schedule.cut < total else 0
    parts = context.region_count * (context.coordinate_count + taps) + sum(scattered.values())
    # Denominators come with rows that know the whole input.
    apart = chunk < context.region_count or bool((context.partition.labels < 0).any())
    making = links if apart else (*links[: schedule.windowed_end], *links[schedule.sparse_end :])
    parts += sum(link.shape.numel() for link in making if link.map.setup_macs(link.shapes))
    stages = [
        chunk * peak_push_numel(links[schedule.sparse_end : schedule.cut], context.taps),
        sparse_numel[0],
    ]
    if not schedule.windowed_end and schedule.cut:
        stages[0] += 2 * chunk * x  # masks, and x where they are 1
    if schedule.sparse_end > schedule.windowed_end:
        # Rows are put in the order of their places, turned, and written into whole values or parts.
        stages.append(
            3 * sparse_numel[1]
            + (chunk * context.numel_after(schedule.sparse_end) if schedule.cut > schedule.sparse_end else 0)
        )
    if schedule.windowed_end:
        end = links[schedule.windowed_end - 1]
        window = _window_numel(context, end.target, end.shape)
        # windows on their way into whole values; into rows they go one by one
        moving = (
            batch * window * (2 * INDEX_BYTES // item + 2)
            if schedule.sparse_end == schedule.windowed_end
            else 2 * window
        )
        kept = chunk * window if schedule.cut > schedule.sparse_end == schedule.windowed_end else 0
        stages += [
            batch * peak_window_numel(context, schedule.windowed_end) + kept,
            stages[0] + kept,
            stages[1] + moving,
        ]
    if schedule.cut < total:
        back = (
            peak_pull_numel(links[max(schedule.cut, schedule.pull_windowed_end) :])
            + context.program.result.numel()
        )
        stages.append(at_once * max(back, 3 * x if schedule.cut == 0 else 0))  # at last x, c and x ⊙ c
    index = (
        sum(link.shape.numel() for link in links[: context.spatial_links]) * 3 if schedule.sparse_end else 0
    )
    index += INDEX_BYTES * sum(
        link.shape.numel() for link in links[schedule.windowed_end : schedule.sparse_end]
    )
    return item * (parts + arrived + max(stages)) + index


# ---------------------------------------------------------------- what is free


MIN_CHECKED_INPUT_BYTES = 16 * 2**20  # bytes of an input that is worth a look beforehand


def forward_bytes(forward: Callable[[Tensor], Any], x: Tensor) -> int | None:
    """Bytes of all values that a run at x would make, from their shapes alone; None where that cannot be told."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    counter = _AllocationCounter()
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as fake, counter:
            forward(fake.from_tensor(x))
    except Exception:  # whatever a model does that shapes alone cannot answer: the run itself will tell
        return None
    return counter.total_bytes


class _AllocationCounter(TorchDispatchMode):
    """Adds up the results of every call that are no views of its arguments."""

    total_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        fresh = (
            t for t in tree_iter(out) if isinstance(t, Tensor) and t.untyped_storage()._cdata not in given
        )
        self.total_bytes += sum(t.numel() * t.element_size() for t in fresh)
        return out


def check_forward_fits(forward: Callable[[Tensor], Any], x: Tensor) -> None:
    """Refuse an input whose run alone cannot fit: every value of it is recorded."""
    bytes = forward_bytes(forward, x) if x.numel() * x.element_size() >= MIN_CHECKED_INPUT_BYTES else None
    if bytes is not None:
        check_fits(
            bytes, x.device, f"one run on an input of shape {tuple(x.shape)}", "use a smaller input (--size)"
        )


def check_fits(needed_bytes: int, device: torch.device, task: str, advice: str) -> None:
    """Refuse before the work starts what cannot fit."""
    room = get_free_bytes(device)
    if room is not None and needed_bytes > room:
        raise InputError(
            f"{task} needs about {needed_bytes / 2**30:.1f} GB, and {room / 2**30:.1f} GB are free: {advice}"
        )
