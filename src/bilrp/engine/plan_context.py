"""Planning context: the problem to plan, and what is known about it before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bilrp.engine import receptive_fields
from bilrp.engine.executors import sparse, tiles
from bilrp.engine.executors.sparse_layout import SparseLayout, SparseTangent
from bilrp.engine.maps.base import is_image
from bilrp.engine.program import Key, Link, Program, pull_to
from bilrp.engine.windows import Cone
from bilrp.regions import Regions
from bilrp.trace.devices import DEFAULT_BUDGET_BYTES, can_push_sparse

# Coordinates pulled to estimate how many tiles one occupies. More than the minimum only where the pull needs no
# products and moves at most MAX_PROBE_NUMEL numbers, so that planning stays cheap.
MIN_PROBED_COORDINATES, MAX_PROBED_COORDINATES, MAX_PROBE_NUMEL = 8, 64, 10**8


@dataclass(frozen=True, eq=False)
class PlanContext:
    """The problem to plan.

    Args:
        program, partition: The frozen tape, and the regions of the input.
        coordinate_count: Coordinates of the (projected) embedding.
        taps: Intermediate values whose parts are computed too.
        budget: Bytes that the tangents computed at once may take.
    """

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

    # ------------------------------------------------------------ regions

    @cached_property
    def spatial_count(self) -> int:
        """Number of leading spatial links; 0 on devices where only dense tangents are pushed."""
        usable = is_image(self.program.x.shape) and can_push_sparse(self.program.x)
        return receptive_fields.spatial_prefix(self.links) if usable else 0

    @cached_property
    def cones(self) -> dict[Key, Cone]:
        """The receptive field of every region in every spatial value."""
        return (
            receptive_fields.compute_cones(self.program, self.partition, self.spatial_count)
            if self.spatial_count
            else {}
        )

    @cached_property
    def output_support(self) -> dict[Key, Tensor]:
        """Mask of the features that can be non-zero, for every spatial value."""
        return sparse.propagate_support(self.links[: self.spatial_count])

    @cached_property
    def bottlenecks(self) -> list[int]:
        """Numbers i such that after links[:i] only one value is still needed: where the method can change."""
        needed_after = {self.program.output}
        positions = []
        for i in range(len(self.links), 0, -1):
            if needed_after == {self.links[i - 1].target}:
                positions.append(i)
            needed_after.discard(self.links[i - 1].target)
            needed_after.update(self.links[i - 1].sources)
        return sorted(positions)

    def layouts(self, chunk: Tensor) -> Mapping[Key, SparseLayout]:
        """Return the sparse layout of each spatial value for the regions `chunk`; the last ones are kept."""
        numbers = tuple(chunk.tolist())
        if numbers not in self._layouts:
            self._layouts.clear()  # planning, counting and running use the same chunk in turn
            self._layouts[numbers] = _Layouts(self, chunk)
        return self._layouts[numbers]

    @cached_property
    def _layouts(self) -> dict[tuple[int, ...], _Layouts]:
        return {}

    @property
    def tangent_type(self) -> type[SparseTangent]:
        """The implementation of sparse tangents for this program."""
        return sparse.choose_tangent_type(self.program.x)

    # ------------------------------------------------------------ coordinates

    @cached_property
    def chain_length(self) -> int:
        """Number of leading links that can be pulled tile by tile; 0 for projections of the embedding."""
        is_projected = self.coordinate_count != self.program.result.numel()
        return 0 if is_projected else tiles.count_chain_links(self.program)

    @cached_property
    def tiles_per_coordinate(self) -> float:
        """Mean number of non-zero tiles of a coordinate's cotangent at the end of the chain; it pulls some of them."""
        assert self.chain_length
        tail = replace(self.program, links=self.links[self.chain_length :])
        probes = MIN_PROBED_COORDINATES
        if not any(link.cost(back=True).macs for link in tail.links):
            affordable = MAX_PROBE_NUMEL // max(1, sum(link.shape.numel() for link in tail.links))
            probes = max(probes, min(MAX_PROBED_COORDINATES, affordable))
        probed = torch.arange(self.coordinate_count)[:: -(-self.coordinate_count // probes)]
        cotangents = pull_to(tail, self.seed_cotangents(probed)).get(self.links[self.chain_length - 1].target)
        if cotangents is None:
            return 0.0
        return len(tiles.find_occupied_tiles(self.links[self.chain_length - 1], cotangents)) / len(probed)

    def seed_cotangents(self, index: Tensor) -> Tensor:
        """Return the one-hot cotangents (K, *embedding) of these coordinates."""
        result = self.program.result
        one_hot = result.new_zeros(len(index), result.numel()).scatter_(1, index[:, None], 1.0)
        return one_hot.reshape(-1, *result.shape)


class _Layouts(dict[Key, SparseLayout]):
    """Sparse layouts of a chunk of regions, each made when it is first read."""

    def __init__(self, context: PlanContext, chunk: Tensor) -> None:
        super().__init__()
        self.context, self.chunk = context, chunk

    def __missing__(self, key: Key) -> SparseLayout:
        cone = self.context.cones[key].select(self.chunk)
        reached, support = cone.regions_per_position > 0, self.context.output_support[key]
        self[key] = SparseLayout(support if bool(reached.all()) else support & reached[:, :, None], cone)
        return self[key]
