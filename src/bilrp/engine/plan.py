"""Plan a computation: choose the cheapest schedule, count its work exactly and size its chunks to the budget.

Regions are pushed in up to three stages, each of them possibly empty:

    push_windowed   push on windows around each region     (early convolutions: receptive fields are small)
    push_sparse     push active features only              (deep convolutions after ReLUs: most gates are 0)
    push_dense      push whole values                      (everything else)

or coordinates are pulled, which is classical LRP, one backward pass for each:

    pull_dense      pull whole values
    pull_tiled      pull the first convolutions only where a cotangent is not zero   (coordinates that see little)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.engine import memory
from bilrp.engine.costs import Schedule, choose_schedule
from bilrp.engine.executors import sparse, tiles, windowed
from bilrp.engine.executors.sparse_layout import SparseLayout
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key, Link
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

    schedule: Schedule
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
    """Return the cheapest plan of a mode: 'auto', 'push' or 'pull'."""
    return plan_for(context, choose_schedule(context, mode))


def plan_for(context: PlanContext, schedule: Schedule) -> Plan:
    """Return the plan of a schedule, its work counted and its chunks sized to the budget."""
    links, total = context.links, len(context.links)
    direction, windowed_end, sparse_end, tiled_end = schedule
    ordered = 0 <= windowed_end <= sparse_end <= (total if direction == "push" else 0)
    if not ordered or tiled_end not in (0, context.chain_length if direction == "pull" else 0):
        raise InputError(f"stages must follow each other: {schedule} of {total} links")
    if direction == "pull" and context.taps:
        raise InputError("a pull has the parts of the embedding alone: push to get those of other values too")
    sizes = region_chunk, window_batch, _ = _choose_chunk_sizes(context, schedule)
    if direction == "pull":
        back = context.coordinate_count * sum(link.cost(back=True).macs for link in links[tiled_end:])
        stages, sparse_numel = (
            (
                Stage("pull_dense", tiled_end, total, back),
                Stage("pull_tiled", 0, tiled_end, _tiled_pull_macs(context, tiled_end)),
            ),
            (0, 0, 0),
        )
    else:
        chunks = torch.arange(context.region_count).split(region_chunk) if sparse_end else []
        sparse_macs, sparse_numel = _sparse_push_macs(context, chunks, schedule)
        dense = context.region_count * sum(link.cost().macs for link in links[sparse_end:])
        stages = (
            Stage(
                "push_windowed",
                0,
                windowed_end,
                _windowed_push_macs(context, chunks, window_batch, windowed_end),
            ),
            Stage("push_sparse", windowed_end, sparse_end, sparse_macs),
            Stage("push_dense", sparse_end, total, dense),
        )
    working = memory.run_bytes(context, schedule, sizes, sparse_numel)
    peak = memory.program_bytes(context.program) + working
    return Plan(schedule, stages, context.region_count, context.coordinate_count, *sizes, peak, working)


# ---------------------------------------------------------------- counting


def _tiled_pull_macs(context: PlanContext, end: int) -> int:
    if not end:
        return 0
    macs, _ = tiles.tile_cost(context.links[:end])
    return round(context.coordinate_count * context.tiles_per_coordinate * macs)


def _windowed_push_macs(context: PlanContext, chunks: Sequence[Tensor], batch: int, end: int) -> int:
    links, total = context.links[:end], 0
    for chunk in chunks if end else []:
        for index in chunk.split(batch):
            for link in links:
                size = context.cones[link.target].select(index).max_extent()
                total += len(index) * windowed.count_macs(link.map, size, link.shapes)
    return total


def _sparse_push_macs(
    context: PlanContext, chunks: Sequence[Tensor], schedule: Schedule
) -> tuple[int, tuple[int, int, int]]:
    """Count the MACs of the sparse push, and its most elements for one chunk: at the start, during it, and at the end."""
    links = context.links[schedule.windowed_end : schedule.sparse_end]
    macs = first = peak = final = 0
    for chunk in chunks if links else []:
        layouts = context.layouts(chunk)
        sizes = _count_elements(context, links, layouts)
        first = max(first, sizes[context.links[schedule.windowed_end - 1].target])
        peak = max(peak, memory.peak_sparse_numel(links, sizes))
        final = max(final, sizes[links[-1].target])
        macs += sum(
            sparse.count_cost(
                link.map, [layouts[s] for s in link.sources], layouts[link.target], link.shapes
            )[0]
            for link in links
        )
    return macs, (first, peak, final)


def _count_elements(
    context: PlanContext, links: Sequence[Link], layouts: Mapping[Key, SparseLayout]
) -> dict[Key, int]:
    """Return the elements of the sparse tangents that some links read and write."""
    keys = {key for link in links for key in (*link.sources, link.target)}
    return {key: context.tangent_type.count_elements(layouts[key]) for key in keys}


# ---------------------------------------------------------------- memory


def _choose_chunk_sizes(context: PlanContext, schedule: Schedule) -> tuple[int, int, int]:
    """Return how many regions, windows and coordinates fit into the budget at once."""
    links, count, item = context.links, context.region_count, context.program.x.element_size()
    direction, windowed_end, sparse_end, _ = schedule
    if direction == "pull":
        back = max((link.shapes.numel for link in links), default=1)
        return 1, 1, max(1, min(context.coordinate_count, context.budget // (3 * item * back)))
    dense = max((link.shapes.numel for link in links[sparse_end:]), default=1)
    chunk = max(1, min(count, context.budget // (2 * item * dense)))
    rows = links[windowed_end:sparse_end]
    if rows:
        # An upper bound: the receptive fields of one chunk cover only a part of these rows.
        sizes = _count_elements(context, rows, context.layouts(torch.arange(count)))
        largest = max(sizes[link.target] + sum(sizes[s] for s in link.sources) for link in rows)
        chunk = max(1, min(chunk, MAX_SPARSE_REGIONS, count * context.budget // max(1, item * largest)))
    windows = (
        math.prod(context.cones[link.target].max_extent()) * link.shape[1] for link in links[:windowed_end]
    )
    return chunk, max(1, min(chunk, context.budget // (24 * item * max(windows, default=1)))), 1
