"""The notebook for people with a retriever runs from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "rag.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("faiss", reason="needs faiss-cpu")
    from bilrp.encoders import downloads, packages

    if not downloads.is_cached(packages.MINILM):
        pytest.skip("needs MiniLM, which is downloaded at first use")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    namespace: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), namespace)
    printed = capsys.readouterr().out
    assert "matplotlib" in printed.splitlines()[1] and "The query is closer to" in printed
    assert "<span" in namespace["why"]._repr_html_()
    hits = namespace["hits"]
    assert len(hits) == 5 and all(hit.highlight.score == pytest.approx(hit.score, abs=1e-5) for hit in hits)
