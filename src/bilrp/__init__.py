"""Which parts of these two inputs make the model call them similar? Exact BiLRP for any PyTorch encoder."""

from bilrp import (
    baselines,
    encoders,
    errors,
    evaluate,
    reference,
    regions,
    rulebooks,
    rules,
    similarity,
    tune,
)
from bilrp.decomposition import Decomposition, decompose
from bilrp.encoder import Encoder
from bilrp.explanation import Explanation, explain, pair
from bilrp.groups import contrast, explain_many, explain_sets
from bilrp.ops import ops

__version__ = "0.1.0"
__all__ = [
    "Decomposition",
    "Encoder",
    "Explanation",
    "baselines",
    "contrast",
    "decompose",
    "encoders",
    "errors",
    "evaluate",
    "explain",
    "explain_many",
    "explain_sets",
    "ops",
    "pair",
    "reference",
    "regions",
    "rulebooks",
    "rules",
    "similarity",
    "tune",
]
