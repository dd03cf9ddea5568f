"""Collections: what is stored is what would be computed, questions have exact answers, and nothing is lost on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from collection_helpers import run_command, tiny_encoder, write_pictures
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

import bilrp
from bilrp import collection
from bilrp.cli import app
from bilrp.collection import packed_parts, tables
from bilrp.collection.indexing import build_with_report
from bilrp.collection.items_table import top_k_indices
from bilrp.collection.subquery import restrict_query
from bilrp.encoders import images
from bilrp.errors import InputError, MismatchError
from bilrp.inputs import Image as View
from type_asserts import assert_instance, assert_not_none

pytest.importorskip("lance", reason="collections need bilrp[collection]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("source") / "photographs", 20)


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> collection.Collection:
    return collection.build(folder, tiny_encoder(), tmp_path_factory.mktemp("made") / "x.lance")


def test_items_in_the_order_of_their_folders(made, folder: Path) -> None:
    assert len(made) == 20 and len(set(made.ids)) == 20
    assert made.names[0] == "000.png" and set(made.groups()) == {"even", "odd"}
    assert made.groups()["odd"] == list(range(10, 20))
    with torch.no_grad():
        expected = tiny_encoder().module(images.read(folder / "even" / "000.png", size=32)).flatten()
    torch.testing.assert_close(torch.from_numpy(made.embeddings[0]), expected)
    assert made.view(0).size == (48, 36)


def test_a_stored_pair_equals_that_of_the_files_to_the_storage_error(made, folder: Path) -> None:
    a, b = folder / "even" / "000.png", folder / "odd" / "001.png"
    exact, stored = bilrp.explain(tiny_encoder(), a, b, similarity="dot"), made.explain(a, b)
    assert stored.score == pytest.approx(exact.score, rel=1e-5)
    error = float((stored.relevance - exact.relevance).norm() / exact.relevance.norm())
    assert 0 < stored.a.storage_error < 0.004 and error < 2 * (
        stored.a.storage_error + stored.b.storage_error
    )
    assert stored.a.regions.count == exact.a.regions.count and stored.a.name == "000.png"
    torch.testing.assert_close(made.relevance(a, b), stored.relevance)
    assert float(stored.relevance.sum()) + stored.unattributed == pytest.approx(stored.score)


def test_shares_and_the_unattributed_sum_to_the_score(made) -> None:
    shares, taken = made.share(3), made.decomposition(3)
    embeddings = torch.from_numpy(made.embeddings)
    assert shares.shape == (taken.regions.count, len(made))
    torch.testing.assert_close(shares.sum(0) + embeddings @ taken.unattributed, embeddings @ taken.embedding)
    torch.testing.assert_close(made.share(3, against=[5, 7]), shares[:, [5, 7]])
    torch.testing.assert_close(made.share(3, against=5), shares[:, [5]])
    torch.testing.assert_close(made.share(3, against="odd"), shares[:, made.groups()["odd"]])
    with pytest.raises(InputError, match="no item of the collection and no group"):
        made.share(3, against="gone")


def test_by_cosine_shares_and_contrasts_are_divided_by_the_norms(made) -> None:
    taken, (neighbours,) = made.decomposition(3), made.nearest(3, k=1, similarity="cosine")
    units = torch.nn.functional.normalize(torch.from_numpy(made.embeddings))
    own = taken.embedding / taken.embedding.norm()
    left = units @ taken.unattributed / taken.embedding.norm()
    shares = made.share(3, similarity="cosine")
    torch.testing.assert_close(shares.sum(0) + left, units @ own)
    torch.testing.assert_close(made.share(3, against=[5], similarity="cosine"), shares[:, [5]])
    assert float(neighbours.share.sum() + left[neighbours.position]) == pytest.approx(
        neighbours.score, rel=1e-5
    )
    contrast = made.contrast("even", "odd", similarity="cosine")
    means = [torch.nn.functional.normalize(made.mean(group), dim=0) for group in ("even", "odd")]
    expected = float(own @ (means[0] - means[1]))
    rest = float(taken.unattributed @ contrast.direction / taken.embedding.norm())
    assert float(contrast.share(3).sum()) + rest == pytest.approx(expected, abs=1e-5)


def test_search_by_a_part_ranks_by_exactly_what_it_contributes(made, folder: Path) -> None:
    embeddings = torch.from_numpy(made.embeddings)
    for query in (4, folder / "odd" / "003.png", Image.new("RGB", (40, 40), "teal")):
        taken = made.decomposition(query)
        for part, without, vector in (
            (None, None, taken.embedding),
            ([0, 5, 6], None, taken.parts[[0, 5, 6]].sum(0)),
            (None, [0, 5, 6], taken.embedding - taken.parts[[0, 5, 6]].sum(0)),
        ):
            scores = embeddings @ vector
            neighbours = made.nearest(query, k=6, part=part, without=without)
            assert [n.position for n in neighbours] == scores.argsort(descending=True, stable=True)[
                :6
            ].tolist()
            assert [n.score for n in neighbours] == pytest.approx(
                scores.sort(descending=True).values[:6].tolist(), rel=1e-5
            )
            torch.testing.assert_close(neighbours[1].share, taken.parts @ embeddings[neighbours[1].position])
    cosine = made.nearest(4, k=3, similarity="cosine")
    assert cosine[0].position == 4 and cosine[0].score == pytest.approx(1.0)


def test_contrast_of_two_groups(made) -> None:
    even, odd = (torch.from_numpy(made.embeddings[made.groups()[g]]).mean(0) for g in ("even", "odd"))
    result = made.contrast("even", "odd")
    torch.testing.assert_close(result.direction, even - odd)
    torch.testing.assert_close(result.share(2), made.decomposition(2).parts @ (even - odd))
    with pytest.raises(InputError, match="no group 'none'"):
        made.contrast("even", "none")


def test_large_collections_are_read_in_blocks(made, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = made.nearest(4, k=5, part=[1, 2]), made.share(4), made.mean("odd")
    monkeypatch.setattr("bilrp.collection.items_table.MAX_RESIDENT_BYTES", 0)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 7 * 4 * made.width)
    second = collection.open(made.path, encoder=tiny_encoder())
    neighbours = second.nearest(4, k=5, part=[1, 2])
    assert [n.position for n in neighbours] == [n.position for n in expected[0]]
    torch.testing.assert_close(second.share(4), expected[1])
    torch.testing.assert_close(second.mean("odd"), expected[2])


def test_the_best_of_blocks_are_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores = rng.integers(0, 9, rng.integers(1, 40)).astype(np.float32)  # with many ties
        k = int(rng.integers(1, 12))
        assert top_k_indices(scores, k).tolist() == np.argsort(-scores, kind="stable")[:k].tolist()


def test_a_pair_reads_its_two_rows_and_opens_nothing(made, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed = collection.open(made.path, encoder=tiny_encoder())
    expected, read, taken = indexed.relevance(2, 9), [], tables.take_rows
    monkeypatch.setattr(tables, "open_table", lambda *_: pytest.fail("the table was opened again"))
    monkeypatch.setattr(
        tables, "take_rows", lambda table, at, names: read.append(at) or taken(table, at, names)
    )
    torch.testing.assert_close(indexed.relevance(9, 2), expected.T)
    assert [len(rows) for rows in read] == [2]


def test_a_stored_pair_is_multiplied_only_where_both_are_active(made) -> None:
    """Not on all coordinates: counted, and equal to the product of whole parts."""
    a, b = (made.decomposition(i) for i in (2, 9))
    active = int((a.parts.any(0) & b.parts.any(0)).sum())
    assert 0 < active < made.width
    for similarity in ("dot", "cosine"):
        with FlopCounterMode(display=False) as counted:
            explanation = made.explain(2, 9, similarity=similarity)
        assert counted.get_total_flops() < 2 * 16 * 16 * active + 8 * made.width
        full = bilrp.pair(a, b, similarity=similarity)
        torch.testing.assert_close(explanation.relevance, full.relevance)
        assert explanation.score == pytest.approx(full.score) and explanation.a.name == a.name
    distance = made.explain(2, 9, similarity="squared_distance")
    torch.testing.assert_close(distance.relevance, -2 * (a.parts @ b.parts.T))


def test_damaged_parts_are_not_explained(tmp_path: Path) -> None:
    indexed = collection.build(write_pictures(tmp_path / "in", 3), tiny_encoder(), tmp_path / "x.lance")
    rows, _ = indexed.make_part_rows([0, 1])
    for row, value in zip(rows, (np.nan, np.inf), strict=True):
        bits = np.frombuffer(row["values"], np.uint16).copy()
        bits[-1] = np.float32(value).view(np.uint32) >> 16
        row["values"] = bits.tobytes()
    indexed.parts.add(rows)
    for i, j in ((0, 2), (2, 1)):
        with pytest.raises(InputError, match="not all values are finite"):
            indexed.explain(i, j)


def test_parts_that_another_process_made_meanwhile_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = write_pictures(tmp_path / "in", 4), tmp_path / "x.lance"
    ours = collection.build(source, tiny_encoder(), path)
    ours.relevance(0, 1)
    collection.open(path, encoder=tiny_encoder()).make_parts()
    monkeypatch.setattr(ours, "make_part_rows", lambda *_: pytest.fail("they were made again"))
    assert ours.relevance(2, 3).shape == (16, 16)


def test_parts_are_computed_where_they_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection on a share that is read-only answers every question all the same."""
    source, path = write_pictures(tmp_path / "in", 4), tmp_path / "x.lance"
    indexed = collection.build(source, tiny_encoder(), path)
    (path / tables.PARTS_TABLE).write_text("")  # a file where Lance would make a folder
    exact = bilrp.explain(
        tiny_encoder(), source / "even" / "000.png", source / "odd" / "001.png", similarity="dot"
    )
    stored = indexed.explain(0, 2)
    error = float((stored.relevance - exact.relevance).norm() / exact.relevance.norm())
    assert error < 2 * (stored.a.storage_error + stored.b.storage_error)
    assert len(indexed.nearest(1, 3, part=[0])) == 3 and indexed.parts.ids == {
        indexed.ids[i] for i in (0, 1, 2)
    }
    monkeypatch.setattr(indexed, "make_part_rows", lambda *_: pytest.fail("they were made again"))
    torch.testing.assert_close(indexed.relevance(0, 2), stored.relevance)
    with pytest.raises(InputError, match="cannot write"):  # what was asked to be stored
        collection.open(path, tiny_encoder()).make_parts([3])


