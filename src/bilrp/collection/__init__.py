"""Collections: many items under one encoder, indexed once and asked anything; parts are made where they are asked for.

A decomposition belongs to one input, so most questions need no pair: ⟨P_I, φ(x')⟩ is what region I contributes to the
similarity with the whole of x'. May import what a user holds, disk,
encoders, engine, findings, judge and rules. Needs `bilrp[collection]`.
"""

from bilrp.collection.core import Collection, Neighbour, open
from bilrp.collection.indexing import build

__all__ = ["Collection", "Neighbour", "build", "open"]
