"""execute: carry out a plan. Regions in, parts out: [regions, coordinates] for the output and for every tapped value."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bilrp.engine import memory, pull_windowed, push_windowed
from bilrp.engine.plan import Plan, make_plan
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key, Program, chunks, pull, pull_to, push, push_from
from bilrp.engine.push_sparse import BufferPool, NativeSparseTangent, TorchSparseTangent
from bilrp.engine.sparse_parts import (
    AnyParts,
    PartsChunk,
    SparseChunk,
    SparseParts,
    WindowedChunk,
    choose_sparse_taps,
    densify,
    lazy_zeros,
)
from bilrp.engine.windows import Window
from bilrp.progress import Progress
from bilrp.regions import Regions
from bilrp.trace.devices import get_memory_budget

Outputs = dict[Key, Tensor | list[PartsChunk]]  # what is wanted: a matrix to write into, or pieces to keep


def compute_parts(
    program: Program,
    partition: Regions,
    weights: Tensor | None = None,
    *,
    mode: str = "auto",
    taps: frozenset[int] = frozenset(),
    bar: Progress | None = None,
) -> tuple[dict[int, AnyParts], Plan]:
    """Parts [regions, coordinates] of the output (projected by `weights`) and of taps, by the plan that costs least."""
    coordinates = program.result.numel() if weights is None else len(weights)
    setting = PlanContext(
        program, partition, coordinates, frozenset(map(Key, taps)), get_memory_budget(program.x.device)
    )
    chosen = make_plan(setting, mode)
    memory.check_fits(
        chosen.working_bytes,
        program.x.device,
        f"a decomposition into {setting.region_count} regions × {setting.coordinate_count} coordinates",
        "use larger regions, a smaller input (--size), or project=256",
    )
    parts = execute_plan(setting, chosen, weights=weights, bar=bar)
    return {key.value: found for key, found in parts.items()}, chosen


def execute_plan(
    context: PlanContext, plan: Plan, *, weights: Tensor | None = None, bar: Progress | None = None
) -> dict[Key, AnyParts]:
    """Parts of the program's output (projected by `weights`, if given) and of every tap; only those may be scattered."""
    bar = bar or Progress()
    program, cut = context.program, plan.schedule.cut
    if cut == 0 and program.links:
        return {program.output: _pull_all(context, plan, weights, bar)}
    scattered = choose_sparse_taps(context, plan.schedule)
    outputs: Outputs = {key: [] if key in scattered else _empty_parts(context, key) for key in context.taps}
    meeting = cut < len(program.links)
    arrived = program.links[cut - 1].target if program.links else program.output
    outputs.setdefault(arrived, _empty_parts(context, arrived))
    bar.start("pushing regions", context.partition.count)
    buffers = BufferPool(program.x)
    # Where crops or rows come first, regions that lie together share work.
    for index in context.chunks(plan.region_chunk, compact=plan.schedule.sparse_end > 0):
        _push_chunk(context, plan, index, outputs, buffers)
        bar.advance(len(index))
    parts = {key: _assemble_parts(context, key, found) for key, found in outputs.items()}
    found = densify(parts.pop(arrived) if arrived not in context.taps else parts[arrived])
    if meeting:
        parts[program.output] = _contract_at_cut(context, plan, found, weights, bar)
    else:
        parts[program.output] = found if weights is None else found @ weights.T
    return parts


def _shape_and_dtype(context: PlanContext, key: Key) -> tuple[torch.Size, torch.dtype]:
    x = context.program.x
    return next(
        ((link.shape, link.dtype) for link in context.program.links if link.target == key), (x.shape, x.dtype)
    )


def _empty_parts(context: PlanContext, key: Key) -> Tensor:
    shape, dtype = _shape_and_dtype(context, key)
    return lazy_zeros(context.partition.count, shape.numel(), context.program.x.new_empty(0, dtype=dtype))


