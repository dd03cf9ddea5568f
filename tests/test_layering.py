"""The layers of the packages: who may import whom, read from the source, lazy imports and imports in strings included."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import bilrp
import bilrp_studies

PACKAGES = {"bilrp": Path(bilrp.__file__).parent, "bilrp_studies": Path(bilrp_studies.__file__).parent}
RESULT_MODULES = {
    "adapters", "attribution", "covering", "decomposition", "explanation", "explanation_files", "groups", "highlights",
    "many", "mean_embedding", "pair_plan", "pipeline", "refinement", "reliability", "set_comparison",
}  # fmt: skip
ROOT_MODULES = {
    "errors",
    "encoder",
    "inputs",
    "progress",
    "regions",
    "similarity",
    "sparse_parts",
    *RESULT_MODULES,
}
PUBLIC_NAMESPACES = {"baselines", "composites"}  # names of other packages under a short name
STUDY_IMPORTS = {
    *ROOT_MODULES, *PUBLIC_NAMESPACES, "bilrp", "collection", "encoders", "engine", "evaluation", "findings", "io",
    "render", "rules", "trace",
}  # fmt: skip

# What each package may import besides itself. Everything may import errors.
ALLOWED_IMPORTS = {
    "errors": set(),
    "progress": set(),
    "regions": set(),
    "similarity": set(),
    "sparse_parts": set(),
    "inputs": {"regions"},
    "native": set(),
    "trace": {"native"},
    "engine": {"native", "progress", "regions", "sparse_parts", "trace"},
    "rules": {"trace", "engine"},
    "findings": {"inputs", "regions"},
    "io": {"similarity"},
    "encoder": {"inputs", "regions", "rules", "similarity", "trace"},
    "decomposition": {"encoder", "engine", "inputs", "io", "regions", "sparse_parts"},
    "mean_embedding": {"encoder", "findings", "inputs"},
    "pipeline": {
        "decomposition", "encoder", "engine", "inputs", "mean_embedding", "progress", "refinement", "regions", "rules",
        "similarity", "sparse_parts", "trace",
    },
    "refinement": {"engine", "regions"},
    "attribution": {"encoder", "inputs", "pipeline", "regions", "similarity"},
    "highlights": {"attribution", "encoder", "inputs", "pipeline", "regions", "similarity", "trace"},
    "pair_plan": {"attribution", "decomposition", "encoder", "pipeline", "similarity", "sparse_parts"},
    "reliability": {"decomposition", "encoder", "inputs", "similarity"},
    "covering": {"encoder", "findings", "inputs", "regions", "similarity"},
    "explanation": {
        "covering", "decomposition", "encoder", "engine", "explanation_files", "findings", "inputs", "io", "pair_plan",
        "pipeline", "progress", "regions", "reliability", "similarity",
    },
    "explanation_files": {"decomposition", "io"},
    "adapters": {"encoder", "highlights", "regions", "similarity"},
    "groups": {
        "decomposition", "encoder", "explanation", "explanation_files", "highlights", "inputs", "io", "regions",
        "similarity",
    },
    "set_comparison": {"decomposition", "explanation", "groups", "similarity"},
    "many": {"decomposition", "encoder", "inputs", "pipeline", "regions"},
    "evaluation": {*ROOT_MODULES, "engine", "io", "rules", "trace"},
    "encoders": {*ROOT_MODULES, "io", "rules", "trace"},
    "collection": {*ROOT_MODULES, "encoders", "engine", "evaluation", "findings", "io", "rules"},
    "render": {*ROOT_MODULES, "findings", "io"},
    "answers": {*ROOT_MODULES, "collection", "findings", "render"},
    "app": {*ROOT_MODULES, "answers", "bilrp", "collection", "encoders", "engine", "findings", "io", "render", "rules"},
    "cli": {
        *ROOT_MODULES, "answers", "app", "bilrp", "collection", "encoders", "engine", "evaluation", "findings", "io",
        "render", "rules", "trace",
    },
    "baselines": {"evaluation"},
    "composites": {"rules"},
    "bilrp_studies": STUDY_IMPORTS,
    "bilrp_studies.bench": {*STUDY_IMPORTS, "bilrp_studies"},
    "bilrp_studies.cli": {*STUDY_IMPORTS, "bilrp_studies", "bilrp_studies.bench", "cli"},
}  # fmt: skip

# Imports of higher layers, each inside the function that needs it: methods that draw, and encoders by name.
LAZY_IMPORTS = {
    "bilrp.decomposition": {"bilrp.encoders.text.segmentation"},
    "bilrp.encoder": {"bilrp.encoders.live.recognition", "bilrp.encoders.registry"},
    "bilrp.attribution": {"bilrp.render.attribution_figure"},
    "bilrp.reliability": {"bilrp.encoders.images"},
    "bilrp.highlights": {"bilrp.render.group_views"},
    "bilrp.explanation": {
        "bilrp.app.widgets", "bilrp.render.figure", "bilrp.render.findings_table", "bilrp.render.page",
    },
    "bilrp.explanation_files": {
        "bilrp.answers.explanations", "bilrp.render.annotations", "bilrp.render.figure", "bilrp.render.page",
    },
    "bilrp.groups": {"bilrp.render.group_views"},
    "bilrp.set_comparison": {"bilrp.render.group_views"},
    "bilrp.collection.core": {"bilrp.app.widgets"},
    "bilrp.collection.clusters": {"bilrp.render.cluster_figure"},
    "bilrp.collection.graph_files": {"bilrp.render.graph_page"},
}  # fmt: skip
MODULE_IN_STRING = re.compile(r"(bilrp(?:_studies)?(?:\.\w+)*)(:\w+)?")


@cache
def modules() -> dict[str, Path]:
    """Every module of both packages by its dotted name."""
    return {
        ".".join((name, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): path
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*.py")
    }


def is_ours(module: str | None) -> bool:
    return (module or "").split(".")[0] in PACKAGES


def imports(path: Path, known: set[str]) -> Iterator[str]:
    """The modules of the packages that a file imports anywhere but for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and is_ours(node.module):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_ours(alias.name))


