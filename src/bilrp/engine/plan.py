"""Plan a computation: choose the cheapest schedule, count its work exactly and size its chunks to the budget.

A program is split into four stages, in this order, each of them possibly empty:

    push_windowed   push on windows around each region     (early convolutions: receptive fields are small)
    push_sparse     push active features only              (deep convolutions after ReLUs: most gates are 0)
    push_dense      push whole values                      (everything else)
    pull_dense      pull the coordinates down to the last pushed value, and contract there

If nothing is pushed, `pull_dense` alone is classical LRP, one backward pass per coordinate. In that case the first links
may be pulled as

    pull_windowed   pull only where a coordinate's cotangent is not zero   (coordinates that see a small part of the image)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.engine import memory
from bilrp.engine.costs import Schedule, choose_schedule
from bilrp.engine.executors import sparse, tiles, windowed
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key
from bilrp.errors import InputError

__all__ = ["Plan", "PlanContext", "Schedule", "Stage", "make_plan", "plan_for"]

# Regions per chunk of push_sparse: more share each gathered weight, fewer have more compact receptive fields.
MAX_SPARSE_REGIONS = 512


@dataclass(frozen=True)
class Stage:
    """Links [first, last) under one method, with the multiply-adds this takes."""

    method: str
    first: int
    last: int
    macs: int

    def __str__(self) -> str:
        return f"{self.method:13s} links {self.first:3d} … {self.last:3d}  {2 * self.macs / 1e9:10.2f} GFLOP"


@dataclass(frozen=True)
class Plan:
    """The stages of a computation, its chunk sizes and its memory; printable and comparable."""

    stages: tuple[Stage, ...]
    region_count: int
    coordinate_count: int
    region_chunk: int  # regions pushed at once
    window_batch: int  # windows pushed at once
    coordinate_chunk: int  # coordinates pulled at once
    peak_bytes: int  # including the tensors of the frozen program
    working_bytes: int = 0  # of these, allocated by the run

    @property
    def flops(self) -> int:
        """Floating-point operations of all stages: two for each multiplication and addition."""
        return 2 * sum(stage.macs for stage in self.stages)

    @property
    def schedule(self) -> Schedule:
        """Where the stages change."""
        windowed, sparse, dense, pull_windowed = (
            self.stage(name).last for name in ("push_windowed", "push_sparse", "push_dense", "pull_windowed")
        )
        return Schedule(windowed, max(windowed, sparse), dense, pull_windowed)

    def stage(self, method: str) -> Stage:
        """Return the stage of a method; an empty one if the plan does not use it."""
        return next((s for s in self.stages if s.method == method), Stage(method, 0, 0, 0))

    def __str__(self) -> str:
        head = (
            f"{self.region_count} regions × {self.coordinate_count} coordinates: {self.flops / 1e9:.2f} GFLOP, "
            f"peak about {self.peak_bytes / 2**20:.0f} MB"
        )
        return "\n".join(
            [head, *(f"  {stage}" for stage in self.stages if stage.last > stage.first or stage.macs)]
        )


def make_plan(context: PlanContext, mode: str = "auto") -> Plan:
    """Return the cheapest plan of a mode: 'auto', 'push' (no stage pulls) or 'pull' (no stage pushes)."""
    return plan_for(context, choose_schedule(context, mode))


def plan_for(context: PlanContext, schedule: Schedule) -> Plan:
    """Return the plan of a schedule, its work counted and its chunks sized to the budget."""
    links, total = context.links, len(context.links)
    windowed_end, sparse_end, cut, tiled_end = schedule
    ordered = 0 <= windowed_end <= sparse_end <= cut <= total
    if not ordered or (tiled_end and cut) or tiled_end not in (0, context.chain_length):
        raise InputError(
            f"stages must follow each other: windowed_end {windowed_end}, sparse_end {sparse_end}, cut {cut}, "
            f"pull_windowed_end {tiled_end} of {total} links"
        )
    region_chunk, window_batch, coordinate_chunk = _choose_chunk_sizes(context, schedule)
    chunks = context.chunks(region_chunk, compact=True) if sparse_end else []
    sparse_macs, sparse_numel = _sparse_push_macs(context, chunks, schedule)
    dense = [link.cost().macs for link in links[sparse_end:cut]]
    pull_start = max(cut, tiled_end)
    back = [link.cost(back=True).macs for link in links[pull_start:]]
    contraction = (
        context.region_count * context.numel_after(cut) * context.pull_count if 0 < cut < total else 0
    )
    # Probes a few coordinates, which computes lazy factors: must run before setup_macs.
    tile_macs = _windowed_pull_macs(context, tiled_end)
    pull_macs = context.pull_count * sum(back) + contraction if cut < total else 0

    def setup_macs(first: int, last: int) -> int:
        return sum(link.cost().setup_macs for link in links[first:last])

    windowed_macs = _windowed_push_macs(context, chunks, window_batch, windowed_end)
    dense_macs = context.region_count * sum(dense)
    stages = (
        Stage("push_windowed", 0, windowed_end, windowed_macs + setup_macs(0, windowed_end)),
        Stage("push_sparse", windowed_end, sparse_end, sparse_macs),
        Stage("push_dense", sparse_end, cut, dense_macs + setup_macs(sparse_end, cut)),
        Stage("pull_dense", pull_start, total, pull_macs + setup_macs(pull_start, total)),
        Stage("pull_windowed", 0, tiled_end, tile_macs + setup_macs(0, tiled_end)),
    )
    sizes = (region_chunk, window_batch, coordinate_chunk)
    working = memory.run_bytes(context, schedule, sizes, sparse_numel)
    peak = memory.program_bytes(context.program) + working
    return Plan(stages, context.region_count, context.coordinate_count, *sizes, peak, working)


# ---------------------------------------------------------------- counting


def _windowed_pull_macs(context: PlanContext, end: int) -> int:
    if not end:
        return 0
    macs, _ = tiles.tile_cost(context.links[:end])
    return round(context.pull_count * context.tiles_per_coordinate * macs)


def _windowed_push_macs(context: PlanContext, chunks: Sequence[Tensor], batch: int, end: int) -> int:
    links, total = context.links[:end], 0
    for chunk in chunks if end else []:
        for index in context.window_batches(links[-1].target, chunk, batch):
            for link in links:
                size = context.cones[link.target].select(index).max_extent()
                total += len(index) * windowed.count_macs(link.map, size, link.shapes)
    return total


def _sparse_push_macs(
    context: PlanContext, chunks: Sequence[Tensor], schedule: Schedule
) -> tuple[int, tuple[int, int]]:
    """Count the MACs of the sparse push, and its peak elements for one chunk: during the stage, and at its end."""
    macs = peak = final = 0
    setup: dict[Key, int] = {}
    for chunk in chunks if schedule.sparse_end > schedule.windowed_end else []:
        layouts = context.layouts(chunk, schedule.windowed_end, schedule.sparse_end)
        sizes = {key: context.tangent_type.count_elements(layout) for key, layout in layouts.items()}
        peak = max(
            peak, memory.peak_sparse_numel(context.links[schedule.windowed_end : schedule.sparse_end], sizes)
        )
        final = max(final, sizes[context.links[schedule.sparse_end - 1].target])
        for link in context.links[schedule.windowed_end : schedule.sparse_end]:
            sources = [layouts[s] for s in link.sources]
            macs += sparse.count_cost(link.map, sources, layouts[link.target], link.shapes)[0]
            setup_macs = sparse.count_setup_macs(link.map, sources[0], link.shapes)
            setup[link.target] = max(setup.get(link.target, 0), setup_macs)
    return macs + sum(setup.values()), (peak, final)


# ---------------------------------------------------------------- memory


def _choose_chunk_sizes(context: PlanContext, schedule: Schedule) -> tuple[int, int, int]:
    """Return how many regions, windows and coordinates fit into the budget at once."""
    links, count, item = context.links, context.region_count, context.program.x.element_size()
    dense = max((link.shapes.numel for link in links[schedule.sparse_end : schedule.cut]), default=1)
    chunk = max(1, min(count, context.budget // (2 * item * dense)))
    if schedule.sparse_end > schedule.windowed_end:
        # An upper bound: the receptive fields of one chunk cover only a part of these rows.
        layouts = context.layouts(torch.arange(count), schedule.windowed_end, schedule.sparse_end)
        sizes = {key: context.tangent_type.count_elements(layout) for key, layout in layouts.items()}
        largest = max(
            sizes[link.target] + sum(sizes[s] for s in link.sources)
            for link in links[schedule.windowed_end : schedule.sparse_end]
        )
        chunk = max(1, min(chunk, MAX_SPARSE_REGIONS, count * context.budget // max(1, item * largest)))
    windows = (
        math.prod(context.cones[link.target].max_extent()) * link.shape[1]
        for link in links[: schedule.windowed_end]
    )
    batch = max(1, min(chunk, context.budget // (24 * item * max(windows, default=1))))
    back = max((link.shapes.numel for link in links[schedule.cut :]), default=1)
    coordinates = (
        max(1, min(context.pull_count, context.budget // (3 * item * back)))
        if schedule.cut < len(links)
        else 1
    )
    return chunk, batch, coordinates
