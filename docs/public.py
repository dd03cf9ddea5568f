"""Every public name: what `bilrp` exports, what the modules it exports hold, and what users get back from them."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import bilrp

# What is returned or handed over, and not exported by name.
HELD = {
    "bilrp.encoder": ("DualEncoder",),
    "bilrp.inputs": ("Item", "Image", "Text"),
    "bilrp.explanation": ("Match",),
    "bilrp.findings.breakdown": ("ScoreBreakdown",),
    "bilrp.findings.grouping": ("Finding",),
    "bilrp.groups": ("Contrast", "Evidence", "ManyExplanation", "JointMatch"),
    "bilrp.engine.plan": ("Plan",),
    "bilrp.trace.step_summary": ("StepSummary",),
    "bilrp_studies.common.study": ("Study", "Settings", "option", "path_option"),
}


def exported() -> dict[str, list[str]]:
    """Names by the module that a user types: {'bilrp': [...], 'bilrp.composites': [...], …}."""
    modules = {name: getattr(bilrp, name) for name in bilrp.__all__}
    found = {"bilrp": [name for name, value in modules.items() if not isinstance(value, ModuleType)]}
    found |= {
        f"bilrp.{name}": members(value) for name, value in modules.items() if isinstance(value, ModuleType)
    }
    return found | {module: list(names) for module, names in HELD.items()}


def members(module: ModuleType) -> list[str]:
    """A module's `__all__`, or the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]
    known = vars(module).items()
    return [n for n, v in known if not n.startswith("_") and _defined(v) and v.__module__ == module.__name__]


def names() -> set[str]:
    """All of them, in full."""
    return {f"{module}.{name}" for module, found in exported().items() for name in found}


def directives(module: str, chosen: list[str]) -> str:
    """The reference of some names of a module, as reStructuredText."""
    held = importlib.import_module(module)
    wanted = chosen or exported()[module]
    return "\n".join(_directive(f"{module}.{name}", getattr(held, name)) for name in wanted)


def _directive(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return f".. autoclass:: {name}\n   :members:\n"
    return f".. autofunction:: {name}\n" if inspect.isroutine(value) else f".. autodata:: {name}\n"


def _defined(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)
