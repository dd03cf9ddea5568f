"""Which parts of these two inputs make the model call them similar? Exact BiLRP for any PyTorch encoder."""

from bilrp import baselines, errors, regions, rulebooks, rules, similarity
from bilrp.decomposition import Decomposition, decompose
from bilrp.encoder import Encoder
from bilrp.explanation import Explanation, explain, pair

__version__ = "0.1.0"
__all__ = [
    "Decomposition",
    "Encoder",
    "Explanation",
    "baselines",
    "decompose",
    "errors",
    "explain",
    "pair",
    "regions",
    "rulebooks",
    "rules",
    "similarity",
]
