"""Bundle the page's ES modules into one script, without a build tool.

Modules import each other by name (`import { a } from "./b.js";`) and export functions and constants where they are
declared. A bundle is their text in import order, without the import lines and the word export, in one scope.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from importlib import resources

from bilrp.errors import InputError

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const )", re.MULTILINE)
_DECLARATION = re.compile(r"^(export )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)


def read_source(name: str) -> str:
    """Return the text of a file in web/ with Unix line ends, as the browser hashes it."""
    text = resources.files("bilrp.render").joinpath("web", name).read_text("utf-8")
    return text.replace("\r\n", "\n")


@cache
def bundle_script(entry: str = "mount") -> str:
    """Return all modules that `entry` imports as one script, in which its exports are plain names."""
    order = _sort_by_imports(entry)
    modules = {name: read_source(f"{name}.js") for name in order}
    _check_names(modules)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)).strip() for text in modules.values()) + "\n"


def bundle_module() -> str:
    """Return the bundle as one ES module that exports what mount.js exports, for notebooks."""
    exported = [name for export, name in _DECLARATION.findall(read_source("mount.js")) if export]
    return f"{bundle_script()}export {{ {', '.join(exported)} }};\n"


def _sort_by_imports(entry: str) -> list[str]:
    """Return the modules that `entry` needs, each after those it imports."""
    order: list[str] = []

    def visit(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise InputError(
                f"the page's modules import each other in a cycle: {' → '.join((*importers, name))}"
            )
        if name in order:
            return
        for _, other in _IMPORT.findall(read_source(f"{name}.js")):
            visit(other, (*importers, name))
        order.append(name)

    visit(entry, ())
    return order


def _check_names(modules: dict[str, str]) -> None:
    """Check that every name is declared once, and that every imported name is exported by its module."""
    declarations = {name: _DECLARATION.findall(text) for name, text in modules.items()}
    counts = Counter(name for pairs in declarations.values() for _, name in pairs)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise InputError(f"the page's modules declare {', '.join(twice)} twice: rename one of them")
    for name, text in modules.items():
        for imported, other in _IMPORT.findall(text):
            exported = {n for export, n in declarations[other] if export}
            missing = {n.strip() for n in imported.split(",") if n.strip()} - exported
            if missing:
                raise InputError(f"{name}.js imports {', '.join(missing)}, which {other}.js does not export")
