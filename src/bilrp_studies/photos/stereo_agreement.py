"""Does an explanation of a stereo pair match what truly corresponds? Its share on true matches, beside chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.evaluation import evaluate

REGION = 8


@dataclass(frozen=True)
class Agreement:
    """How much positive relevance lands near the true match, and what less clever explanations would reach.

    `share` and `signed` are those of `evaluate.correspondence`. `chance`: the share if each region spread its relevance
    evenly. `same_place`: the share if each region gave it all to the region at its own place in the other image.
    """

    share: float
    signed: float
    chance: float
    same_place: float

    @property
    def ratio(self) -> float:
        """How many times chance."""
        return self.share / self.chance


def agreement(found: Explanation, where: Tensor) -> Agreement:
    """The explanation against a known map of pixels [H, W, 2], within one region of the true match."""
    match, among = evaluate.matches(where, found.a.regions, found.b.regions)
    ours = evaluate.share(found, match, among=among)
    owned = found.relevance.detach().double().clamp(min=0).sum(1)
    if not bool((owned * among[:, 0]).any()):
        raise InputError("no positive relevance where the true match is known")
    even = owned[:, None].expand_as(match)
    stays = torch.eye(*match.shape).to(owned) * owned[:, None]
    return Agreement(
        share=ours.positive,
        signed=ours.signed,
        chance=evaluate.share(even, match, among=among).positive,
        same_place=evaluate.share(stays, match, among=among).positive,
    )


def destinations(disparity: np.ndarray, *, size: int, region: int = REGION) -> Tensor:
    """[size, size, 2]: where the things in each region of the left image are in the right one, (row, column) or NaN.

    A point at x in the left image stands at x − d in the right one. The image is cropped to its middle square and
    scaled to `size`, as `images.read` does; a region's d is the median of what is known in it.
    """
    height, width = disparity.shape
    side = min(height, width)
    top, left, scale = (height - side) / 2, (width - side) / 2, size / side
    found = torch.full((size, size, 2), torch.nan)
    for row in range(0, size, region):
        for column in range(0, size, region):
            low, right = min(row + region, size), min(column + region, size)
            rows, columns = (
                slice(int(start + first / scale), int(start + last / scale))
                for start, first, last in ((top, row, low), (left, column, right))
            )
            values = disparity[rows, columns]
            values = values[np.isfinite(values) & (values > 0)]
            x = (column + right) / 2 - float(np.median(values)) * scale if values.size else -1.0
            if 0 <= x < size:  # half a pixel off: pixel k reaches from k to k + 1
                found[row:low, column:right] = torch.tensor([(row + low) / 2 - 0.5, x - 0.5])
    return found
