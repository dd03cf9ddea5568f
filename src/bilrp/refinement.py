"""Coarse-to-fine parts: push groups of regions, and split only the groups that matter.

    P_{I ∪ J} = P_I + P_J

Groups are nested like a quadtree: each is split across its longer side, and its halves again. Every intermediate
result is exact for its own partition; the last one is the finest partition itself.
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

INITIAL_GROUPS = 16  # groups of the first result
ComputeParts = Callable[[Regions], tuple[Tensor, Plan]]


@dataclass(frozen=True, eq=False)
class Refinement:
    """Parts of groups of regions.

    Args:
        finest: The partition whose regions are grouped.
        groups: Region numbers of each group, sorted by the first.
        parts: [groups, coordinates].
        plan: How the parts were computed.
        max_groups: The most groups there may be.
    """

    finest: Regions
    groups: tuple[Tensor, ...]
    parts: Tensor
    plan: Plan
    max_groups: int

    @property
    def group_of_region(self) -> Tensor:
        """Group number of each region of the finest partition."""
        return assign_groups(self.groups, self.finest.count)

    @property
    def regions(self) -> Regions:
        """The groups as a partition; the finest itself once every group is one region."""
        return self.finest if self.is_complete else merge_regions(self.finest, self.groups)

    @property
    def is_complete(self) -> bool:
        """Whether every group is a single region."""
        return len(self.groups) == self.finest.count

    def split(self, weight: Tensor, compute: ComputeParts) -> Refinement:
        """Split up to a quarter of the groups, those of largest weight first, within `max_groups`.

        Args:
            weight: Priority of each group.
            compute: Computes the parts of a partition.

        Returns:
            The new refinement, or this one if no group can be split.
        """
        chosen, remaining = [], self.max_groups - len(self.groups)
        centers = region_centers(self.finest)
        for i in weight.argsort(descending=True, stable=True).tolist():
            children = split_in_four(self.groups[i], centers)
            if len(children) == 1 or len(children) - 1 > remaining:
                continue
            chosen.append((i, children))
            remaining -= len(children) - 1
            if len(chosen) >= max(1, len(self.groups) // 4):
                break
        if not chosen:
            return self
        new = [child for _, children in chosen for child in children]
        parts, plan = compute(merge_regions(self.finest, new))
        unchanged = sorted({*range(len(self.groups))} - {i for i, _ in chosen})
        groups, rows = [*(self.groups[i] for i in unchanged), *new], torch.cat([self.parts[unchanged], parts])
        order = sorted(range(len(groups)), key=lambda i: int(groups[i][0]))
        stages = (*self.plan.stages, *plan.stages)
        peak = max(self.plan.peak_bytes, plan.peak_bytes)
        total = replace(plan, stages=stages, region_count=len(groups), peak_bytes=peak)
        return Refinement(self.finest, tuple(groups[i] for i in order), rows[order], total, self.max_groups)


def start_refinement(finest: Regions, compute: ComputeParts, max_regions: int | None = None) -> Refinement:
    """Return the coarsest refinement, of about INITIAL_GROUPS groups.

    Args:
        finest: The partition to refine towards.
        compute: Computes the parts of a partition.
        max_regions: The most groups there may be; None for as many as regions.
    """
    if max_regions is not None and (
        not isinstance(max_regions, Integral) or isinstance(max_regions, bool) or max_regions < 1
    ):
        raise InputError(f"max_regions must be a whole number of at least 1, got {max_regions!r}")
    limit = finest.count if max_regions is None else min(int(max_regions), finest.count)
    centers, groups = region_centers(finest), [torch.arange(finest.count)]
    while len(groups) < min(INITIAL_GROUPS, limit):
        largest = max(range(len(groups)), key=lambda i: len(groups[i]))
        children = split_in_four(groups[largest], centers)
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
    """Split a group across its longer side, and each half again: up to four groups, one for a single region."""
    return [part for half in _split_in_two(group, centers) for part in _split_in_two(half, centers)]


def _split_in_two(group: Tensor, centers: Tensor) -> list[Tensor]:
    if len(group) == 1:
        return [group]
    points = centers[group]
    along = points[:, int((points.amax(0) - points.amin(0)).argmax())]
    values = along.unique()
    if len(values) == 1:  # all centers coincide: split by region number
        return [group[: len(group) // 2], group[len(group) // 2 :]]
    low = along < values[len(values) // 2]
    return [group[low], group[~low]]


def region_centers(regions: Regions) -> Tensor:
    """Return the center of each region: (row, column) in an image, position in a sequence, else its number."""
    labels = regions.labels.cpu()
    axes = {3: (1, 2), 2: (0,)}.get(labels.dim(), ())
    owner = labels.flatten() + 1
    sizes = torch.bincount(owner, minlength=regions.count + 1).double()
    columns = []
    for axis in axes:
        shape = [-1 if i == axis else 1 for i in range(labels.dim())]
        along = torch.arange(labels.shape[axis]).reshape(shape).expand(labels.shape).flatten().double()
        sums = torch.bincount(owner, weights=along, minlength=regions.count + 1)
        columns.append((sums / sizes)[1:])
    if not axes:
        columns = [torch.arange(regions.count).double()]
    # Quantised, so that the patches of one row have the same coordinate despite rounding.
    return torch.stack(columns, 1).mul(1024).round()


def assign_groups(groups: Sequence[Tensor], count: int) -> Tensor:
    """Return the group number of each region, −1 for regions in no group."""
    owner = torch.full((count,), -1)
    for i, group in enumerate(groups):
        owner[group] = i
    return owner


def merge_regions(finest: Regions, groups: Sequence[Tensor]) -> Regions:
    """Return a partition with one region per group; regions in no group are left out."""
    owner = torch.cat([assign_groups(groups, finest.count), torch.tensor([-1])]).to(finest.labels.device)
    names = None
    if finest.names is not None:
        names = tuple(" ".join(finest.names[i] for i in group.tolist()) for group in groups)
    return Regions(
        labels=owner[finest.labels],  # −1 selects the appended −1
        count=len(groups),
        kind=f"refined {finest.kind}",
        boxes=_group_boxes(finest, groups),
        names=names,
    )


def _group_boxes(finest: Regions, groups: Sequence[Tensor]) -> Tensor | None:
    """Return the box of each group, or None if some group is not a box."""
    if finest.boxes is None:
        return None
    boxes = torch.stack(
        [torch.cat([finest.boxes[g, :2].amin(0), finest.boxes[g, 2:].amax(0)]) for g in groups]
    )

    def area(of: Tensor) -> Tensor:
        return (of[:, 2] - of[:, 0]) * (of[:, 3] - of[:, 1])

    filled = torch.stack([area(finest.boxes[g]).sum() for g in groups])
    return boxes if torch.equal(filled, area(boxes)) else None
