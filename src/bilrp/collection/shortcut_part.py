"""The part of many inputs that should not count: where it is, inputs without it, and inputs that it is added to.

A part of images is in one place, or looked for everywhere. Images are edited in the input tensor of the model, texts in
their characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol, Self, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bilrp.encoder import Encoder, choose_regions, read_item
from bilrp.errors import InputError
from bilrp.findings.formatting import format_percent
from bilrp.inputs import Item, Text

# Pixels that differ by less (of the range of values) are equal; JPEG artefacts are smaller.
MAX_DIFFERENCE = 0.06
MIN_SAME_CARRIERS = 0.8  # of the carriers: a pixel that at least these have in common belongs to the part
MIN_SAME_PIXELS = 0.5  # of the part: an input with at least these of its pixels has the part
MIN_COVERED = 0.3  # of the area that was asked for: with fewer common pixels, the whole area is the part
MAX_EXTENDED = (
    0.5  # of the picture: common pixels beyond the area that reach further are a background, not the part
)
MAX_PART = 2 / 3  # of the picture: filling in 89 % of it restored 4 % of the neighbours
MARGIN_PIXELS = 2  # around the common pixels: resizing blurs the edge of the part
MIN_REGION_OVERLAP = 0.2  # of a region inside the part: the region belongs to the part
MIN_MOVING_CARRIERS = 3  # inputs that show a part wherever it is: fewer say nothing about its shape
# Smallest side of a part that is searched for at any position: smaller ones match by chance.
MIN_REFERENCE_PIXELS = 8
MAX_DISTANCE_ENTRIES = 4_000_000  # of a table of distances at once

PartValues: TypeAlias = dict[str, str | float]
"""What a part stores in JSON besides its tensors."""


class ShortcutPart(Protocol):
    """A part that many inputs have in common; `in_one_place` says whether its regions are the same in all of them."""

    kind: ClassVar[str]
    in_one_place: ClassVar[bool]

    @property
    def filling(self) -> str:
        """What takes its place, in words; empty where it is left out."""
        ...

    def is_in(self, item: Item) -> bool:
        """Return whether an input has the part."""
        ...

    def remove(self, item: Item, encoder: Encoder) -> Item:
        """Return the input with the part filled in, or left out."""
        ...

    def add(self, item: Item, donor: Item, encoder: Encoder) -> Item:
        """Return the input with the part of a donor.

        Args:
            item, donor: The input, and one that has the part.
            encoder: Reads the new input, if it is a text.
        """
        ...

    def list_fillings(self) -> list[Self]:
        """Return the part with each way to fill it in; which of them is best differs between encoders."""
        ...

    def regions(self, item: Item, encoder: Encoder) -> list[int]:
        """Return the numbers of the encoder's regions that are inside the part."""
        ...

    def describe(self) -> str:
        """Return the part in words."""
        ...

    def serialize(self) -> tuple[dict[str, Tensor], PartValues]:
        """Return the part as tensors and values for JSON."""
        ...


