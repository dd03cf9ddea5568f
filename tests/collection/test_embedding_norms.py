"""Embeddings so small or so large that their squares leave float32 have the neighbours that a pair's cosine says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from collection_helpers import write_items

from bilrp import similarity
from bilrp.collection.items_table import ItemsTable

pytest.importorskip("lance", reason="collections need bilrp[collection]")

SIZES = (1e-42, 1e-30, 1e-22, 1.0, 1e22, 1e37)


def of_any_size(width: int = 16) -> np.ndarray:
    """The same forty directions at every size, and one that is zero."""
    rng = np.random.default_rng(0)
    some = rng.standard_normal((40, width))
    return np.concatenate([*(size * some for size in SIZES), np.zeros((1, width))]).astype(np.float32)


def compute_cosines(embeddings: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """As `bilrp.explain` scores each pair; it has no cosine for zero, and the least one can say of it is 0."""
    cosine, query = similarity.cosine(), torch.from_numpy(vector)
    return np.array([cosine.score(query, torch.from_numpy(e)) if e.any() else 0.0 for e in embeddings])


@pytest.mark.parametrize("most", [0, 2**30], ids=["from float16", "in memory"])
def test_neighbours_by_cosine_whatever_their_size(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bilrp.collection.items_table.MAX_CANDIDATE_FRACTION", 1.0
    )  # the float16 index, however many it proposes
    embeddings = of_any_size()
    result = write_items(tmp_path / "x.lance", embeddings)
    result.max_resident_bytes = most
    for position in (3, 44, 85, 126, 167, 208, len(embeddings) - 1):
        truth = (
            compute_cosines(embeddings, embeddings[position])
            if embeddings[position].any()
            else np.zeros(len(embeddings))
        )
        for k in (1, 12, len(embeddings), 10 * len(embeddings)):
            positions, scores = result.top_k(embeddings[position], k, "cosine")
            count = min(k, len(embeddings))
            assert len(set(positions.tolist())) == count
            assert scores == pytest.approx(truth[positions], abs=2e-3)  # the smallest have three digits
            assert scores == pytest.approx(np.sort(truth)[::-1][:count], abs=2e-3)


@pytest.mark.parametrize("size", SIZES)
def test_the_float16_index_proposes_the_best_of_a_query_of_any_size(tmp_path: Path, size: float) -> None:
    rng = np.random.default_rng(1)
    neighbours = rng.standard_normal(16) + 2e-4 * rng.standard_normal(
        (300, 16)
    )  # closer than float16 can tell
    embeddings = neighbours.astype(np.float32)
    result = write_items(tmp_path / "x.lance", embeddings)
    vector = (size * rng.standard_normal(16)).astype(np.float32)
    exact = embeddings.astype(np.float64) @ vector.astype(np.float64)
    for similar in ("dot", "cosine"):
        truth = (
            exact / np.linalg.norm(embeddings.astype(np.float64), axis=1) if similar == "cosine" else exact
        )
        taken = result.float16_index
        assert taken is not None
        assert set(np.argsort(-truth)[:5]) <= set(taken.candidates(vector, 5, cosine=similar == "cosine"))


def test_the_table_and_the_float16_index_have_the_same_norms(tmp_path: Path) -> None:
    embeddings = of_any_size()
    result = write_items(tmp_path / "x.lance", embeddings)
    held = ItemsTable(result.dataset, embeddings.shape[1])
    expected = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    assert held.norms == pytest.approx(expected, rel=1e-5, abs=1e-44)
    assert result.norms == pytest.approx(held.norms)
