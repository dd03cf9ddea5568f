"""Many inputs under one encoder: index once, then search, explain, contrast and audit.

A decomposition depends on one input only, so most queries need no pair: ⟨P_I, φ(x')⟩ is what region I contributes to the
similarity with the whole of x'. Parts are computed on first use and stored. May import the public types, io, encoders,
engine, findings, evaluation and rules. Needs `bilrp[collection]`.
"""

from bilrp.collection.clusters import Clusters
from bilrp.collection.core import Collection, Neighbour, open
from bilrp.collection.graph import Graph
from bilrp.collection.indexing import build
from bilrp.collection.repair import Repair

__all__ = ["Clusters", "Collection", "Graph", "Neighbour", "Repair", "build", "open"]
