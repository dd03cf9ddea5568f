"""The approximate index finds what it says it finds, with true scores, and hides nothing that came after it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from making import kept, pictures, tiny, unheld

from bilrp import collection
from bilrp.cli import app
from bilrp.collection import approximate, tables
from bilrp.collection.items import largest

lance = pytest.importorskip("lance", reason="collections need bilrp[collection]")


def clustered(count: int = 5000, width: int = 24) -> np.ndarray:
    rng = np.random.default_rng(0)
    middles = rng.standard_normal((40, width))
    near = middles[rng.integers(0, 40, count)] + 0.6 * rng.standard_normal((count, width))
    return (near * rng.uniform(0.5, 2, (count, 1))).astype(np.float32)


def truth(embeddings: np.ndarray, vector: np.ndarray, similarity: str) -> np.ndarray:
    scores = embeddings.astype(np.float64) @ vector
    lengths = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(vector)
    return scores / lengths if similarity == "cosine" else scores


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_it_finds_what_it_says_with_true_scores(tmp_path: Path, similarity: str) -> None:
    embeddings, path = clustered(), tmp_path / "x.lance"
    found = kept(path, embeddings)
    index = found.index(similarity)
    if (
        similarity == "dot" and int(lance.__version__.split(".")[0]) < 14
    ):  # compared by bytes, it finds a seventh
        assert index is None  # and so it is not used
        return
    assert index is not None and index.recall >= approximate.WANTED and index.probes < 5000**0.5
    assert len(set(index.candidates(embeddings[0], 5000))) < 5000  # not every partition is looked into
    hits = []
    for vector in embeddings[:60] + 0.1:  # none of those that it was measured on
        exact = truth(embeddings, vector, similarity)
        positions, scores = found.best(vector, 10, similarity, index=index)
        assert scores == pytest.approx(exact[positions], rel=1e-5) and (np.diff(scores) <= 0).all()
        hits.append(len(set(positions) & set(largest(exact, 10))) / 10)
    assert np.mean(hits) >= 0.9
    again = unheld(path).index(similarity)  # it is kept, with its recall
    assert again is not None and (again.recall, again.probes) == (index.recall, index.probes)
    assert unheld(path).index("dot" if similarity == "cosine" else "cosine") is None  # exact, then
    assert found.best(embeddings[3], 5000, similarity, index=index)[0].size == 5000  # more than it knows of
    found.most = 2**30
    assert found.index(similarity) is None  # no need for one


def test_an_index_that_finds_too_few_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, path = clustered(300), tmp_path / "x.lance"
    monkeypatch.setattr(approximate, "WANTED", 1.1)
    assert kept(path, embeddings).index("cosine") is None
    monkeypatch.setattr(approximate, "made", lambda *_: pytest.fail("it was made again"))
    assert unheld(path).index("cosine") is None


def test_what_came_later_is_found_and_what_went_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings, path = clustered(2000), tmp_path / "x.lance"
    vector, new = 3 * embeddings[0], np.random.default_rng(1).standard_normal((8, 24)).astype(np.float32)
    kept(path, embeddings).index("cosine")
    late = (vector + 0.01 * new).astype(np.float32)  # nearest of all
    for number in range(4):
        kept(path, late[2 * number : 2 * number + 2], first=2000 + 2 * number)
    tables.deleted(str(path), tables.ITEMS, "00000000")

    def answer() -> set[str]:
        found = unheld(path)
        index = found.index("cosine")
        assert index is not None
        positions, scores = found.best(vector, 8, "cosine", index=index)
        assert scores == pytest.approx(truth(late, vector, "cosine").tolist(), abs=1e-3)
        return {found.ids[i] for i in positions}

    expected = {f"{2000 + n:08}" for n in range(8)}
    assert answer() == expected
    monkeypatch.setattr(tables, "MANY", 2)
    tables.compact(str(path))  # fragments are merged, and the index takes in what is new
    dataset = tables.opened(str(path), tables.ITEMS)
    assert dataset is not None and dataset.stats.index_stats(approximate.NAME)["num_unindexed_rows"] == 0
    assert answer() == expected


def test_search_says_its_recall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bilrp.collection.items.RESIDENT", 0)
    path = tmp_path / "x.lance"
    collection.build(pictures(tmp_path / "in", 40), tiny(), path)
    monkeypatch.setattr(approximate, "WANTED", 0.01)  # whatever one partition holds
    app(["search", str(path), "3", "-k", "2", "--approximate"], standalone_mode=False)
    recall = collection.open(path, tiny()).recall("cosine")
    assert 0 < recall < 1 and f"approximately: finds {recall:.0%} of" in capsys.readouterr().out
    for asked, said in ((["--approximate"], recall), ([], 1.0)):
        app(["search", str(path), "3", "-k", "2", "--json", *asked], standalone_mode=False)
        assert json.loads(capsys.readouterr().out)["recall"] == said
