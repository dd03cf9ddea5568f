"""A small encoder and a folder of small pictures, for collections."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

import bilrp
from bilrp import Encoder, collection
from bilrp.collection import tables
from bilrp.collection.items_table import ItemsTable
from bilrp.encoders import images

CLUSTER_READY = "the cluster is ready"


def tiny_encoder(seed: int = 0) -> Encoder:
    """Small, with ReLUs: most coordinates of a part are zero."""
    torch.manual_seed(seed)
    first, second = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 24, 3, stride=2)
    net = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return Encoder(
        net,
        read=partial(images.read_with_view, size=32),
        regions=bilrp.regions.grid(8),
        name="tiny",
        similarity="dot",
    )


def write_scenes(folder: Path, count: int, *, stamped: bool) -> Path:
    """Two views of each of `count` scenes, next to each other by name; every third photograph has a bar with a caption."""
    rng = np.random.default_rng(3)
    folder.mkdir()
    for number in range(count):
        pixels = rng.integers(60, 200, (5, 5, 3), dtype=np.uint8)
        full = Image.fromarray(pixels).resize((72, 72), Image.Resampling.BICUBIC)
        for view in range(2):
            picture = full.crop((4 * view, 4 * view, 64 + 4 * view, 64 + 4 * view))
            if stamped and (2 * number + view) % 3 == 0:
                draw = ImageDraw.Draw(picture)
                draw.rectangle((0, 52, 64, 64), "black")
                draw.rectangle((6, 56, 40, 60), "white")
            picture.save(folder / f"{number:02}-{view}.png")
    return folder


def write_pictures(folder: Path, count: int, *, seed: int = 0) -> Path:
    """Smooth noise, each picture its own, in two groups."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        path = folder / ("even", "odd")[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        small.resize((48, 36), Image.Resampling.BICUBIC).save(path / f"{number:03}.png")
    return folder


def write_items(path: Path, embeddings: np.ndarray, *, first: int = 0) -> ItemsTable:
    """A table of these embeddings and a broken item, no embedding held in memory."""
    origin = {"encoder": "none", "weights": "", "composite": "", "dtype": "float32"}
    width = embeddings.shape[1]
    description = {"version": tables.FORMAT_VERSION, "width": width, "encoder": "none", "origin": origin}
    schema = tables.items_schema(width, description)
    rows: list[dict[str, Any]] = [
        {"id": f"{i:08}", "name": f"{i}", "group": "", "source": "", "embedding": e}
        for i, e in enumerate(embeddings, first)
    ]
    rows.insert(3, {"id": f"broken {first}", "name": "", "group": "", "source": "", "failed": "it is"})
    tables.append_rows(str(path), tables.ITEMS_TABLE, rows, schema)
    return open_items_on_disk(path)


def open_items_on_disk(path: Path) -> ItemsTable:
    """The items of a collection, no embedding held in memory."""
    indexed = collection.open(path).items
    indexed.max_resident_bytes = 0
    return indexed


def run_command(
    command: Sequence[str], env: Mapping[str, str], *, seconds: float
) -> tuple[int | None, str, str]:
    """(code, what it said, its errors) of a command; None where it took too long. Its children end with it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        run = subprocess.Popen(command, env=env, stdout=out, stderr=err, start_new_session=True)
        try:
            code = run.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if hasattr(os, "killpg"):
                with suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)
            run.kill()
            run.wait()
        output = []
        for file in (out, err):
            file.seek(0)
            output.append(file.read().decode(errors="replace"))
    return code, output[0], output[1]
