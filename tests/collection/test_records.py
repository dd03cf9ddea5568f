"""Records: ids, metadata and vectors of the user's own, filters, and what happens when rows change or a run is killed."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from collection_helpers import tiny_encoder, write_pictures
from PIL import Image as Pillow

import bilrp
from bilrp import collection
from bilrp.collection.indexing import build_with_report
from bilrp.collection.sources import iter_source_items
from bilrp.collection.table_rows import parse_cells, to_scalar
from bilrp.encoders.text.reader import TextReader
from bilrp.errors import InputError, MismatchError
from text_folders import ARCHITECTURES

READS_TEXT = bilrp.Encoder(torch.nn.Flatten(), read=TextReader.__new__(TextReader))  # lists files, reads none
RECORDS: list[dict[str, Any]] = [
    {"id": "a-1", "text": "A cat sat on the mat.", "lang": "en", "year": 2018, "score": 0.5, "ok": True},
    {
        "id": "a-2",
        "text": "The kittens rested on a rug!",
        "lang": "en",
        "year": 2021,
        "score": 1,
        "ok": False,
    },
    {"id": "d-1", "text": "Two dogs run through the snow.", "lang": "de", "year": 2022, "tags": ["x", "y"]},
    {"id": "e'; DROP", "text": "It rains. Stay in!", "lang": "o'b", "year": None, "group": "weather"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bert = next(each for each in ARCHITECTURES if each.name == "bert")
    return bert.save(tmp_path_factory.mktemp("bert"), dtype=torch.float32)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> bilrp.Encoder:
    return bilrp.encoders.sentence(folder)


@pytest.fixture(scope="module")
def vectors(encoder: bilrp.Encoder) -> np.ndarray:
    return np.stack([bilrp.decompose(encoder, r["text"]).embedding.numpy() for r in RECORDS])


def test_records_keep_ids_texts_and_metadata(encoder: bilrp.Encoder, tmp_path: Path) -> None:
    stored = collection.build(RECORDS, encoder, tmp_path / "c.lance")
    assert stored.ids == [r["id"] for r in RECORDS]
    assert stored.columns == {
        "lang": "string", "year": "int64", "score": "double", "ok": "bool", "tags": "string",
    }  # fmt: skip
    assert stored.metadata[0] == {"lang": "en", "year": 2018, "score": 0.5, "ok": True, "tags": None}
    assert stored.metadata[2]["tags"] == '["x", "y"]'
    (hit, *_) = stored.nearest(RECORDS[3]["text"], 1)
    assert (hit.id, hit.text, hit.group) == ("e'; DROP", RECORDS[3]["text"], "weather")
    assert hit.metadata["lang"] == "o'b" and hit.metadata["year"] is None
    reopened = collection.open(tmp_path / "c.lance", encoder)
    assert reopened.metadata == stored.metadata and reopened.position("d-1") == 2
    marked = reopened.highlight(QUERY := "Where do the kittens sleep?", reopened.nearest(QUERY, 2))
    assert len(marked) == 2 and reopened.explain("a-1", "a-2").score == pytest.approx(
        bilrp.explain(encoder, RECORDS[0]["text"], RECORDS[1]["text"]).score, abs=1e-5
    )


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("lang = 'en' AND year > 2019", {"a-2"}),
        ("lang = 'en'", {"a-1", "a-2"}),
        ("year IS NULL", {"e'; DROP"}),
        ("lang = 'o''b' OR score >= 1", {"e'; DROP", "a-2"}),
        ("ok", {"a-1"}),
        ("id IN ('a-1', 'd-1')", {"a-1", "d-1"}),
        ("text LIKE '%dogs%'", {"d-1"}),
        ("year > 3000", set()),
    ],
)
def test_where_filters_as_python_does(
    where: str, expected: set[str], encoder: bilrp.Encoder, tmp_path: Path
) -> None:
    stored = collection.build(RECORDS, encoder, tmp_path / "c.lance")
    neighbours = stored.nearest("A cat.", 10, where=where)
    assert {hit.id for hit in neighbours} == expected
    everything = {hit.id: hit.score for hit in stored.nearest("A cat.", 10)}
    scores = sorted((everything[i] for i in expected), reverse=True)
    assert [hit.score for hit in neighbours] == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("where", ["colour = 'red'", "year >", "DROP TABLE items", "lang + 1", ""])
def test_conditions_that_cannot_be_used_name_the_columns(
    where: str, encoder: bilrp.Encoder, tmp_path: Path
) -> None:
    stored = collection.build(RECORDS, encoder, tmp_path / "c.lance")
    with pytest.raises(InputError, match="the columns are id, name, group"):
        stored.nearest("A cat.", where=where)


def test_vectors_are_stored_and_searched_by(
    encoder: bilrp.Encoder, vectors: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = collection.build(RECORDS, encoder, tmp_path / "c.lance", embeddings=vectors)
    assert np.array_equal(stored.embeddings, vectors)
    for vector in (
        vectors[1],
        torch.from_numpy(vectors[1]),
        vectors[1].tolist(),
        vectors[1].astype(np.float64),
    ):
        hits = stored.nearest(vector, 2, where="lang = 'en'")
        assert [hit.id for hit in hits] == ["a-2", "a-1"] and hits[0].score == pytest.approx(1, abs=1e-6)
    own = collection.build(RECORDS, encoder, tmp_path / "own.lance")
    assert np.allclose(own.embeddings, stored.embeddings, atol=1e-5)
    with pytest.raises(InputError, match="finite numbers"):
        stored.nearest(vectors[1][:3])
    with pytest.raises(InputError, match="no regions"):
        stored.nearest(vectors[1], part=[0])
    records = [{**r, "embedding": v.tolist()} for r, v in zip(RECORDS, vectors, strict=True)]
    inline = collection.build(records, encoder, tmp_path / "inline.lance")
    assert np.array_equal(inline.embeddings, vectors) and "embedding" not in inline.columns
    texts = collection.build(
        [r["text"] for r in RECORDS], encoder, tmp_path / "t.lance", embeddings=vectors.astype(np.float16)
    )
    assert np.array_equal(texts.embeddings, vectors.astype(np.float16).astype(np.float32))


def test_many_queries_give_what_each_alone_gives(
    encoder: bilrp.Encoder, vectors: np.ndarray, tmp_path: Path
) -> None:
    made = collection.build(RECORDS, encoder, tmp_path / "x.lance")
    queries: list[Any] = ["It rains!", "A kitten sleeps.", 1, "a-1", vectors[2], "A kitten sleeps."]
    for where in (None, "year > 2019"):
        together = made.nearest_many(queries, 2, where=where)
        assert len(together) == len(queries)
        for query, hits in zip(queries, together, strict=True):
            alone = made.nearest(query, 2, where=where)
            assert [hit.id for hit in hits] == [hit.id for hit in alone]
            assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone], abs=1e-5)
            assert [(hit.text, hit.metadata) for hit in hits] == [(hit.text, hit.metadata) for hit in alone]
    assert torch.allclose(made.nearest_many([1], 1)[0][0].share, made.nearest(1, 1)[0].share)
    assert [[hit.position] for (hit,) in made.nearest_many(vectors, 1)] == [[n] for n in range(len(RECORDS))]
    assert made.nearest_many([]) == []
    for wrong, reason in (
        ("one query", "list of queries"),
        ([""], "empty"),
        ([vectors[0][:3]], "finite numbers"),
    ):
        with pytest.raises(InputError, match=reason):
            made.nearest_many(wrong)
    with pytest.raises(InputError, match="k must be"):
        made.nearest_many(queries, 0)


def test_vectors_of_another_encoder_are_refused(
    encoder: bilrp.Encoder, vectors: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "c.lance"
    broken = vectors.copy()
    broken[2, 1] = np.nan
    for wrong, message in (
        (vectors[::-1], r"cosine .* in the order of the records"),
        (vectors * 3, "they are scaled"),
        (vectors[:, :8], "8 coordinates"),
        (broken, "record 2 has NaN"),
    ):
        with pytest.raises((InputError, MismatchError), match=message):
            collection.build(RECORDS, encoder, path, embeddings=wrong)
    with pytest.raises(InputError, match=r"\[4, h\]"):
        collection.build(RECORDS, encoder, path, embeddings=vectors[:2])
    assert not path.exists()


def test_changed_rows_replace_and_unchanged_rows_stay(encoder: bilrp.Encoder, tmp_path: Path) -> None:
    path = tmp_path / "c.lance"
    collection.build(RECORDS, encoder, path, parts=True)
    changed = [dict(r) for r in RECORDS]
    changed[0]["text"] = "A dog sat on the mat."
    changed[1]["year"] = 1999
    changed.append({"id": "new", "text": "Unbelievably, nobody's car.", "lang": "en"})
    stored, report = build_with_report(changed, encoder, path)
    assert (report.added, report.changed, report.unchanged, report.failed) == (1, 2, 2, [])
    assert sorted(stored.ids) == sorted([r["id"] for r in changed])
    rows = dict(zip(stored.ids, stored.metadata, strict=True))
    assert rows["a-2"]["year"] == 1999
    at = stored.position("a-1")
    assert at is not None and stored.original_input(at) == "A dog sat on the mat."
    fresh = bilrp.decompose(
        encoder, "A dog sat on the mat."
    )  # neither embedding nor parts are those of before
    assert torch.allclose(stored.embedding("a-1"), fresh.embedding, atol=1e-5)
    assert torch.allclose(stored.decomposition("a-1").parts, fresh.parts, atol=1e-2)
    assert build_with_report(changed, encoder, path)[1].unchanged == 5


def test_a_changed_vector_of_the_users_own_replaces_the_old(encoder: bilrp.Encoder, tmp_path: Path) -> None:
    records = [{"id": f"r{n}", "text": f"{n} dogs run.", "year": n} for n in range(6)]
    first = collection.build(records, encoder, tmp_path / "first.lance").embeddings
    path, changed = tmp_path / "c.lance", first.copy()
    changed[5] = -first[5]  # beyond the rows that are compared with the encoder
    collection.build(records, encoder, path, parts=True, embeddings=first)
    records[4]["year"] = 1999
    stored, report = build_with_report(records, encoder, path, embeddings=changed)
    assert (report.added, report.changed, report.unchanged) == (0, 2, 4)
    assert np.array_equal(stored.embedding("r5").numpy(), changed[5])
    assert [hit.id for hit in stored.nearest(changed[5], 1)] == ["r5"]
    assert [hit.id for hit in stored.nearest(changed[5], 6, where="year = 1999")] == ["r4"]
    assert stored.remove(["r5"]) == 1
    again = collection.open(path, encoder)
    assert len(again) == 5 and "r5" not in [hit.id for hit in again.nearest(changed[5], 6)]


def test_what_does_not_fit_the_columns_is_refused(encoder: bilrp.Encoder, tmp_path: Path) -> None:
    path = tmp_path / "c.lance"
    collection.build(RECORDS, encoder, path)
    with pytest.raises(InputError, match="no column 'colour'"):
        collection.build([{"id": "x", "text": "A cat.", "colour": "red"}], encoder, path)
    with pytest.raises(InputError, match="'year' is int64"):
        collection.build([{"id": "x", "text": "A cat.", "year": "soon"}], encoder, path)
    with pytest.raises(InputError, match="same id 'x'"):
        collection.build([{"id": "x", "text": "A cat."}, {"id": "x", "text": "A dog."}], encoder, path)
    with pytest.raises(InputError, match="neither a text nor a file"):
        collection.build([{"id": "x", "body": "A cat."}], encoder, path)
    assert len(collection.build(["A plain text."], encoder, path)) == 5  # without metadata


class Frame:
    """What `build` uses of a pandas DataFrame."""

    def __init__(self, rows: list[dict[str, Any]]):
        self.rows, self.columns = rows, list(rows[0])

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return self.rows


def test_tables_of_every_kind_give_the_same_collection(encoder: bilrp.Encoder, tmp_path: Path) -> None:
    rows = [{"id": r["id"], "text": r["text"], "lang": r["lang"], "year": r["year"]} for r in RECORDS]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [
        "id,text,lang,year",
        *(f'"{r["id"]}","{r["text"]}","{r["lang"]}",{r["year"] or ""}' for r in rows),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    sources = [rows, table, Frame(rows), *(str(tmp_path / f"t.{end}") for end in ("parquet", "jsonl", "csv"))]
    for number, source in enumerate(sources):
        stored = collection.build(source, encoder, tmp_path / f"{number}.lance")
        assert stored.ids == [r["id"] for r in rows]
        assert stored.metadata == [{"lang": r["lang"], "year": r["year"]} for r in rows]
        assert build_with_report(source, encoder, tmp_path / f"{number}.lance")[1].unchanged == len(rows)


def test_pandas(encoder: bilrp.Encoder, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    frame = pandas.DataFrame([{k: r[k] for k in ("id", "text", "lang")} for r in RECORDS])
    frame["when"] = pandas.Timestamp("2024-05-01")
    stored = collection.build(frame, encoder, tmp_path / "c.lance")
    assert stored.ids == [r["id"] for r in RECORDS] and stored.metadata[0]["when"] == "2024-05-01T00:00:00"
    assert len(stored.nearest("A cat.", where="when > '2024-01-01'")) == 4


def test_files_with_ids_are_checked_by_their_content(tmp_path: Path) -> None:
    pictures = sorted(write_pictures(tmp_path / "pictures", 3).rglob("*.png"))
    records = [{"id": n, "file": str(p), "camera": f"c{n % 2}"} for n, p in enumerate(pictures)]
    encoder = tiny_encoder()
    stored = collection.build(records, encoder, tmp_path / "c.lance")
    assert stored.ids == ["0", "1", "2"] and stored.nearest(2, 3, where="camera = 'c0'")[0].id == "2"
    assert stored.explain("0", "1").relevance.shape[0] > 1
    Pillow.new("RGB", (16, 16)).save(pictures[2])
    with pytest.raises(InputError, match="has changed"):
        stored.original_input(2)
    assert build_with_report(records, encoder, tmp_path / "c.lance")[1].changed == 1
    missing = [{"id": "gone", "file": str(tmp_path / "none.png")}]
    _, report = build_with_report([*records, *missing], encoder, tmp_path / "c.lance")
    assert len(report.failed) == 1 and report.unchanged == 3


def test_values_become_what_can_be_filtered() -> None:
    values = [
        np.int64(3),
        np.float32(0.5),
        float("nan"),
        2**70,
        datetime.date(2024, 5, 1),
        {"a": 1},
        None,
        True,
    ]
    assert [to_scalar(v) for v in values] == [3, 0.5, None, str(2**70), "2024-05-01", '{"a": 1}', None, True]
    rows = [{"a": "1", "b": "1.5", "c": "007", "d": "x"}, {"a": "", "b": "2", "c": "1", "d": "2"}]
    assert parse_cells(rows) == [
        {"a": 1, "b": 1.5, "c": "007", "d": "x"},
        {"a": None, "b": 2.0, "c": "1", "d": "2"},
    ]


@pytest.mark.parametrize(
    "columns",
    [
        {"x y": "string"},
        {"id": "string"},
        {"a": "object"},
        {"a": ["int64"]},
        [1],
        {"a'": "bool"},
        {"": "bool"},
    ],
)
def test_forged_columns_are_refused(columns: Any, encoder: bilrp.Encoder, tmp_path: Path) -> None:
    """The description of a collection is not trusted."""
    import lance

    path = tmp_path / "c.lance"
    collection.build(RECORDS[:2], encoder, path)
    dataset = lance.dataset(str(path / "items.lance"))
    described = json.loads(dataset.schema.metadata[b"bilrp"])
    described["columns"] = columns
    dataset.update_schema_metadata({"bilrp": json.dumps(described)}, replace=True)
    with pytest.raises(InputError, match="its description is damaged"):
        collection.open(path, encoder)


KILLED = """
    import sys, os, signal, numpy
    import bilrp
    from bilrp.collection import tables
    from bilrp import collection
    commits, kill_at = 0, int(sys.argv[3])
    original = tables.record_checksums
    def record(path, name):
        global commits
        commits += 1
        if commits == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        original(path, name)
    tables.record_checksums = record
    records = [{"id": f"r{n}", "text": f"{n} dogs run.", "n": n, "v": sys.argv[4]} for n in range(150)]
    vectors = numpy.load(sys.argv[5]) if len(sys.argv) > 5 else None
    collection.build(records, bilrp.encoders.sentence(sys.argv[1]), sys.argv[2], embeddings=vectors)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kill_at", "own_vectors"), [(1, False), (2, False), (3, False), (2, True)])
