"""Killed at any moment: what was saved stays whole, what is resumed is the same, no unfinished files stay behind."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

from attack import caches, fetches, stores
from attack.table import Row
from bilrp import Explanation
from bilrp.errors import BilrpError
from bilrp.io import files
from bilrp.render.page import write as write_page
from bilrp.render.report import Report, Section, Table

SAVES, STUDIES, FETCHES = 12, 4, 4  # kills a round


def attack(seed: int, path: Path) -> Row:
    draw, row = random.Random(seed), Row("kills")
    _saving(draw, row, path / "saving", seed)
    _studying(draw, row, path / "studying", seed)
    fetches.kill(draw, row, path / "fetching", seed, FETCHES)
    return row


def run_and_kill(work: Callable[[], object], after: float) -> None:
    """Do the work in a process of its own, and kill it after so many seconds."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _saving(draw: random.Random, row: Row, folder: Path, seed: int) -> None:
    """Results, pages and reports, saved over and over: each file is the old or the new one, and opens."""
    folder.mkdir()
    result = [stores.explanation(similarity) for similarity in ("dot", "cosine")]
    reports = [
        Report(f"title {n}", "what was found", [Section("one", [Table(("a",), [(n,)] * 500)])])
        for n in range(2)
    ]

    def save() -> None:
        for _ in range(10_000):
            for one, report in zip(result, reports, strict=True):
                one.save(folder / "why.npz")
                one.save(folder / "why.safetensors")
                write_page(one, folder / "why.html")
                report.write(folder)

    for trial in range(SAVES):
        run_and_kill(save, draw.uniform(0.0, 0.4))
        description = f"seed {seed} save {trial}"
        for name in ("why.npz", "why.safetensors"):
            path = folder / name
            try:
                if path.exists() and not any(stores.same(Explanation.load(path), one) for one in result):
                    row.failed("lost", f"{description}: {name} holds something else")
            except BilrpError as error:
                row.failed("lost", f"{description}: {error}")
        for name, end in (("why.html", "</html>"), ("report.html", "</html>"), ("results.json", "}")):
            if (folder / name).exists() and not (folder / name).read_text().rstrip().endswith(end):
                row.failed("lost", f"{description}: {name} is torn")
        files.write_text(folder / "next.txt", "the next start")
        left = [path.name for path in folder.iterdir() if files.is_partial(path)]
        if left:
            row.failed("leftover files", f"{description}: {left}")
        row.right += 1


def _studying(draw: random.Random, row: Row, location: Path, seed: int) -> None:
    """A study killed again and again goes on where it stopped, and its numbers are those of an undisturbed one."""
    truth = caches.small_study(location / "undisturbed")()
    for trial in range(STUDIES):
        folder = location / f"{trial}"
        for _ in range(3):
            run_and_kill(lambda folder=folder: caches.small_study(folder)(), draw.uniform(0.0, 0.5))
        description = f"seed {seed} study {trial}"
        try:
            result = caches.small_study(folder)()
        except Exception as error:
            row.failed("lost", f"{description}: {type(error).__name__}: {error}")
            continue
        if not all(torch.equal(a, b) for a, b in zip(result, truth, strict=True)):
            row.failed("wrong", f"{description}: other numbers after it was resumed")
        elif left := [path for path in folder.rglob("*") if files.is_partial(path)]:
            row.failed("leftover files", f"{description}: {len(left)} unfinished files")
        else:
            row.right += 3
