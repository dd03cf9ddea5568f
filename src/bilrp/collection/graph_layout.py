"""Places of a graph's nodes on a page: each connected part is laid out by networkx, and the parts are put side by side."""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from bilrp.errors import import_optional

if TYPE_CHECKING:
    import networkx

# Larger connected components are laid out by their spectrum: a second, where forces would take minutes.
MAX_SPRING_NODES = 400
NODE_SPACING = 10.0


def lay_out(network: networkx.Graph) -> dict[int, tuple[float, float]]:
    """Return the place of each node; connected parts do not overlap, the largest comes first."""
    module = import_optional("networkx", "collection", "graphs of collections")
    parts = sorted(module.connected_components(network), key=lambda part: (-len(part), min(part)))
    sides = [NODE_SPACING * (1.5 * math.sqrt(len(part)) + 1.0) for part in parts]
    width = max(max(sides, default=0.0), 1.6 * math.sqrt(sum(side**2 for side in sides)))
    places: dict[int, tuple[float, float]] = {}
    left, top, shelf = 0.0, 0.0, 0.0
    for part, side in zip(parts, sides, strict=True):
        if left + side > width:
            left, top, shelf = 0.0, top + shelf + NODE_SPACING, 0.0
        inner = _lay_out_part(module, network.subgraph(part))
        for node, (x, y) in inner.items():
            places[node] = (left + side * float(x), top + side * float(y))
        left, shelf = left + side + NODE_SPACING, max(shelf, side)
    return places


def _lay_out_part(module: ModuleType, part: networkx.Graph) -> dict[int, np.ndarray]:
    """Return places in the unit square."""
    if len(part) <= 2:
        return {node: np.array([0.2 + 0.6 * n, 0.5]) for n, node in enumerate(sorted(part))}
    if len(part) <= MAX_SPRING_NODES:
        places = module.spring_layout(part, seed=0, iterations=60, weight=None)
    else:
        places = module.spectral_layout(part, weight=None)
    rows = np.array([places[node] for node in part])
    low, high = rows.min(0), rows.max(0)
    rows = (rows - low) / np.where(high > low, high - low, 1)
    if len(part) > MAX_SPRING_NODES:  # a spectrum piles nodes up: by ranks they are apart
        rows = rows.argsort(0).argsort(0) / (len(part) - 1)
    return dict(zip(part, rows, strict=True))
