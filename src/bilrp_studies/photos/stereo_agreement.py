"""Agreement of an explanation with the true matches of a stereo pair, compared with chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bilrp import evaluation
from bilrp.errors import InputError
from bilrp.explanation import Explanation

REGION_PIXELS = 8


@dataclass(frozen=True)
class StereoAgreement:
    """Share of positive relevance near the true match, and the share that trivial explanations would reach.

    `share` and `signed_share` are those of `evaluation.relevance_share`. `chance`: the share if each region spread its
    relevance evenly. `same_place`: the share if each region gave it all to the same position in the other image.
    """

    share: float
    signed_share: float
    chance: float
    same_place: float

    @property
    def ratio(self) -> float:
        """The share as a multiple of chance."""
        return self.share / self.chance


def measure_agreement(explanation: Explanation, correspondence: Tensor) -> StereoAgreement:
    """Compare an explanation with a known pixel correspondence [H, W, 2], within one region of the true match."""
    match, among = evaluation.match_regions(correspondence, explanation.a.regions, explanation.b.regions)
    ours = evaluation.relevance_share(explanation, match, mask=among)
    owned = explanation.relevance.detach().double().clamp(min=0).sum(1)
    if not bool((owned * among[:, 0]).any()):
        raise InputError("no positive relevance where the true match is known")
    even = owned[:, None].expand_as(match)
    stays = torch.eye(*match.shape).to(owned) * owned[:, None]
    return StereoAgreement(
        share=ours.positive,
        signed_share=ours.signed,
        chance=evaluation.relevance_share(even, match, mask=among).positive,
        same_place=evaluation.relevance_share(stays, match, mask=among).positive,
    )


def map_destinations(disparity: np.ndarray, *, size: int, region_size: int = REGION_PIXELS) -> Tensor:
    """Return [size, size, 2]: position of each region of the left image in the right one, (row, column) or NaN.

    A point at x in the left image is at x − d in the right one. The image is cropped to its central square and resized to
    `size`, as `images.read` does; d of a region is the median of its known disparities.

    Args:
        disparity: Disparity d of each pixel of the left photograph; unknown where not finite or not positive.
        size: Side of the resized images in pixels.
        region_size: Side of a region in pixels.
    """
    height, width = disparity.shape
    side = min(height, width)
    top, left, scale = (height - side) / 2, (width - side) / 2, size / side
    result = torch.full((size, size, 2), torch.nan)
    for row in range(0, size, region_size):
        for column in range(0, size, region_size):
            low, right = min(row + region_size, size), min(column + region_size, size)
            rows, columns = (
                slice(int(start + first / scale), int(start + last / scale))
                for start, first, last in ((top, row, low), (left, column, right))
            )
            values = disparity[rows, columns]
            values = values[np.isfinite(values) & (values > 0)]
            x = (column + right) / 2 - float(np.median(values)) * scale if values.size else -1.0
            if 0 <= x < size:  # pixel k covers k to k + 1: its centre is half a pixel off
                result[row:low, column:right] = torch.tensor([(row + low) / 2 - 0.5, x - 0.5])
    return result
