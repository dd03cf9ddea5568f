"""Regions: groups of input features, each with a label 0 … count-1; −1 means in no region.

A *spec* is a function x → Regions, so that inputs of different sizes can share it: `grid(8)`, `features()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bilrp.errors import InputError


@dataclass(frozen=True, eq=False)
class Regions:
    """A partition of one input's features.

    Args:
        labels: the region of each feature, −1 for none; shaped like the input without its batch axis.
        count: the number of regions.
        kind: the spec as text, e.g. "grid(8)".
        boxes: (top, left, bottom, right) of each region, for rectangles over all channels.
        names: texts to show (tokens), one for each region.
    """

    labels: Int[Tensor, "*features"]
    count: int
    kind: str
    boxes: Tensor | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        sizes = torch.bincount(self.labels.flatten() + 1, minlength=self.count + 1)[1:]
        if len(sizes) > self.count:
            raise InputError(
                f"labels run up to {len(sizes) - 1}, but there are {self.count} regions: count from 0"
            )
        if self.names is not None and len(self.names) != self.count:
            raise InputError(f"{len(self.names)} names for {self.count} regions: give one for each")
        if self.count == 0 or bool((sizes == 0).any()):
            empty = (
                "there are none" if self.count == 0 else f"region {int((sizes == 0).nonzero()[0])} is empty"
            )
            raise InputError(
                f"every region needs at least one feature, but {empty}: number labels 0 … n-1 without gaps"
            )

    @property
    def label_map(self) -> Int[Tensor, "height width"] | None:
        """The label of each pixel; None if the input is not an image or labels differ between channels."""
        if self.labels.dim() != 3 or not bool((self.labels == self.labels[:1]).all()):
            return None
        return self.labels[0]

    @property
    def bounds(self) -> Int[Tensor, "{self.count} 4"] | None:
        """Bounding box (top, left, bottom, right) of each region of an image; None for other inputs.

        >>> labels(torch.tensor([[0, 1], [1, 1]]))(torch.zeros(1, 1, 2, 2)).bounds.tolist()
        [[0, 0, 1, 1], [0, 0, 2, 2]]
        """
        plane = self.label_map if self.boxes is None else None
        return self.boxes if plane is None else bounding_boxes(plane, self.count)

    def masks(self, indices: Tensor, dtype: torch.dtype) -> Tensor:
        """Return 0/1 masks (K, 1, *input) of the regions with these numbers: the seeds of push."""
        shape = (-1, 1, *[1] * self.labels.dim())
        return (self.labels == indices.to(self.labels.device).reshape(shape)).to(dtype)

    def pool(self, relevance: Float[Tensor, "k 1 *features"]) -> Float[Tensor, "k {self.count}"]:
        """Sum relevance (K, 1, *input) over each region to (K, count), which conserves it (Appendix E)."""
        sums = relevance.new_zeros(relevance.shape[0], self.count + 1)
        return sums.index_add_(1, self.labels.flatten() + 1, relevance.flatten(1))[:, 1:]

    def average(self, mask: Float[Tensor, "*features"]) -> Float[Tensor, " {self.count}"]:
        """Return the mean of a mask over the features of each region.

        >>> labels(torch.tensor([[0, 1], [1, 1]]))(torch.zeros(1, 1, 2, 2)).average(torch.tensor([[[1.0, 0], [0, 1]]]))
        tensor([1.0000, 0.3333])
        """
        weights = mask.to(self.labels.device).expand(self.labels.shape)
        return self.pool(weights[None, None])[0] / self.pool(torch.ones_like(weights)[None, None])[0]


RegionFunction = Callable[[Tensor], Regions]
NestedIntegers: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]]

RegionSpec: TypeAlias = Regions | RegionFunction | int | Tensor | np.ndarray | str | list[tuple[int, int]]
"""Regions, a function x -> Regions, a patch side in pixels, an integer mask; for texts "words" or spans too."""

RegionSpecs: TypeAlias = RegionSpec | tuple[RegionSpec | None, RegionSpec | None]
"""One spec for both inputs, or one for each."""

JOINED_WORDS = "joined_words"
"""The spec of `words(punctuation="join")`."""

NUMBERS = "numbers"
"""The kind of regions that are the numbers of a scanned table, named by their digits, see `encoders.table_numbers`."""


def as_spec_pair(specs: RegionSpecs | None) -> tuple[RegionSpec | None, RegionSpec | None]:
    """Return the specs of two inputs: a tuple has one for each, anything else is used for both."""
    if not isinstance(specs, tuple):
        return specs, specs
    if len(specs) != 2:
        raise InputError(f"regions need one spec for both inputs, or a tuple of two, got {len(specs)}")
    return specs


def grid(size: int | tuple[int, int]) -> RegionFunction:
    """Split an image into k×k pixel patches over all channels, row by row; the last ones may be smaller.

    >>> grid(8)(torch.zeros(1, 3, 16, 20)).count
    6
    """
    high, wide = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    if not (isinstance(high, Integral) and isinstance(wide, Integral)):
        raise InputError(f"grid needs whole pixels, as in grid(8) or grid((8, 4)), got {type(size).__name__}")
    high, wide = int(high), int(wide)
    if high < 1 or wide < 1:
        raise InputError(f"grid needs patches of at least one pixel, got {size}")

    def spec(x: Tensor) -> Regions:
        if x.dim() != 4:
            raise InputError(
                f"grid needs an image of shape (1, channels, height, width), got {tuple(x.shape)}: "
                "use features() or labels(mask)"
            )
        rows, columns = (
            torch.arange(n, device=x.device) // k for n, k in ((x.shape[2], high), (x.shape[3], wide))
        )
        across = int(columns[-1]) + 1
        labels = (rows[:, None] * across + columns).expand(x.shape[1:])
        tops, lefts = torch.meshgrid(
            torch.arange(0, x.shape[2], high), torch.arange(0, x.shape[3], wide), indexing="ij"
        )
        bottoms, rights = (tops + high).clamp(max=x.shape[2]), (lefts + wide).clamp(max=x.shape[3])
        boxes = torch.stack([t.flatten() for t in (tops, lefts, bottoms, rights)], dim=1)
        return Regions(labels, len(boxes), kind=f"grid({size})", boxes=boxes)

    return spec


def features() -> RegionFunction:
    """Make every input feature a region, flattened row-major.

    >>> features()(torch.zeros(1, 3, 4)).count
    12
    """

    def spec(x: Tensor) -> Regions:
        count = x[0].numel()
        return Regions(torch.arange(count, device=x.device).reshape(x.shape[1:]), count, kind="features()")

    return spec


def labels(
    mask: Tensor | np.ndarray | NestedIntegers, *, names: tuple[str, ...] | None = None
) -> RegionFunction:
    """Use any partition into regions.

    Args:
        mask: integers 0 … n-1 shaped like the input without its batch axis, or (height, width) for an image, (length,)
            for a sequence; −1 means in no region, and the part of such features is unattributed.
        names: texts to show, one for each region.

    >>> labels(torch.tensor([0, 0, 1, -1]))(torch.zeros(1, 4)).count
    2
    """
    own = torch.as_tensor(mask)
    if own.dtype.is_floating_point or own.dtype == torch.bool:
        raise InputError(f"labels need an integer tensor, got {own.dtype}")

    def spec(x: Tensor) -> Regions:
        # A label of a pixel or token applies to all its channels; no other shape is broadcast.
        positions = x.shape[2:] if x.dim() > 3 else x.shape[1:2]
        shapes = dict.fromkeys([x.shape[1:], positions])
        if own.shape not in shapes:
            raise InputError(
                f"labels of shape {tuple(own.shape)} do not fit an input of shape {tuple(x.shape)}: "
                f"give a tensor of shape {' or '.join(str(tuple(shape)) for shape in shapes)}"
            )
        column = own[:, None] if x.dim() == 3 and own.dim() == 1 else own
        full = column.to(x.device).long().expand(x.shape[1:])
        if int(full.min()) < -1:
            raise InputError(f"labels run from -1 (no region) upwards, got {int(full.min())}")
        if int(full.max()) >= full.numel():
            raise InputError(
                f"a label of {int(full.max())} for {full.numel()} features: number them 0 … n-1 without gaps"
            )
        return Regions(full, int(full.max()) + 1, kind="labels", boxes=_rectangle_boxes(full), names=names)

    return spec


def tokens(names: tuple[str, ...] | list[str] | None = None) -> RegionFunction:
    """Make each position of a sequence (1, length, width) a region, with these names to show.

    >>> tokens(["a", "cat"])(torch.zeros(1, 2, 5)).names
    ('a', 'cat')
    """

    def spec(x: Tensor) -> Regions:
        if x.dim() != 3:
            raise InputError(f"tokens need an input of shape (1, length, width), got {tuple(x.shape)}")
        if names is not None and len(names) != x.shape[1]:
            raise InputError(f"{len(names)} token names for a sequence of length {x.shape[1]}")
        index = torch.arange(x.shape[1], device=x.device)[:, None].expand(x.shape[1:])
        return Regions(index, x.shape[1], kind="tokens()", names=None if names is None else tuple(names))

    return spec


def words(*, punctuation: Literal["split", "join"] = "split") -> str:
    """Make each word of a text a region.

    Args:
        punctuation: "split" makes punctuation regions of its own; "join" joins it, with code ticks, quotes and brackets,
            to the word that it touches, so that a text has as many regions as words.

    >>> words(), words(punctuation="join")
    ('words', 'joined_words')
    """
    if punctuation not in ("split", "join"):
        raise InputError(f"punctuation is 'split' or 'join', got {punctuation!r}")
    return JOINED_WORDS if punctuation == "join" else "words"


def sentences() -> str:
    """Make each sentence of a text a region."""
    return "sentences"


def default_regions(x: Tensor) -> Regions:
    """Return 8×8 patches for images (1, C, H, W), tokens for sequences (1, n, d), single features otherwise.

    >>> default_regions(torch.zeros(1, 7, 32)).count
    7
    """
    by_axes = {4: grid(8), 3: tokens()}
    return by_axes.get(x.dim(), features())(x)


def resolve(spec: RegionSpec | None, x: Tensor) -> Regions:
    """Return the regions of x by a spec; None is the default of its shape."""
    if spec is None:
        return default_regions(x)
    if isinstance(spec, Regions):
        if spec.labels.shape != x.shape[1:]:
            raise InputError(
                f"regions for an input of shape (1, *{tuple(spec.labels.shape)}), got {tuple(x.shape)}"
            )
        return spec
    if isinstance(spec, Integral):
        return grid(int(spec))(x)
    if isinstance(spec, Tensor | np.ndarray):
        return labels(spec)(x)
    regions = spec(x) if callable(spec) else None
    if not isinstance(regions, Regions):
        raise InputError(
            f"regions are grid(8), features(), labels(mask), tokens(), a side in pixels or an integer mask, "
            f"not {type(spec).__name__}"
        )
    return regions


def _rectangle_boxes(region_labels: Tensor) -> Tensor | None:
    """Return the boxes of regions if each is a rectangle over all channels of an image."""
    if region_labels.dim() != 3 or not bool((region_labels == region_labels[:1]).all()):
        return None
    plane, count = region_labels[0], int(region_labels.max()) + 1
    sizes = torch.bincount(plane.flatten() + 1, minlength=count + 1)[1:]
    if count == 0 or bool((sizes == 0).any()):
        return None
    boxes = bounding_boxes(plane, count)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return boxes.cpu() if torch.equal(areas, sizes) else None


def bounding_boxes(label_map: Tensor, count: int) -> Tensor:
    """Return (top, left, bottom, right) around each label in labels (…, height, width)."""
    inside = label_map >= 0
    *_, rows, columns = inside.nonzero(as_tuple=True)
    owner = label_map[inside]
    empty = torch.zeros(count, dtype=torch.long, device=label_map.device)

    def edge(values: Tensor, how: str) -> Tensor:
        return empty.scatter_reduce(0, owner, values, how, include_self=False)

    return torch.stack(
        [edge(rows, "amin"), edge(columns, "amin"), edge(rows + 1, "amax"), edge(columns + 1, "amax")], dim=1
    )
