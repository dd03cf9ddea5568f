"""A similarity from a user's own file: explained, drawn, saved and loaded without changing the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import bilrp
from bilrp import Explanation

OWN = """
import torch
from bilrp.similarity import Similarity

WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def weighted() -> Similarity:
    return Similarity(
        "weighted", lambda a, b: (WEIGHTS * a * b).sum(), lambda a, b: lambda p, q: (p * WEIGHTS) @ q.T
    )
"""


def test_a_similarity_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ownsimilarity", raising=False)
    (tmp_path / "ownsimilarity.py").write_text(OWN)
    import ownsimilarity  # type: ignore[import-not-found]

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    a, b = torch.rand(2, 1, 3, 16, 16, dtype=torch.float64)
    explanation = bilrp.explain(net, a, b, regions=8, similarity=ownsimilarity.weighted())
    with torch.no_grad():
        expected = (ownsimilarity.WEIGHTS * net(a) * net(b)).sum()
    assert explanation.similarity == "weighted" and explanation.score == pytest.approx(float(expected))
    assert float(explanation.relevance.sum()) + explanation.unattributed == pytest.approx(explanation.score)
    for name in ("why.npz", "why.png", "why.html"):
        explanation.save(tmp_path / name)
    second = Explanation.load(tmp_path / "why.npz")
    assert second.similarity == "weighted" and torch.equal(second.relevance, explanation.relevance)
    assert second.summary().startswith("Weighted ")
