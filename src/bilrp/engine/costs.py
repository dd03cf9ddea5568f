"""Costs: what every way through a program would take, link by link, so that every combination of stages is a sum.

They are multiply-adds, with what moving numbers about costs beside them: good for choosing. What the chosen way takes
is then counted exactly (`plan.fixed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch

from bilrp.engine import pull_windowed as tiles
from bilrp.engine.program import Link
from bilrp.engine.plan_context import Setting
from bilrp.engine.windows import Cone

# Rough speeds, as multiply-adds that pass while …; only their ratios matter, and only for choosing.
BATCH_OVERHEAD = 4_000_000  # … one batch of windows passes one link
NUMBER_OVERHEAD = 16  # … one number of a value is read and written
ROOM = 4  # budgets that the regions may fill where they wait for the coordinates
CROP_SLOWDOWN = 1.2  # small convolutions against large ones
TILE_SLOWDOWN = 2.0  # windows of cotangents, cut out and added up, against whole values


class Way(NamedTuple):
    """Where the stages of a plan change.

    Links [0, crops) are pushed on windows, [crops, rows) on active rows, [rows, cut) whole, and the coordinates are
    pulled down to the cut. With a cut of 0 nothing is pushed, and links [0, tiles) are pulled tile by tile.
    """

    crops: int = 0
    rows: int = 0
    cut: int = 0
    tiles: int = 0


@dataclass(frozen=True, eq=False)
class Costs:
    """The cost of each link by each method, and of every way through them."""

    setting: Setting

    def of(self, way: Way) -> float:
        """All stages, and the meeting where regions and coordinates meet."""
        cost = self.stretch("crops", 0, way.crops) + self.stretch("rows", way.crops, way.rows)
        cost += self.stretch("push", way.rows, way.cut)
        if way.tiles:
            return cost + self.stretch("pull", way.tiles, len(self.setting.links)) + self.tiled
        return cost + self.behind(way.cut)

    def behind(self, cut: int) -> float:
        """Pulling the coordinates down to a cut, and the meeting there."""
        setting, total = self.setting, len(self.setting.links)
        cost = self.stretch("pull", cut, total)
        if not 0 < cut < total:
            return cost
        arrived = setting.regions * setting.size(cut)
        # What the regions have become is kept whole until the coordinates meet it: a page of pixels would not fit.
        if arrived > ROOM * setting.budget // setting.program.x.element_size():
            return float("inf")
        return cost + arrived * (setting.pulls + NUMBER_OVERHEAD)

    def stretch(self, method: str, first: int, last: int) -> float:
        """What links [first, last) cost by one method. Many ways are made of the same few stretches."""
        asked = (method, first, last)
        if asked not in self._sums:
            self._sums[asked] = sum(getattr(self, method)[first:last])
        return self._sums[asked]

    @cached_property
    def _sums(self) -> dict[tuple[str, int, int], float]:
        return {}

    @cached_property
    def crops(self) -> list[float]:
        setting = self.setting
        return [
            _crop_cost(link, setting.cones[link.target]) + _beforehand(link)
            for link in setting.links[: setting.spatial]
        ]

    @cached_property
    def rows(self) -> list[float]:
        """Infinite where rows cannot go."""
        setting = self.setting
        costs = [float("inf")] * setting.spatial
        for first, last in row_segments(setting):
            laid = setting.layouts(torch.arange(setting.regions), first, last)
            for i, link in enumerate(setting.links[first:last], first):
                sources, goal = [laid[s] for s in link.sources], laid[link.target]
                macs, moving = link.map.row_work(sources, goal, link.shapes)
                macs += link.map.beforehand(link.shapes, sources[0])
                costs[i] = float(macs + moving + NUMBER_OVERHEAD * setting.rows.size(goal))
        return costs

    @cached_property
    def push(self) -> list[float]:
        return [
            float(self.setting.regions * (link.map.macs(link.shapes) + _moved(link)) + _beforehand(link))
            for link in self.setting.links
        ]

    @cached_property
    def pull(self) -> list[float]:
        return [
            float(
                self.setting.pulls * (link.map.macs(link.shapes, back=True) + _moved(link))
                + _beforehand(link)
            )
            for link in self.setting.links
        ]

    @cached_property
    def tiled(self) -> float:
        """Pulling the whole chain tile by tile. Asking has a price: a few coordinates are pulled down to it."""
        setting = self.setting
        chain = setting.links[: setting.chain]
        macs, numbers = tiles.work(chain)
        each = TILE_SLOWDOWN * (macs + NUMBER_OVERHEAD * numbers)
        return setting.pulls * setting.tiles * each + sum(map(_beforehand, chain))


def cheapest(setting: Setting, mode: str) -> Way:
    """The way that costs least: in mode 'auto' of all, 'push' of those without a pull, 'pull' of those without a push."""
    costs = Costs(setting)
    best = min(_good_ways(costs, mode), key=costs.of)
    if mode == "push" or setting.taps or not setting.chain:
        return best
    tiled = Way(tiles=setting.chain)
    # Where pulling down to the chain alone is too much, its tiles need not be counted.
    rest = sum(costs.pull[setting.chain :])
    return tiled if rest < costs.of(best) and costs.of(tiled) < costs.of(best) else best


def ways(setting: Setting, mode: str = "auto") -> Iterator[Way]:
    """All ways to place the stages at bottlenecks, but for tiles."""
    total, narrow = len(setting.links), setting.bottlenecks
    if mode == "pull":
        yield Way()
        return
    yield Way(cut=total)
    meet = mode == "auto" and not setting.taps
    if meet:
        yield Way()
    segments = row_segments(setting)
    for crops in [i for i in narrow if i <= setting.spatial]:
        ends = [j for j in narrow if any(first <= crops < j <= last for first, last in segments)]
        for rows in [crops, *ends]:
            for cut in [*(c for c in narrow if rows <= c < total and meet), total]:
                yield Way(crops, rows, cut)


def _good_ways(costs: Costs, mode: str) -> Iterator[Way]:
    """Of all `ways` those that can cost least, in their order.

    A deep network has tens of thousands. But how its crops and rows began changes nothing about what is best behind
    the place where they end, nor the other way round: for each place the best of both is enough.
    """
    setting = costs.setting
    if mode == "pull" or not setting.spatial:
        yield from ways(setting, mode)
        return
    yield Way(cut=len(setting.links))
    if mode == "auto" and not setting.taps:
        yield Way()
    cuts = _best_cuts(costs, mode)
    found = {Way(place, place, cuts[place]) for place in setting.bottlenecks if place <= setting.spatial}
    for first, last in row_segments(setting):
        found.update(Way(crops, rows, cuts[rows]) for crops, rows in _best_crops(costs, first, last))
    yield from sorted(found)


def _best_cuts(costs: Costs, mode: str) -> dict[int, int]:
    """From each bottleneck, where pushing whole values should end."""
    setting, total = costs.setting, len(costs.setting.links)
    meet = mode == "auto" and not setting.taps
    best, cut, after, found = costs.behind(total), total, total, {total: total}
    for place in reversed([i for i in setting.bottlenecks if i < total]):
        best += costs.stretch("push", place, after)
        here = costs.behind(place) if meet else float("inf")
        best, cut = (here, place) if here <= best else (best, cut)
        after, found[place] = place, cut
    return found


def _best_crops(costs: Costs, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Where crops should end if rows end at a place of this segment: (crops, rows) for each of its bottlenecks."""
    places = [i for i in costs.setting.bottlenecks if first <= i <= last]
    best, crops = float("inf"), first
    for before, place in pairwise(places):
        fresh = costs.stretch("crops", 0, before)
        best, crops = (fresh, before) if fresh < best else (best, crops)
        best += costs.stretch("rows", before, place)
        yield crops, place


def row_segments(setting: Setting) -> list[tuple[int, int]]:
    """The longest stretches, from bottleneck to bottleneck, that can be pushed row by row."""
    segments: list[tuple[int, int]] = []
    for first, last in pairwise(i for i in setting.bottlenecks if i <= setting.spatial):
        if any(link.map.on_mask for link in setting.links[first:last]):
            continue
        if segments and segments[-1][1] == first:
            segments[-1] = (segments[-1][0], last)
        else:
            segments.append((first, last))
    return segments


def _beforehand(link: Link) -> int:
    return link.map.beforehand(link.shapes)


def _moved(link: Link) -> int:
    return NUMBER_OVERHEAD * link.shapes.numel


def _crop_cost(link: Link, cone: Cone) -> float:
    if not link.map.macs(link.shapes):
        return 0.0
    macs = sum(
        count * link.map.window_macs((height, width), link.shapes)
        for (height, width), count in cone.extents.items()
    )
    return CROP_SLOWDOWN * macs + BATCH_OVERHEAD * (1 + len(cone.low) // 64) if macs else 0.0
