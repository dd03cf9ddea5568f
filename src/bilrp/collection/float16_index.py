"""Embeddings in half precision, in a file that is mapped into memory: a search reads half as much, and decodes nothing.

What rounding cost is known: |⟨v, φ⟩ − s ⟨v, h⟩| ≤ ‖v‖ ‖φ − s h‖ for φ kept as s h. So halves tell what may be among the k
best, and only that is read in float32 and ranked: the answer is exact. The file is made of the table, by the first search
that needs it, and made again when the table has changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from bilrp.collection import tables
from bilrp.collection.embedding_norms import FLOAT32_TINY, is_float32_safe, normalize, row_norms, vector_norm
from bilrp.errors import InputError
from bilrp.io.files import atomic_write, open_regular

MAX_EXPONENT = 15  # a row is scaled so that its largest is below 2 to this: float16 ends at 65504
CHUNK_BYTES = 4 * 2**20  # bytes of float32 that are worked on at once: they stay near the processor
FLOAT32_EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class Float16Index:
    """φ ≈ scale · halves for every item; `rounding_error` is ‖φ − scale · halves‖, and `norm` ‖φ‖."""

    path: Path
    width: int
    scale: Float[np.ndarray, " items"]
    rounding_error: Float[np.ndarray, " items"]
    norm: Float[np.ndarray, " items"]

    def candidates(self, vector: np.ndarray, k: int, *, cosine: bool = False) -> Int[np.ndarray, " some"]:
        """Positions of all that may be among the k with the largest ⟨v, φ⟩, or cosine, in order.

        For v of length one, a score lies within ‖φ − s h‖ + 2 n u ‖φ‖: what halves lost, and what two sums of n terms may
        lose in any order. At least k scores reach the k-th largest lower end, so that what cannot reach it is none of the k
        best. A cosine whose norm float32 cannot hold well may be anything.
        """
        norm, lost, size = (
            self.norm.astype(np.float64),
            self.rounding_error.astype(np.float64),
            vector_norm(vector) or 1,
        )
        scores = self.scale.astype(np.float64) * self.dot(normalize(vector))
        around = (lost + (self.width + 8) * FLOAT32_EPSILON * (norm + lost)) * (
            1 + self.width * FLOAT32_EPSILON
        )
        with np.errstate(all="ignore"):
            if cosine:
                scores, around = scores / norm, np.where(is_float32_safe(self.norm), around / norm, np.inf)
            else:  # a product smaller than float32 has numbers for is lost, too
                around += self.width * FLOAT32_TINY / size
            known = np.isfinite(scores) & np.isfinite(around)
            low, high = np.where(known, scores - around, -np.inf), np.where(known, scores + around, np.inf)
        least = np.partition(low, len(low) - k)[len(low) - k] if k < len(low) else -np.inf
        return np.flatnonzero(high >= least)

    def dot(self, vector: np.ndarray) -> np.ndarray:
        """⟨v, h⟩ of every item; a few rows are mapped at a time, so that memory stays bounded."""
        rows = max(1, CHUNK_BYTES // (4 * self.width))
        room, wide = torch.empty(rows, self.width), torch.from_numpy(np.ascontiguousarray(vector, np.float32))
        found = torch.empty(len(self.scale))
        with open_regular(self.path, follow_symlinks=False) as file:
            for start in range(0, len(found), rows):
                count = min(rows, len(found) - start)
                at, shape = 2 * self.width * start, (count, self.width)
                # torch takes no memory that cannot be written to; what is written to such a map stays in it
                block = np.memmap(file, np.float16, "c", at, shape)
                torch.mv(room[:count].copy_(torch.from_numpy(block)), wide, out=found[start : start + count])
        return found.numpy()


def round_to_float16(block: Float[np.ndarray, "some h"]) -> tuple[np.ndarray, np.ndarray]:
    """(halves, [scale, lost, norm] of each row): scaled by powers of two, which costs nothing.

    >>> halves, (scale, lost, _) = round_to_float16(np.array([[3.0, 2.0**20]], np.float32))
    >>> (scale * halves).tolist() == [[3.0, 2.0**20]], lost.tolist()
    (True, [0.0])
    """
    _, exponent = np.frexp(np.abs(block).max(1, initial=0))
    scale = np.ldexp(np.float32(1), np.maximum(exponent - MAX_EXPONENT, -100))
    scaled = torch.from_numpy(block / scale[:, None])
    halves = scaled.half()
    lost = scale * row_norms((scaled - halves.float()).numpy())
    more = 1 + block.shape[1] * FLOAT32_EPSILON  # the sum is rounded too
    return halves.numpy(), np.stack([scale, more * lost, row_norms(block)]).astype(np.float32)


def open_or_build(dataset: Any, width: int, count: int, blocks: Iterable[np.ndarray]) -> Float16Index | None:
    """The halves of a table of items, made of its blocks where they are not there; None where no file can be had.

    The name says which files of the table they were made of. Two that make it at once make the same.
    """
    if "://" in dataset.uri:
        return None
    path = Path(dataset.uri).parent / f"halves-{tables.fingerprint(dataset)}.f16"
    start = 2 * width * count
    try:
        if not path.is_file() or path.stat().st_size != start + 12 * count:
            _write(path, blocks)
        with suppress(OSError):
            os.utime(path)  # it is in use, as of now
        about = np.fromfile(path, np.float32, offset=start).reshape(3, count)
    except (InputError, OSError, ValueError):  # a place that cannot be written to, a full disk
        return None
    return Float16Index(path, width, *about)


def _write(path: Path, blocks: Iterable[np.ndarray]) -> None:
    """All halves, then scale, lost and norm; those of another state of the table go when nobody has opened them for long."""
    about = []
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        for block in blocks:
            for few in np.array_split(block, -(-block.nbytes // CHUNK_BYTES) or 1):
                halves, each = round_to_float16(few)
                halves.tofile(file)
                about.append(each)
        np.concatenate(about, 1).tofile(file)
    for old in path.parent.glob("halves-*.f16"):
        with suppress(OSError):
            if old != path and time.time() - old.stat().st_mtime > tables.VERSION_RETENTION.total_seconds():
                old.unlink()