def test_a_killed_run_continues_and_loses_nothing(
    kill_at: int, own_vectors: bool, folder: Path, encoder: bilrp.Encoder, tmp_path: Path
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    path, vectors = tmp_path / "c.lance", tmp_path / "vectors.npy"
    if own_vectors:
        texts = [f"{n} dogs run." for n in range(150)]
        np.save(vectors, collection.build(texts, encoder, tmp_path / "texts.lance").embeddings)

    def run(at: int, version: str) -> int:
        command = [sys.executable, str(script), str(folder), str(path), str(at), version]
        command += [str(vectors)] if own_vectors else []
        return subprocess.run(
            command, env=os.environ, timeout=120, check=False, capture_output=True
        ).returncode

    assert run(kill_at, "old") == -signal.SIGKILL
    assert run(0, "old") == 0
    stored = collection.open(path, encoder)
    assert sorted(stored.ids) == sorted(f"r{n}" for n in range(150))
    assert run(kill_at, "new") == -signal.SIGKILL  # while rows are replaced
    stored = collection.open(path, encoder)
    assert sorted(stored.ids) == sorted(f"r{n}" for n in range(150))  # each row is the old or the new one
    assert {row["v"] for row in stored.metadata} <= {"old", "new"}
    assert run(0, "new") == 0
    stored = collection.open(path, encoder)
    assert len(stored) == 150 and {row["v"] for row in stored.metadata} == {"new"}


@pytest.mark.slow
def test_two_writers_of_records(folder: Path, encoder: bilrp.Encoder, tmp_path: Path) -> None:
    script = tmp_path / "writer.py"
    script.write_text(textwrap.dedent(KILLED))
    command = [sys.executable, str(script), str(folder), str(tmp_path / "c.lance"), "0"]
    writers = [subprocess.Popen([*command, version], env=os.environ) for version in ("one", "two")]
    assert [writer.wait(timeout=200) for writer in writers] == [0, 0]
    stored = collection.open(tmp_path / "c.lance", encoder)
    assert sorted(stored.ids) == sorted(f"r{n}" for n in range(150))
    second = collection.build(
        [{"id": f"r{n}", "text": f"{n} dogs run.", "n": n, "v": "last"} for n in range(150)],
        encoder,
        tmp_path / "c.lance",
    )
    assert len(second) == 150 and {row["v"] for row in second.metadata} == {"last"}


def test_search_with_a_condition_on_the_command_line(
    folder: Path, vectors: np.ndarray, tmp_path: Path, bilrp_command: Callable[..., tuple[int, str, str]]
) -> None:
    def run(*arguments: object) -> str:
        code, message, errors = bilrp_command(*arguments)
        assert code == 0, errors
        return message

    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(r) for r in RECORDS))
    np.save(tmp_path / "v.npy", vectors)
    path = tmp_path / "c.lance"
    run(
        "index",
        tmp_path / "t.jsonl",
        "-o",
        path,
        "-e",
        f"sentence:{folder}",
        "--embeddings",
        tmp_path / "v.npy",
    )
    answer = run("search", path, "A cat.", "--where", "lang = 'en' AND year > 2019", "--json")
    (row,) = json.loads(answer)["neighbours"]
    assert row["id"] == "a-2" and row["text"] == RECORDS[1]["text"] and row["metadata"]["year"] == 2021

    (tmp_path / "q.txt").write_text("A cat.\n\nIt rains.\n")
    answer = json.loads(run("search", path, "--queries", tmp_path / "q.txt", "-k", "1", "--json"))
    assert [row["query"] for row in answer["queries"]] == ["A cat.", "It rains."]
    assert all(len(row["neighbours"]) == 1 for row in answer["queries"])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('id,text\na,"never closed\nb,lost\n', "after line 1: unexpected end of data"),
        ("id,text,text\na,b,c\n", "two columns are called 'text'"),
        ("id,text,source,source_\na,b,c,d\n", "two columns are stored as source_"),
        ("id,text,embedding\na,b,c\n", "the embedding of record 0 is not a list of numbers"),
    ],
)
def test_tables_that_would_lose_something_are_refused(table: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(table)
    with pytest.raises(InputError, match=message):
        list(iter_source_items(tmp_path / "x.csv", READS_TEXT))


def test_long_cells_and_the_first_mark_of_spreadsheets_are_read(tmp_path: Path) -> None:
    long = "word " * 40_000
    (tmp_path / "x.csv").write_text(f"\ufeffid,text\na,{long}\n")
    (item,) = iter_source_items(tmp_path / "x.csv", READS_TEXT)
    assert (item.key, item.content) == ("a", long.strip())


def test_a_text_is_no_path_and_a_missing_file_no_text() -> None:
    assert [item.content for item in iter_source_items("word " * 1000, READS_TEXT)] == ["word " * 1000]
    with pytest.raises(InputError, match="no such file"):
        list(iter_source_items("mistyped.csv", READS_TEXT))


def test_conditions_never_find_inputs_that_failed(encoder: bilrp.Encoder, tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "A cat."}, {"id": "b", "text": ""}, {"id": "c", "text": "A dog."}]
    built = collection.build(rows, encoder, tmp_path / "x.lance")
    assert len(built.failed) == 1
    for where in ("1=1", "failed IS NULL", "failed IS NOT NULL OR 1=1", "1=1) OR (1=1"):
        assert len(built.nearest(0, 3, where=where)) == 2
    for where in ("1=1; DROP TABLE x", "1=1 LIMIT 1", "1=1 -- all", ""):
        with pytest.raises(InputError, match="cannot be used"):
            built.nearest(0, 3, where=where)


@pytest.mark.parametrize("k", [0, -1, 1.5, "3", None])
def test_numbers_of_neighbours_are_checked(k: Any, encoder: bilrp.Encoder, tmp_path: Path) -> None:
    built = collection.build(RECORDS, encoder, tmp_path / "x.lance")
    with pytest.raises(InputError, match="whole number and at least 1"):
        built.nearest(0, k)
    if k is not None:
        with pytest.raises(InputError, match="whole number and at least 1"):
            built.graph(k)
    with pytest.raises(InputError, match="threshold"):
        built.graph(1, threshold=float("nan"))
    with pytest.raises(InputError, match="no cluster was found"):
        built.clusters()  # four items are fewer than a cluster
