"""Setting: what planning looks at, and what can be said about it before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bilrp.engine import receptive_fields, push_windowed, push_sparse, pull_windowed
from bilrp.engine.sparse_layout import Layout, both, reached
from bilrp.engine.maps.base import is_image
from bilrp.engine.program import Key, Link, Program, pull_to
from bilrp.engine.windows import Cone
from bilrp.regions import Regions
from bilrp.trace.devices import BUDGET

# Coordinates that are pulled to see how much of the image one occupies: some, or more where that takes no products and
# moves no more numbers than these, since planning must stay small beside what it plans.
PROBES, FREE_PROBES, MOVED = 8, 64, 10**8


@dataclass(frozen=True, eq=False)
class Setting:
    """What planning looks at: the program, its regions, the coordinates wanted, values to keep on the way."""

    program: Program
    partition: Regions
    coordinates: int
    taps: frozenset[Key] = frozenset()
    budget: int = BUDGET

    @property
    def links(self) -> tuple[Link, ...]:
        return self.program.links

    @property
    def regions(self) -> int:
        return self.partition.count

    def size(self, i: int) -> int:
        """Numbers in the value after links[:i]."""
        return self.links[i - 1].shape.numel() if i else self.program.x.numel()

    # ------------------------------------------------------------ regions

    @cached_property
    def spatial(self) -> int:
        """How many links from the start on are spatial (crops and rows index on the CPU; other devices push whole)."""
        usable = is_image(self.program.x.shape) and self.program.x.device.type == "cpu"
        return receptive_fields.spatial_prefix(self.links) if usable else 0

    @cached_property
    def cones(self) -> dict[Key, Cone]:
        """Every region's cone in every spatial value."""
        return receptive_fields.cones(self.program, self.partition, self.spatial) if self.spatial else {}

    @cached_property
    def possible(self) -> dict[Key, Tensor]:
        """What can be non-zero in every spatial value."""
        return push_sparse.possible(self.links[: self.spatial], {})

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

    def layouts(self, chunk: Tensor, first: int, last: int) -> dict[Key, Layout]:
        """Which features get a row, for each value of links [first, last) and this chunk of regions."""
        asked = (tuple(chunk.tolist()), last)
        begin, found = self._laid.get(asked, (last, {}))
        if begin > first:
            self._laid.clear()  # planning, counting and running ask for the same chunk in turn: one is kept
            begin, found = self._laid[asked] = (first, self._lay_out(chunk, first, last))
        return found if begin == first else {key: found[key] for key in self._keys(first, last)}

    @cached_property
    def _laid(self) -> dict[tuple[tuple[int, ...], int], tuple[int, dict[Key, Layout]]]:
        return {}

    def _keys(self, first: int, last: int) -> list[Key]:
        return [self.links[first - 1].target, *(link.target for link in self.links[first:last])]

    def _lay_out(self, chunk: Tensor, first: int, last: int) -> dict[Key, Layout]:
        need = push_sparse.needed(self.links[first:last], {self.links[last - 1].target} | self.taps)
        found = {key: self.cones[key].at(chunk) for key in self._keys(first, last)}
        used = {key: both(self.possible[key], need[key]) for key in found}
        return {  # a user's map may say it in numbers
            key: Layout(both(used[key], reached(cone, used[key].shape[2])).bool(), cone)
            for key, cone in found.items()
        }

    @property
    def rows(self) -> type[push_sparse.Matrix] | type[push_sparse.Ragged]:
        """How active rows lie in memory."""
        return push_sparse.kind_for(self.program.x)

    def window_batches(self, key: Key, index: Tensor, batch: int) -> list[Tensor]:
        """Batches of windows of about one size."""
        return [part for group in push_windowed.size_classes(self.cones, key, index) for part in group.split(batch)]

    def chunks(self, size: int, *, together: bool) -> Sequence[Tensor]:
        """The regions in chunks; `together` if those that lie together share work."""
        if together:
            return receptive_fields.compact_chunks(self.partition, size)
        return torch.arange(self.regions).split(size)

    # ------------------------------------------------------------ coordinates

    @property
    def projected(self) -> bool:
        """Are the coordinates mixtures of the embedding's own?"""
        return self.coordinates != self.program.result.numel()

    @cached_property
    def live(self) -> Tensor:
        """Coordinates of the embedding that the last gates and poolings leave open; the others have no parts at all."""
        result, first = self.program.result, len(self.links)
        while first and self.links[first - 1].reach is not None:
            first -= 1
        if first == len(self.links) or result.device.type != "cpu":
            return torch.arange(result.numel(), device=result.device)
        found = self.possible if self.spatial == len(self.links) else push_sparse.possible(self.links[first:], {})
        open_ = found[self.program.output]
        return open_.permute(2, 0, 1).flatten().nonzero()[:, 0]

    @cached_property
    def pulls(self) -> int:
        """How many coordinates have to be pulled, if any."""
        return self.coordinates if self.projected else len(self.live)

    @cached_property
    def chain(self) -> int:
        """How many links from the start on can be pulled tile by tile."""
        return 0 if self.projected else pull_windowed.chain(self.program)

    @cached_property
    def tiles(self) -> float:
        """Tiles that a coordinate occupies where the chain ends: the mean of a few that are pulled there."""
        if not len(self.live):
            return 0.0
        tail = replace(self.program, links=self.links[self.chain :])
        free = not any(link.map.macs(link.shapes, back=True) for link in tail.links)
        moved = sum(link.shapes.numel for link in tail.links)
        probes = max(PROBES, min(FREE_PROBES, MOVED // max(1, moved))) if free else PROBES
        live = self.live[:: -(-len(self.live) // probes)]
        met = pull_to(tail, self.seeds(live)).get(self.links[self.chain - 1].target)
        return 0.0 if met is None else len(pull_windowed.occupied(self.links[self.chain - 1], met)) / len(live)

    def seeds(self, index: Tensor) -> Tensor:
        """What pulling these coordinates starts from: (K, *embedding)."""
        result = self.program.result
        one_hot = result.new_zeros(len(index), result.numel()).scatter_(1, index[:, None], 1.0)
        return one_hot.reshape(-1, *result.shape)
