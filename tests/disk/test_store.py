"""Decompositions and explanations on disk: back as they were, never by pickle, and one line where that fails."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import bilrp
from bilrp import Decomposition, Explanation, regions
from bilrp.errors import InputError, MismatchError
from models import CASES

vgg = next(case for case in CASES if case.name == "vgg")
SUFFIXES = [".npz", ".safetensors"]


@pytest.fixture(scope="module")
def found() -> Explanation:
    spec = (regions.grid(3), regions.labels(torch.arange(64).reshape(8, 8) % 5 - 1, names=tuple("abcd")))
    return bilrp.explain(vgg.model(), vgg.input(1), vgg.input(2), similarity="squared_distance", regions=spec)


def same(a: Decomposition, b: Decomposition) -> None:
    assert torch.equal(a.parts, b.parts) and torch.equal(a.embedding, b.embedding)
    assert torch.equal(a.regions.labels, b.regions.labels) and a.regions.names == b.regions.names
    assert (a.regions.boxes is None) == (b.regions.boxes is None) and a.regions.kind == b.regions.kind
    assert dict(a.origin) == dict(b.origin) and np.array_equal(a.picture, b.picture)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path: Path, found: Explanation, suffix: str) -> None:
    path = found.save(tmp_path / f"pair{suffix}")
    back = Explanation.load(path)
    assert back.score == found.score and back.similarity == found.similarity
    assert torch.equal(back.relevance, found.relevance) and back.within and found.within
    assert all(torch.equal(a, b) for a, b in zip(back.within, found.within, strict=True))
    same(back.a, found.a)
    same(back.b, found.b)
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "nothing half-written is left beside it"
    one = found.a.save(tmp_path / f"one{suffix}")
    same(Decomposition.load(one), found.a)
    again = bilrp.pair(Decomposition.load(one), found.b, similarity="squared_distance")
    assert torch.equal(again.relevance, found.relevance)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_half_precision_survives(tmp_path: Path, suffix: str) -> None:
    model = torch.nn.Linear(4, 3).bfloat16()
    kept = bilrp.decompose(model, torch.ones(1, 4, dtype=torch.bfloat16))
    if suffix == ".npz":
        with pytest.raises(InputError, match="safetensors"):
            kept.save(tmp_path / f"half{suffix}")
        assert list(tmp_path.iterdir()) == []
    else:
        same(Decomposition.load(kept.save(tmp_path / f"half{suffix}")), kept)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float32, 1e-7)]
)
def test_parts_in_less_space_say_what_it_cost(tmp_path: Path, dtype: torch.dtype, most: float) -> None:
    whole = bilrp.decompose(vgg.model(), vgg.input(1), regions=regions.grid(2))
    back = Decomposition.load(whole.save(tmp_path / "small.safetensors", dtype=dtype))
    assert back.parts.dtype == whole.parts.dtype and not torch.equal(back.parts, whole.parts)
    error = float((back.parts - whole.parts).norm() / whole.parts.norm())
    assert 0 < error < most and back.storage_error == pytest.approx(error)
    assert torch.equal(back.embedding, whole.embedding)
    torch.testing.assert_close(back.parts.sum(0) + back.unattributed, whole.embedding)
    again = Decomposition.load(back.save(tmp_path / "same.safetensors"))
    assert again.storage_error == back.storage_error and whole.storage_error == 0
    assert bilrp.pair(back, whole).score == bilrp.pair(whole, whole).score


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    large = bilrp.decompose(torch.nn.Linear(4, 3), torch.full((1, 4), 1e6))
    with pytest.raises(InputError, match=r"use torch\.bfloat16"):
        large.save(tmp_path / "large.npz", dtype=torch.float16)
    with pytest.raises(InputError, match=r"cannot be stored as torch\.int8"):
        large.save(tmp_path / "large.npz", dtype=torch.int8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.95])
def test_truncated_files(tmp_path: Path, found: Explanation, suffix: str, keep: float) -> None:
    path = found.save(tmp_path / f"pair{suffix}")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    for load in (Explanation.load, Decomposition.load):
        refused(load, path)


def refused(load, path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("sprung"),))


def test_pickle_is_never_opened(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    array = np.array([Trap()], dtype=object)
    np.savez(tmp_path / "object.npz", relevance=array, **{"words.kind": np.array("explanation")})
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Trap()))
    np.save(tmp_path / "array.npy", array)
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    torch.save({"relevance": Trap()}, tmp_path / "torch.npz")
    (tmp_path / "fake.safetensors").write_bytes(pickle.dumps(Trap()))
    for path in tmp_path.iterdir():
        refused(Explanation.load, path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_wrong_files(tmp_path: Path, found: Explanation, suffix: str) -> None:
    path = found.save(tmp_path / f"pair{suffix}")
    assert "not a stored decomposition" in refused(Decomposition.load, path)
    refused(Explanation.load, tmp_path / f"absent{suffix}")
    refused(Explanation.load, tmp_path / "pair.pt")
    with pytest.raises(InputError, match="cannot write"):
        found.save(path / f"below-a-file{suffix}")
    with pytest.raises(InputError):
        found.save(tmp_path / "pair.pkl")
    with pytest.raises(InputError):
        found.a.save(tmp_path / "one.pt")


def test_a_file_with_parts_missing(tmp_path: Path, found: Explanation) -> None:
    path = found.save(tmp_path / "pair.npz")
    with zipfile.ZipFile(path) as file:
        kept = {n: file.read(n) for n in file.namelist()}
    for left_out in ("a.parts.npy", "relevance.npy", "words.score.npy", "words.a.origin.npy", "b.labels.npy"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            for name, content in kept.items():
                if name != left_out:
                    file.writestr(name, content)
        path.write_bytes(buffer.getvalue())
        refused(Explanation.load, path)


def test_loaded_decompositions_still_know_their_origin(tmp_path: Path, found: Explanation) -> None:
    path = found.a.save(tmp_path / "a.npz")
    other = bilrp.decompose(vgg.model(seed=5), vgg.input())
    with pytest.raises(MismatchError, match="weights"):
        bilrp.pair(Decomposition.load(path), other)
