"""Execute a plan: compute parts [regions, coordinates] of the output and of every tapped value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bilrp.engine import memory
from bilrp.engine.executors import sparse, tiles, windowed
from bilrp.engine.executors.sparse import BufferPool, NativeSparseTangent, TorchSparseTangent
from bilrp.engine.plan import Plan, make_plan
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key, Program, chunks, pull, pull_to, push, push_from
from bilrp.engine.remainder import remainder_parts
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

Outputs = dict[Key, Tensor | list[PartsChunk]]  # dense parts to write into, or a list of sparse chunks


def compute_parts(
    program: Program,
    partition: Regions,
    weights: Tensor | None = None,
    *,
    mode: str = "auto",
    taps: frozenset[int] = frozenset(),
    bar: Progress | None = None,
) -> tuple[dict[int, AnyParts], Plan]:
    """Compute parts [regions, coordinates] of the output and of the taps with the cheapest plan.

    Args:
        program: The frozen tape.
        partition: Regions of the input.
        weights: Projection [coordinates, h] of the embedding; None for its own coordinates.
        mode: 'auto', 'push' or 'pull', see `make_plan`.
        taps: Numbers of intermediate values whose parts are returned too.
        bar: Progress to report to.

    Returns:
        Parts by value number (those of taps may be sparse), and the plan.
    """
    coordinates = program.result.numel() if weights is None else len(weights)
    located, program = program, replace(program, remainder=None)
    context = PlanContext(
        program, partition, coordinates, frozenset(map(Key, taps)), get_memory_budget(program.x.device)
    )
    plan = make_plan(context, mode)
    memory.check_fits(
        plan.working_bytes,
        program.x.device,
        f"a decomposition into {context.region_count} regions × {context.coordinate_count} coordinates",
        "use larger regions, a smaller input (--size), or project=256",
    )
    parts = execute_plan(context, plan, weights=weights, bar=bar)
    if located.remainder is not None:
        parts[program.output] = densify(parts[program.output]) + remainder_parts(located, partition, weights)
    return {key.value: value_parts for key, value_parts in parts.items()}, plan


def pull_vectors(program: Program, partition: Regions, vectors: Tensor) -> Tensor:
    """Return [regions, n], ⟨P_I, v⟩ of each region and each of the vectors [n, h], without the parts.

    One backward sweep for as many vectors as fit into the memory budget; there is nothing to plan.

    Args:
        program: The frozen tape.
        partition: Regions of the input.
        vectors: What the embedding is multiplied with.
    """
    largest = max((link.shapes.numel for link in program.links), default=program.x.numel())
    size = max(1, get_memory_budget(program.x.device) // (3 * program.x.element_size() * largest))
    seeds = vectors.reshape(-1, *program.result.shape)
    rows = [partition.pool(pull(program, seeds[chunk])) for chunk in chunks(len(seeds), size)]
    return torch.cat(rows).T.to(program.result.dtype)


def execute_plan(
    context: PlanContext, plan: Plan, *, weights: Tensor | None = None, bar: Progress | None = None
) -> dict[Key, AnyParts]:
    """Compute parts of the program's output (projected by `weights`) and of every tap; only taps may be sparse.

    Args:
        context: Program, regions and taps.
        plan: A plan made for this context.
        weights: Projection [coordinates, h] of the embedding; None for its own coordinates.
        bar: Progress to report to.
    """
    bar = bar or Progress()
    program, cut = context.program, plan.schedule.cut
    if cut == 0 and program.links:
        return {program.output: _pull_all(context, plan, weights, bar)}
    sparse_taps = choose_sparse_taps(context, plan.schedule)
    outputs: Outputs = {key: [] if key in sparse_taps else _empty_parts(context, key) for key in context.taps}
    last_pushed = program.links[cut - 1].target if program.links else program.output
    outputs.setdefault(last_pushed, _empty_parts(context, last_pushed))
    bar.start("pushing regions", context.partition.count)
    buffers = BufferPool(program.x)
    # Neighbouring regions share work on windows and sparse tangents.
    for index in context.chunks(plan.region_chunk, compact=plan.schedule.sparse_end > 0):
        _push_chunk(context, plan, index, outputs, buffers)
        bar.advance(len(index))
    parts = {key: _assemble_parts(context, key, stored) for key, stored in outputs.items()}
    pushed = densify(parts[last_pushed] if last_pushed in context.taps else parts.pop(last_pushed))
    if cut < len(program.links):
        parts[program.output] = _contract_at_cut(context, plan, pushed, weights, bar)
    else:
        parts[program.output] = pushed if weights is None else pushed @ weights.T
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
    """Write a chunk into the dense parts, or append a copy to the list of chunks."""
    if isinstance(target, Tensor):
        chunk.scatter(target, shape)
    else:
        target.append(chunk.copy())  # the run reuses its memory


def _assemble_parts(context: PlanContext, key: Key, stored: Tensor | list[PartsChunk]) -> AnyParts:
    if isinstance(stored, Tensor):
        return stored
    return SparseParts(tuple(stored), context.partition.count, *_shape_and_dtype(context, key))


def _push_chunk(
    context: PlanContext, plan: Plan, index: Tensor, outputs: Outputs, buffers: BufferPool
) -> None:
    """Run all push stages for the regions `index`, and store the values that `outputs` names."""
    program = context.program
    windowed_end, sparse_end, cut, _ = plan.schedule
    if not windowed_end:
        masks = context.partition.masks(index, program.x.dtype)
        head = replace(
            program,
            links=program.links[:cut],
            output=program.links[cut - 1].target if cut else program.output,
        )
        _write_dense(push(head, masks, outputs), index, outputs)
        return
    value = _push_windowed_stage(context, plan, index, outputs, buffers)
    if sparse_end > windowed_end:
        assert not isinstance(value, _WindowBatches)
        value = _push_sparse_stage(context, index, value, windowed_end, sparse_end, outputs, buffers)
    if cut > sparse_end:
        key = program.links[sparse_end - 1].target
        shape = program.links[sparse_end - 1].shape
        dense = value.to_dense(shape)
        links = program.links[sparse_end:cut]
        _write_dense(
            push_from(links, {key: dense}, {link.target for link in links} & set(outputs)), index, outputs
        )
    if not isinstance(value, _WindowBatches):  # its values were copied: let the next chunk reuse the buffer
        buffers.release(value.values)


def _write_dense(values: dict[Key, Tensor], index: Tensor, outputs: Outputs) -> None:
    """Write dense values into the rows `index` of the outputs."""
    for key, value in values.items():
        output = outputs[key]
        assert isinstance(output, Tensor)
        output[index] = value.reshape(len(value), -1)


class _WindowBatches:
    """Batches of windows with the columns (regions) they belong to: input of the dense stage."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Window]] = []

    def to_dense(self, shape: torch.Size) -> Tensor:
        """Return dense tangents (K, *shape)."""
        count = sum(len(columns) for columns, _ in self.batches)
        out = self.batches[0][1].data.new_zeros(count, shape.numel())
        for columns, window in self.batches:
            window.scatter(out, columns, shape)
        return out.reshape(count, *shape)


