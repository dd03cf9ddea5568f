"""Which parts of these two inputs make the model call them similar? Exact BiLRP for any PyTorch encoder.

Names are found in their rooms on first use, so that `import bilrp` and `bilrp --help` don't load torch.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilrp import collection, encoders, errors, regions, rules, similarity
    from bilrp.decomposition import Decomposition, decompose, refine
    from bilrp.encoder import Encoder, ops
    from bilrp.explanation import Explanation, explain, pair
    from bilrp.groups import contrast, explain_many, explain_sets
    from bilrp.evaluation import baselines, evaluate, reference, tuning
    from bilrp.many import decompose_many
    from bilrp.rules import composites

__version__ = "0.1.0"

# What a user calls, and the module that has it.
NAMES = {
    "Decomposition": "bilrp.decomposition",
    "Encoder": "bilrp.encoder",
    "Explanation": "bilrp.explanation",
    "contrast": "bilrp.groups",
    "decompose": "bilrp.decomposition",
    "decompose_many": "bilrp.many",
    "explain": "bilrp.explanation",
    "explain_many": "bilrp.groups",
    "explain_sets": "bilrp.groups",
    "ops": "bilrp.encoder",
    "pair": "bilrp.explanation",
    "refine": "bilrp.decomposition",
}
# Modules that users know by a shorter name than their room's: `import bilrp.composites` finds them too.
DOORS = {
    "baselines": "bilrp.evaluation.baselines",
    "evaluate": "bilrp.evaluation.evaluate",
    "reference": "bilrp.evaluation.reference",
    "rulebooks": "bilrp.rules.composites",
    "tune": "bilrp.evaluation.tuning",
}
__all__ = [
    "Decomposition",
    "Encoder",
    "Explanation",
    "baselines",
    "collection",
    "contrast",
    "decompose",
    "decompose_many",
    "encoders",
    "errors",
    "evaluate",
    "explain",
    "explain_many",
    "explain_sets",
    "ops",
    "pair",
    "reference",
    "refine",
    "regions",
    "rulebooks",
    "rules",
    "similarity",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in NAMES:
        found: Any = getattr(importlib.import_module(NAMES[name]), name)
    elif name in DOORS or name in __all__:
        found = importlib.import_module(f"bilrp.{name}")
    else:
        raise AttributeError(f"module 'bilrp' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Doors(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets `import bilrp.composites` give the very module that lives in a room, not a copy of it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        package, _, name = fullname.partition(".")
        return (
            importlib.util.spec_from_loader(fullname, self) if package == "bilrp" and name in DOORS else None
        )

    def exec_module(self, module: Any) -> None:
        sys.modules[module.__name__] = importlib.import_module(DOORS[module.__name__.partition(".")[2]])


if not any(isinstance(finder, _Doors) for finder in sys.meta_path):
    sys.meta_path.append(_Doors())
