"""The collection's benchmark runs, compares like with like, and says what was measured."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from bilrp_studies.bench import decomposition as tables
from collection.collection_helpers import tiny_encoder

pytest.importorskip("lance", reason="collections need bilrp[collection]")


def test_every_figure_is_measured(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bilrp_studies.bench import collection

    monkeypatch.setattr(collection, "PHOTOGRAPH_COUNT", 6)
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    photograph = Image.fromarray(pixels).resize((400, 300), Image.Resampling.BICUBIC)
    steps: list[str] = []
    result = collection.run(tiny_encoder(), photograph, rounds=1, items=1500, say=steps.append)
    assert [each.unit for each in result] == ["×", "ms", "×", "ms", "MB"] and "1500 embeddings" in steps
    assert all(each.value > 0 for each in result[:4]) and result[4].value >= 0
    assert "16 × 16 regions" in result[1].note and "against 1500 items" in result[2].name
    console = Console(width=160, record=True, file=StringIO())
    console.print(tables.build_collection_table(result))
    assert "of the encoder's own rate" in console.export_text()
