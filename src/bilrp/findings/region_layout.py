"""Where regions lie and which of them are neighbours: patches and segments of a picture, words in a row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bilrp.regions import Regions

WINDOW_FRACTION = 1 / 14  # of the side of a picture: finer structure than this is not told apart
_ALL, _FIRST, _NEXT = slice(None), slice(None, -1), slice(1, None)


@dataclass(frozen=True, eq=False)
class RegionLayout:
    """Size and middle (y, x) of each region, which of them touch (each itself, too), and the width of the window.

    A width of 0 leaves relevance as it is: words are read one by one. Regions may be a part of the input only; then
    `coverage` is the share of it that they are.
    """

    size: np.ndarray
    center: np.ndarray
    adjacency: np.ndarray
    window_width: float = 0.0
    coverage: float = 1.0

    @cached_property
    def area_fraction(self) -> np.ndarray:
        """Each region's share of the whole input: what is much of it doesn't depend on which regions are asked for."""
        return self.coverage * self.size / self.size.sum()

    @property
    def is_blurred(self) -> bool:
        """Does the window reach beyond a single region?"""
        return self.window_width > math.sqrt(float(np.median(self.size))) / 2

    def halve_window(self) -> RegionLayout:
        """The same through a window of half the width."""
        return replace(self, window_width=self.window_width / 2)

    def compute_density(self, values: np.ndarray) -> np.ndarray:
        """Rows of `values` [regions, …] per unit of size, each a Gaussian mean over its surroundings."""
        per_size = values / self.size[:, None]
        # a region is a window itself, of variance side²/12
        width = math.sqrt(max(0.0, self.window_width**2 - float(np.median(self.size)) / 12))
        if width == 0:
            return per_size
        y, x = self.center.T
        rows, columns = np.unique(y), np.unique(x)
        full = np.array_equal(np.stack([np.repeat(rows, len(columns)), np.tile(columns, len(rows))]), (y, x))
        if not full:
            return (
                _gaussian_weights(np.square(self.center[:, None] - self.center).sum(-1), self.size, width)
                @ per_size
            )
        # on a grid the Gaussian is one along y times one along x
        size = self.size.reshape(len(rows), len(columns))
        down = _gaussian_weights(np.square(rows[:, None] - rows), size[:, 0], width)
        across = _gaussian_weights(np.square(columns[:, None] - columns), size[0], width)
        cells = per_size.reshape(len(rows), len(columns), -1)
        return np.matmul(across, np.tensordot(down, cells, axes=1)).reshape(values.shape)

    def select_connected(self, inside: np.ndarray, start: int) -> np.ndarray:
        """Those of `inside` (one truth for each region) that are reached from `start`, neighbour by neighbour."""
        found = np.zeros_like(inside)
        newest = np.array([start])[inside[[start]]]
        while len(newest):
            found[newest] = True
            newest = (self.adjacency[newest].any(0) & inside & ~found).nonzero()[0]
        return found

    def max_over_neighbors(self, values: np.ndarray) -> np.ndarray:
        """The largest of each row of `values` [regions, …] and, where a window blurs them, the rows of its neighbours."""
        if self.window_width == 0:
            return values
        return np.stack([values[near].max(0) for near in self.adjacency])


def compute_layout(regions: Regions) -> RegionLayout:
    """The layout of regions: areas of a plane touch by an edge or a corner, anything else stands in a row.

    >>> import torch
    >>> from bilrp.regions import grid
    >>> compute_layout(grid(8)(torch.zeros(1, 3, 16, 24))).adjacency.sum(0)
    array([4, 6, 4, 4, 6, 4])
    """
    labels = to_label_image(regions)
    return _layout_sequence(regions) if labels is None else _layout_plane(labels, regions.count)


def to_label_image(regions: Regions) -> np.ndarray | None:
    """Labels as [height, width], or None where regions are no areas of a plane."""
    labels = regions.labels.detach().cpu().numpy()
    return labels[0] if labels.ndim == 3 and (labels == labels[:1]).all() else None


def _layout_plane(labels: np.ndarray, count: int) -> RegionLayout:
    inside = labels >= 0
    owner, places = labels[inside], np.nonzero(inside)
    size = np.bincount(owner, minlength=count).astype(np.float64)
    middle = np.stack([np.bincount(owner, place + 0.5, count) / size for place in places], axis=1)
    below, beside = ((_FIRST, _ALL), (_NEXT, _ALL)), ((_ALL, _FIRST), (_ALL, _NEXT))
    corners = ((_FIRST, _FIRST), (_NEXT, _NEXT)), ((_FIRST, _NEXT), (_NEXT, _FIRST))
    touching = np.eye(count, dtype=bool)
    for one, other in (below, beside, *corners):
        here, there = labels[one], labels[other]
        apart = (here != there) & (here >= 0) & (there >= 0)
        touching[here[apart], there[apart]] = True
    width = WINDOW_FRACTION * float(np.sqrt(labels.size))
    return RegionLayout(size, middle, touching | touching.T, width, coverage=float(inside.mean()))


def _layout_sequence(regions: Regions) -> RegionLayout:
    """One after the other; where they are words, the same word elsewhere is a neighbour too."""
    order = np.arange(regions.count)
    touching = np.abs(order[:, None] - order) <= 1
    if regions.names is not None:
        words = np.unique([name.strip().casefold() for name in regions.names], return_inverse=True)[1]
        touching |= words[:, None] == words
    middle = np.stack([np.zeros(regions.count), order + 0.5], axis=1)
    return RegionLayout(np.ones(regions.count), middle, touching)


def _gaussian_weights(squared_distance: np.ndarray, size: np.ndarray, width: float) -> np.ndarray:
    """Rows that sum to one: a Gaussian of the distance times the size."""
    window = np.exp(-squared_distance / (2 * width**2)) * size
    return window / window.sum(1, keepdims=True)
