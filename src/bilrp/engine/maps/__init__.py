"""Linear maps: steps frozen by a rule, which push tangents and pull cotangents of many vectors at once.

A new kind of map is a subclass of `Map` with `push` and `pull`, in any module; `geometry` enables the windowed and the
sparse push. May import windows of the engine, errors and `trace`.
"""

from bilrp.engine.maps.base import Cost, Map, Shapes
from bilrp.engine.maps.constant_matmul import ConstantMatmul
from bilrp.engine.maps.elementwise import Gated, Scale, Sum
from bilrp.engine.maps.linear import Jacobian, Linear, Rearrange
from bilrp.engine.maps.max_pool import MaxPool
from bilrp.engine.maps.pooling import Mean
from bilrp.engine.maps.spatial import CenterAndScale, Pad, PermuteChannels
from bilrp.engine.maps.weighted_map import Term, Weighted
from bilrp.engine.windows import Geometry

__all__ = [
    "CenterAndScale",
    "ConstantMatmul",
    "Cost",
    "Gated",
    "Geometry",
    "Jacobian",
    "Linear",
    "Map",
    "MaxPool",
    "Mean",
    "Pad",
    "PermuteChannels",
    "Rearrange",
    "Scale",
    "Shapes",
    "Sum",
    "Term",
    "Weighted",
]
