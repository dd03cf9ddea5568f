"""plan: which way is cheapest? Count the work of pulling, pushing, pushing on crops or active rows, and of meeting.

A program is cut into up to four stages, in this order, each of them possibly empty:

    crops   push on windows around each region        (early convolutions: cones are small)
    rows    push active neurons only                  (deep convolutions behind ReLUs: most gates are shut)
    push    push whole values                         (everything else)
    pull    pull the coordinates down to where the push has arrived, and contract there (meet in the middle)

`pull` alone is the classical way, one vector for each coordinate; the planner takes what costs least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from bilrp.engine import cones, crops
from bilrp.engine import rows as active
from bilrp.engine.layouts import Layout
from bilrp.engine.maps.base import is_image
from bilrp.engine.program import BUDGET, Key, Link, Program
from bilrp.engine.windows import Cone
from bilrp.errors import InputError
from bilrp.regions import Regions

# Rough speeds, as multiply-adds that pass while …; only their ratios matter, and only for choosing.
PRODUCT_OVERHEAD = 36_000_000  # … one small product of the rows stage is set up
BATCH_OVERHEAD = 4_000_000  # … one batch of windows passes one link
NUMBER_OVERHEAD = 16  # … one number of a value is read and written
ROOM = 4  # budgets that the regions may fill where they wait for the coordinates
CHUNK = 512  # regions of the rows stage: more share each gathered weight, fewer keep their cones together
CROP_SLOWDOWN = 1.6  # small convolutions against large ones


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
    peak_bytes: int

    @property
    def flops(self) -> int:
        return 2 * sum(stage.macs for stage in self.stages)

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


@dataclass(frozen=True, eq=False)
class Setting:
    """What planning looks at: the program, its regions, the coordinates wanted, values to keep on the way."""

    program: Program
    partition: Regions
    coordinates: int
    taps: frozenset[Key] = frozenset()
    budget: int = BUDGET

    @cached_property
    def spatial(self) -> int:
        """How many links from the start on are spatial (crops and rows index on the CPU; other devices push whole)."""
        usable = is_image(self.program.x.shape) and self.program.x.device.type == "cpu"
        return cones.spatial_prefix(self.program.links) if usable else 0

    @cached_property
    def cones(self) -> dict[Key, Cone]:
        """Every region's cone in every spatial value."""
        return cones.cones(self.program, self.partition, self.spatial) if self.spatial else {}

    @cached_property
    def possible(self) -> dict[Key, Tensor]:
        """What can be non-zero in every spatial value."""
        return active.possible(self.program.links[: self.spatial], {})


def make(setting: Setting, mode: str = "auto") -> Plan:
    """The cheapest plan of the mode: 'auto', 'push' (no stage pulls) or 'pull' (nothing is pushed)."""
    total = len(setting.program.links)
    if mode == "pull":
        return fixed(setting, crops_until=0, rows_until=0, cut=0)
    options = [(0, 0, total)] if mode == "push" or setting.taps else [(0, 0, total), (0, 0, 0)]
    costs = _Costs.of(setting)
    options += list(_options(setting, costs, meet=mode == "auto" and not setting.taps))
    crops_until, rows_until, cut = min(options, key=lambda option: costs.of_option(*option))
    return fixed(setting, crops_until=crops_until, rows_until=rows_until, cut=cut)


def fixed(setting: Setting, *, crops_until: int, rows_until: int, cut: int) -> Plan:
    """The plan with these stages, its work counted exactly and its chunks sized to the budget."""
    program, total = setting.program, len(setting.program.links)
    rows_until = max(crops_until, rows_until)
    if not 0 <= crops_until <= rows_until <= cut <= total:
        raise InputError(f"stages must follow each other: crops {crops_until}, rows {rows_until}, cut {cut}")
    chunk, batch, pulled = _sizes(setting, crops_until, rows_until, cut)
    chunks = cones.compact_chunks(setting.partition, chunk) if rows_until else []
    row_macs, rows = _rows_work(setting, chunks, crops_until, rows_until)
    dense = [link.map.macs(link.shapes) for link in program.links[rows_until:cut]]
    back = [link.map.macs(link.shapes, back=True) for link in program.links[cut:]]
    meeting = setting.partition.count * _size(program, cut) * setting.coordinates if 0 < cut < total else 0
    stages = (
        Stage("crops", 0, crops_until, _crop_macs(setting, chunks, batch, crops_until)),
        Stage("rows", crops_until, rows_until, row_macs),
        Stage("push", rows_until, cut, setting.partition.count * sum(dense)),
        Stage("pull", cut, total, setting.coordinates * sum(back) + meeting),
    )
    peak = _peak(setting, (chunk, batch, pulled), rows, crops_until, rows_until, cut)
    return Plan(stages, setting.partition.count, setting.coordinates, chunk, batch, pulled, peak)


