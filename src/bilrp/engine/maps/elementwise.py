"""Elementwise maps: scaling, sums, and a gate after any other map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from bilrp.engine.maps.base import Map, Shapes, move_channels_first
from bilrp.engine.sparse_layout import (
    GatherTerm,
    SparseLayout,
    SparseTangent,
    mask_and,
    mask_or,
    nonzero_mask,
)
from bilrp.engine.windows import Geometry, Window, crop_windows, prepare_for_crop, reframe_window

if TYPE_CHECKING:
    from bilrp.engine.maps.pooling import Pooling


@dataclass(frozen=True, eq=False)
class Scale(Map):
    """J = diag(factor): gates, activations, norms. A factor of shape () is a scalar."""

    factor: Tensor
    slots: tuple[int, ...] = (0,)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return tangents[0] * self.factor

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent * self.factor,)

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0

    def to_channels_first(self, shapes: Shapes) -> Map | None:
        if shapes.sources[0] != shapes.target or self.on_mask:
            return None
        factor = (
            self.factor if self.factor.dim() == 0 else move_channels_first(self.factor.expand(shapes.target))
        )
        return Scale(factor, self.slots)

    def commute_pooling(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        if shapes.sources[0] != shapes.target:
            return None
        commuted = pooling.commute_factor(self.factor, shapes.target)
        return None if commuted is None else (Scale(commuted[0]), commuted[1])

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return Geometry() if shapes.are_images and shapes.sources[0] == shapes.target else None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        """Return factor ⊙ s on windows, with the factor cropped to them.

        Args:
            sources: Tangents of each source, zero outside their windows.
            origin: Upper left corner (K, 2) of each window of the target.
            size: Height and width of these windows.
            shapes: Shapes of sources and target.
        """
        factor = self.factor if self.factor.dim() == 0 else crop_windows(self.factor, origin, size)
        return reframe_window(sources[0], origin, size) * factor

    def prepare_windows(self) -> Map:
        return replace(self, factor=prepare_for_crop(self.factor))

    def can_pull_windows(self, shapes: Shapes) -> bool:
        return self.geometry(shapes) is not None and self.factor.shape == shapes.target

    def pull_windows(self, windows: Window, shapes: Shapes) -> Window:
        return windows.scale(self.factor)

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return mask_and(inputs[0], self._support(shapes))

    def input_support(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        return [mask_and(target, self._support(shapes))]

    def _support(self, shapes: Shapes) -> Tensor:
        return nonzero_mask(self.factor.expand(shapes.target))

    def push_sparse(self, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
        """Write factor ⊙ s row by row.

        Args:
            sources: Sparse tangents of the sources.
            target: Where the result is written; its values are uninitialised.
            shapes: Shapes of sources and target.
        """
        target.combine([_gather_same_features(sources[0], target, self.factor.expand(shapes.target))])

    def is_identity_on_rows(self, source: SparseLayout, target: SparseLayout, shapes: Shapes) -> bool:
        """Return whether the factor is 1 at all rows, as for a 0/1 gate: features where it is 0 have no rows.

        Args:
            source: Layout of the only source.
            target: Layout of the result.
            shapes: Shapes of source and target.
        """
        factor = target.gather(self.factor.expand(shapes.target))
        return source.equals(target) and bool((factor == 1).all())


@dataclass(frozen=True, eq=False)
class Sum(Map):
    """J = (1 … 1): a sum of live values of one shape, as at the end of a residual block."""

    slots: tuple[int, ...] = (0, 1)
    on_mask: bool = False

    def push(self, *tangents: Tensor) -> Tensor:
        return sum(tangents[1:], start=tangents[0])

    def to_channels_first(self, shapes: Shapes) -> Map | None:
        return None if self.on_mask else self

    def commute_pooling(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        return self, pooling

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent,) * len(self.slots)

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        return 0

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return Geometry() if shapes.are_images else None

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        """Return the sum of the sources on common windows.

        Args:
            sources: Tangents of each source, zero outside their windows.
            origin: Upper left corner (K, 2) of each window of the target.
            size: Height and width of these windows.
            shapes: Shapes of sources and target.
        """
        windows = [reframe_window(source, origin, size) for source in sources]
        return sum(windows[1:], start=windows[0])

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return mask_or(inputs)

    def input_support(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        return [target] * len(self.slots)

    def push_sparse(self, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
        """Write the sum of the sources row by row.

        Args:
            sources: Sparse tangents of the sources.
            target: Where the result is written; its values are uninitialised.
            shapes: Shapes of sources and target.
        """
        target.combine([_gather_same_features(source, target) for source in sources])


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

    def to_channels_first(self, shapes: Shapes) -> Map | None:
        inner = self.inner.to_channels_first(shapes)
        return None if inner is None else Gated(inner, move_channels_first(self.gate))

    def commute_pooling(self, pooling: Pooling, shapes: Shapes) -> tuple[Map, Pooling] | None:
        gate = pooling.commute_factor(self.gate, shapes.target)
        inner = None if gate is None else self.inner.commute_pooling(gate[1], shapes)
        return None if gate is None or inner is None else (Gated(inner[0], gate[0]), inner[1])

    def macs(self, shapes: Shapes, *, back: bool = False) -> int:
        return self.inner.macs(shapes, back=back)

    def setup_macs(self, shapes: Shapes, source_layout: SparseLayout | None = None) -> int:
        return self.inner.setup_macs(shapes, source_layout)

    def workspace(self, shapes: Shapes, *, back: bool = False) -> int:
        return self.inner.workspace(shapes, back=back) + shapes.target.numel()

    def geometry(self, shapes: Shapes) -> Geometry | None:
        return self.inner.geometry(shapes)

    def push_windows(
        self, sources: Sequence[Window], origin: Tensor, size: tuple[int, int], shapes: Shapes
    ) -> Tensor:
        """Return the result of the inner map on windows, times the cropped gate.

        Args:
            sources: Tangents of each source, zero outside their windows.
            origin: Upper left corner (K, 2) of each window of the target.
            size: Height and width of these windows.
            shapes: Shapes of sources and target.
        """
        return self.inner.push_windows(sources, origin, size, shapes) * crop_windows(self.gate, origin, size)

    def prepare_windows(self) -> Map:
        return Gated(self.inner.prepare_windows(), prepare_for_crop(self.gate))

    def window_macs(self, size: tuple[int, int], shapes: Shapes, *, back: bool = False) -> int:
        """Return the multiply-adds of the inner map for one window of the target.

        Args:
            size: Height and width of the window of the target.
            shapes: Shapes of sources and target.
            back: Whether to count a pull instead of a push.
        """
        return self.inner.window_macs(size, shapes, back=back)

    def can_pull_windows(self, shapes: Shapes) -> bool:
        return self.inner.can_pull_windows(shapes)

    def pull_windows(self, windows: Window, shapes: Shapes) -> Window:
        return self.inner.pull_windows(windows.scale(self.gate), shapes)

    def output_support(self, inputs: Sequence[Tensor], shapes: Shapes) -> Tensor:
        return mask_and(self.inner.output_support(inputs, shapes), nonzero_mask(self.gate))

    def input_support(self, target: Tensor, shapes: Shapes) -> list[Tensor]:
        return self.inner.input_support(mask_and(target, nonzero_mask(self.gate)), shapes)

    def push_sparse(self, sources: Sequence[SparseTangent], target: SparseTangent, shapes: Shapes) -> None:
        """Write the result of the inner map, times the gate at the rows.

        Args:
            sources: Sparse tangents of the sources.
            target: Where the result is written; its values are uninitialised.
            shapes: Shapes of sources and target.
        """
        self.inner.push_sparse(sources, target, shapes)
        target.scale(target.layout.gather(self.gate))

    def sparse_cost(
        self, layouts: Sequence[SparseLayout], target: SparseLayout, shapes: Shapes
    ) -> tuple[int, int]:
        """Return the cost of the inner map's `push_sparse`.

        Args:
            layouts: Layouts of the sources.
            target: Layout of the result.
            shapes: Shapes of sources and target.
        """
        return self.inner.sparse_cost(layouts, target, shapes)


def _gather_same_features(
    source: SparseTangent, target: SparseTangent, factor: Tensor | None = None
) -> GatherTerm:
    """Return the term that reads the same features from the source, times an image-shaped factor."""
    layout = target.layout
    return GatherTerm(source, source.layout.row_of_feature[layout.mask], layout.gather_optional(factor))
