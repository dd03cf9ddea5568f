"""What a collection answers is what the files give, to the storage error it states: 1,000 digits, and 64 photographs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from collection_helpers import tiny_encoder
from PIL import Image

import bilrp
from bilrp import collection
from bilrp.collection.core import Collection
from bilrp.explanation import pair

pytest.importorskip("lance", reason="collections need bilrp[collection]")
pytestmark = pytest.mark.slow
ROUNDING = 2e-5  # of float32, on two ways to one number


def same_pair(result: Collection, exact: bilrp.Explanation, i: int, j: int) -> None:
    """‖P P'ᵀ − P̂ P̂'ᵀ‖ ≤ (e + e' + e e') ‖P‖ ‖P'‖ for parts that are off by e ‖P‖ and e' ‖P'‖."""
    stored = result.explain(i, j)
    e, f = (side.storage_error for side in (stored.a, stored.b))
    assert 0 < e < 0.004 and 0 < f < 0.004  # half a unit of bfloat16 is 2⁻⁹
    size = float(exact.a.parts.norm() * exact.b.parts.norm())
    away = float((stored.relevance - exact.relevance).norm())
    assert away <= (e + f + e * f + ROUNDING) * size
    assert stored.score == pytest.approx(exact.score, rel=1e-4)
    assert float(stored.relevance.double().sum()) + stored.unattributed == pytest.approx(
        stored.score, rel=1e-4
    )
    torch.testing.assert_close(result.relevance(i, j), stored.relevance, rtol=1e-4, atol=1e-6 * size)


def shares_sum_to_the_score(result: Collection, query: int) -> None:
    taken, embeddings = result.decomposition(query), torch.from_numpy(result.embeddings).double()
    sums = result.share(query).double().sum(0) + embeddings @ taken.unattributed.double()
    scores = embeddings @ taken.embedding.double()
    sizes = embeddings.norm(dim=1) * taken.parts.double().norm(dim=1).sum()
    assert bool(((sums - scores).abs() <= 1e-5 * sizes).all())


def by_a_part(result: Collection, query: int, part: list[int], exact: bilrp.Decomposition) -> None:
    """All items, ranked as one loop over them ranks them, with stored parts; scores are those of the file's own parts."""
    neighbours = result.nearest(query, len(result), part=part)
    stored, embeddings = result.decomposition(query), result.embeddings.astype(np.float64)
    vector = stored.parts[part].double().sum(0).numpy()
    scores = np.array([sum(v * x for v, x in zip(vector, row, strict=True)) for row in embeddings])
    close = 1e-5 * float(np.linalg.norm(vector)) * np.linalg.norm(embeddings, axis=1)
    order = np.array([n.position for n in neighbours])
    assert sorted(order) == list(range(len(result)))
    assert (np.diff(scores[order]) <= close[order[1:]] + close[order[:-1]]).all()
    assert (np.abs([n.score for n in neighbours] - scores[order]) <= close[order]).all()
    lost = stored.storage_error * float(exact.parts.norm()) * len(part) ** 0.5
    true = embeddings @ exact.parts[part].double().sum(0).numpy()
    bound = (lost + ROUNDING * float(exact.parts.norm())) * np.linalg.norm(embeddings, axis=1)
    assert (np.abs(true - scores) <= bound).all()


def test_a_thousand_digits(tmp_path: Path) -> None:
    digits = pytest.importorskip("sklearn.datasets", reason="digits come with scikit-learn").load_digits()
    files = []
    for number, (pixels, digit) in enumerate(zip(digits.images[:1000], digits.target, strict=False)):
        files.append(tmp_path / "in" / str(digit) / f"{number:04}.png")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        grey = Image.fromarray((255 - 15.9375 * pixels).astype(np.uint8))
        grey.resize((32, 32), Image.Resampling.BICUBIC).save(files[-1])
    encoder = tiny_encoder()
    indexed = collection.build(files, encoder, tmp_path / "x.lance")
    assert len(indexed) == 1000 and sorted(indexed.groups()) == [str(d) for d in range(10)]
    rng = np.random.default_rng(0)
    for _ in range(24):
        i, j = (int(n) for n in rng.integers(0, 1000, 2))
        same_pair(indexed, bilrp.explain(encoder, files[i], files[j], similarity="dot"), i, j)
    for query in (3, 512, 999):
        shares_sum_to_the_score(indexed, query)
        part = sorted(int(r) for r in rng.choice(16, 4, replace=False))
        by_a_part(indexed, query, part, bilrp.decompose(encoder, files[query]))


@pytest.mark.data
def test_sixty_four_photographs(tmp_path: Path, data: Path) -> None:
    files = sorted((data / "pascal_voc" / "images").glob("*.jpg"))[:64]
    encoder = bilrp.encoders.vgg16(31, weights=data / "vgg16" / "vgg16_features.safetensors")
    indexed = collection.build(files, encoder, tmp_path / "x.lance")
    assert len(indexed) == 64
    chosen = (0, 7, 20, 41, 63)
    first = bilrp.explain(encoder, files[0], files[7], similarity="dot")
    taken = {0: first.a, 7: first.b} | {i: bilrp.decompose(encoder, files[i]) for i in chosen[2:]}
    for i, j in combinations(chosen, 2):
        same_pair(indexed, first if (i, j) == (0, 7) else pair(taken[i], taken[j], similarity="dot"), i, j)
    for i in chosen[:3]:
        shares_sum_to_the_score(indexed, i)
        by_a_part(indexed, i, [100, 101, 116, 117], taken[i])
