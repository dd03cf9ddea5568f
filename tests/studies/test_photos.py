"""The study of photographs: matches and neighbours by hand, and the whole study on a few small images."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from bilrp import baselines, evaluation
from bilrp.encoders import images
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.regions import grid
from bilrp_studies.common.stereo_images import load_stereo_pair
from bilrp_studies.photos import nearest_neighbours, stereo_agreement, study
from bilrp_studies.photos.settings import PhotosSettings


def explanation(relevance: torch.Tensor, size: int) -> Explanation:
    """An explanation on 8×8 regions of two square pictures that says what we want it to say."""
    x = torch.ones(1, 3, size, size)
    return replace(baselines.saliency(torch.nn.Flatten(), x, x, regions=grid(8)), relevance=relevance)


def places(match: list[list[int]], size: int) -> torch.Tensor:
    """[size, size, 2]: the middle of the matching region for each pixel of a region; NaN for -1."""
    where = torch.full((size, size, 2), torch.nan)
    for index, (row, column) in enumerate(match):
        top, left = 8 * (index // (size // 8)), 8 * (index % (size // 8))
        if row >= 0:
            where[top : top + 8, left : left + 8] = torch.tensor([8.0 * row + 3.5, 8.0 * column + 3.5])
    return where


def test_agreement_by_hand():
    match = [[0, 0], [0, 3], [-1, -1], [2, 2], *([[-1, -1]] * 12)]
    R = torch.zeros(16, 16)  # both are grids of 4 × 4
    R[0, 0], R[0, 5], R[0, 15] = 2.0, 1.0, 1.0  # at the match, diagonal to it, far away
    R[1, 2], R[1, 1], R[1, 9] = 1.0, 1.0, -5.0  # one away, two away; negative relevance does not count
    R[2, 0] = 100.0  # unknown match: does not count
    explained, where = explanation(R, 32), places(match, 32)
    result = stereo_agreement.measure_agreement(explained, where)
    assert result.share == pytest.approx((3 + 1) / (4 + 2))
    # both matches lie in a corner: 4 of 16 near
    assert result.chance == pytest.approx((4 * 4 / 16 + 2 * 4 / 16) / 6)
    assert result.ratio == pytest.approx(result.share / result.chance)
    assert result.signed_share == pytest.approx((3 + 1) / (4 + 2 + 5))  # |−5| counts below
    one = evaluation.correspondence(explained, where)
    assert (result.share, result.signed_share) == (one.positive, one.signed), "one definition"


def test_even_relevance_is_at_chance_and_perfect_is_one():
    where = places([[i // 4, i % 4] for i in range(16)], 32)
    even = stereo_agreement.measure_agreement(explanation(torch.ones(16, 16), 32), where)
    assert even.share == pytest.approx(even.chance)
    perfect = stereo_agreement.measure_agreement(explanation(torch.eye(16), 32), where)
    assert perfect.share == perfect.signed_share == perfect.same_place == 1
    with pytest.raises(InputError, match="no positive relevance"):
        stereo_agreement.measure_agreement(explanation(-torch.ones(16, 16), 32), where)


def match_regions(disparity: np.ndarray, size: int) -> list[list[int]]:
    """The (row, column) of the region of b that each region of a is sent to; -1 where none."""
    where = stereo_agreement.map_destinations(disparity, size=size, region_size=8)[::8, ::8].reshape(-1, 2)
    return [[-1, -1] if torch.isnan(p).any() else [int((q + 0.5) // 8) for q in p.tolist()] for p in where]


def test_things_shift_left_by_the_disparity():
    disparity = np.full((32, 64), 8.0)
    disparity[:, 16:24] = np.inf  # the left column of the cropped square is unknown
    match = match_regions(disparity, 32)
    assert len(match) == 16
    assert match[0] == [-1, -1], "nothing known there"
    assert match[1] == [0, 0] and match[3] == [0, 2] and match[15] == [3, 2]
    halved = match_regions(np.full((64, 64), 16.0), 32)
    assert halved[5] == [1, 0], "disparity shrinks with the picture"
    assert halved[4] == [-1, -1], "its match lies outside the other picture"


def test_stereo_pair_is_really_shifted_that_way():
    pytest.importorskip("skimage")
    left, right, disparity = load_stereo_pair()
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
    assert nearest_neighbours.choose_nearest_pairs(similarity, 5) == [(0, 1), (2, 3)]
    assert nearest_neighbours.choose_nearest_pairs(similarity, 1) == [(0, 1)]
    assert nearest_neighbours.NearestNeighbours(similarity).nearest_to(2) == 0


def test_folder_without_photographs(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        nearest_neighbours.find_photographs(tmp_path / "absent")
    with pytest.raises(InputError, match="no images"):
        nearest_neighbours.find_photographs(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    with pytest.raises(InputError, match="at least two"):
        nearest_neighbours.find_photographs(tmp_path)


def test_damaged_photographs_are_skipped_and_named(tmp_path):
    for name in ("a.png", "c.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "b.png").write_text("no image")
    read = partial(images.read, size=8)
    result = nearest_neighbours.find_photographs(tmp_path)
    stored, skipped = nearest_neighbours.filter_readable(result, read)
    assert [p.name for p in stored] == ["a.png", "c.png"]
    assert [p.name for p in skipped] == ["b.png"] and "not a supported image file" in skipped[
        tmp_path / "b.png"
    ]
    with pytest.raises(InputError, match=r"1 can be read, 1 not, the first: .*b\.png"):
        nearest_neighbours.filter_readable(result[:2], read)


@pytest.mark.slow
def test_whole_study(tmp_path, weights_file):
    pytest.importorskip("skimage")
    data = tmp_path / "data" / "images"
    data.mkdir(parents=True)
    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (40, 50, 3), np.uint8)
    for name, image in (("a.png", base), ("b.png", 255 - base), ("a again.jpg", base)):
        Image.fromarray(image).save(data / name)
    settings = PhotosSettings(data=tmp_path / "data", layers=(10, 3), pairs=1, size=32, weights=weights_file)
    report = study.run(settings)
    page = report.write(tmp_path / "out")
    written = sorted(p.name for p in page.parent.iterdir())
    assert written == [
        "pair-1-layer-10.html", "pair-1-layer-3.html", "pair-1.png", "report.html", "report.md", "results.json",
        "stereo-layer-10.html", "stereo-layer-3.html", "stereo.png",
    ]  # fmt: skip
    results = json.loads((page.parent / "results.json").read_text())
    assert {results["pairs"][0]["a"], results["pairs"][0]["b"]} == {"a.png", "a again.jpg"}
    result = results["stereo"]["10"]
    assert set(result) == {"BiLRP", "Hessian×Product"}
    assert result["BiLRP"]["ratio"] == pytest.approx(result["BiLRP"]["share"] / result["BiLRP"]["chance"])
    assert "The nearest pair at layer 10" in report.summary and "within one region" in report.summary
    text = page.read_text()
    for name in [*written[:3], "stereo.png"]:
        assert name in text or name.endswith("-3.html")
