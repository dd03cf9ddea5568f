"""Context: what planning looks at, and what can be said about it before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bilrp.engine import pull_windowed, push_sparse, push_windowed, receptive_fields
from bilrp.engine.maps.base import is_image
from bilrp.engine.program import Key, Link, Program, pull_to
from bilrp.engine.sparse_layout import SparseLayout, mask_and, reached_mask
from bilrp.engine.windows import Cone
from bilrp.regions import Regions
from bilrp.trace.devices import DEFAULT_BUDGET_BYTES

# Coordinates that are pulled to see how much of the image one occupies: some, or more where that takes no products and
# moves no more numbers than these, since planning must stay small beside what it plans.
MIN_PROBED_COORDINATES, MAX_PROBED_COORDINATES, MAX_PROBE_NUMEL = 8, 64, 10**8


@dataclass(frozen=True, eq=False)
class PlanContext:
    """What planning looks at: the program, its regions, the coordinates wanted, values to keep on the way."""

    program: Program
    partition: Regions
    coordinate_count: int
    taps: frozenset[Key] = frozenset()
    budget: int = DEFAULT_BUDGET_BYTES

    @property
    def links(self) -> tuple[Link, ...]:
        return self.program.links

    @property
    def region_count(self) -> int:
        return self.partition.count

    def numel_after(self, i: int) -> int:
        """Numbers in the value after links[:i]."""
        return self.links[i - 1].shape.numel() if i else self.program.x.numel()

    # ------------------------------------------------------------ regions

    @cached_property
    def spatial_links(self) -> int:
        """How many links from the start on are spatial (crops and rows index on the CPU; other devices push whole)."""
        usable = is_image(self.program.x.shape) and self.program.x.device.type == "cpu"
        return receptive_fields.spatial_prefix(self.links) if usable else 0

    @cached_property
    def cones(self) -> dict[Key, Cone]:
        """Every region's cone in every spatial value."""
        return (
            receptive_fields.compute_cones(self.program, self.partition, self.spatial_links)
            if self.spatial_links
            else {}
        )

    @cached_property
    def output_support(self) -> dict[Key, Tensor]:
        """What can be non-zero in every spatial value."""
        return push_sparse.propagate_support(self.links[: self.spatial_links], {})

    @cached_property
    def bottlenecks(self) -> list[int]:
        """Numbers i such that after links[:i] only one value is still needed: where methods can change or meet."""
        needed_after = {self.program.output}
        found = []
        for i in range(len(self.links), 0, -1):
            if needed_after == {self.links[i - 1].target}:
                found.append(i)
            needed_after.discard(self.links[i - 1].target)
            needed_after.update(self.links[i - 1].sources)
        return sorted(found)

    def layouts(self, chunk: Tensor, first: int, last: int) -> dict[Key, SparseLayout]:
        """Which features get a row, for each value of links [first, last) and this chunk of regions."""
        asked = (tuple(chunk.tolist()), last)
        begin, found = self._layout_cache.get(asked, (last, {}))
        if begin > first:
            self._layout_cache.clear()  # planning, counting and running ask for the same chunk in turn: one is kept
            begin, found = self._layout_cache[asked] = (first, self._build_layouts(chunk, first, last))
        return found if begin == first else {key: found[key] for key in self._keys(first, last)}

    @cached_property
    def _layout_cache(self) -> dict[tuple[tuple[int, ...], int], tuple[int, dict[Key, SparseLayout]]]:
        return {}

    def _keys(self, first: int, last: int) -> list[Key]:
        return [self.links[first - 1].target, *(link.target for link in self.links[first:last])]

    def _build_layouts(self, chunk: Tensor, first: int, last: int) -> dict[Key, SparseLayout]:
        need = push_sparse.backpropagate_support(
            self.links[first:last], {self.links[last - 1].target} | self.taps
        )
        found = {key: self.cones[key].select(chunk) for key in self._keys(first, last)}
        used = {key: mask_and(self.output_support[key], need[key]) for key in found}
        return {  # a user's map may say it in numbers
            key: SparseLayout(mask_and(used[key], reached_mask(cone, used[key].shape[2])).bool(), cone)
            for key, cone in found.items()
        }

    @property
    def tangent_type(self) -> type[push_sparse.TorchSparseTangent] | type[push_sparse.NativeSparseTangent]:
        """How active rows lie in memory."""
        return push_sparse.choose_tangent_type(self.program.x)

    def window_batches(self, key: Key, index: Tensor, batch: int) -> list[Tensor]:
        """Batches of windows of about one size."""
        return [
            part
            for group in push_windowed.size_classes(self.cones, key, index)
            for part in group.split(batch)
        ]

    def chunks(self, size: int, *, compact: bool) -> Sequence[Tensor]:
        """The regions in chunks; `compact` if those that lie together share work."""
        if compact:
            return receptive_fields.compact_chunks(self.partition, size)
        return torch.arange(self.region_count).split(size)

    # ------------------------------------------------------------ coordinates

    @property
    def is_projected(self) -> bool:
        """Are the coordinates mixtures of the embedding's own?"""
        return self.coordinate_count != self.program.result.numel()

    @cached_property
    def active_coordinates(self) -> Tensor:
        """Coordinates of the embedding that the last gates and poolings leave open; the others have no parts at all."""
        result, first = self.program.result, len(self.links)
        while first and self.links[first - 1].geometry is not None:
            first -= 1
        if first == len(self.links) or result.device.type != "cpu":
            return torch.arange(result.numel(), device=result.device)
        found = (
            self.output_support
            if self.spatial_links == len(self.links)
            else push_sparse.propagate_support(self.links[first:], {})
        )
        open_ = found[self.program.output]
        return open_.permute(2, 0, 1).flatten().nonzero()[:, 0]

    @cached_property
    def pull_count(self) -> int:
        """How many coordinates have to be pulled, if any."""
        return self.coordinate_count if self.is_projected else len(self.active_coordinates)

    @cached_property
    def chain_length(self) -> int:
        """How many links from the start on can be pulled tile by tile."""
        return 0 if self.is_projected else pull_windowed.count_chain_links(self.program)

    @cached_property
    def tiles_per_coordinate(self) -> float:
        """Tiles that a coordinate occupies where the chain ends: the mean of a few that are pulled there."""
        if not len(self.active_coordinates):
            return 0.0
        tail = replace(self.program, links=self.links[self.chain_length :])
        free = not any(link.map.macs(link.shapes, back=True) for link in tail.links)
        moved = sum(link.shapes.numel for link in tail.links)
        probes = (
            max(MIN_PROBED_COORDINATES, min(MAX_PROBED_COORDINATES, MAX_PROBE_NUMEL // max(1, moved)))
            if free
            else MIN_PROBED_COORDINATES
        )
        live = self.active_coordinates[:: -(-len(self.active_coordinates) // probes)]
        met = pull_to(tail, self.seed_cotangents(live)).get(self.links[self.chain_length - 1].target)
        return (
            0.0
            if met is None
            else len(pull_windowed.find_occupied_tiles(self.links[self.chain_length - 1], met)) / len(live)
        )

    def seed_cotangents(self, index: Tensor) -> Tensor:
        """What pulling these coordinates starts from: (K, *embedding)."""
        result = self.program.result
        one_hot = result.new_zeros(len(index), result.numel()).scatter_(1, index[:, None], 1.0)
        return one_hot.reshape(-1, *result.shape)