def imports_in_strings(path: Path, known: set[str]) -> Iterator[str]:
    """Modules in strings: any "bilrp.module:name", and "bilrp.module" where there is such a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = MODULE_IN_STRING.fullmatch(node.value)
            if match and match[1] not in PACKAGES and (match[2] or match[1] in known):
                yield match[1]


@cache  # the files are parsed once for all tests
def import_graph() -> dict[str, set[str]]:
    known = modules()
    return {name: set(imports(path, set(known))) - {name} for name, path in known.items()}


@cache
def string_graph() -> dict[str, set[str]]:
    known = modules()
    return {name: set(imports_in_strings(path, set(known))) - {name} for name, path in known.items()}


def package_of(module: str) -> str:
    """The layer of a module: a package or module of bilrp, bilrp itself; all studies are one."""
    top, inner = [*module.split("."), ""][:2]
    if top == "bilrp_studies":
        return f"{top}.{inner}" if inner in {"bench", "cli"} else top
    return inner or top


@pytest.mark.parametrize("name", sorted(ALLOWED_IMPORTS))
def test_a_package_imports_only_what_it_may(name: str) -> None:
    allowed = {*ALLOWED_IMPORTS[name], name, "errors"}
    for graph in (import_graph(), string_graph()):
        pairs = {
            (module, other)
            for module, others in graph.items()
            if package_of(module) == name
            for other in others - LAZY_IMPORTS.get(module, set())
        }
        assert not {pair for pair in pairs if package_of(pair[1]) not in allowed}


@pytest.mark.parametrize("name", sorted(LAZY_IMPORTS))
def test_imports_of_higher_layers_are_inside_functions(name: str) -> None:
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    at_import = {
        f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert import_graph()[name] >= LAZY_IMPORTS[name], "an entry that is not needed"
    assert not {m for m in LAZY_IMPORTS[name] if any(f"{i}.".startswith(f"{m}.") for i in at_import)}


def test_every_module_in_a_string_exists() -> None:
    missing = {
        (name, other) for name, others in string_graph().items() for other in others if other not in modules()
    }
    assert not missing


def test_every_module_has_a_package() -> None:
    assert {package_of(module) for module in modules()} - {"bilrp", "__main__"} == set(ALLOWED_IMPORTS)


def test_the_root_is_what_a_user_holds() -> None:
    result = {path.stem for path in PACKAGES["bilrp"].glob("*.py")}
    assert result == ROOT_MODULES | PUBLIC_NAMESPACES | {"__init__", "__main__"}


def test_no_module_imports_itself_through_others() -> None:
    # The package itself finds names on first use, which is no cycle.
    graph = import_graph()
    inside = {name: others - {"bilrp"} - LAZY_IMPORTS.get(name, set()) for name, others in graph.items()}
    inside.pop("bilrp")
    try:
        list(TopologicalSorter(inside).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_engine_sees_maps_and_never_what_a_step_was_called() -> None:
    seen = {o for name, others in import_graph().items() if package_of(name) == "engine" for o in others}
    assert {other for other in seen if package_of(other) == "trace"} == {
        "bilrp.trace.devices",
        "bilrp.trace.linear_operators",
    }


def test_nothing_in_bilrp_imports_or_names_the_studies() -> None:
    """The studies are users of the library; their commands come in by entry points."""
    files = [
        path for path in PACKAGES["bilrp"].rglob("*") if path.suffix in {".py", ".js", ".css", ".html", ".c"}
    ]
    named = [path for path in files if re.search(r"bilrp[_.]studies", path.read_text(encoding="utf-8"))]
    assert not named


def test_no_study_imports_another() -> None:
    def study(module: str) -> str:
        return [*module.split("."), ""][1] if module.startswith("bilrp_studies") else ""

    shared = {"", "common", "catalog"}
    free = {*shared, "bench", "cli"}
    for name, others in import_graph().items():
        if study(name) not in free:
            assert {study(other) for other in others} <= {*shared, study(name)}, name


def test_nothing_imports_the_command_line() -> None:
    def is_command_line(module: str) -> bool:
        return package_of(module) in {"cli", "bilrp_studies.cli"}

    for name in modules():
        if not is_command_line(name) and name != "bilrp.__main__":
            assert not {o for o in import_graph()[name] | string_graph()[name] if is_command_line(o)}, name


def test_every_package_says_its_job_and_what_it_may_import() -> None:
    for folder in (path.parent for path in PACKAGES["bilrp"].glob("*/__init__.py")):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert "import" in text, folder.name


def test_files_stay_short_enough_to_read() -> None:
    suffixes = {".py", ".js", ".css", ".html"}
    files = [path for folder in PACKAGES.values() for path in folder.rglob("*") if path.suffix in suffixes]
    long = {path.name: count for path in files if (count := len(path.read_text().splitlines())) > 700}
    assert not long


def private_names_used(path: Path) -> Iterator[str]:
    """Private names of the packages that a test reaches for, by import, by attribute or to replace them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    held = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and is_ours(node.module):
            yield from (alias.name for alias in node.names if is_private(alias.name))
            held |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            named = (alias.asname or alias.name for alias in node.names if is_ours(alias.name))
            held |= {name.split(".")[0] for name in named}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and root_name(node) in held:
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"setattr", "delattr"}:
            words = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
            last = [str(word).split(".")[-1] for word in words]
            ours = any(root_name(a) in held for a in node.args[:1]) or any(
                str(w).startswith("bilrp") for w in words
            )
            yield from (word for word in last if is_private(word) and ours)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def root_name(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


TESTS = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda p: str(p.relative_to(TESTS)))
def test_no_test_reaches_for_a_private_name(path: Path) -> None:
    assert list(private_names_used(path)) == []


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest imports them by name alone: the second would not be collected."""
    packages = ("conftest.py", "__init__.py")  # found by their folders
    names = [path.name for path in TESTS.rglob("*.py") if path.name not in packages]
    assert sorted(set(names)) == sorted(names)
