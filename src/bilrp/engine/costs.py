"""Cost model: estimate each link under each method, so that the cost of a schedule is a sum over its links.

Costs are multiply-adds (MACs) plus an equivalent for memory traffic. They are estimates for choosing a schedule;
`plan.plan_for` then counts the MACs of the chosen one exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import torch

from bilrp.engine.executors import sparse, tiles, windowed
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Link
from bilrp.engine.windows import Cone

# Rough equivalents in MACs; only their ratios matter, and only for choosing a schedule.
MACS_PER_WINDOW_BATCH = 4_000_000  # overhead of one batch of windows at one link
MACS_PER_MOVED_NUMBER = 16  # one number is read and written
MAX_CUT_BUDGETS = 4  # memory budgets that the pushed regions may fill at the cut
WINDOWED_PUSH_SLOWDOWN = 1.2  # many small convolutions instead of one large
WINDOWED_PULL_SLOWDOWN = 2.0  # cropping windows and adding them up, instead of whole values


Method = Literal["push_windowed", "push_sparse", "push_dense", "pull_dense"]


class Schedule(NamedTuple):
    """The link numbers at which the method changes.

    Links [0, windowed_end) are pushed on windows, [windowed_end, sparse_end) on sparse tangents, [sparse_end, cut) on
    dense tangents, and the coordinates are pulled down to the cut. With cut = 0 nothing is pushed, and links
    [0, pull_windowed_end) are pulled tile by tile.
    """

    windowed_end: int = 0
    sparse_end: int = 0
    cut: int = 0
    pull_windowed_end: int = 0


@dataclass(frozen=True, eq=False)
class ScheduleCosts:
    """Cost of each link under each method (a list per method, one number for the windowed pull), and of a schedule."""

    context: PlanContext

    def total_cost(self, schedule: Schedule) -> float:
        """Return the cost of all stages and of the product at the cut."""
        cost = self.segment_cost("push_windowed", 0, schedule.windowed_end) + self.segment_cost(
            "push_sparse", schedule.windowed_end, schedule.sparse_end
        )
        cost += self.segment_cost("push_dense", schedule.sparse_end, schedule.cut)
        if schedule.pull_windowed_end:
            return (
                cost
                + self.segment_cost("pull_dense", schedule.pull_windowed_end, len(self.context.links))
                + self.pull_windowed
            )
        return cost + self.cost_after(schedule.cut)

    def cost_after(self, cut: int) -> float:
        """Return the cost of pulling the coordinates down to a cut, and of the product there."""
        context, total = self.context, len(self.context.links)
        cost = self.segment_cost("pull_dense", cut, total)
        if not 0 < cut < total:
            return cost
        pushed_numel = context.region_count * context.numel_after(cut)
        # The pushed tangents stay in memory until all coordinates are pulled.
        if pushed_numel > MAX_CUT_BUDGETS * context.budget // context.program.x.element_size():
            return float("inf")
        return cost + pushed_numel * (context.pull_count + MACS_PER_MOVED_NUMBER)

    def segment_cost(self, method: Method, first: int, last: int) -> float:
        """Return the cost of links [first, last) under one method; cached, since many schedules share segments.

        Args:
            method: Name of the method.
            first: First link.
            last: Last link + 1.
        """
        key = (method, first, last)
        if key not in self._segment_cache:
            self._segment_cache[key] = sum(getattr(self, method)[first:last])
        return self._segment_cache[key]

    @cached_property
    def _segment_cache(self) -> dict[tuple[str, int, int], float]:
        return {}

    @cached_property
    def push_windowed(self) -> list[float]:
        context = self.context
        return [
            _windowed_cost(link, context.cones[link.target]) + _setup_macs(link)
            for link in context.links[: context.spatial_links]
        ]

    @cached_property
    def push_sparse(self) -> list[float]:
        """Infinite for links that cannot push sparse tangents."""
        context = self.context
        costs = [float("inf")] * context.spatial_links
        for first, last in sparse_segments(context):
            layouts = context.layouts(torch.arange(context.region_count), first, last)
            for i, link in enumerate(context.links[first:last], first):
                sources, target = [layouts[s] for s in link.sources], layouts[link.target]
                macs, overhead = sparse.count_cost(link.map, sources, target, link.shapes)
                macs += sparse.count_setup_macs(link.map, sources[0], link.shapes)
                costs[i] = float(
                    macs + overhead + MACS_PER_MOVED_NUMBER * context.tangent_type.count_elements(target)
                )
        return costs

    @cached_property
    def push_dense(self) -> list[float]:
        return [
            float(self.context.region_count * (link.cost().macs + _transfer_macs(link)) + _setup_macs(link))
            for link in self.context.links
        ]

    @cached_property
    def pull_dense(self) -> list[float]:
        return [
            float(
                self.context.pull_count * (link.cost(back=True).macs + _transfer_macs(link))
                + _setup_macs(link)
            )
            for link in self.context.links
        ]

    @cached_property
    def pull_windowed(self) -> float:
        """Cost of pulling the first `chain_length` links tile by tile; expensive, as it pulls a few coordinates."""
        context = self.context
        chain = context.links[: context.chain_length]
        macs, numel = tiles.tile_cost(chain)
        cost_per_tile = WINDOWED_PULL_SLOWDOWN * (macs + MACS_PER_MOVED_NUMBER * numel)
        return context.pull_count * context.tiles_per_coordinate * cost_per_tile + sum(
            map(_setup_macs, chain)
        )


def choose_schedule(context: PlanContext, mode: str) -> Schedule:
    """Return the cheapest schedule of a mode: 'auto' (all), 'push' (without a pull stage), 'pull' (without a push)."""
    costs = ScheduleCosts(context)
    best = min(_candidate_schedules(costs, mode), key=costs.total_cost)
    if mode == "push" or context.taps or not context.chain_length:
        return best
    tiled = Schedule(pull_windowed_end=context.chain_length)
    # Skip the expensive tile estimate if pulling down to the chain already costs more than the best schedule.
    rest = sum(costs.pull_dense[context.chain_length :])
    return (
        tiled if rest < costs.total_cost(best) and costs.total_cost(tiled) < costs.total_cost(best) else best
    )


def all_schedules(context: PlanContext, mode: str = "auto") -> Iterator[Schedule]:
    """Yield every schedule whose stages change at bottlenecks, except those with a windowed pull."""
    total, bottlenecks = len(context.links), context.bottlenecks
    if mode == "pull":
        yield Schedule()
        return
    yield Schedule(cut=total)
    may_cut = mode == "auto" and not context.taps
    if may_cut:
        yield Schedule()
    segments = sparse_segments(context)
    for windowed_end in [i for i in bottlenecks if i <= context.spatial_links]:
        ends = [j for j in bottlenecks if any(first <= windowed_end < j <= last for first, last in segments)]
        for sparse_end in [windowed_end, *ends]:
            for cut in [*(c for c in bottlenecks if sparse_end <= c < total and may_cut), total]:
                yield Schedule(windowed_end, sparse_end, cut)


def _candidate_schedules(costs: ScheduleCosts, mode: str) -> Iterator[Schedule]:
    """Yield those of `all_schedules` that can be the cheapest, in the same order.

    A deep network has tens of thousands of schedules. The costs before and after `sparse_end` are independent, so for
    each value of it the best start and the best end are enough.
    """
    context = costs.context
    if mode == "pull" or not context.spatial_links:
        yield from all_schedules(context, mode)
        return
    yield Schedule(cut=len(context.links))
    if mode == "auto" and not context.taps:
        yield Schedule()
    cuts = _best_cuts(costs, mode)
    schedules = {Schedule(end, end, cuts[end]) for end in context.bottlenecks if end <= context.spatial_links}
    for first, last in sparse_segments(context):
        schedules.update(
            Schedule(windowed_end, sparse_end, cuts[sparse_end])
            for windowed_end, sparse_end in _best_windowed_ends(costs, first, last)
        )
    yield from sorted(schedules)


def _best_cuts(costs: ScheduleCosts, mode: str) -> dict[int, int]:
    """Return for each bottleneck the best cut if the dense push starts there."""
    context, total = costs.context, len(costs.context.links)
    may_cut = mode == "auto" and not context.taps
    best, cut, after, best_cuts = costs.cost_after(total), total, total, {total: total}
    for start in reversed([i for i in context.bottlenecks if i < total]):
        best += costs.segment_cost("push_dense", start, after)
        cost = costs.cost_after(start) if may_cut else float("inf")
        best, cut = (cost, start) if cost <= best else (best, cut)
        after, best_cuts[start] = start, cut
    return best_cuts


def _best_windowed_ends(costs: ScheduleCosts, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield (windowed_end, sparse_end) with the best windowed_end for each bottleneck of a sparse segment."""
    best, windowed_end = float("inf"), first
    for start, end in pairwise(i for i in costs.context.bottlenecks if first <= i <= last):
        cost = costs.segment_cost("push_windowed", 0, start)
        best, windowed_end = (cost, start) if cost < best else (best, windowed_end)
        best += costs.segment_cost("push_sparse", start, end)
        yield windowed_end, end


def sparse_segments(context: PlanContext) -> list[tuple[int, int]]:
    """Return the longest segments between bottlenecks whose links can push sparse tangents."""
    segments: list[tuple[int, int]] = []
    for first, last in pairwise(i for i in context.bottlenecks if i <= context.spatial_links):
        if any(link.map.on_mask for link in context.links[first:last]):
            continue
        if segments and segments[-1][1] == first:
            segments[-1] = (segments[-1][0], last)
        else:
            segments.append((first, last))
    return segments


def _setup_macs(link: Link) -> int:
    return link.cost().setup_macs


def _transfer_macs(link: Link) -> int:
    return MACS_PER_MOVED_NUMBER * link.shapes.numel


def _windowed_cost(link: Link, cone: Cone) -> float:
    if not link.cost().macs:
        return 0.0
    macs = sum(
        count * windowed.count_macs(link.map, (height, width), link.shapes)
        for (height, width), count in cone.extent_counts.items()
    )
    return WINDOWED_PUSH_SLOWDOWN * macs + MACS_PER_WINDOW_BATCH * (1 + len(cone.low) // 64) if macs else 0.0