@dataclass(frozen=True, eq=False)
class ImagePart:
    """Pixels at the same position in many images.

    Args:
        mask: the pixels of the part.
        template: the median of the carriers.
        tolerance: largest difference of a pixel that is the same, in units of the input tensor.
        blank: fill the part in with zeros of the input tensor, else with its mirrored surroundings.
    """

    kind: ClassVar[str] = "image"
    in_one_place: ClassVar[bool] = True
    mask: Bool[Tensor, "height width"]
    template: Float[Tensor, "channels height width"]
    tolerance: float
    blank: bool = False

    @property
    def filling(self) -> str:
        return describe_filling(self.blank)

    @cached_property
    def sources(self) -> Int[Tensor, " masked"]:
        """Flat index of the pixel that each pixel of the part is filled with: its mirror image at the part's edge."""
        return mirror_sources(self.mask)

    def is_in(self, item: Item) -> bool:
        x = self._pixels(item)
        same = (x - self.template).abs().mean(0) <= self.tolerance
        return float(same[self.mask].float().mean()) >= MIN_SAME_PIXELS

    def remove(self, item: Item, encoder: Encoder) -> Item:
        x = self._pixels(item).flatten(1).clone()
        x[:, self.mask.flatten()] = 0 if self.blank else x[:, self.sources]
        return replace(item, x=x.reshape(item.x.shape))

    def list_fillings(self) -> list[ImagePart]:
        return [self, replace(self, blank=True)]

    def add(self, item: Item, donor: Item, encoder: Encoder) -> Item:
        x = torch.where(self.mask, self._pixels(donor), self._pixels(item))
        return replace(item, x=x[None])

    def regions(self, item: Item, encoder: Encoder) -> list[int]:
        labels = choose_regions(encoder, item).labels
        inside = self.mask.expand(labels.shape)
        count = int(labels.max()) + 1
        sizes = torch.bincount(labels[labels >= 0], minlength=count)
        overlap = torch.bincount(labels[inside & (labels >= 0)], minlength=count) / sizes
        return torch.nonzero(overlap >= MIN_REGION_OVERLAP).flatten().tolist()

    def describe(self) -> str:
        return f"a part of {format_percent(float(self.mask.float().mean()))} of the picture"

    def serialize(self) -> tuple[dict[str, Tensor], PartValues]:
        return _serialize_pixels(self)

    def _pixels(self, item: Item) -> Float[Tensor, "channels height width"]:
        if item.x.shape[1:] != self.template.shape:
            raise InputError(
                f"the part belongs to inputs of shape {(1, *self.template.shape)}, this one has {tuple(item.x.shape)}: "
                "give the encoder one size"
            )
        return item.x[0]


@dataclass(frozen=True, eq=False)
class MovingPart:
    """Pixels that many images show somewhere, such as a logo; the best place in an image is where they fit best.

    Args:
        mask, template, tolerance, blank: as for `ImagePart`.
    """

    kind: ClassVar[str] = "moving"
    in_one_place: ClassVar[bool] = False
    mask: Bool[Tensor, "rows columns"]
    template: Float[Tensor, "channels rows columns"]
    tolerance: float
    blank: bool = False

    @property
    def filling(self) -> str:
        return describe_filling(self.blank)

    def locate(self, item: Item) -> tuple[int, int] | None:
        """Return (top, left) of the part, where Σ_p m_p ‖x_p − t_p‖² is smallest; None if too few pixels are the same.

        The margin around the part may be outside the image.
        """
        if item.x.dim() != 4 or item.x.shape[1] != len(self.template):
            raise InputError(f"the part belongs to images of {len(self.template)} channels")
        x = torch.nn.functional.pad(item.x.float(), (MARGIN_PIXELS,) * 4, mode="replicate")[0]
        rows, columns = self.mask.shape
        if x.shape[1] < rows or x.shape[2] < columns:
            return None
        # Σ m x² − 2 Σ m t x as circular correlations, which are exact where the part is all inside
        inputs = torch.fft.rfft2(torch.cat([(x**2).sum(0, keepdim=True), x]))
        kernels = torch.cat([self.mask[None].to(x), -2 * self.template.to(x) * self.mask])
        products = inputs * torch.fft.rfft2(kernels, s=x.shape[1:]).conj()
        cost = torch.fft.irfft2(products.sum(0), s=x.shape[1:])
        cost = cost[: x.shape[1] - rows + 1, : x.shape[2] - columns + 1]
        top, left = divmod(int(cost.argmin()), cost.shape[1])
        patch = x[:, top : top + rows, left : left + columns]
        same = (patch - self.template.to(x)).abs().mean(0) <= self.tolerance
        enough = float(same[self.mask].float().mean()) >= MIN_SAME_PIXELS
        return (top - MARGIN_PIXELS, left - MARGIN_PIXELS) if enough else None

    def place(self, item: Item) -> ImagePart | None:
        """Return the part at its place in an input; None if the input does not have it."""
        at = self.locate(item)
        if at is None:
            return None
        margins = (MARGIN_PIXELS,) * 4
        mask = torch.nn.functional.pad(torch.zeros(item.x.shape[2:], dtype=torch.bool), margins)
        template = torch.nn.functional.pad(item.x[0], margins)
        rows, columns = (
            slice(start + MARGIN_PIXELS, start + MARGIN_PIXELS + size)
            for start, size in zip(at, self.mask.shape, strict=True)
        )
        mask[rows, columns] = self.mask
        template[:, rows, columns] = self.template.to(template)
        inner = slice(MARGIN_PIXELS, -MARGIN_PIXELS)
        return ImagePart(mask[inner, inner], template[:, inner, inner], self.tolerance, self.blank)

    def is_in(self, item: Item) -> bool:
        return self.locate(item) is not None

    def remove(self, item: Item, encoder: Encoder) -> Item:
        part = self.place(item)
        return item if part is None else part.remove(item, encoder)

    def list_fillings(self) -> list[MovingPart]:
        return [self, replace(self, blank=True)]

    def add(self, item: Item, donor: Item, encoder: Encoder) -> Item:
        part = self.place(donor)
        if part is None:
            raise InputError("this input does not show the part")
        return part.add(item, donor, encoder)

    def regions(self, item: Item, encoder: Encoder) -> list[int]:
        part = self.place(item)
        return [] if part is None else part.regions(item, encoder)

    def describe(self) -> str:
        rows, columns = self.mask.shape
        return f"a part of {columns}×{rows} pixels, in different places"

    def serialize(self) -> tuple[dict[str, Tensor], PartValues]:
        return _serialize_pixels(self)