def _store_chunk(chunk: PartsChunk, target: Tensor | list[PartsChunk], shape: torch.Size) -> None:
    """Write parts into the matrix of all regions, or put them beside the others."""
    if isinstance(target, Tensor):
        chunk.scatter(target, shape)
    else:
        target.append(chunk.copy())  # the run goes on to use its memory


def _assemble_parts(context: PlanContext, key: Key, stored: Tensor | list[PartsChunk]) -> AnyParts:
    if isinstance(stored, Tensor):
        return stored
    return SparseParts(tuple(stored), context.partition.count, *_shape_and_dtype(context, key))


def _push_chunk(
    context: PlanContext, plan: Plan, index: Tensor, outputs: Outputs, buffers: BufferPool
) -> None:
    """All push stages for one chunk of regions; values that are wanted are written into `outputs`."""
    program = context.program
    crops_until, rows_until, cut, _ = plan.schedule
    if not crops_until:
        masks = context.partition.masks(index, program.x.dtype)
        head = replace(
            program,
            links=program.links[:cut],
            output=program.links[cut - 1].target if cut else program.output,
        )
        _write_dense(push(head, masks, outputs), index, outputs)
        return
    value = _push_windowed_stage(context, plan, index, outputs, buffers)
    if rows_until > crops_until:
        assert not isinstance(value, _WindowBatches)
        value = _push_sparse_stage(context, index, value, crops_until, rows_until, outputs, buffers)
    if cut > rows_until:
        key = program.links[rows_until - 1].target
        shape = program.links[rows_until - 1].shape
        dense = value.to_dense(shape)
        links = program.links[rows_until:cut]
        _write_dense(
            push_from(links, {key: dense}, {link.target for link in links} & set(outputs)), index, outputs
        )
    if not isinstance(value, _WindowBatches):  # all of it was copied: the next chunk uses its memory
        buffers.release(value.values)


def _write_dense(values: dict[Key, Tensor], index: Tensor, outputs: Outputs) -> None:
    """Whole values are written as they are."""
    for key, value in values.items():
        into = outputs[key]
        assert isinstance(into, Tensor)
        into[index] = value.reshape(len(value), -1)