def test_a_query_is_decomposed_once_for_many_searches(made, folder: Path) -> None:
    query = bilrp.decompose(tiny_encoder(), Image.new("RGB", (40, 40), "teal"))
    neighbours = made.nearest(query, k=3, part=[0, 5])
    second = made.nearest(Image.new("RGB", (40, 40), "teal"), k=3, part=[0, 5])
    assert [n.score for n in neighbours] == [n.score for n in second] and torch.equal(
        neighbours[0].share, second[0].share
    )
    full = made.nearest(Image.new("RGB", (40, 40), "teal"), k=3)
    assert [n.score for n in made.nearest(query, k=3)] == pytest.approx([n.score for n in full])
    assert made.explain(query, 3).a is query
    with pytest.raises(MismatchError, match="differ in weights"):
        other = bilrp.decompose(tiny_encoder(seed=1), folder / "even" / "000.png")
        made.nearest(other)


def test_a_part_alone_is_a_query_of_its_own(made) -> None:
    """Its neighbours are those by that part, and its explanations have relevance there and nowhere else."""
    full, part = made.decomposition(4), [1, 2, 6]
    alone, rest = restrict_query(full, part=part), restrict_query(full, without=part)
    torch.testing.assert_close(alone.embedding + rest.embedding, full.embedding)
    for query, requested in ((alone, {"part": part}), (rest, {"without": part})):
        result, expected = (made.nearest(q, 5, **given) for q, given in ((query, {}), (4, requested)))
        assert [n.position for n in result] == [n.position for n in expected]
        assert [n.score for n in result] == pytest.approx([n.score for n in expected], rel=1e-5)
    pair = made.explain(alone, 7, similarity="cosine")
    lengths = float(alone.embedding.norm() * made.embedding(7).norm())
    torch.testing.assert_close(pair.relevance * lengths, made.explain(4, 7).relevance[part])
    assert torch.equal(assert_not_none(alone.regions.boxes), full.regions.boxes[part])
    by_part = {n.position: n.score for n in made.nearest(4, 20, part=part, similarity="cosine")}
    assert pair.score == pytest.approx(by_part[7], rel=1e-5)