def _push_windowed_stage(
    context: PlanContext, plan: Plan, index: Tensor, outputs: Outputs, buffers: BufferPool
) -> _WindowBatches | TorchSparseTangent | NativeSparseTangent:
    """Push windows batch by batch; return them as windows, or as a sparse tangent if the sparse stage follows."""
    program, windowed_end = context.program, plan.schedule.windowed_end
    links = program.links[:windowed_end]
    end, shapes = links[-1].target, {link.target: link.shape for link in links}
    tangent, windows = None, _WindowBatches()
    if plan.schedule.sparse_end > windowed_end:
        layouts = context.layouts(index, windowed_end, plan.schedule.sparse_end)
        tangent_type = context.tangent_type
        buffers.reserve(max(map(tangent_type.count_elements, layouts.values())))
        values = buffers.acquire(tangent_type.count_elements(layouts[end])).zero_()
        tangent = tangent_type(values, layouts[end])
    column = torch.full((context.partition.count,), -1)
    column[index] = torch.arange(len(index))
    for batch in context.window_batches(end, index, plan.window_batch):
        for key, window in windowed.push_windows(
            program, context.partition, context.cones, batch, links, {end, *outputs}
        ):
            if key in outputs:
                _store_chunk(WindowedChunk(batch, window), outputs[key], shapes[key])
            if key == end and tangent is not None:
                tangent.load_columns(window.data, column[batch], window.origin)
            elif key == end and plan.schedule.cut > windowed_end:
                windows.batches.append((column[batch], window))
    return windows if tangent is None else tangent


