"""Known matches between photographs: warps that move everything by more than a region, planted objects, boxes of a class."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp import evaluation
from bilrp.encoder import Encoder, read_item
from bilrp.errors import InputError
from bilrp.inputs import Image
from bilrp.regions import Regions, grid
from bilrp_studies.arena.settings import ArenaSettings
from bilrp_studies.arena.truth import Case
from bilrp_studies.common.stereo_images import load_stereo_pair

WARPS = ("shift", "mirror", "zoom", "rotation", "crop")
TOLERANCE = 0.5  # of a region beyond its border: the centre is within one region of the exact position
OBJECT_REGIONS = 3  # side of a planted object
PARTNERS = 12  # of one class for each photograph, among those drawn before it
MIN_BOX_REGIONS, MAX_BOX_FRACTION = 2, 0.6  # regions that a class must cover, and fraction it may cover


@dataclass(frozen=True, eq=False)
class Photograph:
    """A photograph as the encoder's input, with the boxes of each class of objects in it, in pixels of the input."""

    path: Path
    x: Tensor
    boxes: dict[str, list[tuple[float, float, float, float]]]  # (top, left, bottom, right)


def warp_cases(encoder: Encoder, settings: ArenaSettings) -> Iterator[Case]:
    """Yield each photograph with itself shifted, mirrored, shrunk, rotated and cropped.

    Only regions that move by more than a region count: relevance on the same place is never right.
    """
    for number, path in enumerate(shuffle_photographs(settings)[: settings.photographs]):
        photograph = read_photograph(encoder, path)
        x, side = photograph.x, region_side(settings, photograph.x)
        regions = grid(side)(x)
        for kind in [WARPS[(number + turn) % len(WARPS)] for turn in range(settings.warps)]:
            matrix = warp_matrix(kind, (x.shape[2], x.shape[3]), side)
            pixel_map = evaluation.warp_pixel_map(matrix, (x.shape[2], x.shape[3]))
            match, mask = evaluation.match_regions(pixel_map, regions, regions, tolerance=TOLERANCE)
            mask = mask * (1 - match.diag()[:, None])
            if bool((match * mask).any()):
                yield Case(f"warp: {kind}", x, evaluation.warp_image(x, matrix), match, mask, group=number)


def warp_matrix(kind: str, size: tuple[int, int], region: int) -> Tensor:
    """Return the matrix of a warp; see `evaluation.affine_matrix`.

    Args:
        kind: one of WARPS.
        size: (height, width) of the image.
        region: side of a region in pixels.
    """
    if kind == "shift":
        return evaluation.affine_matrix(shift=(1.5 * region, 2.5 * region), size=size)
    if kind == "mirror":
        return evaluation.affine_matrix(flip=True, size=size)
    if kind == "zoom":
        return evaluation.affine_matrix(zoom=0.5, size=size)
    if kind == "rotation":
        return evaluation.affine_matrix(rotate=30.0, zoom=0.8, size=size)
    height, width = (0.25 * (side - 1) for side in size)  # the top left two thirds, enlarged
    return evaluation.affine_matrix(zoom=1.5, shift=(height, width), size=size)


