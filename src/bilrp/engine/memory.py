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

from bilrp.engine.costs import Way
from bilrp.engine.program import Key, Link, Program
from bilrp.engine.sparse_parts import worth_keeping
from bilrp.engine.plan_context import Setting
from bilrp.errors import InputError
from bilrp.trace.devices import free

OPAQUE = (str, int, float, type(None), torch.dtype, nn.Module)  # they hold no tensors, or the model's own
INDEX = 8  # bytes of one place in memory, where numbers are moved by index


# ---------------------------------------------------------------- what is held


def held(program: Program) -> int:
    """Bytes of all tensors the maps keep, but for the model's own weights."""
    own = {weight.untyped_storage().data_ptr() for weight in program.weights}
    storages = {}
    for tensor in _tensors([link.map for link in program.links]):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(size for place, size in storages.items() if place not in own)


def _tensors(things: list[Any]) -> Iterator[Tensor]:
    """Tensors in maps, in the functions they were made from and in what these remember."""
    seen, waiting = set(), list(things)
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, OPAQUE) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            yield thing
        else:
            waiting.extend(_parts(thing))


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, (tuple, list)):
        return thing
    if hasattr(thing, "__dataclass_fields__") and not isinstance(thing, type):
        return vars(thing).values()  # with what it made since
    if isinstance(thing, dict):
        return thing.values()
    if isinstance(thing, types.MethodType):
        return (thing.__self__,)
    if isinstance(thing, functools.partial):
        return (thing.func, *thing.args, *thing.keywords.values())
    if isinstance(thing, types.FunctionType):
        return (cell.cell_contents for cell in thing.__closure__ or () if _filled(cell))
    return ()


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


# ---------------------------------------------------------------- what the stages add


def pushed(links: Sequence[Link], wanted: Iterable[Key] = ()) -> int:
    """Numbers alive for one vector at the worst moment of a push through these links."""
    return _worst(links, frozenset(wanted), back=False)


def pulled(links: Sequence[Link]) -> int:
    """Numbers alive for one vector at the worst moment of a pull through these links."""
    return _worst(links, frozenset(), back=True)


def _worst(links: Sequence[Link], wanted: frozenset[Key], *, back: bool) -> int:
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
            lives(size, birth, len(links) - 1 if key in wanted else end)
        elif key in first:  # from its last use to its first, and where it was made
            lives(size, first[key], end)
            if birth >= 0:
                lives(size, birth, birth)
        else:
            lives(size, birth, end)
    alive = itertools.accumulate(grows)
    scratch = (link.map.scratch(link.shapes, back=back) for link in links)
    return max((a + s for a, s in zip(alive, scratch, strict=False)), default=0)


def windows(setting: Setting, until: int) -> int:
    """Numbers for one window at the worst link of the crops stage: alive ones, its field, its factor, what is added."""
    worst = 1
    for link in setting.links[:until]:
        assert link.reach is not None
        size = _extent(setting, link.target)
        height, width = link.reach.field(size)
        sources = sum(
            _area(setting, s, shape) for s, shape in zip(link.sources, link.shapes.sources, strict=True)
        )
        field = height * width * link.shapes.sources[0][1]
        worst = max(worst, sources + field + 2 * size[0] * size[1] * link.shape[1])
    return worst


def _area(setting: Setting, key: Key, shape: torch.Size) -> int:
    height, width = _extent(setting, key)
    return height * width * shape[1]


def _extent(setting: Setting, key: Key) -> tuple[int, int]:
    """The window of an ordinary region: those at the border are smaller."""
    cone = setting.cones[key]
    height, width = (cone.high - cone.low).double().mean(0).ceil().int().tolist()
    return height, width


def rows(links: Sequence[Link], sizes: dict[Key, int]) -> int:
    """Numbers in rows at the worst link, of all values that are in use."""
    used = {source: i for i, link in enumerate(links) for source in link.sources}
    made = {link.target: i for i, link in enumerate(links)}
    worst = 1
    for i in range(len(links)):
        alive = [key for key in sizes if made.get(key, -1) <= i <= used.get(key, made.get(key, -1))]
        worst = max(worst, sum(sizes[key] for key in alive))
    return worst


