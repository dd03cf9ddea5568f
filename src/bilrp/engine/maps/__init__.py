"""Frozen steps: linear maps that can be pushed forward and pulled back, for many vectors at once.

One class for each kind of map; what the rest of the engine asks of a map, the map answers. A new kind is one class in
one file, here or anywhere: `push` and `pull` are enough, `reach` lets it be pushed on crops and on active rows.
"""

from bilrp.engine.maps.base import Map, Shapes
from bilrp.engine.maps.elementwise import Gated, Scale, Sum
from bilrp.engine.maps.linear import Jacobian, Linear, Move
from bilrp.engine.maps.frozen_matmul import Mix
from bilrp.engine.maps.max_pool import Pool
from bilrp.engine.maps.pooling import Mean, Pick, Pooling
from bilrp.engine.maps.gamma_factor import Ratio
from bilrp.engine.maps.spatial import Centred, Pad, Turn
from bilrp.engine.maps.weighted_map import Term, Weighted
from bilrp.engine.windows import Reach

__all__ = [
    "Centred",
    "Gated",
    "Jacobian",
    "Linear",
    "Map",
    "Mean",
    "Mix",
    "Move",
    "Pad",
    "Pick",
    "Pool",
    "Pooling",
    "Ratio",
    "Reach",
    "Scale",
    "Shapes",
    "Sum",
    "Term",
    "Turn",
    "Weighted",
]
