"""Run the examples, code blocks and docstrings of the documentation, and check its tables and links."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import bilrp
from bilrp.trace.operation_table import OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "demo.py")
# Their examples need files or pretrained weights.
NOT_RUN_MODULES = {
    "bilrp.encoders.bigram",
    "bilrp.encoders.downloads",
    "bilrp.encoders.vgg",
    "bilrp.io.files",
    "bilrp.render.figure",
    "bilrp.render.report",
    "bilrp.cli.terminal",
}
NOT_RUN = re.compile(r"<!-- not run: \S.*?-->\s*$")


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    if "sklearn" in path.read_text():
        pytest.importorskip("sklearn")
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() and not process.stderr


def code_blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page, except those that a comment above marks as not run."""
    text = page.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block[1] for block in blocks if not NOT_RUN.search(text[: block.start()])]


@pytest.mark.parametrize("page", [page for page in PAGES if code_blocks(page)], ids=lambda p: p.name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for number, code in enumerate(code_blocks(page), 1):
        exec(compile(code, f"{page.name}, block {number}", "exec"), namespace)


def test_the_design_page_has_blocks_to_run() -> None:
    assert len(code_blocks(ROOT / "docs" / "design.md")) >= 2


@pytest.mark.parametrize("page", sorted({*PAGES, *(ROOT / "docs").rglob("*.md")}), ids=lambda p: p.name)
def test_links_have_targets(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


MODULES = [module.name for module in pkgutil.walk_packages(bilrp.__path__, "bilrp.")]


@pytest.mark.parametrize("name", [name for name in MODULES if name not in NOT_RUN_MODULES])
def test_docstrings_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}")
    failures = doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed
    assert failures == 0, "mark an example that cannot run with  # doctest: +SKIP"


def test_the_tables_of_operations_are_up_to_date() -> None:
    page = (ROOT / "docs" / "rules.md").read_text()
    update = runpy.run_path(str(ROOT / "docs" / "make_rules.py"))["update_page"]
    assert update(page) == page, "run python docs/make_rules.py"


def test_every_operation_with_or_without_a_rule_is_in_a_table() -> None:
    tables = (ROOT / "docs" / "rules.md").read_text().split("<!-- covered -->")[1]
    hidden = {"like", "host_read", "overwrite", "iteration", "grad_mode"}
    missing = [op.name for op in OPERATIONS.ops if op.kind not in hidden and f"`{op.name}`" not in tables]
    assert missing == [], "run python docs/make_rules.py"
