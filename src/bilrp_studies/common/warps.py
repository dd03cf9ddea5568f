"""Known warps of a picture: where every region has gone is known, and so are the true matches."""

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
    """A known warp of the picture, in turn: its kind, the true matches, the rows that have one, and the picture."""
    kind, given = WARPS[number % len(WARPS)]
    height, width = x.shape[2:]
    options = dict(given)
    if "shift" in options:
        options["shift"] = (round(options["shift"][0] * height), round(options["shift"][1] * width))
    matrix = evaluation.affine_matrix(**options, size=(height, width))
    where = evaluation.warp_pixel_map(matrix, (height, width))
    match, among = evaluation.match_regions(where, regions, regions)
    return kind, match, among, evaluation.warp_image(x, matrix)
