"""Stored decompositions and explanations: exact round trips, never pickle, errors of one line."""

from __future__ import annotations

import io
import json
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bilrp
from bilrp import Decomposition, Explanation, regions
from bilrp.errors import InputError, MismatchError
from bilrp.explanation_files import serialize_explanation
from bilrp.io import store
from models import CASES
from type_asserts import assert_not_none

vgg = next(case for case in CASES if case.name == "vgg")
SUFFIXES = [".npz", ".safetensors"]


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    spec = (regions.grid(3), regions.labels(torch.arange(64).reshape(8, 8) % 5 - 1, names=tuple("abcd")))
    return bilrp.explain(vgg.model(), vgg.input(1), vgg.input(2), similarity="squared_distance", regions=spec)


def equal_images(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is b is None or np.array_equal(assert_not_none(a), assert_not_none(b))


def assert_same(a: Decomposition, b: Decomposition) -> None:
    assert torch.equal(a.parts, b.parts) and torch.equal(a.embedding, b.embedding)
    assert torch.equal(a.regions.labels, b.regions.labels) and a.regions.names == b.regions.names
    assert (a.regions.boxes is None) == (b.regions.boxes is None) and a.regions.kind == b.regions.kind
    assert dict(a.origin) == dict(b.origin) and equal_images(a.input_image, b.input_image)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path: Path, explanation: Explanation, suffix: str) -> None:
    path = explanation.save(tmp_path / f"pair{suffix}")
    back = Explanation.load(path)
    assert back.score == explanation.score and back.similarity == explanation.similarity
    assert torch.equal(back.relevance, explanation.relevance) and back.self_terms and explanation.self_terms
    assert all(torch.equal(a, b) for a, b in zip(back.self_terms, explanation.self_terms, strict=True))
    assert_same(back.a, explanation.a)
    assert_same(back.b, explanation.b)
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "nothing half-written is left next to it"
    one = explanation.a.save(tmp_path / f"one{suffix}")
    assert_same(Decomposition.load(one), explanation.a)
    second = bilrp.pair(Decomposition.load(one), explanation.b, similarity="squared_distance")
    assert torch.equal(second.relevance, explanation.relevance)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_half_precision_survives(tmp_path: Path, suffix: str) -> None:
    model = torch.nn.Linear(4, 3).bfloat16()
    decomposition = bilrp.decompose(model, torch.ones(1, 4, dtype=torch.bfloat16))
    if suffix == ".npz":
        with pytest.raises(InputError, match="safetensors"):
            decomposition.save(tmp_path / f"half{suffix}")
        assert list(tmp_path.iterdir()) == []
    else:
        assert_same(Decomposition.load(decomposition.save(tmp_path / f"half{suffix}")), decomposition)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float32, 1e-7)]
)
def test_parts_of_lower_precision_state_their_storage_error(
    tmp_path: Path, dtype: torch.dtype, most: float
) -> None:
    full = bilrp.decompose(vgg.model(), vgg.input(1), regions=regions.grid(2))
    back = Decomposition.load(full.save(tmp_path / "small.safetensors", dtype=dtype))
    assert back.parts.dtype == full.parts.dtype and not torch.equal(back.parts, full.parts)
    error = float((back.parts - full.parts).norm() / full.parts.norm())
    assert 0 < error < most and back.storage_error == pytest.approx(error)
    assert torch.equal(back.embedding, full.embedding)
    torch.testing.assert_close(back.parts.sum(0) + back.unattributed, full.embedding)
    second = Decomposition.load(back.save(tmp_path / "same.safetensors"))
    assert second.storage_error == back.storage_error and full.storage_error == 0
    assert bilrp.pair(back, full, similarity="dot").score == bilrp.pair(full, full, similarity="dot").score


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    large = bilrp.decompose(torch.nn.Linear(4, 3), torch.full((1, 4), 1e6))
    with pytest.raises(InputError, match=r"use torch\.bfloat16"):
        large.save(tmp_path / "large.npz", dtype=torch.float16)
    with pytest.raises(InputError, match=r"cannot be stored as torch\.int8"):
        large.save(tmp_path / "large.npz", dtype=torch.int8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.95])
def test_truncated_files(tmp_path: Path, explanation: Explanation, suffix: str, keep: float) -> None:
    path = explanation.save(tmp_path / f"pair{suffix}")
    full = path.read_bytes()
    path.write_bytes(full[: int(keep * len(full))])
    for load in (Explanation.load, Decomposition.load):
        load_error(load, path)


def load_error(load, path: Path) -> str:
    with pytest.raises(InputError) as raised:
        load(path)
    message = str(raised.value)
    assert "\n" not in message
    assert path.name in message
    return message


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("sprung"),))


