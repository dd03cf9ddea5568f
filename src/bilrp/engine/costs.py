"""Cost model: estimate each link under each method, so that the cost of a schedule is a sum over its links.

Costs are multiply-adds (MACs) plus an equivalent for memory traffic. They are estimates for choosing a schedule;
`plan.plan_for` then counts the MACs of the chosen one exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import torch

from bilrp.engine.executors import sparse, tiles, windowed
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Link
from bilrp.engine.windows import Cone

# Rough equivalents in MACs; only their ratios matter, and only for choosing a schedule.
MACS_PER_WINDOW_BATCH = 4_000_000  # overhead of one batch of windows at one link
MACS_PER_MOVED_NUMBER = 16  # one number is read and written
WINDOWED_PUSH_SLOWDOWN = 1.2  # many small convolutions instead of one large
WINDOWED_PULL_SLOWDOWN = 2.0  # cropping windows and adding them up, instead of whole values


class Schedule(NamedTuple):
    """The direction, and the link numbers at which the method changes.

    "push": links [0, windowed_end) on windows, [windowed_end, sparse_end) on sparse tangents, the rest on whole values.
    "pull": links [0, tiled_end) tile by tile, after the rest on whole values.
    """

    direction: Literal["push", "pull"] = "push"
    windowed_end: int = 0
    sparse_end: int = 0
    tiled_end: int = 0


@dataclass(frozen=True, eq=False)
class ScheduleCosts:
    """Sums of the costs of the first i links under each method, and the cost of a schedule."""

    context: PlanContext

    def total_cost(self, schedule: Schedule) -> float:
        """Return the cost of all stages."""
        if schedule.direction == "pull":
            rest = self.pull_vector[-1] - self.pull_vector[schedule.tiled_end]
            return self.context.coordinate_count * rest + (self.pull_tiled if schedule.tiled_end else 0)
        _, first, last, _ = schedule
        cost = self.push_windowed[first] + self.push_dense[-1] - self.push_dense[last]
        return cost + (self.push_sparse[last] - self.push_sparse[first] if last > first else 0)

    @cached_property
    def push_windowed(self) -> list[float]:
        context = self.context
        links = context.links[: context.spatial_count]
        return _sums(_windowed_cost(link, context.cones[link.target]) for link in links)

    @cached_property
    def push_sparse(self) -> list[float]:
        """Links that cannot push sparse tangents count 0; `sparse_segments` leaves them out."""
        context, layouts = self.context, self.context.layouts(torch.arange(self.context.region_count))
        costs = [0.0] * context.spatial_count
        for first, last in sparse_segments(context):
            for i, link in enumerate(context.links[first:last], first):
                sources, target = [layouts[s] for s in link.sources], layouts[link.target]
                macs, overhead = sparse.count_cost(link.map, sources, target, link.shapes)
                moved = context.tangent_type.count_elements(target)
                costs[i] = float(macs + overhead + MACS_PER_MOVED_NUMBER * moved)
        return _sums(costs)

    @cached_property
    def push_dense(self) -> list[float]:
        return _sums(
            self.context.region_count * (link.cost().macs + MACS_PER_MOVED_NUMBER * link.shapes.numel)
            for link in self.context.links
        )

    @cached_property
    def pull_vector(self) -> list[float]:
        """The cost for one vector, on whole values."""
        return _sums(
            link.cost(back=True).macs + MACS_PER_MOVED_NUMBER * link.shapes.numel
            for link in self.context.links
        )

    @cached_property
    def pull_tiled(self) -> float:
        """Cost of pulling the first `chain_length` links tile by tile; expensive, as it pulls a few coordinates."""
        context = self.context
        macs, numel = tiles.tile_cost(context.links[: context.chain_length])
        cost_per_tile = WINDOWED_PULL_SLOWDOWN * (macs + MACS_PER_MOVED_NUMBER * numel)
        return context.coordinate_count * context.tiles_per_coordinate * cost_per_tile


def choose_schedule(context: PlanContext, mode: str) -> Schedule:
    """Return the cheapest schedule of a mode: 'auto' (all), 'push' or 'pull' (only that direction)."""
    costs = ScheduleCosts(context)
    best = min(all_schedules(context, mode), key=costs.total_cost)
    # Like any pull, a tiled one gives no parts of tapped values.
    if mode == "push" or context.taps or not context.chain_length:
        return best
    tiled, lowest = Schedule("pull", tiled_end=context.chain_length), costs.total_cost(best)
    # Skip the expensive tile estimate if pulling down to the chain already costs more than the best schedule.
    rest = context.coordinate_count * (costs.pull_vector[-1] - costs.pull_vector[context.chain_length])
    return tiled if rest < lowest and costs.total_cost(tiled) < lowest else best


def all_schedules(context: PlanContext, mode: str = "auto") -> Iterator[Schedule]:
    """Yield every schedule whose stages change at bottlenecks, except those with a tiled pull."""
    if mode == "pull" or (mode == "auto" and not context.taps):
        yield Schedule("pull")
    if mode == "pull":
        return
    yield Schedule("push")
    segments = sparse_segments(context)
    for windowed_end in (i for i in context.bottlenecks if i <= context.spatial_count):
        ends = [j for j in context.bottlenecks if any(i <= windowed_end < j <= k for i, k in segments)]
        yield from (Schedule("push", windowed_end, sparse_end) for sparse_end in (windowed_end, *ends))


def sparse_segments(context: PlanContext) -> list[tuple[int, int]]:
    """Return the longest segments between bottlenecks whose links can push sparse tangents.

    Links on masks (rules of the first layer) are left to the other stages: segments before and after one stay apart.
    """
    segments: list[tuple[int, int]] = []
    for first, last in pairwise(i for i in context.bottlenecks if i <= context.spatial_count):
        if any(link.map.on_mask for link in context.links[first:last]):
            continue
        if segments and segments[-1][1] == first:
            segments[-1] = (segments[-1][0], last)
        else:
            segments.append((first, last))
    return segments


def _sums(costs: Iterable[float]) -> list[float]:
    return list(accumulate(costs, initial=0.0))


def _windowed_cost(link: Link, cone: Cone) -> float:
    if not link.cost().macs:
        return 0.0
    macs = sum(
        count * windowed.count_macs(link.map, (height, width), link.shapes)
        for (height, width), count in cone.extent_counts.items()
    )
    return WINDOWED_PUSH_SLOWDOWN * macs + MACS_PER_WINDOW_BATCH * (1 + len(cone.low) // 64) if macs else 0.0
