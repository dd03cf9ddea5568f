"""execute: carry out a plan. Regions in, parts out: [regions, coordinates] for the output and for every tapped value."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bilrp.engine import push_windowed, memory, pull_windowed
from bilrp.engine.plan import Plan, make
from bilrp.engine.program import Key, Program, chunks, pull, pull_to, push, push_from
from bilrp.progress import Progress
from bilrp.engine.push_sparse import Buffers, Matrix, Ragged
from bilrp.engine.sparse_parts import OnRows, OnWindows, Parts, Piece, Scattered, matrix, worth_keeping, zeros
from bilrp.engine.plan_context import Setting
from bilrp.engine.windows import Window
from bilrp.regions import Regions
from bilrp.trace.devices import budget

Outputs = dict[Key, Tensor | list[Piece]]  # what is wanted: a matrix to write into, or pieces to keep


def compute(
    program: Program,
    partition: Regions,
    weights: Tensor | None = None,
    *,
    mode: str = "auto",
    taps: frozenset[int] = frozenset(),
    bar: Progress | None = None,
) -> tuple[dict[int, Parts], Plan]:
    """Parts [regions, coordinates] of the output (projected by `weights`) and of taps, by the plan that costs least."""
    coordinates = program.result.numel() if weights is None else len(weights)
    setting = Setting(program, partition, coordinates, frozenset(map(Key, taps)), budget(program.x.device))
    chosen = make(setting, mode)
    memory.check(
        chosen.working_bytes,
        program.x.device,
        f"a decomposition into {setting.regions} regions × {setting.coordinates} coordinates",
        "use larger regions, a smaller input (--size), or project=256",
    )
    parts = run(setting, chosen, weights=weights, bar=bar)
    return {key.value: found for key, found in parts.items()}, chosen


def run(
    setting: Setting, plan: Plan, *, weights: Tensor | None = None, bar: Progress | None = None
) -> dict[Key, Parts]:
    """Parts of the program's output (projected by `weights`, if given) and of every tap; only those may be scattered."""
    bar = bar or Progress()
    program, cut = setting.program, plan.way.cut
    if cut == 0 and program.links:
        return {program.output: _pull_all(setting, plan, weights, bar)}
    scattered = worth_keeping(setting, plan.way)
    outputs: Outputs = {key: [] if key in scattered else _blank(setting, key) for key in setting.taps}
    meeting = cut < len(program.links)
    arrived = program.links[cut - 1].target if program.links else program.output
    outputs.setdefault(arrived, _blank(setting, arrived))
    bar.start("pushing regions", setting.partition.count)
    buffers = Buffers(program.x)
    # Where crops or rows come first, regions that lie together share work.
    for index in setting.chunks(plan.chunk, together=plan.way.rows > 0):
        _push_chunk(setting, plan, index, outputs, buffers)
        bar.advance(len(index))
    parts = {key: _finished(setting, key, found) for key, found in outputs.items()}
    found = matrix(parts.pop(arrived) if arrived not in setting.taps else parts[arrived])
    if meeting:
        parts[program.output] = _meet(setting, plan, found, weights, bar)
    else:
        parts[program.output] = found if weights is None else found @ weights.T
    return parts


def _value(setting: Setting, key: Key) -> tuple[torch.Size, torch.dtype]:
    x = setting.program.x
    return next(
        ((link.shape, link.dtype) for link in setting.program.links if link.target == key), (x.shape, x.dtype)
    )


def _blank(setting: Setting, key: Key) -> Tensor:
    shape, dtype = _value(setting, key)
    return zeros(setting.partition.count, shape.numel(), setting.program.x.new_empty(0, dtype=dtype))


def _keep(piece: Piece, into: Tensor | list[Piece], shape: torch.Size) -> None:
    """Write parts into the matrix of all regions, or put them beside the others."""
    if isinstance(into, Tensor):
        piece.spread(into, shape)
    else:
        into.append(piece.copy())  # the run goes on to use its memory


def _finished(setting: Setting, key: Key, found: Tensor | list[Piece]) -> Parts:
    if isinstance(found, Tensor):
        return found
    return Scattered(tuple(found), setting.partition.count, *_value(setting, key))


def _push_chunk(setting: Setting, plan: Plan, index: Tensor, outputs: Outputs, buffers: Buffers) -> None:
    """All push stages for one chunk of regions; values that are wanted are written into `outputs`."""
    program = setting.program
    crops_until, rows_until, cut, _ = plan.way
    if not crops_until:
        masks = setting.partition.masks(index, program.x.dtype)
        head = replace(
            program,
            links=program.links[:cut],
            output=program.links[cut - 1].target if cut else program.output,
        )
        _write(push(head, masks, outputs), index, outputs)
        return
    value = _crop_stage(setting, plan, index, outputs, buffers)
    if rows_until > crops_until:
        assert not isinstance(value, _Windows)
        value = _rows_stage(setting, index, value, crops_until, rows_until, outputs, buffers)
    if cut > rows_until:
        key = program.links[rows_until - 1].target
        shape = program.links[rows_until - 1].shape
        dense = value.dense(shape)
        links = program.links[rows_until:cut]
        _write(push_from(links, {key: dense}, {link.target for link in links} & set(outputs)), index, outputs)
    if not isinstance(value, _Windows):  # all of it was copied: the next chunk uses its memory
        buffers.give(value.numbers)


def _write(values: dict[Key, Tensor], index: Tensor, outputs: Outputs) -> None:
    """Whole values are written as they are."""
    for key, value in values.items():
        into = outputs[key]
        assert isinstance(into, Tensor)
        into[index] = value.reshape(len(value), -1)


