"""The cache: keys, atomic entries, damaged entries count as absent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bilrp.errors import InputError
from bilrp_studies.common.cache import Cache, compute_key, hash_array, hash_weights


def test_key_depends_on_content_and_on_every_entry_of_the_origin():
    origin = {"layer": 5, "weights": "w", "regions": 8}
    keys = {compute_key("a", origin), compute_key("b", origin)}
    keys |= {compute_key("a", {**origin, name: "other"}) for name in origin}
    assert len(keys) == 2 + len(origin)
    assert compute_key("a", dict(reversed(origin.items()))) == compute_key("a", origin)


def test_content_is_more_than_bytes():
    a = np.zeros((2, 3), np.uint8)
    assert hash_array(a) == hash_array(torch.from_numpy(a)) == hash_array(a.copy())
    assert hash_array(a) != hash_array(a.T) and hash_array(a) != hash_array(a.astype(bool))


def test_weights_change_the_fingerprint():
    net = torch.nn.Linear(2, 2)
    before = hash_weights(net)
    with torch.no_grad():
        net.bias[0] += 1e-3
    assert hash_weights(net) != before


@pytest.mark.parametrize("only", [None, "x"])
def test_a_damaged_file_counts_as_absent(tmp_path, only):
    cache = Cache(tmp_path)
    cache.put("features", "ab", {"x": torch.ones(3)})
    path = cache.path("features", "ab")
    path.write_bytes(path.read_bytes()[:20])
    assert cache.get("features", "ab", only=only) is None
    assert not path.exists()
    cache.put("features", "ab", {"x": torch.ones(3)})
    entry = cache.get("features", "ab", only=only)
    assert entry is not None and torch.equal(entry[0]["x"], torch.ones(3))


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    cache = Cache(tmp_path)
    monkeypatch.setattr("pathlib.Path.replace", stop)
    with pytest.raises(KeyboardInterrupt):
        cache.put("features", "ab", {"x": torch.ones(3)})
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_cache_without_a_folder_is_disabled():
    cache = Cache(None)
    cache.put("features", "ab", {"x": torch.ones(3)})
    assert not cache.has("features", "ab") and cache.get("features", "ab") is None
    with pytest.raises(InputError, match="disabled"):
        cache.path("features", "ab")


def test_an_entry_under_the_wrong_key_or_without_checksum_counts_as_absent(tmp_path):
    from safetensors.torch import save_file

    cache = Cache(tmp_path)
    cache.put("features", "ab", {"x": torch.ones(3)})
    cache.path("features", "ac").parent.mkdir(exist_ok=True)
    cache.path("features", "ab").rename(cache.path("features", "ac"))
    assert cache.get("features", "ac") is None and not cache.has("features", "ac")
    save_file({"x": torch.ones(3)}, cache.path("features", "ab"), metadata={"kind": "features", "key": "ab"})
    assert cache.get("features", "ab") is None
