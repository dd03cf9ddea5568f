"""Neighbours by embeddings in half precision are those in float32: what rounding may hide is read and ranked."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from collection_helpers import open_items_on_disk, tiny_encoder, write_items, write_pictures

from bilrp import collection
from bilrp.collection import float16_index, tables
from bilrp.collection.items_table import ItemsTable, top_k_indices

pytest.importorskip("lance", reason="collections need bilrp[collection]")


def close(seed: int, count: int = 3000, width: int = 48) -> np.ndarray:
    """Many that differ by less than half precision can tell, of very different lengths."""
    rng = np.random.default_rng(seed)
    middles = rng.standard_normal((6, width))
    neighbours = middles[rng.integers(0, 6, count)] + 2e-4 * rng.standard_normal((count, width))
    return (neighbours * 10.0 ** rng.uniform(-6, 6, (count, 1))).astype(np.float32)


def test_the_exact_neighbours_where_float16_cannot_tell_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = close(0)
    result = write_items(tmp_path / "x.lance", embeddings)
    monkeypatch.setattr(result, "iter_blocks", lambda: pytest.fail("all embeddings were read again"))
    monkeypatch.setattr("bilrp.collection.items_table.MAX_CANDIDATE_FRACTION", 1.0)
    taken = result.float16_index
    assert taken is not None and taken.path.stat().st_size == len(embeddings) * (2 * 48 + 12)
    rounding = 0
    for number in range(12):
        vector = embeddings[number] if number % 3 else -embeddings[number]
        exact = embeddings.astype(np.float64) @ vector.astype(np.float64)
        lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1)
        for similarity in ("dot", "cosine"):
            truth = exact if similarity == "dot" else exact / lengths / np.linalg.norm(vector)
            best = np.sort(truth)[::-1][:10]
            positions, scores = result.top_k(vector, 10, similarity)
            assert scores == pytest.approx(best, rel=1e-5)
            assert truth[positions] == pytest.approx(best, rel=1e-5) and len(set(positions)) == 10
            halved = taken.scale * taken.dot(vector) / (1 if similarity == "dot" else taken.norm)
            rounding += set(top_k_indices(halved, 10)) != set(positions)
    assert rounding > 6  # float16 alone would have answered otherwise


def test_no_score_leaves_the_bound(tmp_path: Path) -> None:
    """Every item that could be the best for some vector is a candidate, whatever the vector."""
    embeddings = close(1, 400, 16)
    result = write_items(tmp_path / "x.lance", embeddings)
    taken, rng = result.float16_index, np.random.default_rng(2)
    assert taken is not None
    for scale in (1e-8, 1.0, 1e8):
        vector = (scale * rng.standard_normal(16)).astype(np.float32)
        for k in (1, 7, 399, 400, 999):
            for cosine in (False, True):
                scores = embeddings.astype(np.float64) @ vector
                scores = scores / np.linalg.norm(embeddings.astype(np.float64), axis=1) if cosine else scores
                assert set(top_k_indices(scores, k)) <= set(taken.candidates(vector, k, cosine=cosine))


def test_the_index_follows_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added is found, what is removed is not; an old index is deleted when it was not opened for a day."""
    monkeypatch.setattr("bilrp.collection.items_table.MAX_RESIDENT_BYTES", 0)
    source, path = write_pictures(tmp_path / "in", 8), tmp_path / "x.lance"
    first = collection.build(source, tiny_encoder(), path)
    assert len(first.nearest(0, 20)) == 8
    (before,) = path.glob("float16-*")
    write_pictures(source, 12)
    more = collection.build(source, tiny_encoder(), path)
    embeddings = more.embeddings
    for k in (3, 20):
        expected = top_k_indices(embeddings @ embeddings[2], k)
        assert [n.position for n in more.nearest(2, k)] == expected.tolist()
    (after,) = set(path.glob("float16-*")) - {before}
    assert before.exists() and len(first.nearest(0, 3)) == 3  # it still answers for what it opened
    old = time.time() - tables.VERSION_RETENTION.total_seconds() - 60
    for file in (before, after):
        os.utime(file, (old, old))
    assert len(collection.open(path).nearest(0, 3)) == 3  # this one is in use again
    gone = more.ids[5]
    more.remove([5])
    assert gone not in {n.id for n in more.nearest(2, 20)} and len(more.nearest(2, 20)) == 11
    assert after.exists() and not before.exists() and len(list(path.glob("float16-*"))) == 2
    assert len(first.nearest(0, 3)) == 3  # from blocks, then


def test_several_that_make_them_at_once_all_have_them(tmp_path: Path) -> None:
    embeddings, path = close(5, 2000, 48), tmp_path / "x.lance"
    write_items(path, embeddings)
    several = [open_items_on_disk(path) for _ in range(4)]
    expected = top_k_indices(embeddings @ embeddings[7], 5)
    with ThreadPoolExecutor(len(several)) as pool:
        answers = list(pool.map(lambda items: items.top_k(embeddings[7], 5)[0], several))
    assert all(items.float16_index is not None for items in several)
    assert all(np.array_equal(answer, expected) for answer in answers)
    assert len(list(path.glob("float16-*"))) == 1 and not list(path.glob(".bilrp-partial-*"))


def test_a_place_that_cannot_be_written_to_is_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = close(3, 200, 16)
    result = write_items(tmp_path / "x.lance", embeddings)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(float16_index, "atomic_write", full)
    _, scores = result.top_k(embeddings[7], 5)
    assert result.float16_index is None and scores == pytest.approx(
        np.sort(embeddings @ embeddings[7])[:-6:-1]
    )
    assert not list((tmp_path / "x.lance").glob("float16-*"))


def test_a_torn_file_is_made_again(tmp_path: Path) -> None:
    embeddings = close(4, 100, 16)
    result = write_items(tmp_path / "x.lance", embeddings)
    assert result.float16_index is not None
    size, path = result.float16_index.path.stat().st_size, result.float16_index.path
    path.write_bytes(path.read_bytes()[:100])
    second = ItemsTable(result.dataset, 16)
    second.max_resident_bytes = 0
    _, scores = second.top_k(embeddings[7], 5)
    assert scores == pytest.approx(np.sort(embeddings @ embeddings[7])[:-6:-1])
    assert path.stat().st_size == size
