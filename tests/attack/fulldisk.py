"""A full disk under everything that writes: one line or a fallback that is said, what was there stays, nothing is left."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from attack import stores
from attack.table import Row
from bilrp.encoders import downloads
from bilrp.errors import BilrpError
from bilrp.io import files
from bilrp.render import figure
from bilrp.render.page import write as write_page
from bilrp.render.report import Report, Section, Table
from bilrp_studies.common.cache import Cache

TRIALS = 24  # a round
OLD = b"what was there before"


def writers(folder: Path) -> dict[str, tuple[Path, Callable[[], object]]]:
    """What writes, and the file that it makes or replaces."""
    result = stores.explanation("dot")
    report = Report("a title", "a summary", [Section("one", [Table(("a",), [(n,) for n in range(2000)])])])
    cache = Cache(folder)
    entry = cache.path("features", "ab12")

    def weights() -> None:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            if not downloads.write_to_cache(folder / "w.bin", lambda path: path.write_bytes(bytes(50_000))):
                assert "used from memory" in str(raised[0].message)
                raise BilrpError("said, and used from memory")

    def draw_figure(path: Path) -> object:
        return figure.write(result, path)

    return {
        "result .npz": (folder / "why.npz", partial(result.save, folder / "why.npz")),
        "result .safetensors": (folder / "why.safetensors", partial(result.save, folder / "why.safetensors")),
        "page": (folder / "why.html", partial(write_page, result, folder / "why.html")),
        "picture .png": (folder / "why.png", partial(draw_figure, folder / "why.png")),
        "picture .svg": (folder / "why.svg", partial(draw_figure, folder / "why.svg")),
        "picture .pdf": (folder / "why.pdf", partial(draw_figure, folder / "why.pdf")),
        "report": (folder / "report.md", partial(report.write, folder)),
        "cache": (entry, partial(cache.put, "features", "ab12", {"x": torch.rand(5000)})),
        "weights": (folder / "w.bin", weights),
    }


def attack(seed: int, location: Path) -> Row:
    draw, row = random.Random(seed), Row("full disk")
    small = location / "small"
    small.mkdir()
    mounted = _mount(small)
    try:
        for trial in range(TRIALS):
            on_tmpfs = mounted and trial % 2 == 0
            folder = small / f"{trial}" if on_tmpfs else location / f"{trial}"
            folder.mkdir()
            name, (path, write) = draw.choice(list(writers(folder).items()))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(OLD)
            limit = int(10 ** draw.uniform(0, 5))
            outcome = _try_write(write, limit, small if on_tmpfs else None)
            description = f"seed {seed} trial {trial} ({name}, {limit} bytes{', tmpfs' if on_tmpfs else ''})"
            left = [each.name for each in folder.rglob("*") if files.is_partial(each)]
            stored = path.read_bytes() if path.exists() else b""
            if outcome not in ("written", "refused"):
                row.failed("unexpected error", f"{description}: {outcome}")
            elif left:
                row.failed("leftover files", f"{description}: {left}")
            elif (
                outcome == "refused" and stored != OLD and name != "report"
            ):  # a report's files follow one another
                row.failed("lost", f"{description}: what was there is gone")
            elif outcome == "written" and stored in (OLD, b""):
                row.failed("lost", f"{description}: nothing was written")
            else:
                row.right += outcome == "written"
                row.refused += outcome == "refused"
            _fill(small, 0)
    finally:
        if mounted:
            subprocess.run(["umount", str(small)], check=False)
    row.note = "half of them on a small tmpfs" if mounted else "no tmpfs could be mounted: limited files only"
    return row


def _try_write(write: Callable[[], object], limit: int, tmpfs: Path | None) -> str:
    """In a process of its own: with a limit for the size of a file, or on a file system that is full."""
    here, there = os.pipe()
    child = os.fork()
    if not child:
        outcome = "it ended"
        try:
            if tmpfs is None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            else:
                _fill(tmpfs, limit)
            try:
                write()
                outcome = "written"
            except BilrpError as error:
                outcome = "refused" if "\n" not in str(error) else f"more than one line: {error}"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        finally:
            os.write(there, outcome.encode()[:400])
            os._exit(0)
    os.close(there)
    with os.fdopen(here) as pipe:
        outcome = pipe.read()
    os.waitpid(child, 0)
    return outcome


def _mount(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _fill(folder: Path, space: int) -> None:
    """Fill the file system up to so many free bytes; 0: empty it again."""
    filler = folder / "filler"
    filler.unlink(missing_ok=True)
    if not space:
        return
    about = os.statvfs(folder)
    free = about.f_bavail * about.f_frsize
    filler.write_bytes(bytes(max(0, free - space - about.f_frsize)))
