"""plan: which way is cheapest? Count the work of pulling, pushing, pushing on crops or active rows, and of meeting.

A program is cut into up to four stages, in this order, each of them possibly empty:

    crops   push on windows around each region        (early convolutions: cones are small)
    rows    push active neurons only                  (deep convolutions behind ReLUs: most gates are shut)
    push    push whole values                         (everything else)
    pull    pull the coordinates down to where the push has arrived, and contract there (meet in the middle)

`pull` alone is the classical way, one vector for each coordinate. Then the first links may be pulled as

    tiles   pull only where a coordinate's cotangent is not zero   (coordinates that see a small part of the image)

The planner takes what costs least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.engine import memory, pull_windowed
from bilrp.engine.costs import Way, cheapest
from bilrp.engine.program import Key, Link
from bilrp.engine.plan_context import Setting
from bilrp.errors import InputError

__all__ = ["Plan", "Setting", "Stage", "Way", "fixed", "make"]

CHUNK = 512  # regions of the rows stage: more share each gathered weight, fewer keep their cones together


@dataclass(frozen=True)
class Stage:
    """Links [first, last) by one method, with the multiply-adds it takes."""

    method: str
    first: int
    last: int
    macs: int

    def __str__(self) -> str:
        return f"{self.method:5s} links {self.first:3d} … {self.last:3d}  {2 * self.macs / 1e9:10.2f} GFLOP"


@dataclass(frozen=True)
class Plan:
    """What runs where: printable, comparable, made before anything is computed."""

    stages: tuple[Stage, ...]
    regions: int
    coordinates: int
    chunk: int  # regions pushed at once
    batch: int  # windows pushed at once
    pulled: int  # coordinates pulled at once
    peak_bytes: int  # at the worst moment, with what the frozen program holds
    working_bytes: int = 0  # of these, what the run adds

    @property
    def flops(self) -> int:
        return 2 * sum(stage.macs for stage in self.stages)

    @property
    def way(self) -> Way:
        """Where the stages change."""
        crops, rows, push, tiled = (self.stage(name).last for name in ("crops", "rows", "push", "tiles"))
        return Way(crops, max(crops, rows), push, tiled)

    def stage(self, method: str) -> Stage:
        """The stage of that method, empty if there is none."""
        return next((s for s in self.stages if s.method == method), Stage(method, 0, 0, 0))

    def __str__(self) -> str:
        head = (
            f"{self.regions} regions × {self.coordinates} coordinates: {self.flops / 1e9:.2f} GFLOP, "
            f"peak about {self.peak_bytes / 2**20:.0f} MB"
        )
        return "\n".join(
            [head, *(f"  {stage}" for stage in self.stages if stage.last > stage.first or stage.macs)]
        )


def make(setting: Setting, mode: str = "auto") -> Plan:
    """The cheapest plan of the mode: 'auto', 'push' (no stage pulls) or 'pull' (nothing is pushed)."""
    return fixed(setting, cheapest(setting, mode))


def fixed(setting: Setting, way: Way) -> Plan:
    """The plan that goes this way, its work counted and its chunks sized to the budget."""
    links, total = setting.links, len(setting.links)
    crops, rows, cut, tiled = way
    if not 0 <= crops <= rows <= cut <= total or (tiled and cut) or tiled not in (0, setting.chain):
        raise InputError(
            f"stages must follow each other: crops {crops}, rows {rows}, cut {cut}, tiles {tiled} of {total} links"
        )
    chunk, batch, pulled = _sizes(setting, way)
    chunks = setting.chunks(chunk, together=True) if rows else []
    row_macs, alive = _rows_work(setting, chunks, way)
    dense = [link.map.macs(link.shapes) for link in links[rows:cut]]
    back = [link.map.macs(link.shapes, back=True) for link in links[max(cut, tiled) :]]
    meeting = setting.regions * setting.size(cut) * setting.pulls if 0 < cut < total else 0
    tile_macs = _tile_macs(setting, tiled)  # pulls a few, and so makes what comes first
    pulling = setting.pulls * sum(back) + meeting if cut < total else 0

    def with_what_comes_first(first: int, last: int, macs: int) -> int:
        return macs + sum(link.map.beforehand(link.shapes) for link in links[first:last])

    stages = (
        Stage("crops", 0, crops, with_what_comes_first(0, crops, _crop_macs(setting, chunks, batch, crops))),
        Stage("rows", crops, rows, row_macs),
        Stage("push", rows, cut, with_what_comes_first(rows, cut, setting.regions * sum(dense))),
        Stage("pull", max(cut, tiled), total, with_what_comes_first(max(cut, tiled), total, pulling)),
        Stage("tiles", 0, tiled, with_what_comes_first(0, tiled, tile_macs)),
    )
    working = memory.working(setting, way, (chunk, batch, pulled), alive)
    peak = memory.held(setting.program) + working
    return Plan(stages, setting.regions, setting.coordinates, chunk, batch, pulled, peak, working)


# ---------------------------------------------------------------- counting


def _tile_macs(setting: Setting, tiled: int) -> int:
    return round(setting.pulls * setting.tiles * pull_windowed.work(setting.links[:tiled])[0]) if tiled else 0


def _crop_macs(setting: Setting, chunks: Sequence[Tensor], batch: int, until: int) -> int:
    links, total = setting.links[:until], 0
    for chunk in chunks if until else []:
        for index in setting.window_batches(links[-1].target, chunk, batch):
            for link in links:
                size = setting.cones[link.target].at(index).extent()
                total += len(index) * link.map.window_macs(size, link.shapes)
    return total


def _rows_work(setting: Setting, chunks: Sequence[Tensor], way: Way) -> tuple[int, tuple[int, int]]:
    """Multiply-adds of the rows stage, and the most numbers in rows for a chunk at once: on the way, and at its end."""
    macs = most = leaving = 0
    once: dict[Key, int] = {}
    for chunk in chunks if way.rows > way.crops else []:
        laid = setting.layouts(chunk, way.crops, way.rows)
        sizes = {key: setting.rows.size(layout) for key, layout in laid.items()}
        most = max(most, memory.rows(setting.links[way.crops : way.rows], sizes))
        leaving = max(leaving, sizes[setting.links[way.rows - 1].target])
        for link in setting.links[way.crops : way.rows]:
            sources = [laid[s] for s in link.sources]
            macs += link.map.row_work(sources, laid[link.target], link.shapes)[0]
            once[link.target] = max(once.get(link.target, 0), link.map.beforehand(link.shapes, sources[0]))
    return macs + sum(once.values()), (most, leaving)


# ---------------------------------------------------------------- memory


def _sizes(setting: Setting, way: Way) -> tuple[int, int, int]:
    """How many regions, windows and coordinates fit the budget at once."""
    links, count, item = setting.links, setting.regions, setting.program.x.element_size()
    dense = max((link.shapes.numel for link in links[way.rows : way.cut]), default=1)
    chunk = max(1, min(count, setting.budget // (2 * item * dense)))
    if way.rows > way.crops:
        # A chunk's own cones cover only a part of the rows; assuming all of them keeps this on the safe side.
        laid = setting.layouts(torch.arange(count), way.crops, way.rows)
        sizes = {key: setting.rows.size(layout) for key, layout in laid.items()}
        most = max(sizes[k.target] + sum(sizes[s] for s in k.sources) for k in links[way.crops : way.rows])
        chunk = max(1, min(chunk, CHUNK, count * setting.budget // max(1, item * most)))
    widest = max((_area(setting, link) for link in links[: way.crops]), default=1)
    batch = max(1, min(chunk, setting.budget // (24 * item * widest)))
    back = max((link.shapes.numel for link in links[way.cut :]), default=1)
    pulled = max(1, min(setting.pulls, setting.budget // (3 * item * back))) if way.cut < len(links) else 1
    return chunk, batch, pulled


def _area(setting: Setting, link: Link) -> int:
    height, width = setting.cones[link.target].extent()
    return height * width * link.shape[1]
