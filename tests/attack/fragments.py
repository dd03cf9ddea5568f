"""Damaged files of a collection: `check` notices each, and opening it gives the same numbers or one line."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import bilrp
from attack.budget import measure_cost
from attack.mutate import mutate_bytes
from attack.table import Row
from bilrp import collection
from bilrp.collection import file_checksums, integrity, tables
from bilrp.encoders import images
from bilrp.errors import BilrpError

TRIALS = 60  # a round
ITEMS = 8


def encoder() -> bilrp.Encoder:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
    return bilrp.Encoder(
        net, read=partial(images.read_with_view, size=16), regions=bilrp.regions.grid(4), name="toy"
    )


def numbers(path: Path) -> dict[str, list[float]]:
    """Neighbours and the parts of every item, by its id."""
    reopened = collection.open(path, encoder())
    answers = {}
    for at, key in enumerate(reopened.ids):
        neighbours = [
            score
            for each in reopened.nearest(at, ITEMS)
            for score in (each.score, reopened.ids.index(each.id))
        ]
        answers[key] = neighbours + reopened.relevance(at, at).flatten().tolist()
    return answers


def attack(seed: int, folder: Path) -> Row:
    draw, row, full = random.Random(seed), Row("fragments"), folder / "whole.lance"
    pixels = np.random.default_rng(seed).integers(0, 256, (ITEMS + 1, 16, 16, 3), dtype=np.uint8)
    pictures = [folder / f"{number}.png" for number in range(len(pixels))]
    for path, each in zip(pictures, pixels, strict=True):
        Image.fromarray(each).save(path)
    for some in (pictures[:5], pictures[5:]):  # two fragments
        indexed = collection.build(some, encoder(), full, parts=True)
    indexed.remove([0])
    truth = numbers(full)
    names = [
        each
        for name in (tables.ITEMS_TABLE, tables.PARTS_TABLE)
        for each in file_checksums.list_files(name, tables.open_table(str(full), name))
    ]
    for trial in range(TRIALS):
        path = shutil.copytree(full, folder / "trial.lance")
        what = _damage(draw, path, [*names, file_checksums.FILENAME])
        description = f"seed {seed} trial {trial}: {what}"
        harmless = _is_harmless(path, full, names)
        with measure_cost() as cost:
            _try(row, path, truth, description, harmless=harmless)
        if cost.over:
            row.failed("over budget", f"{description}: {cost}")
        shutil.rmtree(path)
    return row


def _damage(draw: random.Random, path: Path, names: list[str]) -> str:
    """Other bytes in one file, a file cut short or gone, or two files in each other's place."""
    file = path / draw.choice(names)
    data, way = file.read_bytes(), draw.choice(("flip", "flip", "mutate", "cut", "gone", "swap"))
    if way == "flip":
        at = draw.randrange(len(data))
        file.write_bytes(data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :])
    elif way == "mutate":
        changed = mutate_bytes(data, draw)
        file.write_bytes(changed if changed != data else data + b"\0")
    elif way == "cut":
        file.write_bytes(data[: draw.randrange(len(data))])
    elif way == "gone":
        file.unlink()
    else:
        other = path / draw.choice([each for each in names if path / each != file])
        file.write_bytes(other.read_bytes())
        other.write_bytes(data)
    return f"{way} of {file.relative_to(path)}"


def _is_harmless(path: Path, full: Path, names: list[str]) -> bool:
    """Whether the damage is confined to checksums of earlier versions' files, which nothing reads any more."""
    same_files = all(
        (path / each).is_file() and (path / each).read_bytes() == (full / each).read_bytes() for each in names
    )
    if not same_files or not (path / file_checksums.FILENAME).is_file():
        return False
    (stored, invalid), (expected, _) = file_checksums.read(str(path)), file_checksums.read(str(full))
    return not invalid and all(stored.get(each) == expected[each] for each in names)


def _try(row: Row, path: Path, truth: dict[str, list[float]], description: str, *, harmless: bool) -> None:
    try:
        noticed = bool(integrity.check(str(path)))
    except BilrpError:
        noticed = True
    except BaseException as error:  # a panic of Lance is no Exception
        return row.failed("unexpected error", f"{description}: check: {type(error).__name__}: {error}")
    if not noticed and not harmless:
        return row.failed("wrong", f"{description}: check says nothing")
    try:
        result = numbers(path)
    except BilrpError as error:
        if "\n" in str(error):
            return row.failed("unexpected error", f"{description}: more than one line: {error}")
        row.refused += 1
        return None
    except BaseException as error:
        return row.failed("unexpected error", f"{description}: {type(error).__name__}: {error}")
    if result != truth:
        return row.failed("wrong", f"{description}: opened with other numbers")
    row.right += 1
    return None