@dataclass(frozen=True)
class TextPart:
    """Words that many texts contain.

    Args:
        words: the words, compared without regard to case and white space.
        at_start: most carriers begin with them; else they are added at the end.
    """

    kind: ClassVar[str] = "text"
    in_one_place: ClassVar[bool] = False
    words: str
    at_start: bool = False

    @property
    def filling(self) -> str:
        return ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        words = r"\s+".join(map(re.escape, self.words.split()))
        return re.compile(rf"(?<!\w){words}(?!\w)", re.IGNORECASE)

    def is_in(self, item: Item) -> bool:
        return self.pattern.search(read_text(item)) is not None

    def remove(self, item: Item, encoder: Encoder) -> Item:
        # punctuation behind the words would be left as a part of its own
        rest = " ".join(
            re.sub(rf"{self.pattern.pattern}[.,;:!?]*", " ", read_text(item), flags=re.IGNORECASE).split()
        )
        if not rest.strip(" .,;:!?-"):
            raise InputError(f"nothing is left of a text without {self.words!r}: {read_text(item)[:60]!r}")
        return read_item(encoder, rest, quiet=True)

    def list_fillings(self) -> list[TextPart]:
        return [self]

    def add(self, item: Item, donor: Item, encoder: Encoder) -> Item:
        pieces = [self.words, read_text(item)] if self.at_start else [read_text(item), self.words]
        return read_item(encoder, " ".join(pieces), quiet=True)

    def regions(self, item: Item, encoder: Encoder) -> list[int]:
        assert isinstance(item.view, Text)
        matches = [match.span() for match in self.pattern.finditer(item.view.text)]
        return [
            number
            for number, span in enumerate(item.view.spans)
            if span is not None and any(span[0] < stop and start < span[1] for start, stop in matches)
        ]

    def describe(self) -> str:
        return f"the words {self.words!r}"

    def serialize(self) -> tuple[dict[str, Tensor], PartValues]:
        return {}, {"words": self.words, "at_start": self.at_start}


def deserialize_part(kind: str, tensors: dict[str, Tensor], values: PartValues) -> ShortcutPart:
    """Rebuild a part from what `serialize` returned.

    Args:
        kind, tensors, values: `kind` of its class, its tensors, and its other values.
    """
    if kind == TextPart.kind:
        return TextPart(str(values["words"]), bool(values["at_start"]))
    mask, template = tensors["mask"].bool(), tensors["template"]
    if template.dim() != 3 or mask.shape != template.shape[1:] or not bool(mask.any()):
        raise InputError("its part is empty or has another size than its template")
    kinds: dict[str, type[ImagePart | MovingPart]] = {each.kind: each for each in (ImagePart, MovingPart)}
    return kinds[kind](mask, template, float(values["tolerance"]), bool(values.get("blank", False)))