def _push_sparse_stage(
    context: PlanContext,
    index: Tensor,
    start: TorchSparseTangent | NativeSparseTangent,
    first: int,
    last: int,
    outputs: Outputs,
    buffers: BufferPool,
) -> TorchSparseTangent | NativeSparseTangent:
    """Push a sparse tangent through links [first, last); release each value after its last use."""
    links, tangent_type = context.program.links[first:last], type(start)
    layouts = context.layouts(index, first, last)
    alive: dict[Key, TorchSparseTangent | NativeSparseTangent] = {
        context.program.links[first - 1].target: start
    }
    last_use = {source: i for i, link in enumerate(links) for source in link.sources}
    for i, link in enumerate(links):
        sources, layout = [alive[s] for s in link.sources], layouts[link.target]
        unused = [source for source in set(link.sources) if last_use[source] == i]
        target = tangent_type(buffers.acquire(tangent_type.count_elements(layout)), layout)
        sparse.push_map(link.map, sources, target, link.shapes)
        for source in unused:
            buffers.release(alive.pop(source).values)
        alive[link.target] = target
        if link.target in outputs:
            _store_chunk(SparseChunk(index, target), outputs[link.target], link.shape)
    return alive[links[-1].target]


# ---------------------------------------------------------------- pulling


def _pull_all(context: PlanContext, plan: Plan, weights: Tensor | None, bar: Progress) -> Tensor:
    """Pull every coordinate to the input and sum its relevance over each region: one LRP pass per coordinate."""
    program, end = context.program, plan.schedule.pull_windowed_end
    head, tail = program.links[:end], replace(program, links=program.links[end:])

    def relevance(seeds: Tensor) -> Tensor:
        """R = x ⊙ c; the links of `head` are pulled only where the cotangents are not zero."""
        if not head:
            return pull(program, seeds)
        cotangents = pull_to(tail, seeds).get(head[-1].target)
        if cotangents is None:
            return seeds.new_zeros(len(seeds), *program.x.shape)
        return program.x * tiles.pull_chain(head, cotangents)

    def contract(seeds: Tensor) -> Tensor:
        return context.partition.pool(relevance(seeds)).T

    return _fill_by_coordinates(context, plan, weights, bar, contract)


def _contract_at_cut(
    context: PlanContext, plan: Plan, pushed: Tensor, weights: Tensor | None, bar: Progress
) -> Tensor:
    """Pull the coordinates to the cut and contract them with the pushed regions: P[I, m] = Σ_k s_I[k] c_m[k]."""
    program, cut = context.program, plan.schedule.cut
    key = program.links[cut - 1].target
    tail = replace(program, links=program.links[cut:])

    def contract(seeds: Tensor) -> Tensor:
        pulled = pull_to(tail, seeds).get(key)
        if pulled is None:  # the cotangent is zero on every path to the cut
            return pushed.new_zeros(len(pushed), len(seeds))
        return pushed @ pulled.flatten(1).T

    return _fill_by_coordinates(context, plan, weights, bar, contract)


def _fill_by_coordinates(
    context: PlanContext,
    plan: Plan,
    weights: Tensor | None,
    bar: Progress,
    contract: Callable[[Tensor], Tensor],
) -> Tensor:
    """Fill parts [regions, coordinates] chunk by chunk; coordinates that are always zero are not pulled.

    `contract` returns the parts [regions, K] of K cotangents of the output.
    """
    result = context.program.result
    total = result.numel() if weights is None else weights.shape[0]
    parts = result.new_zeros(context.partition.count, total)
    active = context.active_coordinates if weights is None else torch.arange(total, device=result.device)
    bar.start("pulling coordinates", len(active))
    for chunk in chunks(len(active), plan.coordinate_chunk, bar.advance):
        index = active[chunk]
        seeds = (
            context.seed_cotangents(index) if weights is None else weights[index].reshape(-1, *result.shape)
        )
        parts[:, index] = contract(seeds).to(parts)  # the model may change the dtype
    return parts
