"""Damaged cache entries under a study: it makes them again, and its numbers stay what they were."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attack.mutate import mutate_bytes
from attack.table import Row
from bilrp.errors import BilrpError
from bilrp.progress import progress_bar
from bilrp_studies.common import vgg_layers
from bilrp_studies.common.cache import Cache
from bilrp_studies.common.result_cache import load_or_compute_row

TRIALS = 60  # a round
SIDE, LAYERS = 16, (2, 5)


def small_study(folder: Path) -> Callable[[], list[Tensor]]:
    """What the studies of layers keep on disk: features, Gram matrices, decompositions; read again by every call."""
    generator = np.random.default_rng(0)
    pictures = [generator.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for _ in range(3)]
    climbing = vgg_layers.load_layered_vgg(LAYERS, weights=random_weights(), cache_folder=folder)

    def run() -> list[Tensor]:
        with progress_bar(False) as bar:
            matrices = vgg_layers.compute_grams(climbing, pictures, bar)
        explained = vgg_layers.explain_layers(climbing, pictures[0], pictures[1], regions=8)
        return [*(torch.from_numpy(m) for m in matrices.values()), *(e.relevance for e in explained.values())]

    return run


def random_weights() -> dict[str, Tensor]:
    from bilrp.encoders.vgg_weights import CONVOLUTIONS

    generator, result = torch.Generator().manual_seed(0), {}
    for number, inputs, outputs in CONVOLUTIONS[:2]:
        scale = (2 / (9 * inputs)) ** 0.5
        result[f"features.{number}.weight"] = torch.randn(outputs, inputs, 3, 3, generator=generator) * scale
        result[f"features.{number}.bias"] = torch.zeros(outputs)
    return result


def attack(seed: int, folder: Path) -> Row:
    draw, row = random.Random(seed), Row("cache entries")
    study = small_study(folder / "cache")
    truth = study()
    entries = sorted(path for path in (folder / "cache").rglob("*.safetensors"))
    full = {path: path.read_bytes() for path in entries}
    for trial in range(TRIALS):
        damaged = draw.sample(entries, draw.choice((1, 1, 2, 3)))
        for path in damaged:
            _damage(path, full, draw)
        description = f"seed {seed} trial {trial} ({', '.join(path.parent.parent.name for path in damaged)})"
        try:
            result = study()
        except BilrpError as error:
            row.failed("lost", f"{description}: the study ended: {error}")
        except Exception as error:
            row.failed("unexpected error", f"{description}: {type(error).__name__}: {error}")
        else:
            if all(torch.equal(a, b) for a, b in zip(result, truth, strict=True)):
                row.right += 1
            else:
                row.failed("wrong", f"{description}: other numbers")
        for path, data in full.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    row.add(_rows(draw, seed, folder))
    return row


def _damage(path: Path, full: dict[Path, bytes], draw: random.Random) -> None:
    """Mutated, replaced by another entry, emptied, gone, or a folder in its place."""
    way = draw.randrange(10)
    if way == 0:
        path.write_bytes(b"")
    elif way == 1:
        path.unlink()
    elif way == 2:
        path.write_bytes(draw.choice(list(full.values())))
    else:
        path.write_bytes(mutate_bytes(full[path], draw))


def _rows(draw: random.Random, seed: int, folder: Path) -> Row:
    """Rows of numbers that a study keeps: as they were, or absent."""
    row, cache, numbers = (
        Row("cache entries"),
        Cache(folder / "rows"),
        {"bilrp": [0.25, None, 1e-9], "names": ["å", "b"]},
    )
    for trial in range(TRIALS // 2):
        load_or_compute_row(cache, "ab12", lambda: numbers)
        (path,) = (folder / "rows").rglob("*.safetensors")
        path.write_bytes(mutate_bytes(path.read_bytes(), draw))
        try:
            result = load_or_compute_row(cache, "ab12", lambda: numbers)
        except Exception as error:
            row.failed("unexpected error", f"seed {seed} row {trial}: {type(error).__name__}: {error}")
            continue
        if result == numbers:
            row.right += 1
        else:
            row.failed("wrong", f"seed {seed} row {trial}: {result}")
    return row
