"""Execute a plan: compute parts [regions, coordinates] of the output and of every tapped value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from bilrp.engine.costs import ScheduleCosts, choose_schedule
from bilrp.engine.executors import sparse, tiles, windowed
from bilrp.engine.executors.sparse_layout import SparseTangent
from bilrp.engine.plan import Plan, make_plan
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key, Program, chunks, pull, pull_to, push, push_from
from bilrp.engine.remainder import remainder_parts
from bilrp.engine.tapped_parts import TappedRows, Windows, choose_sparse_taps, make_sparse_parts
from bilrp.engine.windows import Window
from bilrp.progress import Progress
from bilrp.regions import Regions
from bilrp.sparse_parts import AnyParts, allocate_zeros, densify
from bilrp.trace.devices import check_fits, get_memory_budget

Outputs = dict[Key, Tensor | list[Windows | TappedRows]]  # dense parts to write into, or what is collected


def plan_and_execute(
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
        program, partition: The frozen tape, and the regions of the input.
        weights: Projection [coordinates, h] of the embedding; None for its own coordinates.
        mode: 'auto', 'push' or 'pull', see `make_plan`.
        taps: Numbers of intermediate values whose parts are returned too.
        bar: Progress to report to.

    Returns:
        Parts by value number (those of taps may be sparse), and the plan.
    """
    coordinates = program.result.numel() if weights is None else len(weights)
    with_remainder, program = program, replace(program, remainder=None)
    context = PlanContext(
        program, partition, coordinates, frozenset(map(Key, taps)), get_memory_budget(program.x.device)
    )
    plan = make_plan(context, mode)
    check_fits(
        plan.working_bytes,
        program.x.device,
        f"a decomposition into {context.region_count} regions × {context.coordinate_count} coordinates",
        "use larger regions, a smaller input (--size), or project=256",
    )
    parts = execute_plan(context, plan, weights=weights, bar=bar)
    if with_remainder.remainder is not None:
        rest = remainder_parts(with_remainder, partition, weights)
        parts[program.output] = densify(parts[program.output]) + rest
    return {key.value: value_parts for key, value_parts in parts.items()}, plan