def _serialize_pixels(part: ImagePart | MovingPart) -> tuple[dict[str, Tensor], PartValues]:
    tensors = {"mask": part.mask.to(torch.uint8), "template": part.template}
    return tensors, {"tolerance": part.tolerance, "blank": part.blank}


def locate_moving_part(
    reference: Item, area: Bool[np.ndarray, "height width"], items: Sequence[Item]
) -> tuple[MovingPart, list[int]] | None:
    """Find what an area of one input shows in others too, wherever it is; return it and the numbers of these inputs.

    The area need not be exact: where it fits in at least three inputs, their common pixels around it are the part.

    Args:
        reference: An input that shows the part.
        area: Where, on the pixels of the reference.
        items: The inputs, the reference among them.
    """
    rows, columns = np.flatnonzero(area.any(1)), np.flatnonzero(area.any(0))
    if min(len(rows), len(columns)) < MIN_REFERENCE_PIXELS:
        return None
    top, left, high, wide = int(rows[0]), int(columns[0]), len(rows), len(columns)
    x = reference.x[0].float()
    tolerance = MAX_DIFFERENCE * float(x.max() - x.min())
    patch = x[:, top : top + high, left : left + wide]
    rough = MovingPart(torch.ones(high, wide, dtype=torch.bool), patch, tolerance)
    places = {n: at for n, item in enumerate(items) if (at := rough.locate(item)) is not None}
    if len(places) < MIN_MOVING_CARRIERS:
        return None
    # a window around each place, NaN outside the image: the part may be larger than the area
    windows = []
    margins = (wide + MARGIN_PIXELS,) * 2 + (high + MARGIN_PIXELS,) * 2
    for number, at in places.items():
        padded = torch.nn.functional.pad(items[number].x[0].float(), margins, value=torch.nan)
        y, z = (start + MARGIN_PIXELS for start in at)
        windows.append(padded[:, y : y + 3 * high, z : z + 3 * wide])
    stack = torch.stack(windows)
    template = stack.nanmedian(0).values
    differs = (stack - template).abs().mean(1)
    inside = ~differs.isnan()
    same = ((differs <= tolerance) & inside).float().sum(0) / inside.float().sum(0).clamp(min=1)
    enough = inside.sum(0) >= MIN_MOVING_CARRIERS
    common = ~grow(~grow((same >= MIN_SAME_CARRIERS) & enough, MARGIN_PIXELS), MARGIN_PIXELS)
    mask = grow(common, MARGIN_PIXELS) & ~template.isnan().any(0)
    ys, xs = mask.nonzero().unbind(1)
    if not len(ys):
        return None
    box = slice(int(ys.min()), int(ys.max()) + 1), slice(int(xs.min()), int(xs.max()) + 1)
    part = MovingPart(mask[box], template[:, box[0], box[1]].contiguous(), tolerance)
    return part, [number for number, item in enumerate(items) if part.is_in(item)]


