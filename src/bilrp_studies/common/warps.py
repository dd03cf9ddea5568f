"""Known affine warps of an image, for which the true matches between regions are known."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bilrp import evaluation
from bilrp.regions import Regions

WARPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("shift", {"shift": (0.125, 0.125)}),
    ("flip", {"flip": True}),
    ("rotation", {"rotate": 20.0}),
    ("crop", {"zoom": 1.25}),
)


def apply_warp(x: Tensor, regions: Regions, number: int) -> tuple[str, Tensor, Tensor, Tensor]:
    """Warp an image; return the kind of warp, the match matrix, the mask of rows with a match, and the warped image.

    Args:
        x: The image, (1, C, H, W).
        regions: Regions between which matches are computed.
        number: Selects the warp, modulo the number of warps.
    """
    kind, given = WARPS[number % len(WARPS)]
    height, width = x.shape[2:]
    options = dict(given)
    if "shift" in options:
        options["shift"] = (round(options["shift"][0] * height), round(options["shift"][1] * width))
    matrix = evaluation.affine_matrix(**options, size=(height, width))
    where = evaluation.warp_pixel_map(matrix, (height, width))
    match, among = evaluation.match_regions(where, regions, regions)
    return kind, match, among, evaluation.warp_image(x, matrix)
