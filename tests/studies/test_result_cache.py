"""Results of a study in the cache: nothing rounded, damage is not fatal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bilrp
from bilrp_studies.common.cache import Cache
from bilrp_studies.common.result_cache import (
    load_decomposition,
    load_or_compute_row,
    pack,
    save_decomposition,
    unpack,
)


def small(bias: bool = True) -> bilrp.Decomposition:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1, bias=bias), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    )
    return bilrp.decompose(net, torch.rand(1, 3, 16, 16), regions=bilrp.regions.grid(4))


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_packing_loses_nothing(scale):
    built = small()
    built = bilrp.Decomposition(built.parts * scale, built.embedding, built.regions, built.origin, built.view)
    tensors, words = pack(built)
    assert "values" in tensors  # a 4×4 region reaches a small part of the map
    back = unpack(tensors, words)
    assert torch.equal(back.parts, built.parts) and torch.equal(back.embedding, built.embedding)
    assert dict(back.origin) == dict(built.origin) and torch.equal(back.regions.labels, built.regions.labels)


def test_dense_parts_are_kept_as_they_are():
    decomposition = bilrp.decompose(torch.nn.Linear(4, 3), torch.rand(1, 4) + 1)
    tensors, words = pack(decomposition)
    assert "parts" in tensors and torch.equal(unpack(tensors, words).parts, decomposition.parts)


def test_kept_and_read_again(tmp_path):
    cache, built = Cache(tmp_path / "new" / "folder"), small()
    assert load_decomposition(cache, "ab12") is None
    save_decomposition(cache, "ab12", built)
    result = load_decomposition(cache, "ab12")
    assert result is not None and torch.equal(result.parts, built.parts)
    assert (
        bilrp.pair(result, built, similarity="dot").score == bilrp.pair(built, built, similarity="dot").score
    )


def test_every_damage_to_an_entry_counts_as_absent(tmp_path):
    """Flipped bits, cuts, other content: the right numbers or none, never others and never an exception."""
    cache, built = Cache(tmp_path), small()
    generator = np.random.default_rng(0)
    save_decomposition(cache, "ab12", built)
    path = cache.path("decomposition", "ab12")
    full = path.read_bytes()
    absent = 0
    for trial in range(200):
        damaged = bytearray(full)
        for folder in generator.integers(0, 8 * len(full), 1 + trial % 3).tolist():
            damaged[folder // 8] ^= 1 << folder % 8
        if trial % 5 == 0:
            del damaged[generator.integers(0, len(damaged)) :]
        path.write_bytes(damaged)
        result = load_decomposition(cache, "ab12")
        absent += result is None
        assert result is None or torch.equal(result.parts, built.parts)
    assert absent > 190


@pytest.mark.parametrize(
    "change",
    [
        {"columns": torch.full((1,), 10**6).int()},
        {"lengths": torch.tensor([2**30]).int()},
        {"values": torch.zeros(0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_entry_that_cannot_be_rebuilt_counts_as_absent(tmp_path, change):
    cache = Cache(tmp_path)
    tensors, words = pack(small())
    cache.put("decomposition", "ab12", tensors | change, words)
    assert cache.has("decomposition", "ab12") and load_decomposition(cache, "ab12") is None
    cache.put("decomposition", "ab12", tensors, {**words, "shape": "[1000000, 1000000]"})
    assert load_decomposition(cache, "ab12") is None


def test_a_row_that_was_damaged_is_made_again(tmp_path):
    """Cached numbers of a study: as they were, or computed again; never others, and no error."""
    cache, row = Cache(tmp_path), {"insertion": [0.1, None, 1e-9], "name": "å\u202e"}
    assert load_or_compute_row(cache, "ab12", lambda: row) == row
    assert load_or_compute_row(cache, "ab12", lambda: pytest.fail("it is cached")) == row
    (path,) = tmp_path.rglob("*.safetensors")
    full = path.read_bytes()
    for damaged in (b"", full[:-9], full.replace(b"0.1", b"0.7"), b"{"):
        path.write_bytes(damaged)
        assert load_or_compute_row(cache, "ab12", lambda: {**row, "again": 1}) == {**row, "again": 1}
        assert load_or_compute_row(cache, "ab12", lambda: pytest.fail("it is cached")) == {**row, "again": 1}
        path.unlink()