def working(setting: Setting, way: Way, sizes: tuple[int, int, int], alive: tuple[int, int]) -> int:
    """Bytes that the run adds at its worst moment: parts, what waits for the coordinates, and the largest stage."""
    links, total, (chunk, batch, at_once) = setting.links, len(setting.links), sizes
    item, x = setting.program.x.element_size(), setting.program.x.numel()
    scattered = worth_keeping(setting, way)
    whole = setting.taps - scattered.keys() - {setting.program.output}
    taps = sum(link.shape.numel() for link in links if link.target in whole)
    arrived = setting.regions * setting.size(way.cut) if 0 < way.cut < total else 0
    parts = setting.regions * (setting.coordinates + taps) + sum(scattered.values())
    # Denominators come with rows that know the whole input.
    apart = chunk < setting.regions or bool((setting.partition.labels < 0).any())
    making = links if apart else (*links[: way.crops], *links[way.rows :])
    parts += sum(link.shape.numel() for link in making if link.map.beforehand(link.shapes))
    stages = [chunk * pushed(links[way.rows : way.cut], setting.taps), alive[0]]
    if not way.crops and way.cut:
        stages[0] += 2 * chunk * x  # masks, and x where they are 1
    if way.rows > way.crops:
        # Rows are put in the order of their places, turned, and written into whole values or parts.
        stages.append(3 * alive[1] + (chunk * setting.size(way.rows) if way.cut > way.rows else 0))
    if way.crops:
        end = links[way.crops - 1]
        window = _area(setting, end.target, end.shape)
        # windows on their way into whole values; into rows they go one by one
        moving = batch * window * (2 * INDEX // item + 2) if way.rows == way.crops else 2 * window
        kept = chunk * window if way.cut > way.rows == way.crops else 0
        stages += [batch * windows(setting, way.crops) + kept, stages[0] + kept, stages[1] + moving]
    if way.cut < total:
        back = pulled(links[max(way.cut, way.tiles) :]) + setting.program.result.numel()
        stages.append(at_once * max(back, 3 * x if way.cut == 0 else 0))  # at last x, c and x ⊙ c
    index = sum(link.shape.numel() for link in links[: setting.spatial]) * 3 if way.rows else 0
    index += INDEX * sum(link.shape.numel() for link in links[way.crops : way.rows])
    return item * (parts + arrived + max(stages)) + index


# ---------------------------------------------------------------- what is free


LARGE = 16 * 2**20  # bytes of an input that is worth a look beforehand


def of_run(call: Callable[[Tensor], Any], x: Tensor) -> int | None:
    """Bytes of all values that a run at x would make, from their shapes alone; None where that cannot be told."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    counter = _Made()
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as fake, counter:
            call(fake.from_tensor(x))
    except Exception:  # whatever a model does that shapes alone cannot answer: the run itself will tell
        return None
    return counter.bytes


class _Made(TorchDispatchMode):
    """Adds up the results of every call that are no views of its arguments."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        fresh = (
            t for t in tree_iter(out) if isinstance(t, Tensor) and t.untyped_storage()._cdata not in given
        )
        self.bytes += sum(t.numel() * t.element_size() for t in fresh)
        return out


def check_run(call: Callable[[Tensor], Any], x: Tensor) -> None:
    """Refuse an input whose run alone cannot fit: every value of it is recorded."""
    bytes = of_run(call, x) if x.numel() * x.element_size() >= LARGE else None
    if bytes is not None:
        check(
            bytes, x.device, f"one run on an input of shape {tuple(x.shape)}", "use a smaller input (--size)"
        )


def check(bytes: int, device: torch.device, what: str, advice: str) -> None:
    """Refuse before the work starts what cannot fit."""
    room = free(device)
    if room is not None and bytes > room:
        raise InputError(
            f"{what} needs about {bytes / 2**30:.1f} GB, and {room / 2**30:.1f} GB are free: {advice}"
        )
