"""Coarse to fine: parts add up, so a group of regions is pushed as one, and only groups that matter are split.

    P_{I ∪ J} = P_I + P_J

Groups are nested like a quadtree: each is cut across its longer side, and its halves again. Every moment is exact on its
own partition, and the last one is the finest partition itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from bilrp.engine.plan import Plan
from bilrp.errors import InputError
from bilrp.regions import Regions

INITIAL_GROUPS = 16  # groups to begin with
ComputeParts = Callable[[Regions], tuple[Tensor, Plan]]


@dataclass(frozen=True, eq=False)
class Refinement:
    """Groups of regions (their numbers in `finest`, in the order of the first), and the part of each."""

    finest: Regions
    groups: tuple[Tensor, ...]
    parts: Tensor
    plan: Plan
    max_groups: int  # of groups

    @property
    def group_of_region(self) -> Tensor:
        """The group of each region of the finest partition."""
        return assign_groups(self.groups, self.finest.count)

    @property
    def regions(self) -> Regions:
        """The groups as a partition of their own; the finest itself once every group is one region."""
        return (
            self.finest if len(self.groups) == self.finest.count else merge_regions(self.finest, self.groups)
        )

    @property
    def is_complete(self) -> bool:
        """Is there nothing left to split?"""
        return len(self.groups) == self.finest.count

    def split(self, weight: Tensor, compute: ComputeParts) -> Refinement:
        """The groups of most weight split, a quarter of them at once and as the limit allows; itself where none can be."""
        chosen, room = [], self.max_groups - len(self.groups)
        place = region_centers(self.finest)
        for i in weight.argsort(descending=True, stable=True).tolist():
            children = split_in_four(self.groups[i], place)
            if len(children) == 1 or len(children) - 1 > room:
                continue
            chosen.append((i, children))
            room -= len(children) - 1
            if len(chosen) >= max(1, len(self.groups) // 4):
                break
        if not chosen:
            return self
        new = [child for _, children in chosen for child in children]
        parts, plan = compute(merge_regions(self.finest, new))
        kept = sorted({*range(len(self.groups))} - {i for i, _ in chosen})
        groups, rows = [*(self.groups[i] for i in kept), *new], torch.cat([self.parts[kept], parts])
        order = sorted(range(len(groups)), key=lambda i: int(groups[i][0]))
        stages = (*self.plan.stages, *plan.stages)
        peak = max(self.plan.peak_bytes, plan.peak_bytes)
        made = replace(plan, stages=stages, region_count=len(groups), peak_bytes=peak)
        return Refinement(self.finest, tuple(groups[i] for i in order), rows[order], made, self.max_groups)


def start_refinement(finest: Regions, compute: ComputeParts, max_regions: int | None = None) -> Refinement:
    """The coarsest moment: about INITIAL_GROUPS groups; `max_regions` is how many there may be in the end."""
    if max_regions is not None and (
        not isinstance(max_regions, Integral) or isinstance(max_regions, bool) or max_regions < 1
    ):
        raise InputError(f"a refinement takes a number of regions, at least 1, got {max_regions!r}")
    limit = finest.count if max_regions is None else min(int(max_regions), finest.count)
    place, groups = region_centers(finest), [torch.arange(finest.count)]
    while len(groups) < min(INITIAL_GROUPS, limit):
        largest = max(range(len(groups)), key=lambda i: len(groups[i]))
        children = split_in_four(groups[largest], place)
        if (
            len(children) == 1
            or len(groups) + len(children) - 1 > max(INITIAL_GROUPS, 4)
            or len(groups) + 3 > limit
        ):
            break
        groups[largest : largest + 1] = children
    groups.sort(key=lambda group: int(group[0]))
    parts, plan = compute(finest if len(groups) == finest.count else merge_regions(finest, groups))
    return Refinement(finest, tuple(groups), parts, plan, limit)


def split_in_four(group: Tensor, centers: Tensor) -> list[Tensor]:
    """A group cut across its longer side, and each half again: up to four, itself where it is one region."""
    return [part for half in _split_in_two(group, centers) for part in _split_in_two(half, centers)]


def _split_in_two(group: Tensor, centers: Tensor) -> list[Tensor]:
    if len(group) == 1:
        return [group]
    there = centers[group]
    along = there[:, int((there.amax(0) - there.amin(0)).argmax())]
    values = along.unique()
    if len(values) == 1:  # all in one place: by their numbers
        return [group[: len(group) // 2], group[len(group) // 2 :]]
    low = along < values[len(values) // 2]
    return [group[low], group[~low]]


def region_centers(regions: Regions) -> Tensor:
    """Where each region lies: rows and columns of an image, positions of a sequence, numbers of anything else."""
    labels = regions.labels.cpu()
    axes = {3: (1, 2), 2: (0,)}.get(labels.dim(), ())
    owner = labels.flatten() + 1
    sizes = torch.bincount(owner, minlength=regions.count + 1).double()
    found = []
    for axis in axes:
        shape = [-1 if i == axis else 1 for i in range(labels.dim())]
        along = torch.arange(labels.shape[axis]).reshape(shape).expand(labels.shape).flatten().double()
        sums = torch.bincount(owner, weights=along, minlength=regions.count + 1)
        found.append((sums / sizes)[1:])
    if not axes:
        found = [torch.arange(regions.count).double()]
    return (
        torch.stack(found, 1).mul(1024).round()
    )  # so that a row of patches has one place, whatever rounding does


def assign_groups(groups: Sequence[Tensor], count: int) -> Tensor:
    """The group of each region, −1 where it is in none."""
    owner = torch.full((count,), -1)
    for i, group in enumerate(groups):
        owner[group] = i
    return owner


def merge_regions(finest: Regions, groups: Sequence[Tensor]) -> Regions:
    """Each group as one region; regions in no group are in no region."""
    owner = torch.cat([assign_groups(groups, finest.count), torch.tensor([-1])]).to(finest.labels.device)
    names = None
    if finest.names is not None:
        names = tuple(" ".join(finest.names[i] for i in group.tolist()) for group in groups)
    return Regions(
        labels=owner[finest.labels],  # −1 finds the last
        count=len(groups),
        kind=f"refined {finest.kind}",
        boxes=_group_boxes(finest, groups),
        names=names,
    )


def _group_boxes(finest: Regions, groups: Sequence[Tensor]) -> Tensor | None:
    """The box of each group, where all of them are boxes."""
    if finest.boxes is None:
        return None
    boxes = torch.stack(
        [torch.cat([finest.boxes[g, :2].amin(0), finest.boxes[g, 2:].amax(0)]) for g in groups]
    )

    def area(of: Tensor) -> Tensor:
        return (of[:, 2] - of[:, 0]) * (of[:, 3] - of[:, 1])

    filled = torch.stack([area(finest.boxes[g]).sum() for g in groups])
    return boxes if torch.equal(filled, area(boxes)) else None
