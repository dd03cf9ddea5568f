"""The page's ES modules as one script: no build tool, nothing to install, nothing to fetch.

Modules import each other by name (`import { a } from "./b.js";`) and export functions and constants where they are
declared. So a bundle is their text in the order of their imports, without the words import and export, in one scope.
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
    """The text of one file of the page, with the line ends a browser's parser sees."""
    text = resources.files("bilrp.render").joinpath("web", name).read_text("utf-8")
    return text.replace("\r\n", "\n")


@cache
def bundle_script(entry: str = "mount") -> str:
    """All modules that `entry` needs, as the text of one script in which its exports are plain names.

    >>> "function mount(" in bundle_script()
    True
    """
    order = _sort_by_imports(entry)
    modules = {name: read_source(f"{name}.js") for name in order}
    _check_names(modules)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)).strip() for text in modules.values()) + "\n"


def bundle_module(entry: str = "mount") -> str:
    """The same as one ES module that exports what `entry` exports: for a notebook, where there is one file.

    >>> bundle_module().rstrip().endswith("export { mount };")
    True
    """
    exported = [name for said, name in _DECLARATION.findall(read_source(f"{entry}.js")) if said]
    return f"{bundle_script(entry)}export {{ {', '.join(exported)} }};\n"


def _sort_by_imports(entry: str) -> list[str]:
    """Modules, each after those it imports."""
    done: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise InputError(
                f"the page's modules import each other in a circle: {' → '.join((*above, name))}"
            )
        if name in done:
            return
        for _, other in _IMPORT.findall(read_source(f"{name}.js")):
            visit(other, (*above, name))
        done.append(name)

    visit(entry, ())
    return done


def _check_names(modules: dict[str, str]) -> None:
    """In one scope every name is declared once, and whatever is imported is exported by the module named."""
    declared = {name: _DECLARATION.findall(text) for name, text in modules.items()}
    twice = [
        n for n, count in Counter(n for found in declared.values() for _, n in found).items() if count > 1
    ]
    if twice:
        raise InputError(f"the page's modules declare {', '.join(twice)} twice: rename one of them")
    for name, text in modules.items():
        for wanted, other in _IMPORT.findall(text):
            public = {n for said, n in declared[other] if said}
            missing = {n.strip() for n in wanted.split(",") if n.strip()} - public
            if missing:
                raise InputError(f"{name}.js imports {', '.join(missing)}, which {other}.js does not export")
