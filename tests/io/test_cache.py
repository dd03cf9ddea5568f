"""The cache: one key for one content and origin, nothing rounded, nothing half-written, damage is not fatal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bilrp
from bilrp.io.cache import Cache, content_of, key_of, weights_of
from bilrp.errors import InputError
from bilrp_studies.common.result_cache import keep, kept, kept_row, packed, unpacked


def small(bias: bool = True) -> bilrp.Decomposition:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1, bias=bias), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    )
    return bilrp.decompose(net, torch.rand(1, 3, 16, 16), regions=bilrp.regions.grid(4))


def test_key_depends_on_content_and_on_every_entry_of_the_origin():
    origin = {"layer": 5, "weights": "w", "regions": 8}
    keys = {key_of("a", origin), key_of("b", origin)}
    keys |= {key_of("a", {**origin, name: "other"}) for name in origin}
    assert len(keys) == 2 + len(origin)
    assert key_of("a", dict(reversed(origin.items()))) == key_of("a", origin)


def test_content_is_more_than_bytes():
    a = np.zeros((2, 3), np.uint8)
    assert content_of(a) == content_of(torch.from_numpy(a)) == content_of(a.copy())
    assert content_of(a) != content_of(a.T) and content_of(a) != content_of(a.astype(bool))


def test_weights_change_the_fingerprint():
    net = torch.nn.Linear(2, 2)
    before = weights_of(net)
    with torch.no_grad():
        net.bias[0] += 1e-3
    assert weights_of(net) != before


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_packing_loses_nothing(scale):
    made = small()
    made = bilrp.Decomposition(made.parts * scale, made.embedding, made.regions, made.origin, made.view)
    tensors, words = packed(made)
    assert "values" in tensors  # a 4×4 region reaches a small part of the map
    back = unpacked(tensors, words)
    assert torch.equal(back.parts, made.parts) and torch.equal(back.embedding, made.embedding)
    assert dict(back.origin) == dict(made.origin) and torch.equal(back.regions.labels, made.regions.labels)


def test_dense_parts_are_kept_as_they_are():
    made = bilrp.decompose(torch.nn.Linear(4, 3), torch.rand(1, 4) + 1)
    tensors, words = packed(made)
    assert "parts" in tensors and torch.equal(unpacked(tensors, words).parts, made.parts)


def test_kept_and_read_again(tmp_path):
    cache, made = Cache(tmp_path / "new" / "folder"), small()
    assert kept(cache, "ab12") is None
    keep(cache, "ab12", made)
    found = kept(cache, "ab12")
    assert found is not None and torch.equal(found.parts, made.parts)
    assert bilrp.pair(found, made).score == bilrp.pair(made, made).score


@pytest.mark.parametrize("only", [None, "x"])
def test_a_damaged_file_counts_as_absent(tmp_path, only):
    cache = Cache(tmp_path)
    cache.put("features", "ab", {"x": torch.ones(3)})
    path = cache.path("features", "ab")
    path.write_bytes(path.read_bytes()[:20])
    assert cache.get("features", "ab", only=only) is None
    assert not path.exists()
    cache.put("features", "ab", {"x": torch.ones(3)})
    found = cache.get("features", "ab", only=only)
    assert found is not None and torch.equal(found[0]["x"], torch.ones(3))


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    cache = Cache(tmp_path)
    monkeypatch.setattr("pathlib.Path.replace", stop)
    with pytest.raises(KeyboardInterrupt):
        cache.put("features", "ab", {"x": torch.ones(3)})
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_cache_without_a_folder_keeps_nothing():
    cache = Cache(None)
    cache.put("features", "ab", {"x": torch.ones(3)})
    assert not cache.has("features", "ab") and cache.get("features", "ab") is None
    with pytest.raises(InputError, match="keeps nothing"):
        cache.path("features", "ab")


def test_every_damage_to_an_entry_counts_as_absent(tmp_path):
    """Flipped bits, cuts, other content: the right numbers or none, never others and never an exception."""
    cache, made = Cache(tmp_path), small()
    generator = np.random.default_rng(0)
    keep(cache, "ab12", made)
    path = cache.path("decomposition", "ab12")
    whole = path.read_bytes()
    absent = 0
    for trial in range(200):
        damaged = bytearray(whole)
        for place in generator.integers(0, 8 * len(whole), 1 + trial % 3).tolist():
            damaged[place // 8] ^= 1 << place % 8
        if trial % 5 == 0:
            del damaged[generator.integers(0, len(damaged)) :]
        path.write_bytes(damaged)
        found = kept(cache, "ab12")
        absent += found is None
        assert found is None or torch.equal(found.parts, made.parts)
    assert absent > 190


def test_an_entry_under_the_wrong_key_or_of_an_older_version_counts_as_absent(tmp_path):
    from safetensors.torch import save_file

    cache = Cache(tmp_path)
    cache.put("features", "ab", {"x": torch.ones(3)})
    cache.path("features", "ac").parent.mkdir(exist_ok=True)
    cache.path("features", "ab").rename(cache.path("features", "ac"))
    assert cache.get("features", "ac") is None and not cache.has("features", "ac")
    save_file({"x": torch.ones(3)}, cache.path("features", "ab"), metadata={"kind": "features", "key": "ab"})
    assert cache.get("features", "ab") is None


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
    tensors, words = packed(small())
    cache.put("decomposition", "ab12", tensors | change, words)
    assert cache.has("decomposition", "ab12") and kept(cache, "ab12") is None
    cache.put("decomposition", "ab12", tensors, {**words, "shape": "[1000000, 1000000]"})
    assert kept(cache, "ab12") is None


def test_a_row_that_was_damaged_is_made_again(tmp_path):
    """A study's kept numbers: as they were, or made anew; never others, and never the end of the study."""
    cache, row = Cache(tmp_path), {"insertion": [0.1, None, 1e-9], "name": "å\u202e"}
    assert kept_row(cache, "ab12", lambda: row) == row
    assert kept_row(cache, "ab12", lambda: pytest.fail("it is kept")) == row
    (path,) = tmp_path.rglob("*.safetensors")
    whole = path.read_bytes()
    for damaged in (b"", whole[:-9], whole.replace(b"0.1", b"0.7"), b"{"):
        path.write_bytes(damaged)
        assert kept_row(cache, "ab12", lambda: {**row, "again": 1}) == {**row, "again": 1}
        assert kept_row(cache, "ab12", lambda: pytest.fail("it is kept")) == {**row, "again": 1}
        path.unlink()