class _WindowBatches:
    """Batches of windows, kept until the next stage takes them."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Window]] = []

    def to_dense(self, shape: torch.Size) -> Tensor:
        """Whole values (K, *shape)."""
        count = sum(len(columns) for columns, _ in self.batches)
        out = self.batches[0][1].data.new_zeros(count, shape.numel())
        for columns, window in self.batches:
            window.scatter(out, columns, shape)
        return out.reshape(count, *shape)


def _push_windowed_stage(
    context: PlanContext, plan: Plan, index: Tensor, outputs: Outputs, buffers: BufferPool
) -> _WindowBatches | TorchSparseTangent | NativeSparseTangent:
    """Push windows batch by batch; hand them on as they are, or as rows."""
    program, until = context.program, plan.schedule.windowed_end
    # laid out once for all batches
    links = [replace(link, map=link.map.prepare_windows()) for link in program.links[:until]]
    end, shapes = links[-1].target, {link.target: link.shape for link in links}
    rows, kept = None, _WindowBatches()
    if plan.schedule.sparse_end > until:
        laid = context.layouts(index, until, plan.schedule.sparse_end)
        kind = context.tangent_type
        buffers.reserve(max(map(kind.required_numel, laid.values())))
        rows = kind(buffers.acquire(kind.required_numel(laid[end])).zero_(), laid[end])
    column = torch.full((context.partition.count,), -1)
    column[index] = torch.arange(len(index))
    for batch in context.window_batches(end, index, plan.window_batch):
        for key, window in push_windowed.push_windows(
            program, context.partition, context.cones, batch, links, {end, *outputs}
        ):
            if key in outputs:
                _store_chunk(WindowedChunk(batch, window), outputs[key], shapes[key])
            if key == end and rows is not None:
                rows.load_columns(window.data, column[batch], window.origin)
            elif key == end and plan.schedule.cut > until:
                kept.batches.append((column[batch], window))
    return kept if rows is None else rows


def _push_sparse_stage(
    context: PlanContext,
    index: Tensor,
    start: TorchSparseTangent | NativeSparseTangent,
    first: int,
    last: int,
    outputs: Outputs,
    buffers: BufferPool,
) -> TorchSparseTangent | NativeSparseTangent:
    """Push active rows; drop each value after its last use."""
    links, kind = context.program.links[first:last], type(start)
    laid = context.layouts(index, first, last)
    alive: dict[Key, TorchSparseTangent | NativeSparseTangent] = {
        context.program.links[first - 1].target: start
    }
    final = {source: i for i, link in enumerate(links) for source in link.sources}
    for i, link in enumerate(links):
        sources, layout = [alive[s] for s in link.sources], laid[link.target]
        done = [source for source in set(link.sources) if final[source] == i]
        if len(done) == len(sources) == 1 and link.map.is_identity_on_rows(
            sources[0].layout, layout, link.shapes
        ):
            target = replace(alive.pop(done[0]), layout=layout)
        else:
            target = kind(buffers.acquire(kind.required_numel(layout)), layout)
            link.map.push_sparse(sources, target, link.shapes)
            for source in done:
                buffers.release(alive.pop(source).values)
        alive[link.target] = target
        if link.target in outputs:
            _store_chunk(SparseChunk(index, target), outputs[link.target], link.shape)
    return alive[links[-1].target]


# ---------------------------------------------------------------- pulling


def _pull_all(context: PlanContext, plan: Plan, weights: Tensor | None, bar: Progress) -> Tensor:
    """Classical LRP: every coordinate pulled to the input, pooled over regions."""
    program, tiled = context.program, plan.schedule.pull_windowed_end
    head, tail = program.links[:tiled], replace(program, links=program.links[tiled:])

    def relevance(seeds: Tensor) -> Tensor:
        """R = x ⊙ c; down the first links only where the cotangents are."""
        if not head:
            return pull(program, seeds)
        met = pull_to(tail, seeds).get(head[-1].target)
        if met is None:
            return seeds.new_zeros(len(seeds), *program.x.shape)
        return program.x * pull_windowed.pull_chain(head, met)

    def contract(seeds: Tensor) -> Tensor:
        return context.partition.pool(relevance(seeds)).T

    return _fill_by_coordinates(context, plan, weights, bar, contract)


def _contract_at_cut(
    context: PlanContext, plan: Plan, pushed: Tensor, weights: Tensor | None, bar: Progress
) -> Tensor:
    """Coordinates pulled down to where the regions have arrived: P[I, m] = Σ_k s_I[k] c_m[k]."""
    program, cut = context.program, plan.schedule.cut
    key = program.links[cut - 1].target
    tail = replace(program, links=program.links[cut:])

    def contract(seeds: Tensor) -> Tensor:
        pulled = pull_to(tail, seeds).get(key)
        if pulled is None:  # every way down is shut
            return pushed.new_zeros(len(pushed), len(seeds))
        return pushed @ pulled.flatten(1).T

    return _fill_by_coordinates(context, plan, weights, bar, contract)


def _fill_by_coordinates(
    context: PlanContext, plan: Plan, weights: Tensor | None, bar: Progress, contract
) -> Tensor:
    """Fill parts [regions, coordinates] chunk by chunk; coordinates that cannot be non-zero are not pulled."""
    result = context.program.result
    total = result.numel() if weights is None else weights.shape[0]
    parts = result.new_zeros(context.partition.count, total)
    live = context.active_coordinates if weights is None else torch.arange(total, device=result.device)
    bar.start("pulling coordinates", len(live))
    for chunk in chunks(len(live), plan.coordinate_chunk, bar.advance):
        index = live[chunk]
        seeds = (
            context.seed_cotangents(index) if weights is None else weights[index].reshape(-1, *result.shape)
        )
        parts[:, index] = contract(seeds).to(parts)  # the model may change the type
    return parts
