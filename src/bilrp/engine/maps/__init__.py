"""Frozen steps: linear maps that can be pushed forward and pulled back, for many vectors at once.

One class for each kind of map; what the rest of the engine asks of a map, the map answers. A new kind is one class in
one file, here or anywhere: `push` and `pull` are enough, `geometry` lets it be pushed on crops and on active rows.
"""

from bilrp.engine.maps.base import Map, Shapes
from bilrp.engine.maps.elementwise import Gated, Scale, Sum
from bilrp.engine.maps.frozen_matmul import FrozenMatmul
from bilrp.engine.maps.gamma_factor import LazyGammaFactor
from bilrp.engine.maps.linear import Jacobian, Linear, Rearrange
from bilrp.engine.maps.max_pool import MaxPool
from bilrp.engine.maps.pooling import Mean, Narrow, Pooling
from bilrp.engine.maps.spatial import CenterAndScale, Pad, PermuteChannels
from bilrp.engine.maps.weighted_map import Term, Weighted
from bilrp.engine.windows import Geometry

__all__ = [
    "CenterAndScale",
    "FrozenMatmul",
    "Gated",
    "Geometry",
    "Jacobian",
    "LazyGammaFactor",
    "Linear",
    "Map",
    "MaxPool",
    "Mean",
    "Narrow",
    "Pad",
    "PermuteChannels",
    "Pooling",
    "Rearrange",
    "Scale",
    "Shapes",
    "Sum",
    "Term",
    "Weighted",
]