def test_pickle_is_never_opened(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    array = np.array([Trap()], dtype=object)
    arrays: dict[str, Any] = {"relevance": array, "words.kind": np.array("explanation")}
    np.savez(tmp_path / "object.npz", **arrays)
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Trap()))
    np.save(tmp_path / "array.npy", array)
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    torch.save({"relevance": Trap()}, tmp_path / "torch.npz")
    (tmp_path / "fake.safetensors").write_bytes(pickle.dumps(Trap()))
    for path in tmp_path.iterdir():
        load_error(Explanation.load, path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_wrong_files(tmp_path: Path, explanation: Explanation, suffix: str) -> None:
    path = explanation.save(tmp_path / f"pair{suffix}")
    assert "not a stored decomposition" in load_error(Decomposition.load, path)
    load_error(Explanation.load, tmp_path / f"absent{suffix}")
    load_error(Explanation.load, tmp_path / "pair.pt")
    with pytest.raises(InputError, match="cannot write"):
        explanation.save(path / f"below-a-file{suffix}")
    with pytest.raises(InputError):
        explanation.save(tmp_path / "pair.pkl")
    with pytest.raises(InputError):
        explanation.a.save(tmp_path / "one.pt")


def test_a_file_with_parts_missing(tmp_path: Path, explanation: Explanation) -> None:
    path = explanation.save(tmp_path / "pair.npz")
    with zipfile.ZipFile(path) as file:
        members = {n: file.read(n) for n in file.namelist()}
    for left_out in ("a.parts.npy", "relevance.npy", "words.score.npy", "words.a.origin.npy", "b.labels.npy"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            for name, content in members.items():
                if name != left_out:
                    file.writestr(name, content)
        path.write_bytes(buffer.getvalue())
        load_error(Explanation.load, path)


def test_loaded_decompositions_still_know_their_origin(tmp_path: Path, explanation: Explanation) -> None:
    path = explanation.a.save(tmp_path / "a.npz")
    other = bilrp.decompose(vgg.model(seed=5), vgg.input())
    with pytest.raises(MismatchError, match="weights"):
        bilrp.pair(Decomposition.load(path), other, similarity="dot")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_saves_are_the_same_bytes(
    tmp_path: Path, explanation: Explanation, suffix: str, monkeypatch
) -> None:
    first = explanation.save(tmp_path / f"one{suffix}").read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2033, 5, 18, 3, 33, 20, 2, 138, 0))
    second = Explanation.load(tmp_path / f"one{suffix}").save(tmp_path / f"two{suffix}").read_bytes()
    assert first == second
    if suffix == ".npz":
        with zipfile.ZipFile(io.BytesIO(first)) as file:
            assert {member.date_time for member in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_bit_is_refused_or_changes_nothing(
    tmp_path: Path, explanation: Explanation, suffix: str
) -> None:
    path = explanation.save(tmp_path / f"pair{suffix}")
    data = path.read_bytes()
    picked = np.random.default_rng(0).integers(0, 8 * len(data), 300)
    refusals = 0
    for folder in picked.tolist():
        damaged = bytearray(data)
        damaged[folder // 8] ^= 1 << folder % 8
        path.write_bytes(damaged)
        try:
            back = Explanation.load(path)
        except InputError as error:
            refusals += 1
            assert "\n" not in str(error)
            continue
        assert back.score == explanation.score and torch.equal(back.relevance, explanation.relevance)
        assert_same(back.a, explanation.a)
        assert_same(back.b, explanation.b)
    assert refusals > 200


def forge(explanation: Explanation, path: Path, **changes: object) -> Path:
    """Write a file with a matching checksum and wrong numbers."""
    tensors, words = serialize_explanation(explanation)
    for name, value in changes.items():
        folder = name.replace("__", ".")
        if isinstance(value, torch.Tensor):
            tensors[folder] = value
        else:
            words[folder] = str(value)
    return store.write(path, tensors, words)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "change",
    [
        {"a__parts": torch.zeros(2, 3, dtype=torch.float64)},
        {"a__parts": torch.zeros(3, 3, 3)},
        {"b__parts": torch.zeros(2, 3, dtype=torch.int64)},
        {"a__embedding": torch.full((3,), float("nan"))},
        {"relevance": torch.zeros(1, 1)},
        {"score": (1e9).hex()},
        {"score": float("nan").hex()},
        {"score": "twelve"},
        {"a__labels": torch.full((3, 8, 8), 2**31 - 1, dtype=torch.int32)},
        {"a__labels": torch.full((3, 8, 8), -5, dtype=torch.int32)},
        {"a__labels": torch.full((3, 8, 8), 0.5)},
        {"a__boxes": torch.full((9, 4), 10**6, dtype=torch.int32)},
        {"a__regions": '{"count": 268435456, "kind": "grid(3)", "names": null}'},
        {"a__regions": '{"count": -1, "kind": "grid(3)", "names": null}'},
        {"a__regions": "[]"},
        {"a__regions": "{" * 100_000},
        {"b__regions": '{"count": 4, "kind": "labels", "names": [1, 2, 3, 4]}'},
        {"a__origin": "7"},
        {"a__storage_error": "nan"},
        {"self_terms__a": torch.zeros(1, 1)},
    ],
    ids=lambda change: f"{next(iter(change))}-{str(next(iter(change.values())))[:18]}",
)
def test_numbers_that_cannot_be_right_are_refused(
    tmp_path: Path, explanation: Explanation, suffix: str, change
) -> None:
    assert "cannot be rebuilt" in load_error(
        Explanation.load, forge(explanation, tmp_path / f"x{suffix}", **change)
    )


def test_relevance_must_follow_from_the_parts(tmp_path: Path, explanation: Explanation) -> None:
    relevance = explanation.relevance.clone()
    relevance[0, 0] += 0.1 * relevance.abs().max()
    assert "relevance" in load_error(
        Explanation.load, forge(explanation, tmp_path / "x.npz", relevance=relevance)
    )
    swapped = explanation.relevance.flip(0)
    assert "relevance" in load_error(
        Explanation.load, forge(explanation, tmp_path / "x.npz", relevance=swapped)
    )


def test_every_similarity_comes_back(tmp_path: Path) -> None:
    a, b = (bilrp.decompose(vgg.model(), vgg.input(n), regions=regions.grid(2)) for n in (1, 2))
    matrix = torch.rand(len(a.embedding), len(a.embedding), dtype=a.embedding.dtype)
    for similarity in (
        "dot",
        "cosine",
        "squared_distance",
        bilrp.similarity.bilinear(matrix),
        bilrp.similarity.projected(4),
    ):
        paired = bilrp.pair(a, b, similarity=similarity)
        assert torch.equal(Explanation.load(paired.save(tmp_path / "x.npz")).relevance, paired.relevance)
    sums = bilrp.explain_sets([a, b], [b, a], similarity="squared_distance")
    assert Explanation.load(sums.save(tmp_path / "x.npz")).score == sums.score
    coarse = bilrp.pair(a, b, similarity="dot").coarsen(regions.grid(4))
    assert torch.equal(Explanation.load(coarse.save(tmp_path / "x.npz")).relevance, coarse.relevance)
    for dtype in (torch.float16, torch.bfloat16):
        low = [
            bilrp.Decomposition(d.parts.to(dtype), d.embedding.to(dtype), d.regions, d.origin) for d in (a, b)
        ]
        path = bilrp.pair(*low, similarity="dot").save(tmp_path / "x.safetensors")
        assert Explanation.load(path).relevance.dtype == dtype


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_without_checksum_is_refused(tmp_path: Path, explanation: Explanation, suffix: str) -> None:
    from safetensors.torch import save_file

    tensors, metadata = serialize_explanation(explanation)
    path = tmp_path / f"pair{suffix}"
    if suffix == ".npz":
        arrays: dict[str, Any] = {name: t.numpy() for name, t in tensors.items()}
        arrays |= {f"words.{name}": np.array(text) for name, text in metadata.items()}
        np.savez(path, **arrays)
    else:
        save_file({name: t.contiguous() for name, t in tensors.items()}, path, metadata=metadata)
    assert "checksum is missing" in load_error(Explanation.load, path)


def test_unlisted_members_are_not_read(tmp_path: Path, explanation: Explanation) -> None:
    path = explanation.save(tmp_path / "pair.npz")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file, file.open("bomb.npy", "w") as stream:
        for _ in range(300):
            stream.write(bytes(1_000_000))
    tracemalloc.start()
    back = Explanation.load(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert torch.equal(back.relevance, explanation.relevance) and most < 20_000_000


def make_bomb(name: str, header: dict, size: int) -> bytes:
    """Return an .npz of a few kilobytes with one array that declares, or unpacks to, a large size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        checksum = json.dumps({"": "", name: ""})
        for word, text in {"kind": "explanation", "similarity": "dot", "checksum": checksum}.items():
            array = io.BytesIO()
            np.save(array, np.array(text))
            file.writestr(f"words.{word}.npy", array.getvalue())
        with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for _ in range(size // 1_000_000):
                stream.write(bytes(1_000_000))
    return buffer.getvalue()


def test_arrays_that_only_claim_to_be_there_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    for shape, size in (((2**28,), 0), ((2**60, 2**60), 0), ((-1,), 0), ((10**6, 3), 1_000_000)):
        path.write_bytes(
            make_bomb("relevance", {"descr": "<f8", "fortran_order": False, "shape": shape}, size)
        )
        tracemalloc.start()
        assert "checksum is missing" not in load_error(Explanation.load, path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        tracemalloc.stop()


@pytest.mark.slow
def test_what_unpacks_to_more_than_a_gigabyte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    path.write_bytes(
        make_bomb(
            "relevance", {"descr": "<f8", "fortran_order": False, "shape": (137_500_000,)}, 1_100_000_000
        )
    )
    assert path.stat().st_size < 2_000_000
    tracemalloc.start()
    assert "more than 1000 MB" in load_error(Explanation.load, path)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
