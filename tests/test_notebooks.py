"""The notebooks in examples/ run from top to bottom, with what a package registry gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import pytest

from bilrp.encoders import load
from bilrp.errors import BilrpError

FOLDER = Path(__file__).parents[1] / "examples"


def check_photographs(names: dict[str, Any], printed: str) -> None:
    assert "more than any of 2,016 random pairs" in printed and "specific to" in printed
    assert names["explanation"].findings(1)[0].share > 0.05
    assert names["contrast"].score > 0.3, "the same cup is closer than a cat"


def check_rag(names: dict[str, Any], printed: str) -> None:
    assert "matplotlib" in printed.splitlines()[1] and "The query is closer to" in printed
    assert "<span" in names["why"]._repr_html_()
    hits = names["hits"]
    assert len(hits) == 5 and all(hit.highlight.score == pytest.approx(hit.score, abs=1e-5) for hit in hits)


def check_audit(names: dict[str, Any], printed: str) -> None:
    assert names["stamp"].kind == "alike"
    lowest_rows = names["repaired"].relevance[48:].abs().sum() / names["repaired"].relevance.abs().sum()
    assert lowest_rows < 0.1, "the stamp, in the two lowest rows, has no relevance after the repair"


def check_tables(names: dict[str, Any], printed: str) -> None:
    assert "numbers occur in both tables" in printed and "were first on table-1.png" in printed


class Notebook(NamedTuple):
    encoder: str
    modules: tuple[str, ...]
    check: Callable[[dict[str, Any], str], None]


NOTEBOOKS = {
    "photographs": Notebook("efficientnet", ("skimage",), check_photographs),
    "rag": Notebook("minilm", ("faiss",), check_rag),
    "audit_and_repair": Notebook("vgg16", ("skimage", "lance"), check_audit),
    "tables": Notebook("bigram", ("lance", "scipy"), check_tables),
}


def test_every_notebook_is_run_and_has_no_outputs() -> None:
    paths = sorted(FOLDER.glob("*.ipynb"))
    assert [path.stem for path in paths] == sorted(NOTEBOOKS)
    for path in paths:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
        assert "`pip install " in "".join(cells[0]["source"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    encoder, modules, check = NOTEBOOKS[name]
    for module in modules:
        pytest.importorskip(module, reason=f"needs {module}")
    try:
        load(encoder)
    except BilrpError as error:
        if "download" not in str(error):
            raise
        pytest.skip(f"needs the weights of {encoder}: {error}")
    namespace: dict[str, Any] = {}
    for cell in json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), namespace)
    plt.close("all")
    check(namespace, capsys.readouterr().out)
