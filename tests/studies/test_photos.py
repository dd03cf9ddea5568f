"""The study of photographs: matches and neighbours by hand, and the whole study on a few small images."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from bilrp.encoders import weights
from bilrp.errors import InputError
from bilrp.studies.photos import study as photos


def test_correspondence_by_hand():
    match = torch.tensor([[0, 0], [0, 3], [-1, -1], [2, 2]])
    R = torch.zeros(4, 16)  # b is a grid of 4 × 4
    R[0, 0], R[0, 5], R[0, 15] = 2.0, 1.0, 1.0  # at the match, diagonal to it, far away
    R[1, 2], R[1, 1], R[1, 9] = 1.0, 1.0, -5.0  # beside it, two away; negative relevance does not count
    R[2, 0] = 100.0  # unknown match: does not count
    found = photos.correspondence(R, match, columns=4)
    assert found.share == pytest.approx((3 + 1) / (4 + 2))
    assert found.chance == pytest.approx(
        (4 * 4 / 16 + 2 * 4 / 16) / 6
    )  # both matches lie in a corner: 4 of 16 near
    assert found.ratio == pytest.approx(found.share / found.chance)
    assert found.signed == pytest.approx((3 + 1) / (4 + 2 + 5))  # |−5| counts below


def test_even_relevance_is_at_chance_and_perfect_is_one():
    match = torch.tensor([[i // 4, i % 4] for i in range(16)])
    even = photos.correspondence(torch.ones(16, 16), match, columns=4)
    assert even.share == pytest.approx(even.chance)
    perfect = photos.correspondence(torch.eye(16), match, columns=4)
    assert perfect.share == perfect.signed == perfect.same_place == 1
    with pytest.raises(InputError, match="no positive relevance"):
        photos.correspondence(-torch.ones(16, 16), match, columns=4)


def test_true_matches_shift_left_by_the_disparity():
    disparity = np.full((32, 64), 8.0)
    disparity[:, 16:24] = np.inf  # the left column of the cropped square is unknown
    match = photos.true_matches(disparity, size=32, region=8)
    assert match.shape == (16, 2)
    assert match[0].tolist() == [-1, -1], "nothing known there"
    assert match[1].tolist() == [0, 0] and match[3].tolist() == [0, 2] and match[15].tolist() == [3, 2]
    halved = photos.true_matches(np.full((64, 64), 16.0), size=32, region=8)
    assert halved[5].tolist() == [1, 0], "disparity shrinks with the picture"
    assert halved[4].tolist() == [-1, -1], "its match lies outside the other picture"


def test_stereo_pair_is_really_shifted_that_way():
    pytest.importorskip("skimage")
    left, right, disparity = photos.stereo_pair()
    a, b = (np.asarray(Image.open(path).convert("L"), float) for path in (left, right))
    y, x = np.mgrid[: a.shape[0], : a.shape[1]]
    known = np.isfinite(disparity) & (disparity > 0)
    target = np.rint(x - np.where(known, disparity, 0)).astype(int)
    known &= target >= 0
    moved = np.abs(a[known] - b[y[known], target[known]]).mean()
    stayed = np.abs(a[known] - b[known]).mean()
    assert moved < stayed / 3


def test_nearest_pairs_use_no_image_twice():
    similarity = torch.tensor(
        [[1.0, 0.9, 0.8, 0.1], [0.9, 1.0, 0.7, 0.2], [0.8, 0.7, 1.0, 0.3], [0.1, 0.2, 0.3, 1.0]]
    )
    assert photos.nearest_pairs(similarity, 5) == [(0, 1), (2, 3)]
    assert photos.nearest_pairs(similarity, 1) == [(0, 1)]
    assert photos.Neighbours(similarity).of(2) == 0


def test_layers_from_the_command_line():
    assert photos.parsed_layers("31, 17,17") == (17, 31)
    for bad in ("", "x", "0", "32", "1.5"):
        with pytest.raises(InputError, match="numbers from 1 to 31"):
            photos.parsed_layers(bad)


def test_folder_without_photographs(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        photos.photographs(tmp_path / "absent")
    with pytest.raises(InputError, match="no images"):
        photos.photographs(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    with pytest.raises(InputError, match="at least two"):
        photos.photographs(tmp_path)


def test_damaged_photographs_are_skipped_and_named(tmp_path):
    for name in ("a.png", "c.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "b.png").write_text("no image")
    found = photos.photographs(tmp_path)
    kept, skipped = photos.readable(found, photos._Reader(8))
    assert [p.name for p in kept] == ["a.png", "c.png"]
    assert [p.name for p in skipped] == ["b.png"] and "not an image" in skipped[tmp_path / "b.png"]
    with pytest.raises(InputError, match=r"1 can be read, 1 not, the first: .*b\.png"):
        photos.readable(found[:2], photos._Reader(8))


@pytest.mark.slow
def test_whole_study(tmp_path, monkeypatch):
    pytest.importorskip("skimage")
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for number, inputs, outputs in weights.CONVOLUTIONS:
        tensors[f"features.{number}.weight"] = (2 / (9 * inputs)) ** 0.5 * torch.randn(
            outputs, inputs, 3, 3, generator=generator
        )
        tensors[f"features.{number}.bias"] = torch.zeros(outputs)
    monkeypatch.setattr(photos, "_tensors", lambda path, progress: tensors)
    data = tmp_path / "data" / "images"
    data.mkdir(parents=True)
    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (40, 50, 3), np.uint8)
    for name, image in (("a.png", base), ("b.png", 255 - base), ("a again.jpg", base)):
        Image.fromarray(image).save(data / name)
    said = []
    page = photos.run(tmp_path / "data", tmp_path / "out", layers=(3, 10), pairs=1, size=32, say=said.append)
    written = sorted(p.name for p in page.parent.iterdir())
    assert written == [
        "pair-1-layer-10.html", "pair-1-layer-3.html", "pair-1.png", "report.html", "report.md", "results.json",
        "stereo-layer-10.html", "stereo-layer-3.html", "stereo.png",
    ]  # fmt: skip
    results = json.loads((page.parent / "results.json").read_text())
    assert {results["pairs"][0]["a"], results["pairs"][0]["b"]} == {"a.png", "a again.jpg"}
    stereo = results["stereo"]["10"]
    assert set(stereo) == {"BiLRP", "Hessian×Product"}
    assert stereo["BiLRP"]["times_chance"] == pytest.approx(
        stereo["BiLRP"]["share"] / stereo["BiLRP"]["chance"]
    )
    assert any("within one region of the true match" in line for line in said)
    text = page.read_text()
    for name in [*written[:3], "stereo.png"]:
        assert name in text or name.endswith("-3.html")
