"""The approximate index finds what it says it finds, with true scores, and hides nothing that came after it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collection_helpers import open_items_on_disk, tiny_encoder, write_items, write_pictures

from bilrp import collection
from bilrp.cli import app
from bilrp.collection import approximate_index, tables
from bilrp.collection.items_table import ItemsTable
from bilrp.encoders import registry

lance = pytest.importorskip("lance", reason="collections need bilrp[collection]")

CLOSE = 0.01  # of a recall: of items that are equally near by a byte a coordinate, either may be proposed


def make_clusters(count: int = 5000, width: int = 24) -> np.ndarray:
    rng = np.random.default_rng(0)
    middles = rng.standard_normal((40, width))
    neighbours = middles[rng.integers(0, 40, count)] + 0.6 * rng.standard_normal((count, width))
    return (neighbours * rng.uniform(0.5, 2, (count, 1))).astype(np.float32)


def _count_unindexed(dataset: Any) -> int:
    known = {number for i in dataset.describe_indices() for s in i.segments for number in s.fragment_ids}
    return len({fragment.fragment_id for fragment in dataset.get_fragments()} - known)


def truth(embeddings: np.ndarray, vector: np.ndarray, similarity: str) -> np.ndarray:
    scores = embeddings.astype(np.float64) @ vector
    lengths = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(vector)
    return scores / lengths if similarity == "cosine" else scores


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_it_finds_what_it_says_with_true_scores(tmp_path: Path, similarity: str) -> None:
    """Whatever its partitions are: what it proposes is scored exactly, and what it says it finds is found again."""
    embeddings, path = make_clusters(), tmp_path / "x.lance"
    result = write_items(path, embeddings)
    index = result.index(similarity)
    if (
        similarity == "dot" and int(lance.__version__.split(".")[0]) < 14
    ):  # compared by bytes, it finds a seventh
        assert index is None  # and so it is not used
        return
    assert (
        index is not None
        and approximate_index.MIN_RECALL <= index.recall <= 1
        and index.sample_size == approximate_index.RECALL_SAMPLE_ITEMS
    )
    for vector in embeddings[:20] + 0.1:
        exact = truth(embeddings, vector, similarity)
        positions, scores = result.top_k(vector, 10, similarity, index=index)
        assert scores == pytest.approx(exact[positions], rel=1e-5) and (np.diff(scores) <= 0).all()
        proposed = [int(each) for each in index.candidates(vector, 10)]
        assert exact[positions] == pytest.approx(np.sort(exact[proposed])[:-11:-1], rel=1e-5)
    assert again(result, index) == pytest.approx(index.recall, abs=CLOSE)
    if index.probes > 1:  # no more partitions are looked into than that takes
        assert again(result, replace(index, probes=index.probes // 2)) < approximate_index.MIN_RECALL + CLOSE
    other = open_items_on_disk(path).index(similarity)  # it is stored, with its recall
    assert other is not None and (other.recall, other.probes) == (index.recall, index.probes)
    assert (
        open_items_on_disk(path).index("dot" if similarity == "cosine" else "cosine") is None
    )  # exact, then
    assert result.top_k(embeddings[3], 5000, similarity, index=index)[0].size == 5000  # more than it knows of
    result.max_resident_bytes = 2**30
    assert result.index(similarity) is None  # no need for one


def again(result: ItemsTable, index: approximate_index.ApproximateIndex) -> float:
    """Recall by another road: of the items that it was measured on, by the exact search of each."""
    some, hits = (
        np.random.default_rng(0).permutation(len(result))[: approximate_index.RECALL_SAMPLE_ITEMS],
        [],
    )
    for at, vector in zip(some, result.embeddings(some), strict=True):
        neighbours = [result.ids[i] for i in result.top_k(vector, 11, index.similarity)[0] if i != at][:10]
        hits.append(len(set(neighbours) & set(index.candidates(vector, 10))) / 10)
    return float(np.mean(hits))


def test_an_index_that_finds_too_few_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, path = make_clusters(300), tmp_path / "x.lance"
    monkeypatch.setattr(approximate_index, "MIN_RECALL", 1.1)
    why = write_items(path, embeddings).index_or_reason("cosine")
    assert isinstance(why, str) and "the index finds only" in why
    monkeypatch.setattr(approximate_index, "build_index", lambda *_: pytest.fail("it was made again"))
    monkeypatch.setattr(approximate_index, "measure_recall", lambda *_: pytest.fail("it was measured again"))
    assert open_items_on_disk(path).index("cosine") is None


def test_it_is_measured_again_when_the_table_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings, path, measured = make_clusters(600), tmp_path / "x.lance", []
    work = approximate_index.measure_recall
    monkeypatch.setattr(
        approximate_index, "measure_recall", lambda *given: measured.append(1) or work(*given)
    )

    def times() -> int:
        measured.clear()
        result = open_items_on_disk(path)
        index = result.index("cosine")
        assert index is not None and again(result, index) == pytest.approx(index.recall, abs=CLOSE)
        return len(measured)

    write_items(path, embeddings)
    assert (times(), times()) == (1, 0)
    write_items(path, -embeddings[:50], first=600)  # it has grown
    assert (times(), times()) == (1, 0)
    tables.delete_rows(str(path), tables.ITEMS_TABLE, "00000007")
    assert (times(), times()) == (1, 0)
    tables.compact(str(path))  # the index takes in what is new: it is another
    assert (times(), times()) == (1, 0)


def test_where_nothing_can_be_written_the_search_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bilrp.collection.items_table.MAX_RESIDENT_BYTES", 0)
    path = tmp_path / "x.lance"
    collection.build(write_pictures(tmp_path / "in", 12), tiny_encoder(), path)
    (path / tables.ITEMS_TABLE / "_indices").write_text("")  # a file where Lance would make a folder
    app(["search", str(path), "3", "-k", "2"], standalone_mode=False)
    exact = capsys.readouterr().out
    app(["search", str(path), "3", "-k", "2", "--approximate"], standalone_mode=False)
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert first.startswith("Searched exactly, without an index: the index cannot be built") and rest == exact
    app(["search", str(path), "3", "-k", "2", "--approximate", "--json"], standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    assert answer["recall"] == 1 and "the index cannot be built" in answer["exact"]


def test_threads_that_build_the_index_at_once_all_have_it(tmp_path: Path) -> None:
    embeddings, path = make_clusters(1200), tmp_path / "x.lance"
    write_items(path, embeddings)
    several = [open_items_on_disk(path) for _ in range(4)]
    with ThreadPoolExecutor(len(several)) as pool:
        result = list(pool.map(lambda items: items.index_or_reason("cosine"), several))
    assert all(isinstance(index, approximate_index.ApproximateIndex) for index in result), result
    later = open_items_on_disk(path).index("cosine")
    assert later is not None and all("00000007" in i.candidates(embeddings[7], 1) for i in [*result, later])


def test_what_came_later_is_found_and_what_went_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings, path = make_clusters(2000), tmp_path / "x.lance"
    vector = 3 * embeddings[0]
    write_items(path, embeddings).index("cosine")
    late = (
        vector * 2.0 ** np.arange(8, dtype=np.float32)[:, None]
    )  # nearest of all: in whatever partition, in its own
    for number in range(4):
        write_items(path, late[2 * number : 2 * number + 2], first=2000 + 2 * number)
    tables.delete_rows(str(path), tables.ITEMS_TABLE, "00000000")

    def answer() -> set[str]:
        result = open_items_on_disk(path)
        index = result.index("cosine")
        assert index is not None
        positions, scores = result.top_k(vector, 8, "cosine", index=index)
        assert scores == pytest.approx(np.ones(8), abs=1e-5)
        return {result.ids[i] for i in positions}

    expected = {f"{2000 + n:08}" for n in range(8)}
    assert answer() == expected
    monkeypatch.setattr(tables, "MIN_FRAGMENTS_TO_COMPACT", 2)
    tables.compact(str(path))  # fragments are merged, and the index takes in what is new
    dataset = tables.open_table(str(path), tables.ITEMS_TABLE)
    assert dataset is not None and _count_unindexed(dataset) == 0
    assert answer() == expected


def test_recall_is_printed_only_for_searches_like_the_measured_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bilrp.collection.items_table.MAX_RESIDENT_BYTES", 0)
    path = tmp_path / "x.lance"
    collection.build(write_pictures(tmp_path / "in", 40), tiny_encoder(), path)
    assert collection.open(path, tiny_encoder()).recall("cosine") >= approximate_index.MIN_RECALL
    dataset = tables.open_table(str(path), tables.ITEMS_TABLE)
    assert dataset is not None
    measurement = json.loads(dataset.config()[approximate_index.CONFIG_KEY])
    dataset.update_config({approximate_index.CONFIG_KEY: json.dumps(measurement | {"recall": 0.9725})})
    assert collection.open(path, tiny_encoder()).recall("cosine") == 0.9725

    def run_search(*more: str) -> str:
        app(["search", str(path), "3", "--similarity", "cosine", *more], standalone_mode=False)
        return capsys.readouterr().out

    assert "approximately: finds 97% of an item's 10 nearest" in run_search("-k", "2", "--approximate")
    monkeypatch.setattr(registry, "load_stored", lambda *_, **__: tiny_encoder())
    monkeypatch.setattr(registry, "is_known", lambda *_: True)
    for more in (["-k", "11"], ["-k", "2", "--part", "0,0,30,30"]):
        text = run_search(*more, "--approximate")
        assert "recall is 97% measured for whole items, k = 10, and may be less here" in text
        answer = json.loads(run_search(*more, "--approximate", "--json"))
        assert answer["recall"] is None and answer["measured"]["recall"] == 0.9725
    assert json.loads(run_search("-k", "2", "--json", "--approximate"))["recall"] == 0.9725
    assert json.loads(run_search("-k", "2", "--json"))["recall"] == 1.0
