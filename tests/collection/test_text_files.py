"""Texts of a collection: one rule of how files are read, what is gone is pruned, and what is cut is counted."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bilrp import collection
from bilrp.collection import ray_backend
from bilrp.collection.indexing import build_with_report
from bilrp.encoder import Encoder
from bilrp.encoders.sentence_encoder import sentence
from bilrp.errors import InputError
from text_folders import ARCHITECTURES

pytest.importorskip("lance", reason="collections need bilrp[collection]")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return sentence(ARCHITECTURES[0].save(tmp_path_factory.mktemp("model"), dtype=torch.float32))


def texts_of(result: collection.Collection) -> list[str]:
    return sorted(str(result.original_input(position)) for position in range(len(result)))


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl"])
def test_rows_that_are_gone_are_pruned(tmp_path: Path, encoder: Encoder, suffix: str) -> None:
    def write(*texts: str) -> Path:
        line = {".txt": "{}", ".csv": "{}", ".jsonl": '{{"text": "{}"}}'}[suffix]
        head = ["text"] if suffix == ".csv" else []
        file = tmp_path / f"notes{suffix}"
        file.write_text("\n".join([*head, *map(line.format, texts)]) + "\n")
        return file

    path = tmp_path / "x.lance"
    collection.build([write("The cat sat.", "It rains.", "A dog ran."), "Of no file."], encoder, path)
    source = write("The cat sat.", "A dog ran.")  # one from the middle: the last one moves up
    assert len(build_with_report(source, encoder, path)[0]) == 4, "nothing is removed unless it is asked for"
    result, report = build_with_report(source, encoder, path, prune=True)
    assert report.removed == 1 and texts_of(result) == ["A dog ran.", "Of no file.", "The cat sat."]
    result, report = build_with_report(
        write("The cat sat.", "A dog ran.", "Two kittens."), encoder, path, prune=True
    )
    assert report.removed == 0 and len(result) == 4 and "A dog ran." in texts_of(result)


def test_a_file_of_texts_is_read_alike_in_every_folder(tmp_path: Path, encoder: Encoder) -> None:
    folder = tmp_path / "notes" / "may"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("The cat sat.\n\nIt rains.\n")
    (tmp_path / "notes" / "b.txt").write_text("A dog ran.\n")
    files = sorted((tmp_path / "notes").rglob("*.txt"))
    by_folder = collection.build(tmp_path / "notes", encoder, tmp_path / "x.lance")
    by_files = collection.build([str(file) for file in files], encoder, tmp_path / "y.lance")
    assert texts_of(by_folder) == texts_of(by_files) == ["A dog ran.", "It rains.", "The cat sat."]
    assert sorted(by_folder.groups()) == ["", "may"]
    (folder / "a.txt").write_text("It rains.\n")
    result, report = build_with_report(tmp_path / "notes", encoder, tmp_path / "x.lance", prune=True)
    assert report.removed == 1 and texts_of(result) == ["A dog ran.", "It rains."]
    (folder / "a.txt").unlink()
    assert texts_of(build_with_report(tmp_path / "notes", encoder, tmp_path / "x.lance", prune=True)[0]) == [
        "A dog ran."
    ]


def test_texts_that_are_cut_are_counted_in_one_line(
    tmp_path: Path, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    long = [f"{'cat ' * (200 + n)}sat." for n in range(5)]
    with caplog.at_level(logging.WARNING):
        _, report = build_with_report([*long, "The cat sat."], encoder, tmp_path / "x.lance")
    assert report.truncated == 5
    assert [r.getMessage() for r in caplog.records] == [
        "5 texts are longer than this encoder reads: the rest is left out"
    ]
    caplog.clear()
    build_with_report([*long, "The cat sat."], encoder, tmp_path / "x.lance")
    assert not caplog.records, "what is known is not read again"


def test_a_cluster_that_did_not_start_is_not_reported_as_missing(
    monkeypatch: pytest.MonkeyPatch, encoder: Encoder
) -> None:
    """Ray starts its processes by a fork, of which Lance warns, and may take too long."""

    def init(**_: object) -> None:
        subprocess.run([sys.executable, "-c", ""], check=True, preexec_fn=lambda: None)
        raise TimeoutError("the raylet did not answer")

    monkeypatch.setattr(
        ray_backend, "import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=init)
    )
    with warnings.catch_warnings(record=True) as message:
        warnings.simplefilter("always")
        for address, words in (
            (None, r"Ray did not start .*\(the raylet did not answer"),
            ("x:1", "no Ray cluster at x:1"),
        ):
            with (
                pytest.raises(InputError, match=words),
                ray_backend.open_worker_pool(encoder, address=address),
            ):
                pass
    assert not message


def test_hits_of_a_text_are_highlighted(tmp_path: Path, encoder: Encoder) -> None:
    texts = ["The cat sat.", "It rains. Stay in!", "Two dogs run through the snow; one jumps."]
    indexed = collection.build(texts, encoder, tmp_path / "x.lance")
    neighbours = indexed.nearest("A dog ran.", 2)
    hits = indexed.highlight("A dog ran.", neighbours)
    for neighbour, hit in zip(neighbours, hits, strict=True):
        text = indexed.original_input(neighbour.position)
        assert hit.score == pytest.approx(neighbour.score, abs=1e-5)
        assert all(str(text)[s.start : s.end] == s.text for s in hit.passage)
    second = indexed.highlight("A dog ran.", [neighbours[0].position, neighbours[1].id])
    assert [hit.to_dict() for hit in second] == [hit.to_dict() for hit in hits]
    assert indexed.highlight(0, [1])[0].query[0].text == str(indexed.original_input(0)).split()[0]
    with pytest.raises(InputError, match="decomposition"):
        indexed.highlight(indexed.decomposition(0), [1])
