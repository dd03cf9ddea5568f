"""Damaged files of a collection: noticed on opening or by `check`, never other numbers without a word."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from collection_helpers import tiny_encoder, write_pictures

from bilrp import collection
from bilrp.collection import file_checksums, integrity, tables
from bilrp.errors import InputError

pytest.importorskip("lance", reason="collections need bilrp[collection]")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve items with their parts, of which one was taken out: data, versions and deletions of both tables."""
    folder = tmp_path_factory.mktemp("sums")
    indexed = collection.build(
        write_pictures(folder / "in", 12), tiny_encoder(), folder / "x.lance", parts=True
    )
    indexed.remove([3])
    return folder / "x.lance"


@pytest.fixture
def mine(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "mine.lance")


def list_files(path: Path, pattern: str) -> list[Path]:
    return sorted(path.glob(pattern))


def change(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x40
    file.write_bytes(data)


def place_of(file: Path, row: np.ndarray) -> int:
    """Where an embedding is in a data file."""
    at = file.read_bytes().find(row.astype("<f4").tobytes())
    assert at >= 0
    return at


def test_an_embedding_that_was_changed_is_refused(mine: Path) -> None:
    truth = collection.open(mine, tiny_encoder()).embeddings
    (file,) = list_files(mine, "items.lance/data/*.lance")
    change(file, place_of(file, truth[5]) + 3)
    silent = tables.open_table(str(mine), tables.ITEMS_TABLE)
    changed = np.concatenate(list(tables.iter_embedding_blocks(silent, truth.shape[1])))
    assert not np.array_equal(changed, truth), "Lance itself reads the changed number"
    with pytest.raises(
        InputError, match=f"is damaged: items.lance/data/{file.name}: its bytes .* bilrp check"
    ):
        collection.open(mine, tiny_encoder()).nearest(0, 3)


def test_parts_that_were_changed_are_refused(mine: Path) -> None:
    before = collection.open(mine, tiny_encoder()).decomposition(0).parts
    file = list_files(mine, "parts.lance/data/*.lance")[0]
    change(file, 200)
    indexed = collection.open(mine, tiny_encoder())
    assert len(indexed.nearest(0, 3)) == 3, "items are whole"
    with pytest.raises(InputError, match=r"is damaged: parts.lance/data/"):
        indexed.decomposition(0)
    assert before.any()


DAMAGES = {
    "a byte of the items": ("items.lance/data/*.lance", lambda f: change(f, 100)),
    "a byte of the parts": ("parts.lance/data/*.lance", lambda f: change(f, 100)),
    "a byte of a version": ("items.lance/_versions/*.manifest", lambda f: change(f, 40)),
    "a byte of the deletions": ("items.lance/_deletions/*.arrow", lambda f: change(f, f.stat().st_size // 2)),
    "cut short": ("items.lance/data/*.lance", lambda f: os.truncate(f, f.stat().st_size - 7)),
    "empty": ("parts.lance/data/*.lance", lambda f: os.truncate(f, 0)),
    "gone": ("parts.lance/data/*.lance", lambda f: f.unlink()),
    "the latest version gone": ("items.lance/_versions/*.manifest", lambda f: f.unlink()),
    "the checksums": ("sha256sums", lambda f: change(f, 10)),
    "no checksums": ("sha256sums", lambda f: f.unlink()),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_damage_is_one_line_of_check(mine: Path, kind: str) -> None:
    assert integrity.check(str(mine)) == []
    pattern, damage = DAMAGES[kind]
    damage(list_files(mine, pattern)[0])  # versions are counted down: the first is the latest
    result = [str(each) for each in integrity.check(str(mine))]
    assert result and all("\n" not in line for line in result), result


def test_two_files_that_changed_places_are_noticed(mine: Path) -> None:
    first, second = list_files(mine, "parts.lance/data/*.lance")
    data = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    assert len(integrity.check(str(mine))) == 2


def test_what_check_says_repairs_it(
    mine: Path, made: Path, bilrp_command: Callable[..., tuple[int, str, str]]
) -> None:
    """Damaged items and parts are dropped, indexed again, and are what they were."""
    truth = collection.open(made, tiny_encoder())
    for pattern in ("items.lance/data/*.lance", "parts.lance/data/*.lance"):
        change(list_files(mine, pattern)[0], 500)
    code, out, _ = bilrp_command("check", mine)
    lines = out.splitlines()
    assert code == 2 and [line.startswith("damaged: ") for line in lines] == [True, True, False]
    assert "12 items (000.png" in lines[0] and "--drop" in lines[2], lines
    assert bilrp_command("check", mine, "--drop")[0] == 0
    assert bilrp_command("check", mine)[1].endswith("every file is the one that was written\n")
    second = collection.build(made.parent / "in", tiny_encoder(), mine, parts=True)
    for key in truth.ids:
        assert np.array_equal(second.embedding(key), truth.embedding(key))
        assert np.array_equal(second.decomposition(key).parts, truth.decomposition(key).parts)
    assert integrity.check(str(mine)) == []


def test_a_large_table_is_compared_by_sizes_on_opening(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_checksums, "MAX_VERIFIED_BYTES", 0)
    (file,) = list_files(mine, "items.lance/data/*.lance")
    change(file, 100)
    collection.open(mine, tiny_encoder())
    assert len(integrity.check(str(mine))) == 1
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(InputError, match=r"bytes, .* were written"):
        collection.open(mine, tiny_encoder())


def test_a_collection_of_an_earlier_version_opens_and_gets_its_checksums(mine: Path, made: Path) -> None:
    (mine / file_checksums.FILENAME).unlink()
    assert len(collection.open(mine, tiny_encoder())) == 11
    assert "bilrp index writes them" in str(integrity.check(str(mine))[0])
    collection.build(made.parent / "in", tiny_encoder(), mine)
    assert integrity.check(str(mine)) == []


def test_removed_parts_are_made_and_recorded_again(mine: Path) -> None:
    change(list_files(mine, "parts.lance/_versions/*.manifest")[0], 40)
    (damage,) = integrity.check(str(mine))
    assert "remove parts.lance" in str(damage)
    shutil.rmtree(mine / "parts.lance")
    indexed = collection.open(mine, tiny_encoder())
    indexed.make_parts()
    indexed.decomposition(0)
    assert integrity.check(str(mine)) == []


def test_a_pipe_among_the_files_does_not_block(mine: Path) -> None:
    (file,) = list_files(mine, "items.lance/data/*.lance")
    file.unlink()
    os.mkfifo(file)
    for ask in (lambda: collection.open(mine, tiny_encoder()), lambda: integrity.check(str(mine))):
        with pytest.raises(InputError, match="not a regular file"):
            ask()


def test_a_pipe_behind_a_linked_folder_does_not_block(mine: Path) -> None:
    """A table's folder that is a link would lead around the look at its files."""
    versions = mine / tables.ITEMS_TABLE / "_versions"
    shutil.move(versions, mine / "elsewhere")
    versions.symlink_to("../elsewhere")
    latest = min((mine / "elsewhere").iterdir())
    latest.unlink()
    os.mkfifo(latest)
    (mine / file_checksums.FILENAME).unlink()
    with pytest.raises(InputError, match="_versions is a link to a folder"):
        collection.open(mine)


def test_a_version_of_very_many_digits_is_not_a_version(mine: Path) -> None:
    with (mine / file_checksums.FILENAME).open("a") as file:
        file.write(f"{'0' * 64}  {tables.ITEMS_TABLE}/_versions/{'9' * 5000}.manifest\n")
    assert len(collection.open(mine)) > 0
    assert integrity.check(str(mine)) == []


def test_a_file_that_is_gone_leaves_no_line(tmp_path: Path) -> None:
    """Another process may compact between the commit and its checksums."""
    (tmp_path / tables.ITEMS_TABLE).mkdir()
    (tmp_path / tables.ITEMS_TABLE / "there").write_bytes(b"1")
    file_checksums.record(str(tmp_path), [f"{tables.ITEMS_TABLE}/gone", f"{tables.ITEMS_TABLE}/there"])
    known, odd = file_checksums.read(str(tmp_path))
    assert list(known) == [f"{tables.ITEMS_TABLE}/there"] and not odd


def test_an_empty_line_is_not_damage(mine: Path) -> None:
    """`record` starts a new line where it sees another writer's line half written."""
    file = mine / file_checksums.FILENAME
    file.write_text(file.read_text().replace("\n", "\n\n", 1))
    assert integrity.check(str(mine)) == []


def test_many_writers_lose_no_checksum(tmp_path: Path) -> None:
    """Twelve threads add lines at once, the first torn by a killed run."""
    names = [f"items.lance/data/{number}" for number in range(120)]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / file_checksums.FILENAME).write_text("0123")
    threads = [
        threading.Thread(
            target=lambda n=n: [file_checksums.record(str(tmp_path), [each]) for each in names[n::12]]
        )
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known, odd = file_checksums.read(str(tmp_path))
    assert known == {name: file_checksums.digest(tmp_path / name) for name in names} and odd == [1]


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum")
def test_checksums_are_those_of_sha256sum(mine: Path) -> None:
    ran = subprocess.run(["sha256sum", "-c", "--quiet", file_checksums.FILENAME], cwd=mine, check=False)
    assert ran.returncode == 0
