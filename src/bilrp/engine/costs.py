"""Costs: what every way through a program would take, link by link, so that every combination of stages is a sum.

They are multiply-adds, with what moving numbers about costs beside them: good for choosing. What the chosen way takes
is then counted exactly (`plan.plan_for`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch

from bilrp.engine import pull_windowed
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Link
from bilrp.engine.windows import Cone

# Rough speeds, as multiply-adds that pass while …; only their ratios matter, and only for choosing.
MACS_PER_WINDOW_BATCH = 4_000_000  # … one batch of windows passes one link
MACS_PER_MOVED_NUMBER = 16  # … one number of a value is read and written
MAX_CUT_BUDGETS = 4  # budgets that the regions may fill where they wait for the coordinates
WINDOWED_PUSH_SLOWDOWN = 1.2  # small convolutions against large ones
WINDOWED_PULL_SLOWDOWN = 2.0  # windows of cotangents, cut out and added up, against whole values


class Schedule(NamedTuple):
    """Where the stages of a plan change.

    Links [0, windowed_end) are pushed on windows, [windowed_end, sparse_end) on active rows, [sparse_end, cut) whole, and
    the coordinates are pulled down to the cut. With a cut of 0 nothing is pushed, and links [0, pull_windowed_end) are
    pulled tile by tile.
    """

    windowed_end: int = 0
    sparse_end: int = 0
    cut: int = 0
    pull_windowed_end: int = 0


@dataclass(frozen=True, eq=False)
class ScheduleCosts:
    """The cost of each link by each method, and of every way through them."""

    context: PlanContext

    def total_cost(self, schedule: Schedule) -> float:
        """All stages, and the meeting where regions and coordinates meet."""
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
        """Pulling the coordinates down to a cut, and the meeting there."""
        setting, total = self.context, len(self.context.links)
        cost = self.segment_cost("pull_dense", cut, total)
        if not 0 < cut < total:
            return cost
        arrived = setting.region_count * setting.numel_after(cut)
        # What the regions have become is kept whole until the coordinates meet it: a page of pixels would not fit.
        if arrived > MAX_CUT_BUDGETS * setting.budget // setting.program.x.element_size():
            return float("inf")
        return cost + arrived * (setting.pull_count + MACS_PER_MOVED_NUMBER)

    def segment_cost(self, method: str, first: int, last: int) -> float:
        """What links [first, last) cost by one method. Many ways are made of the same few stretches."""
        asked = (method, first, last)
        if asked not in self._segment_cache:
            self._segment_cache[asked] = sum(getattr(self, method)[first:last])
        return self._segment_cache[asked]

    @cached_property
    def _segment_cache(self) -> dict[tuple[str, int, int], float]:
        return {}

    @cached_property
    def push_windowed(self) -> list[float]:
        setting = self.context
        return [
            _windowed_cost(link, setting.cones[link.target]) + _setup_macs(link)
            for link in setting.links[: setting.spatial_links]
        ]

    @cached_property
    def push_sparse(self) -> list[float]:
        """Infinite where rows cannot go."""
        setting = self.context
        costs = [float("inf")] * setting.spatial_links
        for first, last in sparse_segments(setting):
            laid = setting.layouts(torch.arange(setting.region_count), first, last)
            for i, link in enumerate(setting.links[first:last], first):
                sources, goal = [laid[s] for s in link.sources], laid[link.target]
                macs, moving = link.map.sparse_cost(sources, goal, link.shapes)
                macs += link.map.setup_macs(link.shapes, sources[0])
                costs[i] = float(
                    macs + moving + MACS_PER_MOVED_NUMBER * setting.tangent_type.required_numel(goal)
                )
        return costs

    @cached_property
    def push_dense(self) -> list[float]:
        return [
            float(
                self.context.region_count * (link.map.macs(link.shapes) + _transfer_macs(link))
                + _setup_macs(link)
            )
            for link in self.context.links
        ]

    @cached_property
    def pull_dense(self) -> list[float]:
        return [
            float(
                self.context.pull_count * (link.map.macs(link.shapes, back=True) + _transfer_macs(link))
                + _setup_macs(link)
            )
            for link in self.context.links
        ]

    @cached_property
    def pull_windowed(self) -> float:
        """Pulling the whole chain tile by tile. Asking has a price: a few coordinates are pulled down to it."""
        setting = self.context
        chain = setting.links[: setting.chain_length]
        macs, numbers = pull_windowed.tile_cost(chain)
        each = WINDOWED_PULL_SLOWDOWN * (macs + MACS_PER_MOVED_NUMBER * numbers)
        return setting.pull_count * setting.tiles_per_coordinate * each + sum(map(_setup_macs, chain))


def choose_schedule(context: PlanContext, mode: str) -> Schedule:
    """The way that costs least: in mode 'auto' of all, 'push' of those without a pull, 'pull' of those without a push."""
    costs = ScheduleCosts(context)
    best = min(_candidate_schedules(costs, mode), key=costs.total_cost)
    if mode == "push" or context.taps or not context.chain_length:
        return best
    tiled = Schedule(pull_windowed_end=context.chain_length)
    # Where pulling down to the chain alone is too much, its tiles need not be counted.
    rest = sum(costs.pull_dense[context.chain_length :])
    return (
        tiled if rest < costs.total_cost(best) and costs.total_cost(tiled) < costs.total_cost(best) else best
    )


def all_schedules(context: PlanContext, mode: str = "auto") -> Iterator[Schedule]:
    """All ways to place the stages at bottlenecks, but for tiles."""
    total, narrow = len(context.links), context.bottlenecks
    if mode == "pull":
        yield Schedule()
        return
    yield Schedule(cut=total)
    meet = mode == "auto" and not context.taps
    if meet:
        yield Schedule()
    segments = sparse_segments(context)
    for crops in [i for i in narrow if i <= context.spatial_links]:
        ends = [j for j in narrow if any(first <= crops < j <= last for first, last in segments)]
        for rows in [crops, *ends]:
            for cut in [*(c for c in narrow if rows <= c < total and meet), total]:
                yield Schedule(crops, rows, cut)


def _candidate_schedules(costs: ScheduleCosts, mode: str) -> Iterator[Schedule]:
    """Of all `all_schedules` those that can cost least, in their order.

    A deep network has tens of thousands. But how its crops and rows began changes nothing about what is best behind
    the place where they end, nor the other way round: for each place the best of both is enough.
    """
    setting = costs.context
    if mode == "pull" or not setting.spatial_links:
        yield from all_schedules(setting, mode)
        return
    yield Schedule(cut=len(setting.links))
    if mode == "auto" and not setting.taps:
        yield Schedule()
    cuts = _best_cuts(costs, mode)
    found = {
        Schedule(place, place, cuts[place]) for place in setting.bottlenecks if place <= setting.spatial_links
    }
    for first, last in sparse_segments(setting):
        found.update(
            Schedule(crops, rows, cuts[rows]) for crops, rows in _best_windowed_ends(costs, first, last)
        )
    yield from sorted(found)


def _best_cuts(costs: ScheduleCosts, mode: str) -> dict[int, int]:
    """From each bottleneck, where pushing whole values should end."""
    setting, total = costs.context, len(costs.context.links)
    meet = mode == "auto" and not setting.taps
    best, cut, after, found = costs.cost_after(total), total, total, {total: total}
    for place in reversed([i for i in setting.bottlenecks if i < total]):
        best += costs.segment_cost("push_dense", place, after)
        here = costs.cost_after(place) if meet else float("inf")
        best, cut = (here, place) if here <= best else (best, cut)
        after, found[place] = place, cut
    return found


def _best_windowed_ends(costs: ScheduleCosts, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Where crops should end if rows end at a place of this segment: (crops, rows) for each of its bottlenecks."""
    places = [i for i in costs.context.bottlenecks if first <= i <= last]
    best, crops = float("inf"), first
    for before, place in pairwise(places):
        fresh = costs.segment_cost("push_windowed", 0, before)
        best, crops = (fresh, before) if fresh < best else (best, crops)
        best += costs.segment_cost("push_sparse", before, place)
        yield crops, place


def sparse_segments(context: PlanContext) -> list[tuple[int, int]]:
    """The longest stretches, from bottleneck to bottleneck, that can be pushed row by row."""
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
    return link.map.setup_macs(link.shapes)


def _transfer_macs(link: Link) -> int:
    return MACS_PER_MOVED_NUMBER * link.shapes.numel


def _windowed_cost(link: Link, cone: Cone) -> float:
    if not link.map.macs(link.shapes):
        return 0.0
    macs = sum(
        count * link.map.window_macs((height, width), link.shapes)
        for (height, width), count in cone.extent_counts.items()
    )
    return WINDOWED_PUSH_SLOWDOWN * macs + MACS_PER_WINDOW_BATCH * (1 + len(cone.low) // 64) if macs else 0.0