def test_a_part_is_not_compared_with_whole_photographs_taken_at_random() -> None:
    taken = bilrp.decompose(torch.nn.Flatten(), torch.rand(1, 3, 128, 128), regions=64)
    known = replace(taken, origin={**taken.origin, "weights": "c938bfd98fc4df15"})  # VGG-16's at layer 31
    other = bilrp.decompose(torch.nn.Flatten(), torch.rand(1, 3, 128, 128) - 0.5, regions=64)
    other = replace(other, origin=known.origin)
    sentence = "random pairs of everyday photographs"
    assert sentence in bilrp.pair(known, other, similarity="cosine").summary()
    assert sentence not in bilrp.pair(restrict_query(known, part=[0]), other, similarity="cosine").summary()


@pytest.mark.parametrize("is_record", [False, True])
def test_a_view_comes_from_the_file_where_that_is_unchanged(is_record: bool, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    Image.effect_noise((900, 600), 60).convert("RGB").save(source / "large.png")
    given = [{"file": str(source / "large.png"), "year": 1551}] if is_record else source
    indexed = collection.build(given, tiny_encoder(), tmp_path / "x.lance")

    def size(*, full: bool) -> tuple[int, int]:
        return assert_instance(indexed.view(0, full=full), View).size

    assert size(full=False) == (320, 213) and size(full=True) == (900, 600)
    Image.new("RGB", (50, 50)).save(source / "large.png")
    assert size(full=True) == (320, 213)


def test_other_weights_are_refused_and_said(made, folder: Path) -> None:
    with pytest.raises(MismatchError, match="made by another encoder: they differ in weights"):
        collection.open(made.path, encoder=tiny_encoder(seed=1)).nearest(
            folder / "even" / "000.png", part=[0]
        )
    more = write_pictures(folder.parent / "more", 2, seed=7)
    with pytest.raises(MismatchError, match="differ in weights"):
        collection.build(more, tiny_encoder(seed=1), made.path)
    assert len(collection.open(made.path)) == 20


def test_stored_parts_can_be_used_without_their_files(tmp_path: Path) -> None:
    source, path = write_pictures(tmp_path / "in", 3), tmp_path / "x.lance"
    collection.build(source, tiny_encoder(), path, parts=True)
    for gone in ("even/000.png", "even/002.png", "odd/001.png"):
        (source / gone).unlink()
        indexed = collection.open(path, encoder=tiny_encoder())
        assert indexed.explain(0, 2).relevance.shape == (16, 16)
        assert len(indexed.nearest(1, part=[0])) == 3
        left = any(file.is_file() for file in source.rglob("*.png"))
        refused = replace(tiny_encoder(seed=int(left)), name="tiny" if left else "another")
        with pytest.raises(MismatchError, match="differ in weights" if left else "differ in encoder"):
            collection.open(path, encoder=refused).explain(0, 2)
    with pytest.raises(
        MismatchError, match="differ in weights"
    ):  # what the name does not tell, the first run does
        collection.open(path, encoder=tiny_encoder(seed=1)).explain(0, Image.new("RGB", (40, 40), "teal"))


def test_an_embedding_of_a_new_input_can_be_used_in_autograd(made) -> None:
    weights = torch.ones(made.width, requires_grad=True)
    embedding = made.embedding(Image.new("RGB", (40, 40), "teal"))
    (weights * embedding).sum().backward()
    assert torch.equal(assert_not_none(weights.grad), embedding)


def test_packed_parts_keep_active_coordinates_in_half_precision() -> None:
    parts = torch.randn(6, 40) * (torch.rand(40) < 0.2)
    packed = packed_parts.pack(parts)
    assert packed.nbytes < parts.nbytes / 4 and packed.error < 0.004
    back = packed_parts.from_bytes(*packed_parts.to_bytes(packed), width=40, error=packed.error)
    assert torch.equal(back.to_dense(), packed.to_dense())
    torch.testing.assert_close(packed.to_dense(), parts, rtol=0.01, atol=0)


# ------------------------------------------------------------ adding, changing, breaking


def test_indexing_again_adds_what_is_new_or_changed(tmp_path: Path) -> None:
    source, path = write_pictures(tmp_path / "in", 6), tmp_path / "x.lance"
    first, report = build_with_report(source, tiny_encoder(), path)
    assert (report.added, report.unchanged) == (6, 0)
    _, report = build_with_report(source, tiny_encoder(), path)
    assert (report.added, report.unchanged) == (0, 6)
    (source / "new").mkdir()
    shutil.copy(source / "odd" / "001.png", source / "new" / "copy.png")
    Image.new("RGB", (30, 30), "red").save(source / "new" / "red.png")
    Image.new("RGB", (30, 30), "blue").save(source / "even" / "000.png")
    result, report = build_with_report(source, tiny_encoder(), path)
    assert (report.added, report.unchanged, report.duplicates) == (2, 5, 1)
    assert len(result) == 7 and first.ids[0] not in result.ids and set(first.ids[1:]) < set(result.ids)
    (source / "even" / "000.png").unlink()
    result, report = build_with_report(source, tiny_encoder(), path, prune=True)
    assert report.removed == 1 and len(result) == 6


def test_removed_items_are_gone_with_their_parts(tmp_path: Path) -> None:
    source, path = write_pictures(tmp_path / "in", 4), tmp_path / "x.lance"
    indexed = collection.build(source, tiny_encoder(), path, parts=True)
    stored = indexed.ids[1:]
    assert indexed.remove([0]) == 1 and indexed.ids == stored == collection.open(path).ids
    parts = tables.open_table(str(path), tables.PARTS_TABLE)
    assert sorted(tables.read_columns(parts, ["id"])["id"]) == sorted(stored)


def test_broken_files_are_listed_and_all_others_indexed(tmp_path: Path) -> None:
    source = write_pictures(tmp_path / "in", 6)
    (source / "text.png").write_text("no picture")
    (source / "empty.jpg").touch()
    full = (source / "odd" / "001.png").read_bytes()
    (source / "half.png").write_bytes(full[: len(full) // 2])
    (source / "notes.txt").write_text("not a picture's name")
    (source / "ünï<b>\udcff.png").write_bytes((source / "odd" / "003.png").read_bytes()[:-1] + b"x")
    (source / "loop").symlink_to(source, target_is_directory=True)
    Image.new("RGB", (9, 9)).save(source / "night\x1b[2J.png")
    result, report = build_with_report(source, tiny_encoder(), tmp_path / "x.lance")
    broken = {Path(name).name for name, _ in report.failed}
    assert {"text.png", "empty.jpg", "half.png"} <= broken and len(result) + len(broken) == 6 + 3 + 2
    assert all("\n" not in why for _, why in report.failed)
    assert sorted(Path(name).name for name, _ in result.failed) == sorted(
        name.encode("utf-8", "backslashreplace").decode() for name in broken
    )
    assert not any("\x1b" in name for name in result.names)


def test_nothing_to_index_is_said(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(InputError, match="nothing to index"):
        collection.build(tmp_path / "in", tiny_encoder(), tmp_path / "x.lance")
    (tmp_path / "in" / "a.png").write_text("none")
    with pytest.raises(InputError, match="nothing was indexed"):
        collection.build(tmp_path / "in", tiny_encoder(), tmp_path / "x.lance")
    with pytest.raises(InputError, match="no such file"):
        collection.build(tmp_path / "gone", tiny_encoder(), tmp_path / "x.lance")
    with pytest.raises(InputError, match="no collection there"):
        collection.open(tmp_path / "x.lance")


RUN = """
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, {tests!r})
from bilrp.collection import indexing as made
from collection_helpers import tiny_encoder
made.ITEMS_PER_COMMIT = 4
built = made.build(sys.argv[1], tiny_encoder(), sys.argv[2], parts=len(sys.argv) > 3)
print(len(built))
"""


def child(*arguments: str) -> subprocess.Popen[bytes]:
    code = RUN.format(tests=str(Path(__file__).parent))
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked, so that each starts at once")
def test_kills_lose_no_committed_batch() -> None:
    """Killed at random moments and begun again, it holds what an uninterrupted run holds, in the same order."""
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, str(Path(__file__).parent / "kill_indexing.py"), "4"]
    code, out, err = run_command(command, os.environ | {"PYTHONPATH": paths}, seconds=600)
    assert code == 0, err
    indexing, merging = (json.loads(line.partition(" ")[2]) for line in out.splitlines())
    assert indexing["kills"] == 4 and indexing["finished and equal"] >= 1 and merging["tried"] >= 4


@pytest.mark.slow
def test_two_processes_index_into_one_collection(tmp_path: Path) -> None:
    sources = [write_pictures(tmp_path / f"in{n}", 24, seed=n) for n in (1, 2)]
    runs = [child(str(source), str(tmp_path / "x.lance")) for source in sources]
    assert [run.wait() for run in runs] == [0, 0]
    assert len(collection.open(tmp_path / "x.lance")) == 48


def test_writers_that_create_a_table_at_once_lose_no_rows(tmp_path: Path) -> None:
    import pyarrow as pa

    schema, writers = pa.schema([("id", pa.string())]), 4
    start = threading.Barrier(writers, timeout=20)  # a writer that fails must not hang the others

    def write(writer: int) -> None:
        for number in range(8):
            start.wait()
            tables.append_rows(
                str(tmp_path / f"{number}.lance"), "items.lance", [{"id": str(writer)}], schema
            )

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    for number in range(8):
        dataset = tables.open_table(str(tmp_path / f"{number}.lance"), "items.lance")
        assert sorted(tables.read_columns(dataset, ["id"])["id"]) == ["0", "1", "2", "3"]


@pytest.mark.skipif(os.name == "nt", reason="permissions are another matter there")
def test_a_file_without_permission_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_pictures(tmp_path / "in", 3)
    original_open = Path.open

    def refused(self: Path, *given: Any) -> object:
        if self.name == "001.png":
            raise PermissionError(13, "Permission denied")
        return original_open(self, *given)

    monkeypatch.setattr(Path, "open", refused)
    result, report = build_with_report(source, tiny_encoder(), tmp_path / "x.lance")
    assert len(result) == 2 and "Permission denied" in report.failed[0][1]
    monkeypatch.undo()
    result, report = build_with_report(source, tiny_encoder(), tmp_path / "x.lance")
    assert len(result) == 3 and not report.failed and not result.failed


def test_a_collection_cannot_name_code_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was made by may be anything; only who asks may say that it is run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    path = tmp_path / "x.lance"
    collection.build(write_pictures(tmp_path / "in", 3), replace(tiny_encoder(), name="evil:run"), path)
    Image.new("RGB", (48, 36), "teal").save(tmp_path / "asked.png")
    for command in (["search", str(path), "asked.png"], ["audit", str(path)]):
        with pytest.raises(InputError, match=r"made by a custom encoder: pass it, .* -e evil:run"):
            app(command, standalone_mode=False)
    assert not (tmp_path / "ran").exists()
    indexed = collection.open(path, "evil:run")
    with pytest.raises(InputError, match="evil"):  # asked for, so it is imported; it has no such function
        indexed.encoder  # noqa: B018
    assert (tmp_path / "ran").exists()


def test_a_file_that_changed_is_not_taken_for_the_one_indexed(tmp_path: Path) -> None:
    source = write_pictures(tmp_path / "in", 3)
    indexed = collection.build(source, tiny_encoder(), tmp_path / "x.lance")
    changed = sorted(source.rglob("*.png"))[0]
    Image.new("RGB", (48, 36), "teal").save(changed)
    with pytest.raises(InputError, match=r"000\.png: its file has changed since: index it again"):
        indexed.decomposition(0)
    assert indexed.parts.read_parts(indexed.ids) == [None] * 3


def test_what_any_two_share_belongs_to_no_part_of_a_query() -> None:
    """Searched by a part, the mean embedding is not in the query, and nothing of the score is unattributed."""
    torch.manual_seed(0)
    encoder = bilrp.Encoder(torch.nn.Linear(6, 5, bias=False), mean_embedding=torch.rand(5))
    whole, item = (bilrp.decompose(encoder, torch.rand(1, 6)) for _ in range(2))
    assert whole.reference is not None and bool(whole.reference.any())
    for restricted in (restrict_query(whole, part=[1, 4]), restrict_query(whole, without=[0, 2, 3, 5])):
        breakdown = bilrp.pair(restricted, item, similarity="cosine").breakdown
        assert breakdown.unattributed - breakdown.shared == pytest.approx(0, abs=1e-6)
