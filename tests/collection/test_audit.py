"""A bar stamped on a third of the photographs: the audit finds it first, and search without it restores neighbours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from collection_helpers import tiny_encoder, write_scenes
from PIL import Image

from bilrp import collection
from bilrp.collection import audit as audit_module
from bilrp.errors import InputError

pytest.importorskip("lance", reason="collections need bilrp[collection]")
COUNT = 24  # scenes, each seen twice


def right(result: collection.Collection, without=None) -> float:
    """How many stamped photographs have the other view of their scene as nearest neighbour."""
    hits = []
    for position in range(len(result)):
        if position % 3:
            continue
        neighbours = result.nearest(
            position, 2, without=None if without is None else without, similarity="cosine"
        )
        best = next(n.position for n in neighbours if n.position != position)
        hits.append(best // 2 == position // 2)
    return float(np.mean(hits))


@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> collection.Collection:
    path = tmp_path_factory.mktemp("audit")
    return collection.build(write_scenes(path / "in", COUNT, stamped=True), tiny_encoder(), path / "x.lance")


def test_the_bar_is_the_first_finding(stamped) -> None:
    audit = stamped.audit(sample=48)
    first = audit.suspects[0]
    assert first.kind == "alike" and "across the bottom" in first.where and "16 of 48 items" in first.where
    assert first.mask[13:].mean() > 0.9 and first.mask[:12].mean() < 0.05
    assert first.share > 1.2 * first.area and all(i % 3 == 0 and j % 3 == 0 for i, j in first.pairs)
    assert set(first.carriers) == set(range(0, 48, 3)) and first.changed is not None
    assert audit.mean_map.sum() == pytest.approx(1) and sum(len(c.pairs) for c in audit.clusters) == len(
        audit.pairs
    )


def test_a_bar_of_little_relevance_that_brings_items_together_is_a_suspect(stamped, monkeypatch) -> None:
    """Its neighbours are counted, as in a loop."""
    monkeypatch.setattr(audit_module, "find_border", lambda pair_maps: [])
    plain = audit_module.make_suspect
    monkeypatch.setattr(audit_module, "make_suspect", lambda *args: replace(plain(*args), share=0.01))
    [bar] = stamped.audit(sample=48, similarity="cosine").suspects
    ranked = [stamped.nearest(p, 11, similarity="cosine") for p in range(48)]
    near = [[n.position for n in each if n.position != p] for p, each in enumerate(ranked)]
    shares = [np.mean([q % 3 == 0 for q in positions]) for positions in near]
    assert bar.excess < 0 and bar.attracts
    assert bar.attraction == pytest.approx(np.mean(shares[::3]))
    assert bar.chance == pytest.approx(np.mean([share for p, share in enumerate(shares) if p % 3]))


def test_backgrounds_of_different_items_are_different_areas() -> None:
    """Two groups of items with a background each, of which one has an opening; and a stamp in items of both."""
    rng = np.random.default_rng(0)
    pixels = rng.uniform(0, 255, (60, 16, 16, 12)).astype(np.float32)
    backgrounds = rng.uniform(0, 255, (2, 16, 16, 12))
    opening = np.zeros((16, 16), dtype=bool)
    opening[4:12, 6:9] = True
    pixels[:10] = backgrounds[0]
    pixels[10:20, ~opening] = backgrounds[1][~opening]
    pixels[5:30:2, 14:, :4] = 9
    areas = audit_module.find_common_areas(pixels)
    masks = {tuple(np.flatnonzero(shows).tolist()): mask for mask, shows in areas}
    assert set(masks) == {tuple(range(10)), tuple(range(10, 20)), tuple(range(5, 30, 2))}
    opening[14:, :4] = True  # too few items of the second group have no stamp
    assert masks[tuple(range(10))].all() and (masks[tuple(range(10, 20))] == ~opening).all()
    stamp = masks[tuple(range(5, 30, 2))]
    assert stamp[14:, :4].all() and stamp.sum() == 8


def test_search_without_the_bar_restores_the_neighbours(stamped, tmp_path: Path) -> None:
    clean = collection.build(
        write_scenes(tmp_path / "in", COUNT, stamped=False), tiny_encoder(), tmp_path / "y.lance"
    )
    bar = [12, 13, 14, 15]  # the lowest row of 8 × 8 patches
    before, after, truth = right(stamped), right(stamped, without=bar), right(clean)
    assert before < truth and after > before + 0.5 * (truth - before), (before, after, truth)


def test_photographs_without_a_stamp_have_no_such_finding(tmp_path: Path) -> None:
    clean = collection.build(
        write_scenes(tmp_path / "in", COUNT, stamped=False), tiny_encoder(), tmp_path / "y.lance"
    )
    assert not [s for s in clean.audit(sample=48).suspects if s.kind == "alike"]


def test_what_cannot_be_audited_is_said(tmp_path: Path) -> None:
    few = collection.build(
        [Image.new("RGB", (32, 32), c) for c in ("red", "blue")], tiny_encoder(), tmp_path / "z.lance"
    )
    with pytest.raises(InputError, match="at least 3 items"):
        few.audit()
    assert torch.is_tensor(few.embedding(0))
