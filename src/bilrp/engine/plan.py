"""plan: which way is cheapest? Count the work of pulling, pushing, pushing on crops or active rows, and of meeting.

A program is cut into up to four stages, in this order, each of them possibly empty:

    push_windowed   push on windows around each region        (early convolutions: cones are small)
    push_sparse     push active neurons only                  (deep convolutions behind ReLUs: most gates are shut)
    push_dense      push whole values                         (everything else)
    pull_dense      pull the coordinates down to where the push has arrived, and contract there (meet in the middle)

`pull_dense` alone is the classical way, one vector for each coordinate. Then the first links may be pulled as

    pull_windowed   pull only where a coordinate's cotangent is not zero   (coordinates that see a small part of the image)

The planner takes what costs least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.engine import memory, pull_windowed
from bilrp.engine.costs import Schedule, choose_schedule
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key, Link
from bilrp.errors import InputError

__all__ = ["Plan", "PlanContext", "Schedule", "Stage", "make_plan", "plan_for"]

MAX_SPARSE_REGIONS = (
    512  # regions of the rows stage: more share each gathered weight, fewer keep their cones together
)


@dataclass(frozen=True)
class Stage:
    """Links [first, last) by one method, with the multiply-adds it takes."""

    method: str
    first: int
    last: int
    macs: int

    def __str__(self) -> str:
        return f"{self.method:13s} links {self.first:3d} … {self.last:3d}  {2 * self.macs / 1e9:10.2f} GFLOP"


@dataclass(frozen=True)
class Plan:
    """What runs where: printable, comparable, made before anything is computed."""

    stages: tuple[Stage, ...]
    region_count: int
    coordinate_count: int
    region_chunk: int  # regions pushed at once
    window_batch: int  # windows pushed at once
    coordinate_chunk: int  # coordinates pulled at once
    peak_bytes: int  # at the worst moment, with what the frozen program holds
    working_bytes: int = 0  # of these, what the run adds

    @property
    def flops(self) -> int:
        return 2 * sum(stage.macs for stage in self.stages)

    @property
    def schedule(self) -> Schedule:
        """Where the stages change."""
        crops, rows, push, tiled = (
            self.stage(name).last for name in ("push_windowed", "push_sparse", "push_dense", "pull_windowed")
        )
        return Schedule(crops, max(crops, rows), push, tiled)

    def stage(self, method: str) -> Stage:
        """The stage of that method, empty if there is none."""
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
    """The cheapest plan of the mode: 'auto', 'push' (no stage pulls) or 'pull' (nothing is pushed)."""
    return plan_for(context, choose_schedule(context, mode))


def plan_for(context: PlanContext, schedule: Schedule) -> Plan:
    """The plan that goes this way, its work counted and its chunks sized to the budget."""
    links, total = context.links, len(context.links)
    crops, rows, cut, tiled = schedule
    if not 0 <= crops <= rows <= cut <= total or (tiled and cut) or tiled not in (0, context.chain_length):
        raise InputError(
            f"stages must follow each other: windowed_end {crops}, sparse_end {rows}, cut {cut}, "
            f"pull_windowed_end {tiled} of {total} links"
        )
    chunk, batch, pulled = _choose_chunk_sizes(context, schedule)
    chunks = context.chunks(chunk, compact=True) if rows else []
    row_macs, alive = _sparse_push_macs(context, chunks, schedule)
    dense = [link.map.macs(link.shapes) for link in links[rows:cut]]
    back = [link.map.macs(link.shapes, back=True) for link in links[max(cut, tiled) :]]
    meeting = context.region_count * context.numel_after(cut) * context.pull_count if 0 < cut < total else 0
    tile_macs = _windowed_pull_macs(context, tiled)  # pulls a few, and so makes what comes first
    pulling = context.pull_count * sum(back) + meeting if cut < total else 0

    def with_what_comes_first(first: int, last: int, macs: int) -> int:
        return macs + sum(link.map.setup_macs(link.shapes) for link in links[first:last])

    stages = (
        Stage(
            "push_windowed",
            0,
            crops,
            with_what_comes_first(0, crops, _windowed_push_macs(context, chunks, batch, crops)),
        ),
        Stage("push_sparse", crops, rows, row_macs),
        Stage("push_dense", rows, cut, with_what_comes_first(rows, cut, context.region_count * sum(dense))),
        Stage("pull_dense", max(cut, tiled), total, with_what_comes_first(max(cut, tiled), total, pulling)),
        Stage("pull_windowed", 0, tiled, with_what_comes_first(0, tiled, tile_macs)),
    )
    working = memory.run_bytes(context, schedule, (chunk, batch, pulled), alive)
    peak = memory.program_bytes(context.program) + working
    return Plan(stages, context.region_count, context.coordinate_count, chunk, batch, pulled, peak, working)


# ---------------------------------------------------------------- counting


def _windowed_pull_macs(context: PlanContext, end: int) -> int:
    return (
        round(
            context.pull_count
            * context.tiles_per_coordinate
            * pull_windowed.tile_cost(context.links[:end])[0]
        )
        if end
        else 0
    )


def _windowed_push_macs(context: PlanContext, chunks: Sequence[Tensor], batch: int, end: int) -> int:
    links, total = context.links[:end], 0
    for chunk in chunks if end else []:
        for index in context.window_batches(links[-1].target, chunk, batch):
            for link in links:
                size = context.cones[link.target].select(index).max_extent()
                total += len(index) * link.map.window_macs(size, link.shapes)
    return total


def _sparse_push_macs(
    context: PlanContext, chunks: Sequence[Tensor], schedule: Schedule
) -> tuple[int, tuple[int, int]]:
    """Multiply-adds of the rows stage, and the most numbers in rows for a chunk at once: on the way, and at its end."""
    macs = most = leaving = 0
    once: dict[Key, int] = {}
    for chunk in chunks if schedule.sparse_end > schedule.windowed_end else []:
        laid = context.layouts(chunk, schedule.windowed_end, schedule.sparse_end)
        sizes = {key: context.tangent_type.required_numel(layout) for key, layout in laid.items()}
        most = max(
            most, memory.peak_sparse_numel(context.links[schedule.windowed_end : schedule.sparse_end], sizes)
        )
        leaving = max(leaving, sizes[context.links[schedule.sparse_end - 1].target])
        for link in context.links[schedule.windowed_end : schedule.sparse_end]:
            sources = [laid[s] for s in link.sources]
            macs += link.map.sparse_cost(sources, laid[link.target], link.shapes)[0]
            once[link.target] = max(once.get(link.target, 0), link.map.setup_macs(link.shapes, sources[0]))
    return macs + sum(once.values()), (most, leaving)


# ---------------------------------------------------------------- memory


def _choose_chunk_sizes(context: PlanContext, schedule: Schedule) -> tuple[int, int, int]:
    """How many regions, windows and coordinates fit the budget at once."""
    links, count, item = context.links, context.region_count, context.program.x.element_size()
    dense = max((link.shapes.numel for link in links[schedule.sparse_end : schedule.cut]), default=1)
    chunk = max(1, min(count, context.budget // (2 * item * dense)))
    if schedule.sparse_end > schedule.windowed_end:
        # A chunk's own cones cover only a part of the rows; assuming all of them keeps this on the safe side.
        laid = context.layouts(torch.arange(count), schedule.windowed_end, schedule.sparse_end)
        sizes = {key: context.tangent_type.required_numel(layout) for key, layout in laid.items()}
        most = max(
            sizes[k.target] + sum(sizes[s] for s in k.sources)
            for k in links[schedule.windowed_end : schedule.sparse_end]
        )
        chunk = max(1, min(chunk, MAX_SPARSE_REGIONS, count * context.budget // max(1, item * most)))
    widest = max((_window_numel(context, link) for link in links[: schedule.windowed_end]), default=1)
    batch = max(1, min(chunk, context.budget // (24 * item * widest)))
    back = max((link.shapes.numel for link in links[schedule.cut :]), default=1)
    pulled = (
        max(1, min(context.pull_count, context.budget // (3 * item * back)))
        if schedule.cut < len(links)
        else 1
    )
    return chunk, batch, pulled


def _window_numel(context: PlanContext, link: Link) -> int:
    height, width = context.cones[link.target].max_extent()
    return height * width * link.shape[1]
