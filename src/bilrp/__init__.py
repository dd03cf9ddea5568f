"""Which parts of these two inputs make the model call them similar? Exact BiLRP for any PyTorch encoder.

Names are imported from their modules on first use, so that `import bilrp` and `bilrp --help` don't load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilrp import (
        adapters,
        baselines,
        collection,
        composites,
        encoders,
        errors,
        evaluation,
        regions,
        rules,
        similarity,
    )
    from bilrp.attribution import Attribution, Span, attribute
    from bilrp.decomposition import Decomposition
    from bilrp.encoder import Encoder, ops
    from bilrp.evaluation.tuning import tune
    from bilrp.explanation import Explanation, explain, pair
    from bilrp.groups import contrast, explain_many, explain_sets
    from bilrp.highlights import Highlight, highlight
    from bilrp.many import decompose_many
    from bilrp.pipeline import decompose, refine
    from bilrp.set_comparison import compare_sets

__version__ = "0.1.0"

# Public names, and the module that defines each.
_EXPORTS = {
    "Attribution": "bilrp.attribution",
    "Decomposition": "bilrp.decomposition",
    "Encoder": "bilrp.encoder",
    "Explanation": "bilrp.explanation",
    "Highlight": "bilrp.highlights",
    "Span": "bilrp.attribution",
    "attribute": "bilrp.attribution",
    "compare_sets": "bilrp.set_comparison",
    "contrast": "bilrp.groups",
    "decompose": "bilrp.pipeline",
    "decompose_many": "bilrp.many",
    "explain": "bilrp.explanation",
    "explain_many": "bilrp.groups",
    "explain_sets": "bilrp.groups",
    "highlight": "bilrp.highlights",
    "ops": "bilrp.encoder",
    "pair": "bilrp.explanation",
    "refine": "bilrp.pipeline",
    "tune": "bilrp.evaluation.tuning",
}
__all__ = [
    "Attribution",
    "Decomposition",
    "Encoder",
    "Explanation",
    "Highlight",
    "Span",
    "adapters",
    "attribute",
    "baselines",
    "collection",
    "compare_sets",
    "composites",
    "contrast",
    "decompose",
    "decompose_many",
    "encoders",
    "errors",
    "evaluation",
    "explain",
    "explain_many",
    "explain_sets",
    "highlight",
    "ops",
    "pair",
    "refine",
    "regions",
    "rules",
    "similarity",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value: Any = getattr(importlib.import_module(_EXPORTS[name]), name)
    elif name in __all__:
        value = importlib.import_module(f"bilrp.{name}")
    else:
        raise AttributeError(f"module 'bilrp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
