"""Positions and neighbours of regions: patches and segments of an image, words of a text."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bilrp.regions import Regions

WINDOW_FRACTION = 1 / 14  # of the side of an image: finer structure is smoothed
_ALL, _FIRST, _NEXT = slice(None), slice(None, -1), slice(1, None)


@dataclass(frozen=True, eq=False)
class RegionLayout:
    """Sizes, positions and neighbours of regions.

    Args:
        size, center: Area and center (y, x) of each region.
        adjacency: Which regions touch, each itself included.
        window_width: Width of the Gaussian window that smooths relevance; 0 (texts) does not smooth.
        coverage: Fraction of the input that the regions cover.
    """

    size: np.ndarray
    center: np.ndarray
    adjacency: np.ndarray
    window_width: float = 0.0
    coverage: float = 1.0

    @cached_property
    def area_fraction(self) -> np.ndarray:
        """Each region's fraction of the whole input, also where the regions cover only a part of it."""
        return self.coverage * self.size / self.size.sum()

    @property
    def is_blurred(self) -> bool:
        """Whether the window is wider than a single region."""
        return self.window_width > math.sqrt(float(np.median(self.size))) / 2

    def halve_window(self) -> RegionLayout:
        """Return the same layout with half the window width."""
        return replace(self, window_width=self.window_width / 2)

    def compute_density(self, values: np.ndarray) -> np.ndarray:
        """Return `values` [regions, …] per unit of area, smoothed by a Gaussian over the regions."""
        per_size = values / self.size[:, None]
        # a region itself is a window of variance side²/12
        width = math.sqrt(max(0.0, self.window_width**2 - float(np.median(self.size)) / 12))
        if width == 0:
            return per_size
        y, x = self.center.T
        rows, columns = np.unique(y), np.unique(x)
        is_grid = np.array_equal(
            np.stack([np.repeat(rows, len(columns)), np.tile(columns, len(rows))]), (y, x)
        )
        if not is_grid:
            squared_distance = np.square(self.center[:, None] - self.center).sum(-1)
            return _gaussian_weights(squared_distance, self.size, width) @ per_size
        # on a grid the Gaussian is separable
        size = self.size.reshape(len(rows), len(columns))
        down = _gaussian_weights(np.square(rows[:, None] - rows), size[:, 0], width)
        across = _gaussian_weights(np.square(columns[:, None] - columns), size[0], width)
        cells = per_size.reshape(len(rows), len(columns), -1)
        return np.matmul(across, np.tensordot(down, cells, axes=1)).reshape(values.shape)

    def select_connected(self, inside: np.ndarray, start: int) -> np.ndarray:
        """Return the connected component of `inside` (a mask over regions) that contains `start`."""
        component = np.zeros_like(inside)
        frontier = np.array([start])[inside[[start]]]
        while len(frontier):
            component[frontier] = True
            frontier = (self.adjacency[frontier].any(0) & inside & ~component).nonzero()[0]
        return component

    def max_over_neighbors(self, values: np.ndarray) -> np.ndarray:
        """Return the maximum of each row of `values` [regions, …] and its neighbours; without a window, `values`."""
        if self.window_width == 0:
            return values
        return np.stack([values[near].max(0) for near in self.adjacency])


def compute_layout(regions: Regions) -> RegionLayout:
    """Return the layout of regions: areas of a plane touch at an edge or a corner, other regions form a sequence."""
    labels = to_label_image(regions)
    return _layout_sequence(regions) if labels is None else _layout_plane(labels, regions.count)


def to_label_image(regions: Regions) -> np.ndarray | None:
    """Return labels [height, width], or None if regions are not areas of a plane."""
    labels = regions.labels.detach().cpu().numpy()
    return labels[0] if labels.ndim == 3 and (labels == labels[:1]).all() else None


def _layout_plane(labels: np.ndarray, count: int) -> RegionLayout:
    inside = labels >= 0
    label, positions = labels[inside], np.nonzero(inside)
    size = np.bincount(label, minlength=count).astype(np.float64)
    center = np.stack([np.bincount(label, axis + 0.5, count) / size for axis in positions], axis=1)
    edges = ((_FIRST, _ALL), (_NEXT, _ALL)), ((_ALL, _FIRST), (_ALL, _NEXT))
    corners = ((_FIRST, _FIRST), (_NEXT, _NEXT)), ((_FIRST, _NEXT), (_NEXT, _FIRST))
    adjacency = np.eye(count, dtype=bool)
    for one, other in (*edges, *corners):
        here, there = labels[one], labels[other]
        differ = (here != there) & (here >= 0) & (there >= 0)
        adjacency[here[differ], there[differ]] = True
    width = WINDOW_FRACTION * float(np.sqrt(labels.size))
    return RegionLayout(size, center, adjacency | adjacency.T, width, coverage=float(inside.mean()))


def _layout_sequence(regions: Regions) -> RegionLayout:
    """Return the layout of a sequence: neighbours are consecutive regions and occurrences of the same word."""
    order = np.arange(regions.count)
    adjacency = np.abs(order[:, None] - order) <= 1
    if regions.names is not None:
        words = np.unique([name.strip().casefold() for name in regions.names], return_inverse=True)[1]
        adjacency |= words[:, None] == words
    center = np.stack([np.zeros(regions.count), order + 0.5], axis=1)
    return RegionLayout(np.ones(regions.count), center, adjacency)


def _gaussian_weights(squared_distance: np.ndarray, size: np.ndarray, width: float) -> np.ndarray:
    """Return weights whose rows sum to one: a Gaussian of the distance times the size."""
    window = np.exp(-squared_distance / (2 * width**2)) * size
    return window / window.sum(1, keepdims=True)
