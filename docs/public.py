"""List every public name: the exports of `bilrp`, of its exported modules, and the types that they return."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import bilrp

# Types that users get or pass, and that no module above exports.
RETURNED_TYPES = {
    "bilrp.encoder": ("DualEncoder",),
    "bilrp.inputs": ("Item", "Image", "Text"),
    "bilrp.explanation": ("Match",),
    "bilrp.explanation_files": ("DrawingOptions", "WriterOptions"),
    "bilrp.covering": ("CoveredFinding", "NeededRegions"),
    "bilrp.set_comparison": ("SetComparison", "SetMember"),
    "bilrp.collection.repair_report": ("RepairReport", "Measurement"),
    "bilrp.collection.clusters": ("Cluster", "ClusterExplanation", "Example"),
    "bilrp.collection.edge_reasons": ("EdgeReason", "ReasonPart", "ChangedNumber", "SharedPart"),
    "bilrp.collection.spread": ("Spread", "Carrier"),
    "bilrp.findings.breakdown": ("ScoreBreakdown",),
    "bilrp.findings.differences": ("Difference", "DistanceBreakdown"),
    "bilrp.findings.grouping": ("Finding",),
    "bilrp.highlights": ("HighlightContrast", "Sentence"),
    "bilrp.groups": ("Contrast", "Evidence", "ManyExplanation", "JointMatch"),
    "bilrp.engine.plan": ("Plan",),
    "bilrp.trace.step_summary": ("StepSummary",),
    "bilrp_studies.common.study": ("Study", "Settings", "option", "path_option"),
}


def list_exports() -> dict[str, list[str]]:
    """Return names by module: {'bilrp': [...], 'bilrp.composites': [...], …}."""
    values = {name: getattr(bilrp, name) for name in bilrp.__all__}
    exports = {"bilrp": [name for name, value in values.items() if not isinstance(value, ModuleType)]}
    exports |= {
        f"bilrp.{name}": list_members(value)
        for name, value in values.items()
        if isinstance(value, ModuleType)
    }
    return exports | {module: list(names) for module, names in RETURNED_TYPES.items()}


def list_members(module: ModuleType) -> list[str]:
    """Return `__all__` of a module, or the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]
    return [
        n
        for n, v in vars(module).items()
        if not n.startswith("_") and _is_function_or_class(v) and v.__module__ == module.__name__
    ]


def list_names() -> set[str]:
    """Return all public names with their modules."""
    return {f"{module}.{name}" for module, members in list_exports().items() for name in members}


def directives(module: str, chosen: list[str]) -> str:
    """Return the reference of the chosen names of a module (default: all) as reStructuredText."""
    owner = importlib.import_module(module)
    return "\n".join(
        _directive(f"{module}.{name}", getattr(owner, name)) for name in chosen or list_exports()[module]
    )


def _directive(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return f".. autoclass:: {name}\n   :members:\n"
    return f".. autofunction:: {name}\n" if inspect.isroutine(value) else f".. autodata:: {name}\n"


def _is_function_or_class(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)
