"""A saved repair in FAISS: the same neighbours as `Repair.rank`, which `bilrp search --repair` prints, for new items too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from collection_helpers import tiny_encoder, write_scenes

from bilrp import collection
from bilrp.collection.repair import Repair

pytest.importorskip("lance", reason="collections need bilrp[collection]")
faiss = pytest.importorskip("faiss", reason="pip install faiss-cpu")
COUNT = 10  # neighbours


@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> collection.Collection:
    path = tmp_path_factory.mktemp("faiss")
    scenes = write_scenes(path / "scenes", 40, stamped=True)
    (path / "new").mkdir()
    for name in ("00-0.png", "01-0.png"):  # one with the bar, one without: they come after the repair
        (scenes / name).rename(path / "new" / name)
    return collection.build(scenes, replace(tiny_encoder(), similarity="cosine"), path / "x.lance")


def normalize(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def rank_all(repair: Repair, items: collection.Collection, queries: list) -> list[list[int]]:
    return [[position for position, _ in repair.rank(items, query, COUNT)] for query in queries]


@pytest.mark.parametrize("method", ["filling", "removal", "projection"])
def test_faiss_gives_the_neighbours_of_the_repaired_search(stamped, tmp_path: Path, method) -> None:
    repair = stamped.repair(part=[12, 13, 14, 15], of=stamped.names.index("03-0.png"), method=method)
    loaded = Repair.load(repair.save(tmp_path / "bar.safetensors"))
    index = faiss.IndexFlatIP(stamped.width)
    index.add(normalize(loaded.apply(stamped.embeddings)))
    queries = list(range(0, len(stamped), 7))
    near = index.search(normalize(loaded.apply(stamped.embeddings[queries])), COUNT)[1]
    assert near.tolist() == rank_all(loaded, stamped, queries)
    # items that were not in the collection: the part is detected and removed
    new = sorted((Path(stamped.path).parent / "new").iterdir())
    vectors = torch.stack([loaded.embed(stamped.encoder, path) for path in new]).float().numpy()
    assert index.search(normalize(vectors), COUNT)[1].tolist() == rank_all(loaded, stamped, new)
    index.add(normalize(vectors))
    own = index.search(normalize(vectors), 1)[1][:, 0].tolist()
    assert own == [len(stamped), len(stamped) + 1]


def test_a_projection_is_a_linear_transform_of_faiss(stamped, tmp_path: Path) -> None:
    """The database applies the matrix itself, to stored rows and to queries."""
    repair = stamped.repair(part=[12, 13, 14, 15], of=stamped.names.index("03-0.png"), method="projection")
    loaded = Repair.load(repair.save(tmp_path / "bar.safetensors"))
    transform = faiss.LinearTransform(stamped.width, stamped.width, False)
    faiss.copy_array_to_vector(loaded.matrix.float().numpy().ravel(), transform.A)
    transform.is_trained = True
    index = faiss.IndexPreTransform(faiss.IndexFlatIP(stamped.width))
    index.prepend_transform(faiss.NormalizationTransform(stamped.width, 2.0))
    index.prepend_transform(transform)
    index.add(np.ascontiguousarray(stamped.embeddings))
    queries = list(range(0, len(stamped), 7))
    near = index.search(np.ascontiguousarray(stamped.embeddings[queries]), COUNT)[1]
    assert near.tolist() == rank_all(loaded, stamped, queries)