def bottlenecks(program: Program) -> list[int]:
    """Numbers i such that after links[:i] only one value is still needed: where methods can change or meet."""
    needed_after: set[Key] = {program.output}
    found = []
    for i in range(len(program.links), 0, -1):
        if needed_after == {program.links[i - 1].target}:
            found.append(i)
        needed_after.discard(program.links[i - 1].target)
        needed_after.update(program.links[i - 1].sources)
    return sorted(found)


# ---------------------------------------------------------------- counting


def window_batches(setting: Setting, key: Key, index: Tensor, batch: int) -> list[Tensor]:
    """Batches of windows of about one size."""
    return [part for group in crops.size_classes(setting.cones, key, index) for part in group.split(batch)]


def _crop_macs(setting: Setting, chunks: Sequence[Tensor], batch: int, until: int) -> int:
    links, total = setting.program.links[:until], 0
    for chunk in chunks if until else []:
        for index in window_batches(setting, links[-1].target, chunk, batch):
            for link in links:
                size = setting.cones[link.target].at(index).extent()
                total += len(index) * link.map.window_macs(size, link.shapes)
    return total


def layouts(setting: Setting, chunk: Tensor, first: int, last: int) -> dict[Key, Layout]:
    """Which features get a row, for each value of the rows stage and this chunk of regions."""
    links = setting.program.links
    need = active.needed(links[first:last], {links[last - 1].target} | setting.taps)
    keys = [links[first - 1].target, *(link.target for link in links[first:last])]
    return {
        key: Layout(setting.possible[key] & need[key] & active.covered(setting.cones[key].at(chunk)))
        for key in keys
    }


def _rows_work(setting: Setting, chunks: Sequence[Tensor], first: int, last: int) -> tuple[int, int]:
    """Multiply-adds of the rows stage, and the most rows alive at once for a chunk."""
    macs = most = 0
    for chunk in chunks if last > first else []:
        laid = layouts(setting, chunk, first, last)
        for link in setting.program.links[first:last]:
            most = max(most, _rows_alive(link, laid))
            macs += _row_work(link, laid, setting.cones[link.target].at(chunk))[0]
    return macs, most


def _row_work(link: Link, laid: dict[Key, Layout], cone: Cone) -> tuple[int, int]:
    """Multiply-adds and products of one link on rows."""
    return link.map.row_work([laid[s] for s in link.sources], laid[link.target], cone, link.shapes)


def _rows_alive(link: Link, laid: dict[Key, Layout]) -> int:
    return laid[link.target].rows + sum(laid[s].rows for s in link.sources)


def _size(program: Program, i: int) -> int:
    """Numbers in the value after links[:i]."""
    return program.links[i - 1].shape.numel() if i else program.x.numel()