def locate_image_part(
    carriers: Sequence[Item], area: Bool[np.ndarray, "rows columns"], *, extend: bool = False
) -> ImagePart:
    """Find the pixels inside an area that carriers have in common.

    Args:
        carriers: inputs that have the part.
        area: where to look, on any grid over the input.
        extend: Add the common pixels that continue it outside: of a border, the area may be one side.
    """
    if any(item.x.dim() != 4 or item.model_input is not None for item in carriers):
        raise InputError("a part of images needs inputs (1, channels, height, width)")
    if len({item.x.shape for item in carriers}) > 1:
        raise InputError("the images have different sizes: use an encoder with one size to find their part")
    pixels = torch.cat([item.x for item in carriers]).float()
    template = pixels.median(0).values
    tolerance = MAX_DIFFERENCE * float(pixels.max() - pixels.min())
    wanted = torch.from_numpy(np.ascontiguousarray(area)).float()[None, None]
    inside = torch.nn.functional.interpolate(wanted, size=template.shape[1:], mode="nearest")[0, 0] > 0
    cell = max(1, -(-max(template.shape[1:]) // min(area.shape)))
    near = grow(inside, cell)  # a cell that the part covers by less than half is not in the area
    same = ((pixels - template).abs().mean(1) <= tolerance).float().mean(0) >= MIN_SAME_CARRIERS
    closed = ~grow(~grow(same, MARGIN_PIXELS), MARGIN_PIXELS)  # closes gaps at the edges of letters
    common = closed & near
    if extend and float((reached := spread(common, closed)).float().mean()) <= MAX_EXTENDED:
        common = reached
    enough = int((common & inside).sum()) >= MIN_COVERED * int(inside.sum()) and len(carriers) > 2
    mask = grow(common, MARGIN_PIXELS) if enough else inside
    size = float(mask.float().mean())
    if size > MAX_PART:
        raise InputError(
            f"the part is {format_percent(size)} of the picture, and too little would be left: give a smaller one"
        )
    return ImagePart(mask, template, tolerance)


def locate_text_part(words: str, texts: Sequence[str]) -> TextPart:
    """Return the part of these words, added at the start or the end, as in most of the texts."""
    if not words.split():
        raise InputError(
            "no words are given: name those that should not count, e.g. words='All rights reserved'"
        )
    pattern = TextPart(words).pattern
    starts = Counter(
        match.start() < len(text) - match.end() for text in texts for match in pattern.finditer(text)
    )
    return TextPart(words, starts[True] > starts[False])


def describe_filling(blank: bool) -> str:
    """Return what fills a part of images in, in words."""
    return "a blank (zero input)" if blank else "mirrored surroundings"


def read_text(item: Item) -> str:
    """Return the text of an input."""
    if not isinstance(item.view, Text):
        raise InputError("words are a part of texts, and this input is none: give part= and of=")
    return item.view.text


def grow(mask: Bool[Tensor, "h w"], pixels: int) -> Bool[Tensor, "h w"]:
    """Return the mask with every pixel within this distance along each axis; outside the image is nothing."""
    pooled = torch.nn.functional.max_pool2d(mask[None, None].float(), 2 * pixels + 1, 1, pixels)
    return pooled[0, 0] > 0


def spread(mask: Bool[Tensor, "h w"], within: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """Return the connected pixels of another mask that a mask reaches."""
    while True:
        larger = grow(mask, 1) & within
        if torch.equal(larger, mask):
            return mask
        mask = larger


def mirror_sources(mask: Bool[Tensor, "h w"]) -> Int[Tensor, " masked"]:
    """Return, for each pixel p of a mask, the flat index of 2q − p, with q the nearest pixel outside; else of q.

    Reflected content has the texture of its surroundings; a constant or interpolated one is a shortcut of its own.

    >>> mirror_sources(torch.tensor([[False, False, False, True, True]])).tolist()
    [1, 0]
    """
    height, width = mask.shape
    inside, outside = mask.nonzero(), (grow(mask, 1) & ~mask).nonzero()
    step = max(1, MAX_DISTANCE_ENTRIES // max(1, len(outside)))
    nearest = torch.cat(
        [outside[torch.cdist(rows.float(), outside.float()).argmin(1)] for rows in inside.split(step)]
    )
    mirrored = 2 * nearest - inside
    limits = torch.tensor([height - 1, width - 1])
    fits = ((mirrored >= 0) & (mirrored <= limits)).all(1)
    clamped = torch.minimum(mirrored.clamp(min=0), limits)
    fits &= ~mask[clamped[:, 0], clamped[:, 1]]
    chosen = torch.where(fits[:, None], clamped, nearest)
    return chosen[:, 0] * width + chosen[:, 1]
