"""Atomic files: killed runs, full disks, stale temporary files, permissions, order of writes."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from bilrp.encoders import images
from bilrp.errors import InputError
from bilrp.io import files, store

SOURCE = str(Path(files.__file__).parents[2])


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SAVING = """
import sys, time
from bilrp.io import files
with files.atomic_write(sys.argv[1]) as temporary:
    temporary.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_files_of_killed_runs_are_not_listed_and_the_next_write_removes_them(tmp_path):
    from PIL import Image

    Image.new("RGB", (4, 4)).save(tmp_path / "cat.png")
    run = child(SAVING, str(tmp_path / "why.png"))
    assert run.stdout is not None and run.stdout.readline() == "writing\n"
    (left,) = (path for path in tmp_path.iterdir() if path.name != "cat.png")
    assert files.is_partial(left) and left.suffix == ".png"
    assert images.list_images(tmp_path) == [tmp_path / "cat.png"], "temporary files are not listed"
    files.write_text(tmp_path / "other.txt", "x")
    assert left.exists(), "it is still being written"
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert left.exists() and not (tmp_path / "why.png").exists()
    files.write_text(tmp_path / "other.txt", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat.png", "other.txt"]


def test_without_locks_only_old_files_count_as_abandoned(tmp_path, monkeypatch):
    young, old = (tmp_path / f"{files.PARTIAL_PREFIX}{name}.png" for name in ("young", "old"))
    for path in (young, old):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    files.remove_stale(tmp_path)
    assert young.exists() and not old.exists()


def test_temporary_folders_of_killed_runs_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    script = SAVING.replace(
        "files.atomic_write(sys.argv[1]) as temporary", "files.temporary_folder() as folder"
    )
    run = child(script.replace("temporary.write_bytes", "(folder / 'weights').write_bytes"))
    assert run.stdout is not None and run.stdout.readline() == "writing\n"
    (left,) = tmp_path.iterdir()
    with files.temporary_folder() as other:
        assert left.exists() and other != left
    run.send_signal(signal.SIGKILL)
    run.communicate()
    with files.temporary_folder() as other:
        assert [other] == list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


FULL = """
import resource, sys, torch
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
from bilrp.io import store
from bilrp.errors import InputError
try:
    store.write(sys.argv[1], {"x": torch.rand(100, 100)}, {"kind": "features"})
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize("suffix", files.NUMBER_SUFFIXES)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, suffix):
    output, errors = child(FULL, str(tmp_path / f"x{suffix}")).communicate()
    assert output.startswith("cannot write") and output.count("\n") == 1 and not errors
    assert not list(tmp_path.iterdir())


def test_content_is_on_disk_before_its_name(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: order.append("sync") or fsync(handle))
    monkeypatch.setattr(Path, "replace", lambda self, to: order.append("name") or replace(self, to))
    files.write_text(tmp_path / "x.txt", "x")
    assert order == ["sync", "name", "sync"]


def test_permissions_follow_the_umask_without_setting_it(tmp_path, monkeypatch):
    before = os.umask(0o027)
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask is the whole process's"))
    try:
        files.write_text(tmp_path / "x.txt", "x")
        assert stat.S_IMODE((tmp_path / "x.txt").stat().st_mode) == 0o640
    finally:
        monkeypatch.undo()
        os.umask(before)


def test_many_threads_write_one_name(tmp_path):
    def work(text: str) -> None:
        for _ in range(20):
            files.write_text(tmp_path / "x.txt", text * 1000)

    threads = [threading.Thread(target=work, args=(c,)) for c in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x.txt").read_text() in {c * 1000 for c in "abcdefgh"}
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]


@pytest.mark.parametrize("name", ["x" * 300 + ".png", "nul\0.png", "folder"])
def test_names_that_cannot_be_written_are_one_line(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError) as raised:
        files.write_bytes(tmp_path / name, b"x")
    assert str(raised.value).startswith("cannot write") and "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_long_suffix_and_half_a_surrogate_pair_are_written(tmp_path):
    assert files.write_text(tmp_path / ("x." + "y" * 200), "\ud800 ok").read_text() == "\\ud800 ok"


def test_tensors_of_every_kind_come_back(tmp_path):
    kinds = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    tensors = {kind: torch.tensor([[0, 1, 1]]).to(getattr(torch, kind)) for kind in kinds}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 2), "transposed": torch.rand(2, 3).T}
    path = store.write(tmp_path / "x.safetensors", tensors, {"kind": "all", "å": "\ud800\0"})
    stored, metadata = store.read(path, kind="all")
    assert all(torch.equal(stored[name], tensors[name]) for name in tensors) and len(stored) == len(tensors)
    assert metadata == {"kind": "all", "å": "\\ud800\\x00"}, "what no file format can say is escaped"


def test_texts_are_read_to_a_limit_and_only_from_files(tmp_path):
    (tmp_path / "long.json").write_text("x" * 100)
    (tmp_path / "odd.json").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe.json")
    assert files.read_text(tmp_path / "long.json", kind="JSON", max_bytes=100) == "x" * 100
    for name, what in {
        "long": "longer than", "odd": "utf-8", "pipe": "not a regular file", "none": "No such file", "nul\0": "null byte",
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=f"cannot be read as JSON: .*{what}"):
            files.read_text(tmp_path / f"{name}.json", kind="JSON", max_bytes=99)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket", "link", "long"])
def test_only_a_regular_file_of_bounded_size_is_opened(tmp_path: Path, kind: str) -> None:
    """A pipe without a writer would block forever, a device never end."""
    path = tmp_path / "stored.json"
    listening = socket.socket(socket.AF_UNIX)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        listening.bind(str(path))
    elif kind == "link":
        (tmp_path / "elsewhere.json").write_text("{}")
        path.symlink_to(tmp_path / "elsewhere.json")
    else:
        path.write_bytes(bytes(101))
    with listening, pytest.raises(OSError):
        files.read_bytes(path, max_bytes=100, follow_symlinks=False)


def test_a_link_is_followed_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"{}")
    (tmp_path / "config.json").symlink_to(tmp_path / "blob")
    assert files.read_bytes(tmp_path / "config.json", max_bytes=2) == b"{}"
