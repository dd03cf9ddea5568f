"""Maps that look at each position by itself: scales, sums, and the gate behind any other map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from bilrp.engine.sparse_layout import Layout, Rows, Term, both, not_zero, union
from bilrp.engine.maps.base import Map, Shapes, to_front
from bilrp.engine.windows import Reach, Window, cut, for_cutting, place

if TYPE_CHECKING:
    from bilrp.engine.maps.pooling import Pooling


@dataclass(frozen=True, eq=False)
class Scale(Map):
    """J = diag(factor): gates, activations, norms. (A factor of shape () is a number.)"""

    factor: Tensor
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return tangents[0] * self.factor

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent * self.factor,)

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0

    def channels_first(self, shapes: Shapes) -> Map | None:
        if shapes.sources[0] != shapes.target or self.on_mask:
            return None
        factor = self.factor if self.factor.dim() == 0 else to_front(self.factor.expand(shapes.target))
        return Scale(factor, self.slots)

    def pooled(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        found = pooling.past(self.factor, shapes.target) if shapes.sources[0] == shapes.target else None
        return None if found is None else (Scale(found[0]), found[1])

    def reach(self, shapes: Shapes) -> Reach | None:
        return Reach() if shapes.images and shapes.sources[0] == shapes.target else None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        factor = self.factor if self.factor.dim() == 0 else cut(self.factor, origin, size)
        return place(sources[0], origin, size) * factor

    def for_windows(self) -> Map:
        return replace(self, factor=for_cutting(self.factor))

    def has_tiles(self, shapes: Shapes) -> bool:
        return self.reach(shapes) is not None and self.factor.shape == shapes.target

    def pull_windows(self, windows: Window, shapes: Shapes) -> Window:
        return windows.times(self.factor)

    def possible(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return both(inputs[0], self._open(shapes))

    def needed(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        return [both(target, self._open(shapes))]

    def _open(self, shapes: Shapes) -> Tensor:
        return not_zero(self.factor.expand(shapes.target))

    def push_rows(self, sources: Sequence[Rows], target: Rows, shapes: Shapes) -> None:
        target.combine([_same(sources[0], target, self.factor.expand(shapes.target))])

    def keeps_rows(self, source: Layout, target: Layout, shapes: Shapes) -> bool:
        """A gate does: what it shuts has no rows."""
        factor = target.of(self.factor.expand(shapes.target))
        return source.equals(target) and bool((factor == 1).all())


@dataclass(frozen=True, eq=False)
class Sum(Map):
    """J = (1 … 1): a plain sum of live values of one shape, as at the end of a residual block."""

    slots: tuple[int, ...] = (0, 1)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return sum(tangents[1:], start=tangents[0])

    def channels_first(self, shapes: Shapes) -> Map | None:
        return None if self.on_mask else self

    def pooled(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        return self, pooling

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent,) * len(self.slots)

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0

    def reach(self, shapes: Shapes) -> Reach | None:
        return Reach() if shapes.images else None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        moved = [place(source, origin, size) for source in sources]
        return sum(moved[1:], start=moved[0])

    def possible(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return union(inputs)

    def needed(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        return [target] * len(self.slots)

    def push_rows(self, sources: Sequence[Rows], target: Rows, shapes: Shapes) -> None:
        target.combine([_same(source, target) for source in sources])


@dataclass(frozen=True, eq=False)
class Gated(Map):
    """Any map followed by the 0/1 gate of the ReLU that was fused into its step."""

    inner: Map
    gate: Tensor
    slots: tuple[int, ...] = field(init=False)
    on_mask: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", self.inner.slots)
        object.__setattr__(self, "on_mask", self.inner.on_mask)

    def push(self, *tangents: Tensor) -> Tensor:
        return self.inner.push(*tangents) * self.gate

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return self.inner.pull(cotangent * self.gate)

    def channels_first(self, shapes: Shapes) -> Map | None:
        inner = self.inner.channels_first(shapes)
        return None if inner is None else Gated(inner, to_front(self.gate))

    def pooled(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        gate = pooling.past(self.gate, shapes.target)
        inner = None if gate is None else self.inner.pooled(gate[1], shapes)
        return None if gate is None or inner is None else (Gated(inner[0], gate[0]), inner[1])

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        return self.inner.macs(shapes, back=back)

    def beforehand(self, shapes: Shapes, rows: Layout | None = None) -> int:
        return self.inner.beforehand(shapes, rows)

    def scratch(self, shapes: Shapes, *, back: bool = False) -> int:
        return self.inner.scratch(shapes, back=back) + shapes.target.numel()

    def reach(self, shapes: Shapes) -> Reach | None:
        return self.inner.reach(shapes)

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        return self.inner.push_windows(sources, origin, size, shapes) * cut(self.gate, origin, size)

    def for_windows(self) -> Map:
        return Gated(self.inner.for_windows(), for_cutting(self.gate))

    def window_macs(self, size: tuple[int, int], shapes: Shapes, *, back: bool = False) -> int:
        return self.inner.window_macs(size, shapes, back=back)

    def has_tiles(self, shapes: Shapes) -> bool:
        return self.inner.has_tiles(shapes)

    def pull_windows(self, windows: Window, shapes: Shapes) -> Window:
        return self.inner.pull_windows(windows.times(self.gate), shapes)

    def possible(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return both(self.inner.possible(inputs, shapes), not_zero(self.gate))

    def needed(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        return self.inner.needed(both(target, not_zero(self.gate)), shapes)

    def push_rows(self, sources: Sequence[Rows], target: Rows, shapes: Shapes) -> None:
        self.inner.push_rows(sources, target, shapes)
        target.scale(target.layout.of(self.gate))

    def row_work(self, layouts: Sequence[Layout], target: Layout, shapes: Shapes) -> tuple[int, int]:
        return self.inner.row_work(layouts, target, shapes)


def _same(source: Rows, target: Rows, factor: Tensor | None = None) -> Term:
    """The source's rows of the same features, times an image-shaped factor."""
    layout = target.layout
    return Term(source, source.layout.row[layout.active], layout.at(factor))