class _Windows:
    """Batches of windows, kept until the next stage takes them."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Window]] = []

    def dense(self, shape: torch.Size) -> Tensor:
        """Whole values (K, *shape)."""
        count = sum(len(columns) for columns, _ in self.batches)
        out = self.batches[0][1].data.new_zeros(count, shape.numel())
        for columns, window in self.batches:
            window.scatter(out, columns, shape)
        return out.reshape(count, *shape)


def _crop_stage(
    setting: Setting, plan: Plan, index: Tensor, outputs: Outputs, buffers: Buffers
) -> _Windows | Matrix | Ragged:
    """Push windows batch by batch; hand them on as they are, or as rows."""
    program, until = setting.program, plan.way.crops
    # laid out once for all batches
    links = [replace(link, map=link.map.for_windows()) for link in program.links[:until]]
    end, shapes = links[-1].target, {link.target: link.shape for link in links}
    rows, kept = None, _Windows()
    if plan.way.rows > until:
        laid = setting.layouts(index, until, plan.way.rows)
        kind = setting.rows
        buffers.reserve(max(map(kind.size, laid.values())))
        rows = kind(buffers.take(kind.size(laid[end])).zero_(), laid[end])
    column = torch.full((setting.partition.count,), -1)
    column[index] = torch.arange(len(index))
    for batch in setting.window_batches(end, index, plan.batch):
        for key, window in push_windowed.push_windows(
            program, setting.partition, setting.cones, batch, links, {end, *outputs}
        ):
            if key in outputs:
                _keep(OnWindows(batch, window), outputs[key], shapes[key])
            if key == end and rows is not None:
                rows.collect(window.data, column[batch], window.origin)
            elif key == end and plan.way.cut > until:
                kept.batches.append((column[batch], window))
    return kept if rows is None else rows


def _rows_stage(
    setting: Setting,
    index: Tensor,
    start: Matrix | Ragged,
    first: int,
    last: int,
    outputs: Outputs,
    buffers: Buffers,
) -> Matrix | Ragged:
    """Push active rows; drop each value after its last use."""
    links, kind = setting.program.links[first:last], type(start)
    laid = setting.layouts(index, first, last)
    alive: dict[Key, Matrix | Ragged] = {setting.program.links[first - 1].target: start}
    final = {source: i for i, link in enumerate(links) for source in link.sources}
    for i, link in enumerate(links):
        sources, layout = [alive[s] for s in link.sources], laid[link.target]
        done = [source for source in set(link.sources) if final[source] == i]
        if len(done) == len(sources) == 1 and link.map.keeps_rows(sources[0].layout, layout, link.shapes):
            target = replace(alive.pop(done[0]), layout=layout)
        else:
            target = kind(buffers.take(kind.size(layout)), layout)
            link.map.push_rows(sources, target, link.shapes)
            for source in done:
                buffers.give(alive.pop(source).numbers)
        alive[link.target] = target
        if link.target in outputs:
            _keep(OnRows(index, target), outputs[link.target], link.shape)
    return alive[links[-1].target]


# ---------------------------------------------------------------- pulling


def _pull_all(setting: Setting, plan: Plan, weights: Tensor | None, bar: Progress) -> Tensor:
    """Classical LRP: every coordinate pulled to the input, pooled over regions."""
    program, tiled = setting.program, plan.way.tiles
    head, tail = program.links[:tiled], replace(program, links=program.links[tiled:])

    def relevance(seeds: Tensor) -> Tensor:
        """R = x ⊙ c; down the first links only where the cotangents are."""
        if not head:
            return pull(program, seeds)
        met = pull_to(tail, seeds).get(head[-1].target)
        if met is None:
            return seeds.new_zeros(len(seeds), *program.x.shape)
        return program.x * pull_windowed.pull(head, met)

    def contract(seeds: Tensor) -> Tensor:
        return setting.partition.pool(relevance(seeds)).T

    return _by_coordinates(setting, plan, weights, bar, contract)


def _meet(setting: Setting, plan: Plan, arrived: Tensor, weights: Tensor | None, bar: Progress) -> Tensor:
    """Coordinates pulled down to where the regions have arrived: P[I, m] = Σ_k s_I[k] c_m[k]."""
    program, cut = setting.program, plan.way.cut
    key = program.links[cut - 1].target
    tail = replace(program, links=program.links[cut:])

    def contract(seeds: Tensor) -> Tensor:
        pulled = pull_to(tail, seeds).get(key)
        if pulled is None:  # every way down is shut
            return arrived.new_zeros(len(arrived), len(seeds))
        return arrived @ pulled.flatten(1).T

    return _by_coordinates(setting, plan, weights, bar, contract)


def _by_coordinates(setting: Setting, plan: Plan, weights: Tensor | None, bar: Progress, contract) -> Tensor:
    """Fill parts [regions, coordinates] chunk by chunk; coordinates that cannot be non-zero are not pulled."""
    result = setting.program.result
    total = result.numel() if weights is None else weights.shape[0]
    parts = result.new_zeros(setting.partition.count, total)
    live = setting.live if weights is None else torch.arange(total, device=result.device)
    bar.start("pulling coordinates", len(live))
    for chunk in chunks(len(live), plan.pulled, bar.advance):
        index = live[chunk]
        seeds = setting.seeds(index) if weights is None else weights[index].reshape(-1, *result.shape)
        parts[:, index] = contract(seeds).to(parts)  # the model may change the type
    return parts