def pull_vectors(program: Program, partition: Regions, vectors: Tensor) -> Tensor:
    """Return [regions, n], ⟨P_I, v⟩ of each region and each of the vectors [n, h], without the parts.

    One backward sweep for as many vectors as fit into the memory budget; there is nothing to plan.

    Args:
        program, partition: The frozen tape, and the regions of the input.
        vectors: What the embedding is multiplied with.
    """
    largest = max((link.shapes.numel for link in program.links), default=program.x.numel())
    size = max(1, get_memory_budget(program.x.device) // (3 * program.x.element_size() * largest))
    seeds = vectors.reshape(-1, *program.result.shape)
    rows = [partition.pool(pull(program, seeds[chunk])) for chunk in chunks(len(seeds), size)]
    return torch.cat(rows).T.to(program.result.dtype)


def is_cheaper_to_pull(program: Program, partition: Regions, count: int) -> bool:
    """Return whether pulling so many vectors costs at most half of what the cheapest plan for the parts costs.

    Args:
        program, partition: The frozen tape, and the regions of the input.
        count: Number of vectors.
    """
    # A vector takes as long as a region on whole values, which is the most that a region takes.
    if 2 * count > partition.count:
        return False
    context = PlanContext(program, partition, program.result.numel())
    costs = ScheduleCosts(context)
    return 2 * count * costs.pull_vector[-1] <= costs.total_cost(choose_schedule(context, "auto"))


def execute_plan(
    context: PlanContext, plan: Plan, *, weights: Tensor | None = None, bar: Progress | None = None
) -> dict[Key, AnyParts]:
    """Compute parts of the program's output (projected by `weights`) and of every tap; only taps may be sparse.

    Args:
        context, plan: Program, regions and taps, and a plan made for them.
        weights, bar: As for `plan_and_execute`.
    """
    bar, program = bar or Progress(), context.program
    if plan.schedule.direction == "pull":
        return {program.output: _pull_all(context, plan, weights, bar)}
    sparse_taps = choose_sparse_taps(context, plan.schedule)
    outputs: Outputs = {
        key: [] if key in sparse_taps else _empty_parts(context, key)
        for key in {*context.taps, program.output}
    }
    bar.start("pushing regions", context.partition.count)
    for index in torch.arange(context.region_count).split(plan.region_chunk):
        _push_chunk(context, plan, index, outputs)
        bar.advance(len(index))
    parts: dict[Key, AnyParts] = {
        key: stored
        if isinstance(stored, Tensor)
        else make_sparse_parts(stored, context.partition.count, *_shape_and_dtype(context, key))
        for key, stored in outputs.items()
    }
    if weights is not None:
        parts[program.output] = densify(parts[program.output]) @ weights.T
    return parts


def _shape_and_dtype(context: PlanContext, key: Key) -> tuple[torch.Size, torch.dtype]:
    x = context.program.x
    return next(
        ((link.shape, link.dtype) for link in context.program.links if link.target == key), (x.shape, x.dtype)
    )


def _empty_parts(context: PlanContext, key: Key) -> Tensor:
    shape, dtype = _shape_and_dtype(context, key)
    return allocate_zeros(context.partition.count, shape.numel(), context.program.x.new_empty(0, dtype=dtype))


def _push_chunk(context: PlanContext, plan: Plan, index: Tensor, outputs: Outputs) -> None:
    """Run all push stages for the regions `index`, and store the values that `outputs` names."""
    program = context.program
    _, windowed_end, sparse_end, _ = plan.schedule
    if not windowed_end:
        _write_dense(push(program, context.partition.masks(index, program.x.dtype), outputs), index, outputs)
        return
    if sparse_end > windowed_end:
        tangent = _push_sparse_stage(context, plan, index, outputs)
        dense = tangent.to_dense()[:, None] if sparse_end < len(program.links) else None
        del tangent
    else:
        dense = None
        for batch, window in _push_windowed_stage(context, plan, index, outputs):
            images = window.to_images(program.links[windowed_end - 1].shape)
            dense = images.new_zeros(len(index), *images.shape[1:]) if dense is None else dense
            dense[torch.isin(index, batch)] = images
    if dense is not None:
        links = program.links[sparse_end:]
        needed = {link.target for link in links} & set(outputs)
        _write_dense(push_from(links, {program.links[sparse_end - 1].target: dense}, needed), index, outputs)


def _write_dense(values: dict[Key, Tensor], index: Tensor, outputs: Outputs) -> None:
    """Write dense values into the rows `index` of the outputs."""
    for key, value in values.items():
        output = outputs[key]
        assert isinstance(output, Tensor)
        output[index] = value.reshape(len(value), -1)


def _store_windows(
    index: Tensor, window: Window, output: Tensor | list[Windows | TappedRows], shape: torch.Size
) -> None:
    """Write windows of the regions `index` into dense parts, or append them to a list."""
    if isinstance(output, Tensor):
        output[index] = window.to_images(shape).flatten(1).to(output.dtype)
    else:
        output.append((index, window))


def _push_windowed_stage(
    context: PlanContext, plan: Plan, index: Tensor, outputs: Outputs
) -> Iterator[Windows]:
    """Push windows batch by batch; yield regions and windows of the last value."""
    links = context.links[: plan.schedule.windowed_end]
    end, shapes = links[-1].target, {link.target: link.shape for link in links}
    for batch in index.split(plan.window_batch):
        for key, window in windowed.push_windows(
            context.program, context.partition, context.cones, batch, links, {end, *outputs}
        ):
            if key in outputs:
                _store_windows(batch, window, outputs[key], shapes[key])
            if key == end:
                yield batch, window


def _push_sparse_stage(context: PlanContext, plan: Plan, index: Tensor, outputs: Outputs) -> SparseTangent:
    """Push windows, then a sparse tangent; return the last one. The others are freed after their last use."""
    _, first, last, _ = plan.schedule
    links, start, layouts = context.links[first:last], context.links[first - 1].target, context.layouts(index)
    column = torch.full((context.partition.count,), -1)
    column[index] = torch.arange(len(index))

    # Buffers are used again, since the system clears the pages of new ones: a quarter of the time of ResNet-50.
    kind, free, buffers = context.tangent_type, list[Tensor](), dict[Key, Tensor]()
    sizes = {key: kind.count_elements(layouts[key]) for key in (start, *(link.target for link in links))}

    def allocate(key: Key) -> SparseTangent:
        buffers[key] = free.pop() if free else context.program.x.new_empty(max(sizes.values()))
        return kind(buffers[key][: sizes[key]], layouts[key])

    alive = {start: allocate(start)}
    alive[start].values.zero_()
    for batch, window in _push_windowed_stage(context, plan, index, outputs):
        alive[start].load_columns(window.data, column[batch], window.origin)
    last_use = {source: i for i, link in enumerate(links) for source in link.sources}
    for i, link in enumerate(links):
        target = allocate(link.target)
        sparse.push_map(link.map, [alive[s] for s in link.sources], target, link.shapes)
        for source in {source for source in link.sources if last_use[source] == i}:
            del alive[source]
            free.append(buffers.pop(source))
        alive[link.target] = target
        output = outputs.get(link.target)
        if isinstance(output, Tensor):
            target.write(output, index)
        elif output is not None:
            output.append(TappedRows.copy(index, target))
    return alive[links[-1].target]


# ---------------------------------------------------------------- pulling


def _pull_all(context: PlanContext, plan: Plan, weights: Tensor | None, bar: Progress) -> Tensor:
    """Pull every coordinate to the input and sum its relevance over each region: one LRP pass per coordinate."""
    program, result = context.program, context.program.result
    total = result.numel() if weights is None else weights.shape[0]
    parts = result.new_zeros(context.partition.count, total)
    bar.start("pulling coordinates", total)
    for chunk in chunks(total, plan.coordinate_chunk, bar.advance):
        index = torch.arange(chunk.start, chunk.stop, device=result.device)
        seeds = (
            context.seed_cotangents(index) if weights is None else weights[chunk].reshape(-1, *result.shape)
        )
        relevance = _pull_relevance(program, seeds, plan.schedule.tiled_end)
        parts[:, chunk] = context.partition.pool(relevance).T.to(parts)  # the model may change the dtype
    return parts


def _pull_relevance(program: Program, seeds: Tensor, tiled_end: int) -> Tensor:
    """Return R = x ⊙ c; the first `tiled_end` links are pulled only where the cotangents are not zero."""
    if not tiled_end:
        return pull(program, seeds)
    head, tail = program.links[:tiled_end], replace(program, links=program.links[tiled_end:])
    cotangents = pull_to(tail, seeds).get(head[-1].target)
    if cotangents is None:
        return seeds.new_zeros(len(seeds), *program.x.shape)
    return program.x * tiles.pull_chain(head, cotangents)