def object_cases(encoder: Encoder, settings: ArenaSettings) -> Iterator[Case]:
    """Yield pairs of blurred photographs with one object cut out of a third, in opposite corners."""
    paths = shuffle_photographs(settings)
    for number, path in enumerate(paths[: settings.photographs]):
        photograph = read_photograph(encoder, path)
        region = region_side(settings, photograph.x)
        side, blur = region * OBJECT_REGIONS, evaluation.blur_baseline(region)
        boxes = [box for each in photograph.boxes.values() for box in each]
        if not boxes:
            continue
        top, left, bottom, right = (round(v) for v in max(boxes, key=_area))
        cut = photograph.x[:, :, max(top, 0) : bottom, max(left, 0) : right]
        patch = F.interpolate(cut, (side, side), mode="bilinear", antialias=True)[0]
        a, b = (blur(read_photograph(encoder, paths[-1 - (2 * number + k) % len(paths)]).x) for k in (0, 1))
        last = [(n // region) * region - side for n in a.shape[2:]]
        corners = [(0, 0), (last[0], last[1])] if number % 2 else [(0, last[1]), (last[0], 0)]
        a, b, where = evaluation.paste_patch(a, b, patch=patch, at_a=corners[0], at_b=corners[1])
        regions = grid(region)(a)
        match = evaluation.match_pasted_regions(where, regions, regions)
        yield Case("planted object", a, b, match, torch.ones_like(match), group=number)


def stereo_cases(encoder: Encoder, settings: ArenaSettings) -> Iterator[Case]:
    """Yield the stereo pair of scikit-image, whose disparity says where each region of the left is in the right.

    Disparities are smaller than a region: the same place is right here, and the other methods have to find it.
    """
    left, right, disparity = load_stereo_pair()
    sides = [read_item(encoder, path) for path in (left, right)]
    view = sides[0].view
    assert isinstance(view, Image)
    x0, y0, x1, y1 = (round(v) for v in view.box)
    height, width = sides[0].x.shape[2:]
    known = torch.from_numpy(disparity).float()[None, None, y0:y1, x0:x1]
    resized = F.interpolate(known, (height, width), mode="nearest")[0, 0] * width / (x1 - x0)
    pixel_map = evaluation.disparity_pixel_map(resized)
    regions = grid(region_side(settings, sides[0].x))(sides[0].x)
    match, mask = evaluation.match_regions(pixel_map, regions, regions, tolerance=TOLERANCE)
    yield Case("stereo", sides[0].x, sides[1].x, match, mask, group=0)


def class_cases(encoder: Encoder, settings: ArenaSettings) -> Iterator[Case]:
    """Yield pairs of photographs with an object of one class; regions in its boxes should go with regions in its boxes."""
    number = 0
    for first, second, kind in shuffle_class_pairs(settings):
        sides = [read_photograph(encoder, path) for path in (first, second)]
        regions = grid(region_side(settings, sides[0].x))  # of both, as for every pair
        inside = [regions_in_boxes(regions(side.x), side.boxes.get(kind, [])) for side in sides]
        if all(MIN_BOX_REGIONS <= each.sum() <= MAX_BOX_FRACTION * len(each) for each in inside):
            match = torch.outer(*inside)
            yield Case(
                "class", sides[0].x, sides[1].x, match, torch.ones_like(match), group=number, cover=True
            )
            number += 1
        if number == settings.pairs:
            return


def region_side(settings: ArenaSettings, x: Tensor) -> int:
    """Return the side of a region in pixels: that of the settings, or the largest power of two of which seven fit into x.

    >>> region_side(ArenaSettings(data=Path()), torch.zeros(1, 3, 224, 224))
    32
    """
    return settings.regions or 1 << max(0, (min(x.shape[2:]) // 7).bit_length() - 1)


def regions_in_boxes(regions: Regions, boxes: list[tuple[float, float, float, float]]) -> Tensor:
    """Return 1 for each region of which more than half is inside the boxes."""
    height, width = regions.labels.shape[-2:]
    inside = torch.zeros(height, width)
    for top, left, bottom, right in boxes:
        inside[max(0, round(top)) : max(0, round(bottom)), max(0, round(left)) : max(0, round(right))] = 1
    expanded = inside.expand(regions.labels.shape)[None, None]
    sums, sizes = (regions.pool(each)[0] for each in (expanded, torch.ones_like(expanded)))
    return (sums > sizes / 2).float()


def shuffle_photographs(settings: ArenaSettings) -> list[Path]:
    """Return all photographs in random order, of which a study uses the first, and the last as backgrounds."""
    every = list_photographs(settings.data)
    random.Random(settings.seed).shuffle(every)
    return every


def shuffle_class_pairs(settings: ArenaSettings) -> list[tuple[Path, Path, str]]:
    """Return pairs of photographs that have a class in common, so that the first n pairs need few photographs.

    Photographs are drawn in random order; each comes with up to PARTNERS of those drawn before it. A method decomposes a
    photograph once for all of its pairs.
    """
    drawn: list[Path] = []
    pairs: list[tuple[Path, Path, str]] = []
    rng = random.Random(settings.seed)
    for path in shuffle_photographs(settings):
        kinds = {name for name, _ in read_annotation(path)[1]}
        common = [
            (each, path, rng.choice(sorted(both)))
            for each in drawn
            if (both := kinds & {name for name, _ in read_annotation(each)[1]})
        ]
        pairs += rng.sample(common, min(PARTNERS, len(common)))
        drawn.append(path)
    return pairs


def list_photographs(data: Path) -> list[Path]:
    """Return the photographs that have an annotation."""
    folder = data / "pascal_voc"
    result = [
        path
        for path in sorted((folder / "images").glob("*.jpg"))
        if (folder / "annotations" / f"{path.stem}.xml").is_file()
    ]
    if len(result) < 3:
        raise InputError(
            f"{folder}: at least three photographs with annotations are needed (images, annotations)"
        )
    return result


@cache
def read_annotation(path: Path) -> tuple[tuple[float, float], list[tuple[str, tuple[float, ...]]]]:
    """Return ((width, height), [(class, (left, top, right, bottom))]) of a photograph's annotation file."""
    root = ElementTree.parse(path.parents[1] / "annotations" / f"{path.stem}.xml").getroot()

    def number(parent: ElementTree.Element, name: str) -> float:
        return float(parent.findtext(name) or "nan")

    objects = []
    for each in root.iter("object"):
        box = each.find("bndbox")
        if box is not None:
            corners = tuple(number(box, name) for name in ("xmin", "ymin", "xmax", "ymax"))
            objects.append((each.findtext("name") or "", corners))
    size = root.find("size")
    assert size is not None, path
    return (number(size, "width"), number(size, "height")), objects


def read_photograph(encoder: Encoder, path: Path) -> Photograph:
    """Read a photograph for an encoder, and map its boxes to the encoder's input."""
    item = read_item(encoder, path)
    assert isinstance(item.view, Image)
    (width, height), objects = read_annotation(path)
    left, top, right, bottom = item.view.box  # of the input, in pixels of the view
    scale = item.view.size[0] / width, item.view.size[1] / height
    across, down = item.x.shape[3] / (right - left), item.x.shape[2] / (bottom - top)
    boxes: dict[str, list[tuple[float, float, float, float]]] = {}
    for kind, (x0, y0, x1, y1) in objects:
        box = (
            (y0 * scale[1] - top) * down,
            (x0 * scale[0] - left) * across,
            (y1 * scale[1] - top) * down,
            (x1 * scale[0] - left) * across,
        )
        boxes.setdefault(kind, []).append(box)
    return Photograph(path, item.x, boxes)


def _area(box: tuple[float, float, float, float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