def _sizes(setting: Setting, crops_until: int, rows_until: int, cut: int) -> tuple[int, int, int]:
    """How many regions, windows and coordinates fit the budget at once."""
    program, count, item = setting.program, setting.partition.count, setting.program.x.element_size()
    dense = max((link.shapes.numel for link in program.links[rows_until:cut]), default=1)
    chunk = max(1, min(count, setting.budget // (2 * item * dense)))
    if rows_until > crops_until:
        # A chunk's own cones cover only a part of the rows; assuming all of them keeps this on the safe side.
        laid = layouts(setting, torch.arange(count), crops_until, rows_until)
        most = max(_rows_alive(link, laid) for link in program.links[crops_until:rows_until])
        chunk = max(1, min(chunk, CHUNK, setting.budget // max(1, item * most)))
    window = _widest_window(setting, crops_until)
    batch = max(1, min(chunk, setting.budget // (8 * item * window)))
    back = max((link.shapes.numel for link in program.links[cut:]), default=1)
    pulled = max(1, min(setting.coordinates, setting.budget // (3 * item * back)))
    return chunk, batch, pulled


def _widest_window(setting: Setting, until: int) -> int:
    """Numbers in the largest window of the crops stage: its input, its output and a factor."""
    return max((3 * _area(setting, link) for link in setting.program.links[:until]), default=1)


def _area(setting: Setting, link: Link) -> int:
    height, width = setting.cones[link.target].extent()
    return height * width * link.shape[1]


def _peak(
    setting: Setting, sizes: tuple[int, int, int], rows: int, crops_until: int, rows_until: int, cut: int
) -> int:
    """Bytes of tangents and parts alive at the worst moment, roughly."""
    program, (chunk, batch, pulled) = setting.program, sizes
    dense = chunk * max((link.shapes.numel for link in program.links[rows_until:cut]), default=0)
    windows = batch * _widest_window(setting, crops_until)
    back = pulled * max((link.shapes.numel for link in program.links[cut:]), default=0)
    met = setting.partition.count * _size(program, cut) if 0 < cut < len(program.links) else 0
    parts = setting.partition.count * (
        setting.coordinates + sum(_tap_size(program, key) for key in setting.taps)
    )
    return program.x.element_size() * (parts + met + max(2 * dense, windows, chunk * rows, 2 * back))


def _tap_size(program: Program, key: Key) -> int:
    return next(link.shape.numel() for link in program.links if link.target == key)


# ---------------------------------------------------------------- choosing


@dataclass(frozen=True, eq=False)
class _Costs:
    """Costs link by link, so that every combination of stages is a sum."""

    crops: list[float]
    rows: list[float]
    push: list[float]
    pull: list[float]
    sizes: list[int]
    regions: int
    coordinates: int
    room: int  # numbers that may be kept where regions and coordinates meet

    @staticmethod
    def of(setting: Setting) -> _Costs:
        program, count = setting.program, setting.partition.count
        crop_costs = [
            _crop_cost(link, setting.cones[link.target]) for link in program.links[: setting.spatial]
        ]
        row_costs = _row_costs(setting)
        traffic = [NUMBER_OVERHEAD * link.shapes.numel for link in program.links]
        links = list(zip(program.links, traffic, strict=True))
        push = [float(count * (link.map.macs(link.shapes) + moved)) for link, moved in links]
        pull = [
            float(setting.coordinates * (link.map.macs(link.shapes, back=True) + moved))
            for link, moved in links
        ]
        sizes = [_size(program, i) for i in range(len(program.links) + 1)]
        room = ROOM * setting.budget // program.x.element_size()
        return _Costs(crop_costs, row_costs, push, pull, sizes, count, setting.coordinates, room)

    def of_option(self, crops_until: int, rows_until: int, cut: int) -> float:
        rows_until = max(crops_until, rows_until)
        total = sum(self.crops[:crops_until]) + sum(self.rows[crops_until:rows_until])
        total += sum(self.push[rows_until:cut]) + sum(self.pull[cut:])
        if not 0 < cut < len(self.push):
            return total
        arrived = self.regions * self.sizes[cut]
        # What the regions have become is kept whole until the coordinates meet it: a page of pixels would not fit.
        return (
            total + arrived * (self.coordinates + NUMBER_OVERHEAD) if arrived <= self.room else float("inf")
        )


def _options(setting: Setting, costs: _Costs, *, meet: bool):
    """All ways to place the stages at bottlenecks."""
    narrow, total = bottlenecks(setting.program), len(setting.program.links)
    for crops_until in [i for i in narrow if i <= len(costs.crops)]:
        ends = [j for j in narrow if crops_until < j <= len(costs.rows)]
        ends = [j for j in ends if all(_has_rows(link) for link in setting.program.links[crops_until:j])]
        for rows_until in [crops_until, *ends]:
            cuts = [c for c in narrow if c >= rows_until and c < total] if meet else []
            for cut in [*cuts, total]:
                yield crops_until, rows_until, cut


def _has_rows(link: Link) -> bool:
    return link.reach is not None and not link.map.on_mask


def _crop_cost(link: Link, cone: Cone) -> float:
    sizes, counts = torch.unique(cone.high - cone.low, dim=0, return_counts=True)
    macs = sum(
        count * link.map.window_macs((height, width), link.shapes)
        for (height, width), count in zip(sizes.tolist(), counts.tolist(), strict=True)
    )
    return CROP_SLOWDOWN * macs + BATCH_OVERHEAD * (1 + len(cone.low) // 64) if macs else 0.0


def _row_costs(setting: Setting) -> list[float]:
    """The cost of each link on active rows; infinite where rows cannot go."""
    costs = [float("inf")] * setting.spatial
    for first, last in _row_segments(setting.program, setting.spatial):
        laid = layouts(setting, torch.arange(setting.partition.count), first, last)
        for i, link in enumerate(setting.program.links[first:last], first):
            macs, products = _row_work(link, laid, setting.cones[link.target])
            costs[i] = float(macs + PRODUCT_OVERHEAD * products)
    return costs


def _row_segments(program: Program, spatial: int) -> list[tuple[int, int]]:
    """The longest stretches, from bottleneck to bottleneck, that can be pushed row by row."""
    narrow = [i for i in bottlenecks(program) if i <= spatial]
    segments: list[tuple[int, int]] = []
    for first, last in pairwise(narrow):
        if all(_has_rows(link) for link in program.links[first:last]):
            joined = segments and segments[-1][1] == first
            segments[-1:] = [(segments[-1][0], last)] if joined else [*segments[-1:], (first, last)]
    return segments
