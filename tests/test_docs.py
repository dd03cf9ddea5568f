"""What the documentation says is run: examples, code blocks, docstrings, and the tables of operations."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import bilrp
from bilrp.trace import ops

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "demo.py")
# Their examples name files or pretrained weights that a reader would have: shown, not run.
SHOWN = {
    "bilrp.disk.cache",
    "bilrp.encoders.bigram",
    "bilrp.encoders.fetch",
    "bilrp.encoders.images",
    "bilrp.encoders.index",
    "bilrp.encoders.vgg",
    "bilrp.encoders.weights",
    "bilrp.disk.files",
    "bilrp.render.figure",
    "bilrp.render.links",
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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and in one namespace, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for number, code in enumerate(code_blocks(page), 1):
        exec(compile(code, f"{page.name}, block {number}", "exec"), namespace)


def test_the_design_page_has_blocks_to_run() -> None:
    assert len(code_blocks(ROOT / "docs" / "design.md")) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


MODULES = [module.name for module in pkgutil.walk_packages(bilrp.__path__, "bilrp.")]


@pytest.mark.parametrize("name", [name for name in MODULES if name not in SHOWN and "studies" not in name])
def test_docstrings_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{name} needs {error.name}")
    failed = doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed
    assert failed == 0, "an example that cannot run anywhere ends with  # doctest: +SKIP"


def operations(section: str) -> set[str]:
    """Everything in backticks in the last column but one or two of a table in docs/rules.md."""
    text = (ROOT / "docs" / "rules.md").read_text()
    table = text.split(f"<!-- {section} -->")[1].split("\n\n")[0]
    column = 3 if section == "covered" else 1
    rows = [line.split("|")[column] for line in table.strip().splitlines()[2:]]
    return set(re.findall(r"`(\w+)`", " ".join(rows)))


def test_the_covered_table_is_the_code() -> None:
    listed = operations("covered")
    named = ops.ACTIVATIONS | ops.NORMS | ops.ATTENTION | ops.SELECTIONS | ops.SCALES | ops.GATING
    assert {op for op in named if not op.endswith("_with_indices")} <= listed
    known = named | ops.LINEAR | ops.PRODUCTS | {"relu", "clamp", "clamp_min", "clamp_max"}
    assert listed <= known


def recurrent(kind: type[torch.nn.RNNBase]):
    layer = kind(4, 3)
    return lambda x: layer(x)[0]


UNCOVERED = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "softplus": F.softplus,
    "exp": torch.exp,
    "log": torch.log,
    "cos": torch.cos,
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "norm": lambda x: x.norm(dim=-1),
    "cdist": lambda x: torch.cdist(x, torch.zeros(2, 4)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, torch.ones(1, 4)),
    "mul": lambda x: x[:, :2] * x[:, 2:],
    "matmul": lambda x: x.reshape(2, 2) @ (x + 1).reshape(2, 2),
    "bmm": lambda x: torch.bmm(x.reshape(1, 2, 2), (x + 1).reshape(1, 2, 2)),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x.reshape(2, 2), (x + 1).reshape(2, 2)),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "prod": lambda x: x.prod(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "det": lambda x: x.reshape(2, 2).det(),
    "inverse": lambda x: x.reshape(2, 2).inverse(),
    "lstm": recurrent(torch.nn.LSTM),
    "gru": recurrent(torch.nn.GRU),
    "rnn_tanh": recurrent(torch.nn.RNN),
}


@pytest.mark.parametrize("op", UNCOVERED)
def test_the_uncovered_table_is_the_code(op: str) -> None:
    x = torch.tensor([[0.5, 0.1, 0.2, 0.7]])
    assert "none" in [row.rule for row in bilrp.ops(UNCOVERED[op], x)]


def test_the_uncovered_table_is_complete() -> None:
    refused_otherwise = {"embedding", "fft_fft"}  # as integer input, and by the tape
    assert operations("uncovered") == set(UNCOVERED) | refused_otherwise
