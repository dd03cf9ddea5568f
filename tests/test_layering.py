"""The rooms of the house: who may import whom, read from the source, lazy imports included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import bilrp

SOURCE = Path(bilrp.__file__).parent
RESULTS = {"decomposition", "explanation", "groups", "many"}
HELD = {"errors", "encoder", "item", "regions", "similarity", *RESULTS}

# What each room may import besides itself. Everything may import errors.
MAY = {
    "errors": set(),
    "regions": set(),
    "similarity": set(),
    "item": {"regions"},
    "native": set(),
    "trace": {"native"},
    "engine": {"native", "regions", "trace"},
    "rules": {"trace", "engine"},
    "findings": {"item", "regions"},
    "disk": {"similarity"},
    "encoder": {"item", "regions", "rules", "trace"},
    "decomposition": {"disk", "encoder", "engine", "item", "regions", "rules", "similarity", "trace"},
    "explanation": {"decomposition", "disk", "encoder", "findings", "item", "regions", "similarity"},
    "groups": {"decomposition", "explanation", "item", "regions", "similarity"},
    "many": {"decomposition", "encoder", "item", "regions"},
    "judge": {*HELD, "disk", "engine", "rules", "trace"},
    "encoders": {*HELD, "disk", "rules", "trace"},
    "collection": {*HELD, "disk", "encoders", "engine", "findings", "judge", "rules"},
    "render": {*HELD, "disk", "findings"},
    "app": {*HELD, "collection", "disk", "encoders", "engine", "findings", "render", "rules"},
    "studies": {*HELD, "disk", "encoders", "engine", "findings", "judge", "render", "rules", "trace", "bilrp"},
    "cli": {
        *HELD, "app", "bilrp", "collection", "disk", "encoders", "engine", "findings", "judge", "render", "rules", "studies",
        "trace",
    },
}  # fmt: skip


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {
        ".".join(("bilrp", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }


def imports(path: Path, known: set[str]) -> Iterator[str]:
    """The modules of the package that a file imports anywhere but for type checkers."""
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
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bilrp":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "bilrp")


@cache  # the files are parsed once for all tests
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: set(imports(path, set(known))) - {name} for name, path in known.items()}


def room(module: str) -> str:
    return [*module.split("."), "bilrp"][1]


@pytest.mark.parametrize("name", sorted(MAY))
def test_a_room_imports_only_what_it_may(name: str) -> None:
    found = {
        (module, other) for module, others in graph().items() if room(module) == name for other in others
    }
    strangers = {
        pair for pair in found if room(pair[1]) != name and room(pair[1]) not in {*MAY[name], "errors"}
    }
    assert not strangers


def test_every_module_has_a_room() -> None:
    assert {room(module) for module in modules()} - {"bilrp", "__main__"} == set(MAY)


def test_the_root_is_what_a_user_holds() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == HELD | {"__init__", "__main__"}


def test_no_module_imports_itself_by_a_detour() -> None:
    # The package itself finds names on first use, which is nobody's detour.
    inside = {name: {other for other in others if other != "bilrp"} for name, others in graph().items()}
    inside.pop("bilrp")
    try:
        list(TopologicalSorter(inside).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_engine_sees_maps_and_never_what_a_step_was_called() -> None:
    seen = {other for name, others in graph().items() if room(name) == "engine" for other in others}
    assert {other for other in seen if room(other) == "trace"} == {
        "bilrp.trace.devices",
        "bilrp.trace.linear_operators",
    }


def test_no_study_imports_another() -> None:
    def study(module: str) -> str:
        return module.split(".")[2] if module.startswith("bilrp_studies.") else ""

    own = {"", "common", "table"}
    for name, others in graph().items():
        if study(name) not in own:
            assert {study(other) for other in others} <= {*own, study(name)}, name


def test_nothing_imports_the_command_line() -> None:
    for name, others in graph().items():
        if room(name) not in {"cli", "__main__"}:
            assert not {other for other in others if room(other) == "cli"}, name


def test_every_room_says_its_job_and_what_it_may_import() -> None:
    for folder in (path.parent for path in SOURCE.glob("*/__init__.py")):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert "import" in text, folder.name


def test_files_stay_short_enough_to_read() -> None:
    files = [path for path in SOURCE.rglob("*") if path.suffix in {".py", ".js", ".css", ".html"}]
    long = {path.name: count for path in files if (count := len(path.read_text().splitlines())) > 450}
    assert not long


def reached_for(path: Path) -> Iterator[str]:
    """Private names of the package that a test reaches for, by import, by attribute or to replace them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    held = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bilrp":
            yield from (alias.name for alias in node.names if private(alias.name))
            held |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            named = (alias.asname or alias.name for alias in node.names if alias.name.startswith("bilrp"))
            held |= {name.split(".")[0] for name in named}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and owner(node) in held:
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"setattr", "delattr"}:
            words = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
            last = [str(word).split(".")[-1] for word in words]
            ours = any(owner(a) in held for a in node.args[:1]) or any(
                str(w).startswith("bilrp") for w in words
            )
            yield from (word for word in last if private(word) and ours)


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def owner(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


TESTS = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda p: str(p.relative_to(TESTS)))
def test_no_test_reaches_for_a_private_name(path: Path) -> None:
    assert list(reached_for(path)) == []


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest imports them by name alone: the second would not be collected."""
    names = [path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)
