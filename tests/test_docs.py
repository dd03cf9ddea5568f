"""What the documentation says is run: examples, code blocks, docstrings, and the tables of operations."""

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
# Their examples name files or pretrained weights that a reader would have: shown, not run.
SHOWN = {
    "bilrp.io.cache",
    "bilrp.encoders.bigram",
    "bilrp.encoders.downloads",
    "bilrp.encoders.images",
    "bilrp.encoders.pypi_download",
    "bilrp.encoders.vgg",
    "bilrp.encoders.vgg_weights",
    "bilrp.io.files",
    "bilrp.render.figure",
    "bilrp.render.links",
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
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and not done.stderr


def code_blocks(page: Path) -> list[str]:
    """The page's python blocks, but for those that a comment above declares as not run, with the reason."""
    found = []
    for block in re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        if not NOT_RUN.search(page.read_text()[: block.start()]):
            found.append(block.group(1))
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if code_blocks(page)], ids=lambda p: p.name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and in one namespace, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for number, code in enumerate(code_blocks(page), 1):
        exec(compile(code, f"{page.name}, block {number}", "exec"), namespace)


def test_the_design_page_has_blocks_to_run() -> None:
    assert len(code_blocks(ROOT / "docs" / "design.md")) >= 2


@pytest.mark.parametrize("page", sorted({*PAGES, *(ROOT / "docs").rglob("*.md")}), ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


MODULES = [module.name for module in pkgutil.walk_packages(bilrp.__path__, "bilrp.")]


@pytest.mark.parametrize("name", [name for name in MODULES if name not in SHOWN])
def test_docstrings_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}")
    failed = doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed
    assert failed == 0, "an example that cannot run anywhere ends with  # doctest: +SKIP"


def test_the_tables_of_operations_are_the_codes() -> None:
    written = (ROOT / "docs" / "rules.md").read_text()
    made = runpy.run_path(str(ROOT / "docs" / "make_rules.py"))["update_page"](written)
    assert made == written, "run python docs/make_rules.py"


def test_every_operation_with_or_without_a_rule_is_in_a_table() -> None:
    tables = (ROOT / "docs" / "rules.md").read_text().split("<!-- covered -->")[1]
    hidden = {"like", "host_read", "overwrite", "iteration", "grad_mode"}
    missing = [r.name for r in OPERATIONS.ops if r.kind not in hidden and f"`{r.name}`" not in tables]
    assert missing == [], "run python docs/make_rules.py"
