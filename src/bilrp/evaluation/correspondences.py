"""Known pixel correspondences (warps, stereo pairs, pasted patches), and how well an explanation matches them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.errors import InputError
from bilrp.evaluation.metrics import RelevanceShare, relevance_share
from bilrp.explanation import Explanation
from bilrp.regions import Regions


def affine_matrix(
    *,
    shift: tuple[float, float] = (0.0, 0.0),
    rotate: float = 0.0,
    zoom: float = 1.0,
    flip: bool = False,
    size: tuple[int, int],
) -> Tensor:
    """Return the 2×3 matrix that maps a pixel (row, column) of a to its pixel of b: flip, rotate, zoom, then shift.

    Args:
        shift: pixels (down, right).
        rotate: degrees counter-clockwise about the centre.
        zoom: scale factor about the centre.
        flip: mirror left to right.
        size: (height, width) of the image.

    >>> affine_matrix(shift=(0, 8), size=(32, 32)) @ torch.tensor([4.0, 4.0, 1.0])
    tensor([ 4., 12.])
    """
    angle = math.radians(rotate)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    linear = zoom * turn @ torch.diag(torch.tensor([1.0, -1.0 if flip else 1.0]))
    middle = (torch.tensor(size, dtype=torch.float32) - 1) / 2
    return torch.cat([linear, (middle + torch.tensor(shift) - linear @ middle)[:, None]], dim=1)


def warp_image(x: Tensor, matrix: Tensor) -> Tensor:
    """Warp an image (1, channels, H, W): b[matrix · p] = a[p], bilinear, with edges repeated.

    >>> warp_image(torch.tensor([[[[1.0, 2.0, 3.0]]]]), affine_matrix(flip=True, size=(1, 3)))
    tensor([[[[3., 2., 1.]]]])
    """
    height, width = x.shape[2:]
    square = torch.cat([matrix, matrix.new_tensor([[0.0, 0.0, 1.0]])])
    inverse = torch.linalg.inv(square.double())[:2].to(x)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    points = torch.stack([rows, columns, torch.ones_like(rows)], dim=-1).to(x) @ inverse.T
    scale = x.new_tensor([2 / max(height - 1, 1), 2 / max(width - 1, 1)])
    sampling = (points * scale - 1).flip(-1)[None]
    return F.grid_sample(x, sampling, mode="bilinear", padding_mode="border", align_corners=True)


def correspondence(explanation: Explanation, pixel_map: Tensor, *, tolerance: float = 1.0) -> RelevanceShare:
    """Return the share of relevance near the true matches, like the correct keypoints of Yang and Ramanan 2013.

    Args:
        explanation: explanation of two images with rectangular regions.
        pixel_map: [H, W, 2] from a to b, of a warp (`warp_pixel_map`) or a stereo pair (`disparity_pixel_map`).
        tolerance: accepted distance from the true match, in region sizes.

    >>> from bilrp import explain
    >>> from bilrp.regions import grid
    >>> x, still, flip = torch.rand(1, 3, 32, 32), affine_matrix(size=(32, 32)), affine_matrix(flip=True, size=(32, 32))
    >>> explanation = explain(torch.nn.AvgPool2d(8), x, x, regions=grid(8))  # compares patches at the same position
    >>> [correspondence(explanation, warp_pixel_map(m, (32, 32)), tolerance=0).positive for m in (still, flip)]
    [1.0, 0.0]
    """
    match, mask = match_regions(pixel_map, explanation.a.regions, explanation.b.regions, tolerance=tolerance)
    return relevance_share(explanation, match, mask=mask)


def warp_pixel_map(matrix: Tensor, size: tuple[int, int]) -> Tensor:
    """Return [H, W, 2]: the (row, column) in b of each pixel of a under a warp; NaN outside of the image.

    >>> warp_pixel_map(affine_matrix(shift=(0, 1), size=(1, 2)), (1, 2))
    tensor([[[0., 1.],
             [nan, nan]]])
    """
    height, width = size
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    points = torch.stack([rows, columns, torch.ones_like(rows)], dim=-1).to(matrix) @ matrix.T
    inside = (points >= -0.5) & (points <= points.new_tensor([height - 0.5, width - 0.5]))
    return torch.where(inside.all(-1, keepdim=True), points, torch.nan)


def disparity_pixel_map(disparity: Tensor) -> Tensor:
    """Return [H, W, 2] from a stereo disparity map: pixel (r, c) of the left image is (r, c − d) of the right one.

    Unknown disparities (infinite, NaN) and points outside of the image are NaN. If the images are resized, resize the
    disparity map and scale its values.

    >>> disparity_pixel_map(torch.tensor([[1.0, 1.0, torch.inf]]))
    tensor([[[nan, nan],
             [0., 0.],
             [nan, nan]]])
    """
    height, width = disparity.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    points = torch.stack([rows.to(disparity), columns - disparity], dim=-1)
    known = torch.isfinite(disparity) & (points[..., 1] >= -0.5)
    return torch.where(known[..., None], points, torch.nan)


def match_regions(
    pixel_map: Tensor, a: Regions, b: Regions, *, tolerance: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return (match, mask) for `relevance_share`: which regions truly match under a pixel map, and where that is known.

    Region I matches I' if the mean destination of I's pixels is inside I', or at most `tolerance` region sizes outside.
    `mask` has the rows where at least half of the pixels have a destination.

    Args:
        pixel_map: [H, W, 2] from a to b, NaN where unknown.
        a, b: rectangular regions of the two images.
        tolerance: in widths and heights of the region of b.

    >>> from bilrp.regions import grid
    >>> patches = grid(8)(torch.zeros(1, 3, 32, 32))
    >>> match, mask = match_regions(warp_pixel_map(affine_matrix(size=(32, 32)), (32, 32)), patches, patches, tolerance=0)
    >>> torch.equal(match, torch.eye(16))
    True
    """
    boxes_a, boxes_b = _region_boxes(pixel_map, a, b)
    points = torch.stack([_mean_point(pixel_map, box) for box in boxes_a.tolist()])
    boxes = boxes_b.to(points)
    extent = tolerance * (boxes[:, 2:] - boxes[:, :2])
    low, high = boxes[:, :2] - extent - 0.5, boxes[:, 2:] + extent - 0.5
    inside = ((points[:, None] >= low) & (points[:, None] < high)).all(-1)
    mask = ~points.isnan().any(-1, keepdim=True)
    return inside.float(), mask.float().expand(len(points), len(boxes))


