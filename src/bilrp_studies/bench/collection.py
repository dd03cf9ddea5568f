"""Benchmark of a collection: indexing, a stored pair, a one-sided map against thousands of items, nearest neighbours."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bilrp.collection import tables
from bilrp.collection.batch_encoder import MAX_BATCH_SIZE
from bilrp.collection.core import Collection, open
from bilrp.collection.indexing import build, build_with_report
from bilrp.encoder import Encoder, read_item
from bilrp_studies.bench.timing import Measurement, measure_cost

PHOTOGRAPH_COUNT = 64
ITEM_COUNT = 10_000


def run(
    encoder: Encoder,
    photograph: Image.Image,
    *,
    rounds: int = 2,
    items: int = ITEM_COUNT,
    say: Callable[[str], object],
) -> tuple[Measurement, ...]:
    """Time a collection of crops of one photograph and one of `items` synthetic embeddings.

    Args:
        encoder: The encoder to index with.
        photograph: The image that is cropped to JPEG files.
        rounds: Repetitions of each measurement; the fastest counts.
        items: Number of embeddings in the large collection.
        say: Called with the name of each stage before it starts.
    """
    with tempfile.TemporaryDirectory() as position:
        folder = Path(position)
        files = write_crops(photograph, folder / "photographs", PHOTOGRAPH_COUNT)
        say("indexing")
        rate = time_indexing(encoder, files, folder, rounds=rounds)
        few = build(files[:4], encoder, folder / "few.lance", parts=True)
        say("stored pairs")
        pair = time_stored_pair(few, rounds=rounds)
        say(f"{items} embeddings")
        many = build_enlarged(few, folder / "many.lance", items)
        return rate, pair, time_one_sided_map(many, rounds=rounds), *time_neighbours(many)


def write_crops(photograph: Image.Image, folder: Path, count: int) -> list[Path]:
    """Write random crops of a photograph as JPEG files of 400 × 300 pixels.

    Args:
        photograph: The image to crop.
        folder: Folder to create; it must not exist.
        count: Number of crops.
    """
    folder.mkdir()
    rng, built = np.random.default_rng(0), []
    for number in range(count):
        wide = int(rng.integers(photograph.width // 2, photograph.width))
        high = min(photograph.height, wide * 3 // 4)
        left, top = (
            int(rng.integers(0, most + 1)) for most in (photograph.width - wide, photograph.height - high)
        )
        built.append(folder / f"{number:03}.jpg")
        photograph.crop((left, top, left + wide, top + high)).resize((400, 300)).save(built[-1], quality=90)
    return built


def time_indexing(encoder: Encoder, files: list[Path], folder: Path, *, rounds: int) -> Measurement:
    """Time indexing files, relative to the forward passes alone on the same decoded inputs in the same batch size.

    Args:
        encoder: The encoder to index with.
        files: The images to index.
        folder: Folder for one collection per round.
        rounds: Repetitions; the fastest counts.
    """
    inputs = torch.cat([read_item(encoder, file).x for file in files])

    def bare() -> None:
        with torch.inference_mode():
            for few in inputs.split(MAX_BATCH_SIZE):
                encoder.module(few)

    bare()
    alone, index = [], []
    for number in range(rounds):
        alone.append(_measure_seconds(bare))
        index.append(
            _measure_seconds(
                lambda number=number: build_with_report(files, encoder, folder / f"{number}.lance")
            )
        )
    (bare_wall, bare_worked), (wall, worked) = (np.min(times, axis=0) for times in (alone, index))
    ratio = float(bare_wall / wall)
    text = f"{len(files) / wall:.1f} items a second, the encoder alone {len(files) / bare_wall:.1f}"
    text += f"; by processor time {bare_worked / worked:.2f}"
    return Measurement("indexing, of the encoder's own rate", ratio, "×", f"≥ 0.85; {text}")


def time_stored_pair(collection: Collection, *, rounds: int) -> Measurement:
    """Time R = P P'ᵀ of two stored items, reading included: the median over pairs of each pair's fastest run."""
    pairs = [(i, j) for i in range(len(collection)) for j in range(i)]
    regions = tuple(collection.relevance(0, 1).shape)
    times = 1000 * np.array(
        [
            [_measure_seconds(lambda i=i, j=j: collection.relevance(i, j)) for _ in range(5 * rounds)]
            for i, j in pairs
        ]
    )
    worked = times[..., 1]
    caption = f"≤ 3; {regions[0]} × {regions[1]} regions, reading included"
    caption += f"; of all times, processor: median {np.median(worked):.1f}, best {worked.min():.1f}"
    return Measurement("a stored pair", float(np.median(times[..., 0].min(1))), "ms", caption)


def build_enlarged(collection: Collection, path: Path, count: int) -> Collection:
    """Return a collection with `count` embeddings: the original ones and random convex combinations of them.

    Args:
        collection: The collection to enlarge; its parts table is reused.
        path: Path of the new collection.
        count: Number of items of the new collection.
    """
    rng, known = np.random.default_rng(0), collection.embeddings
    schema = tables.items_schema(collection.width, collection.description)
    first = collection.items.take(range(len(collection)), [f.name for f in schema])
    rows = [{name: values[i] for name, values in first.items()} for i in range(len(collection))]
    tables.append_rows(str(path), tables.ITEMS_TABLE, rows, schema)
    for start in range(len(collection), count, 1000):
        weights = rng.dirichlet(np.ones(len(known)), min(1000, count - start)).astype(np.float32)
        mixed = weights @ known
        rows = [
            {"id": f"{start + n:032}", "name": f"{start + n}", "group": "", "source": "", "embedding": each}
            for n, each in enumerate(mixed)
        ]
        tables.append_rows(str(path), tables.ITEMS_TABLE, rows, schema)
    built = open(path, collection.encoder)
    built.parts = collection.parts
    return built


def time_one_sided_map(collection: Collection, *, rounds: int) -> Measurement:
    """Time ⟨P_I, φ(x')⟩ for all items, parts read from the table, relative to NumPy's product of the same arrays."""
    parts, embeddings = collection.decomposition(0).parts.numpy(), collection.embeddings
    collection.share(0, against=[0])
    plain, ours = [], []
    for _ in range(max(3, rounds)):
        plain.append(_measure_seconds(lambda: parts @ embeddings.T)[0])
        ours.append(_measure_seconds(lambda: collection.share(0))[0])
    caption = f"≤ 2; {len(parts)} regions, {1000 * min(ours):.0f} ms against {1000 * min(plain):.0f}"
    return Measurement(
        f"a map against {len(collection)} items, of NumPy's product", min(ours) / min(plain), "×", caption
    )


def time_neighbours(collection: Collection) -> Iterator[Measurement]:
    """Time a search for ten neighbours, with the embeddings in memory and with none of them resident."""
    seconds, _ = measure_cost(lambda: collection.nearest(0, 10))
    yield Measurement(f"10 neighbours of {len(collection)}, in memory", 1000 * seconds, "ms", "")
    with _without_resident_embeddings(collection):
        collection.nearest(0, 10)
        seconds, peak = measure_cost(lambda: collection.nearest(0, 10))
    caption = f"{1000 * seconds:.0f} ms, of {collection.width * len(collection) * 2 / 2**20:.0f} MB of halves"
    yield Measurement("the same with none in memory: memory above the start", peak, "MB", caption)


@contextmanager
def _without_resident_embeddings(collection: Collection) -> Iterator[None]:
    before, collection.items.max_resident_bytes = collection.items.max_resident_bytes, 0
    try:
        yield
    finally:
        collection.items.max_resident_bytes = before


def _measure_seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall-clock and CPU seconds; CPU time is less affected by other processes."""
    wall, worked = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - worked
