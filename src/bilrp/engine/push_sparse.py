"""push restricted to active neurons: behind ReLUs and max-poolings most of a tangent is zero for every region alike.

The gates of one input are the same for all its regions. So a value is kept as one row for each feature that can be
non-zero (position by position, channel by channel), with a number for each region that can reach it, and a convolution
is, at each position, a small dense product: (active outputs × active inputs in reach) · (active inputs × regions in reach).
Exact: what is left out is zero. On VGG-16 it leaves a few per cent of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bilrp import native
from bilrp.engine.sparse_layout import everything, union
from bilrp.engine.sparse_torch import Matrix
from bilrp.engine.program import Key, Link
from bilrp.engine.sparse_native import Ragged

# ---------------------------------------------------------------- what can be non-zero, and what is needed


def possible(links: Sequence[Link], start: dict[Key, Tensor]) -> dict[Key, Tensor]:
    """For each value the features (H, W, C) that can be non-zero, from what the links' factors leave."""
    found = dict(start)
    for link in links:
        inputs = [
            found[s] if s in found else everything(shape)
            for s, shape in zip(link.sources, link.shapes.sources, strict=True)
        ]
        found[link.target] = link.map.possible(inputs, link.shapes)
    return found


def needed(links: Sequence[Link], wanted: set[Key]) -> dict[Key, Tensor]:
    """For each value the features that anything wanted depends on: behind a max-pooling, only the winners."""
    found: dict[Key, Tensor] = {}
    for link in reversed(links):
        if link.target in wanted or link.target not in found:
            found[link.target] = everything(link.shape)
        for source, need in zip(link.sources, link.map.needed(found[link.target], link.shapes), strict=True):
            found[source] = union([found[source], need]) if source in found else need
    return found


# ---------------------------------------------------------------- rows


def kind_for(like: Tensor) -> type[Matrix] | type[Ragged]:
    """How such numbers lie in rows: as native code has them, where it can be used."""
    return Ragged if native.takes(like) else Matrix


class Buffers:
    """Memory for rows, taken and given back: fresh memory costs more than the sums that go into it.

    Each has room for the largest: memory that nobody writes to is never there.
    """

    def __init__(self, like: Tensor) -> None:
        self.like, self.room = like, 1  # never none: memory is known by where it lies
        self.free: list[Tensor] = []
        self.taken: dict[int, Tensor] = {}  # by where they lie

    def reserve(self, room: int) -> None:
        """Make those taken from now on so large."""
        if room > self.room:
            self.room = room
            self.free.clear()

    def take(self, size: int) -> Tensor:
        self.reserve(size)
        whole = self.free.pop() if self.free else self.like.new_empty(self.room)
        self.taken[whole.untyped_storage().data_ptr()] = whole
        return whole[:size]

    def give(self, numbers: Tensor) -> None:
        whole = self.taken.pop(numbers.untyped_storage().data_ptr())
        if whole.numel() == self.room:
            self.free.append(whole)