def _region_boxes(pixel_map: Tensor, a: Regions, b: Regions) -> tuple[Tensor, Tensor]:
    """Return the boxes of both sides' regions, after checking that the map has the size of the first image."""
    if a.boxes is None or b.boxes is None:
        raise InputError("a pixel map needs rectangular regions of an image: use regions=grid(8)")
    if pixel_map.shape != (*a.labels.shape[1:], 2):
        raise InputError(
            f"the pixel map is {tuple(pixel_map.shape)}, the first image is {tuple(a.labels.shape[1:])}: "
            "scale the map and its values with the image"
        )
    return a.boxes, b.boxes


def _mean_point(pixel_map: Tensor, box: Sequence[int]) -> Tensor:
    top, left, bottom, right = box
    points = pixel_map[top:bottom, left:right].reshape(-1, 2)
    known = points[~points.isnan().any(-1)]
    return known.mean(0) if 2 * len(known) >= len(points) else points.new_full((2,), torch.nan)


def pointing_game(explanation: Explanation, pixel_map: Tensor) -> RelevanceShare:
    """Return the share of relevance between the two copies of a pasted patch (after Yang and Kim 2019).

    Args:
        explanation: explanation of the two images of `paste_patch`.
        pixel_map: the map that `paste_patch` returns.

    >>> from bilrp import explain
    >>> from bilrp.regions import grid
    >>> empty, patch = torch.zeros(1, 3, 32, 32), torch.ones(3, 8, 8)
    >>> a, b, where = paste_patch(empty, empty, patch=patch, at_a=(0, 8), at_b=(24, 16))
    >>> pointing_game(explain(torch.nn.AvgPool2d(32), a, b, regions=grid(8)), where).signed
    1.0
    """
    return relevance_share(
        explanation, match_pasted_regions(pixel_map, explanation.a.regions, explanation.b.regions)
    )


def paste_patch(
    a: Tensor, b: Tensor, *, patch: Tensor, at_a: tuple[int, int], at_b: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Paste one patch into both images; return the two images and the pixel map of the patch from a to b.

    Args:
        a: first image (1, channels, H, W).
        b: second image.
        patch: (channels, h, w).
        at_a, at_b: (row, column) of its top left corner in a and in b.

    >>> empty, patch = torch.zeros(1, 3, 32, 32), torch.ones(3, 8, 8)
    >>> a, b, where = paste_patch(empty, empty, patch=patch, at_a=(0, 8), at_b=(24, 16))
    >>> from bilrp.regions import grid
    >>> match_pasted_regions(where, grid(8)(empty), grid(8)(empty)).nonzero()
    tensor([[ 1, 14]])
    """
    height, width = patch.shape[1:]
    images = []
    for image, (top, left) in ((a, at_a), (b, at_b)):
        if top < 0 or left < 0 or top + height > image.shape[2] or left + width > image.shape[3]:
            raise InputError(
                f"a patch of {height}×{width} at {top, left} does not fit into the image of {tuple(image.shape[2:])}"
            )
        image = image.clone()
        image[0, :, top : top + height, left : left + width] = patch
        images.append(image)
    pixel_map = patch.new_full((*a.shape[2:], 2), torch.nan)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    points = torch.stack([rows + at_b[0], columns + at_b[1]], dim=-1).to(pixel_map)
    pixel_map[at_a[0] : at_a[0] + height, at_a[1] : at_a[1] + width] = points
    return images[0], images[1], pixel_map


def match_pasted_regions(pixel_map: Tensor, a: Regions, b: Regions) -> Tensor:
    """Return 0/1 [regions of a, regions of b]: 1 where more than half of both regions is the pasted patch.

    Args:
        pixel_map: the map that `paste_patch` returns.
        a, b: rectangular regions of the two images.
    """
    boxes = _region_boxes(pixel_map, a, b)
    known = ~pixel_map.isnan().any(-1)
    covered = torch.zeros(b.labels.shape[1:], dtype=torch.bool)
    rows, columns = pixel_map[known].round().long().unbind(-1)
    covered[rows, columns] = True
    pasted = [
        torch.tensor(
            [float(mask[top:low, left:right].float().mean() > 0.5) for top, left, low, right in each.tolist()]
        )
        for mask, each in zip((known, covered), boxes, strict=True)
    ]
    return torch.outer(pasted[0], pasted[1])
