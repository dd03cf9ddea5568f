"""The invariance study: INV, its interval, motion, composed clips whose answer is known, bad data, stills."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bilrp
from bilrp.errors import InputError
from bilrp_studies.common import image_folders, vgg_layers
from bilrp_studies.invariance import explained_frames, inv_score, motion_weights, optical_flow
from bilrp_studies.invariance.inv_score import Band
from bilrp_studies.invariance.settings import InvarianceSettings
from bilrp_studies.invariance.study import run

DATA = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[3] / "shared" / "data"))
CLIPS, WEIGHTS = DATA / "ucf_sports", DATA / "vgg16" / "vgg16_features.safetensors"
needs_weights = pytest.mark.skipif(not WEIGHTS.is_file(), reason="needs BILRP_DATA with vgg16")
needs_clips = pytest.mark.skipif(not CLIPS.is_dir(), reason="needs BILRP_DATA with ucf_sports")
SMALL = InvarianceSettings(data=Path("in"), layers=(5, 10), size=32, regions=8, resamples=50)


def texture(size: int, seed: int, *, smooth: float = 1.5) -> np.ndarray:
    """A coloured random texture, uint8 (size, size, 3)."""
    from scipy.ndimage import gaussian_filter

    values = np.random.default_rng(seed).normal(size=(size, size, 3))
    values = gaussian_filter(values, (smooth, smooth, 0))
    return ((values - values.min()) / np.ptp(values) * 255).astype(np.uint8)


def disc(size: int) -> np.ndarray:
    rows, columns = np.indices((size, size)) - (size - 1) / 2
    return np.hypot(rows, columns) < size / 2


def compose(
    scene: np.ndarray,
    item: np.ndarray,
    *,
    start: tuple[int, int],
    step: tuple[int, int],
    pan: int,
    n: int = 6,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Frames of a thing that moves by `step` over a scene that moves by `pan`, and the mask of what moves in each."""
    size, cut = scene.shape[0], disc(item.shape[0])
    frames, masks = [], []
    for t in range(n):
        frame = scene[:, pan * t : pan * t + size].copy()
        row, column = start[0] + step[0] * t, start[1] + step[1] * t
        path = slice(row, row + len(cut)), slice(column, column + len(cut))
        frame[path][cut] = item[cut]
        mask = np.zeros((size, size), dtype=bool)
        mask[path] = cut
        frames.append(frame)
        masks.append(mask if pan == 0 else ~mask)
    return np.stack(frames), masks


# --- INV ------------------------------------------------------------------------------------------------------------


def test_inv_by_hand():
    """Two clips of two frames: within 4 (itself) and 2 (the other), across 1."""
    kernel = np.array([[4, 2, 1, 1], [2, 4, 1, 1], [1, 1, 4, 2], [1, 1, 2, 4]], dtype=float)
    band = Band(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), 5)
    assert inv_score.compute_inv(kernel, band) == pytest.approx(3 / 2)
    assert inv_score.compute_inv(kernel, Band(band.clip, band.time, 0)) == pytest.approx(4 / 2)
    assert inv_score.compute_inv(np.ones((4, 4)), band) == 1
    with pytest.raises(InputError, match="zero"):
        inv_score.compute_inv(np.zeros((4, 4)), band)


def test_band_is_within_clips_and_within_the_lag():
    clip, time = np.repeat([0, 1], [8, 3]), np.array([*range(8), *range(3)])
    neighbours = Band(clip, time, 5).local_mask()
    for i in range(11):
        for j in range(11):
            assert neighbours[i, j] == (clip[i] == clip[j] and abs(time[i] - time[j]) <= 5)


def clips_kernel(count: int, length: int, seed: int) -> tuple[np.ndarray, Band]:
    draw = np.random.default_rng(seed)
    clip = np.repeat(np.arange(count), length)
    x = draw.random((count, 30))[clip] + 0.3 * draw.random((count * length, 30))
    return x @ x.T, Band(clip, np.tile(np.arange(length), count), 5)


def test_interval_holds_the_estimate_and_follows_the_seed():
    kernel, band = clips_kernel(8, 6, 0)
    low, high = inv_score.bootstrap_inv(kernel, band, resamples=500, seed=1)  # type: ignore[misc]
    assert low < inv_score.compute_inv(kernel, band) < high
    assert inv_score.bootstrap_inv(kernel, band, resamples=500, seed=1) == (low, high)
    one = Band(np.zeros(6, dtype=int), np.arange(6), 5)
    assert inv_score.bootstrap_inv(kernel[:6, :6], one, resamples=10, seed=0) is None


def test_clips_that_are_all_alike_leave_no_doubt():
    """Drawing a clip twice must not count as a pair of equal clips: with equal clips the interval is a point."""
    within, across = 3.0, 1.0
    clip = np.repeat(np.arange(5), 4)
    kernel = np.where(clip[:, None] == clip, within, across)
    band = Band(clip, np.tile(np.arange(4), 5), 5)
    low, high = inv_score.bootstrap_inv(kernel, band, resamples=200, seed=0, level=0.5)  # type: ignore[misc]
    assert (
        low <= inv_score.compute_inv(kernel, band) * 1.05
        and high >= inv_score.compute_inv(kernel, band) * 0.95
    )


def test_contributions_and_restricted_parts_sum():
    kernel, band = clips_kernel(4, 7, 2)
    assert inv_score.clip_contributions(kernel, band).sum() == pytest.approx(1)
    share = np.array([0.2, 0.5, 0.9, 0.0])
    both = [inv_score.compute_kind_inv(kernel, band, s) for s in (share, 1 - share)]
    assert sum(both) == pytest.approx(inv_score.compute_inv(kernel, band))
    i, j = inv_score.top_pairs(kernel, band, 1)[0]
    assert band.clip[i] == band.clip[j] and 0 < abs(band.time[i] - band.time[j]) <= 5


@pytest.mark.parametrize(
    ("length", "lag", "pairs", "expected"),
    [(24, 5, 2, [(6, 11), (11, 16)]), (6, 5, 2, [(0, 5)]), (3, 5, 1, [(0, 2)]), (2, 5, 3, [(0, 1)])],
)
def test_frames_to_explain(length, lag, pairs, expected):
    assert explained_frames.choose_frames(length, lag, pairs) == expected


# --- motion ---------------------------------------------------------------------------------------------------------


def test_chained_flow_finds_a_large_motion():
    scene, item = texture(64, 0, smooth=3), texture(28, 1, smooth=3)
    frames, masks = compose(scene, item, start=(18, 4), step=(0, 4), pan=0)
    motion = optical_flow.estimate_motion(frames)
    inner = masks[0] & motion.moved[0]
    assert inner.sum() > 0.8 * masks[0].sum()
    error = np.hypot(motion.forward[0], motion.forward[1] - 20)[inner]
    assert np.median(error) < 1
    far = ~np.logical_or.reduce(masks)
    assert motion.still[0][far].mean() > 0.9 and not motion.background_moves


def test_flow_is_kept(tmp_path, monkeypatch):
    from bilrp_studies.common.cache import Cache

    frames, _ = compose(texture(32, 0), texture(14, 1), start=(8, 4), step=(0, 2), pan=0, n=3)
    built = optical_flow.estimate_motion(frames, cache=Cache(tmp_path))
    monkeypatch.setattr(optical_flow, "chain_flow", lambda _: pytest.fail("computed twice"))
    np.testing.assert_array_equal(
        optical_flow.estimate_motion(frames, cache=Cache(tmp_path)).forward, built.forward
    )


def test_following_adds_displacements():
    first, then = np.zeros((2, 6, 6)), np.zeros((2, 6, 6))
    first[1], then[0] = 2.0, 1.0
    assert (optical_flow.compose_flow(first, then)[0] == 1).all() and (
        optical_flow.compose_flow(first, then)[1] == 2
    ).all()


@pytest.mark.parametrize("text", ["rotate:90", "rotate:-90", "rotate:180", "shift:3,5", "flip", "rotate:30"])
def test_a_transform_moves_pixels_where_it_says(text):
    change = optical_flow.parse_transform(text)
    motion = change.motion((32, 32))
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[9:12, 19:22] = 255
    row, column = np.array([10, 20]) + motion.forward[:, 10, 20]
    after = change.apply(pixels)[..., 0] > 200
    result = np.argwhere(after).mean(0)
    np.testing.assert_allclose(result, [row, column], atol=0.6)
    back = motion.backward[:, round(row), round(column)]
    np.testing.assert_allclose([row + back[0], column + back[1]], [10, 20], atol=1)


def test_quarter_turns_are_exact():
    pixels = texture(16, 3)
    np.testing.assert_array_equal(optical_flow.parse_transform("rotate:90").apply(pixels), np.rot90(pixels))
    np.testing.assert_array_equal(optical_flow.parse_transform("flip").apply(pixels), pixels[:, ::-1])


@pytest.mark.parametrize("text", ["rotate", "turn:90", "shift:3", "rotate:x"])
def test_unknown_transforms_say_what_there_is(text):
    with pytest.raises(InputError, match="rotate:90"):
        optical_flow.parse_transform(text)


def make_motion(size: int, right: int, moving: np.ndarray) -> optical_flow.Motion:
    """Motion made by hand: pixels in `moving` go `right`, no others move."""
    there, back = np.zeros((2, size, size)), np.zeros((2, size, size))
    there[1][moving] = right
    came = np.roll(moving, right, axis=1)
    back[1][came] = -right
    hidden = came & ~moving  # covered in b, so without a partner in a
    return optical_flow.Motion(
        there, back, (moving, came), (~moving & ~hidden, ~came & ~moving), bool(moving.mean() > 0.5)
    )


def test_nothing_moves():
    motion = make_motion(32, 0, np.zeros((32, 32), bool))
    moving, static = motion_weights.moving_part_weights(motion, 8)
    assert (moving == 0).all() and (static == 1).all()
    points = motion_weights.point_weights(motion, 8, tolerance=0)
    np.testing.assert_array_equal(points[1], np.eye(16))
    assert (points[0] == 0).all()


def test_one_square_moves_by_one_region():
    mask = np.zeros((32, 32), bool)
    mask[8:16, 8:16] = True  # region 5 of a 4×4 grid goes to region 6
    motion = make_motion(32, 8, mask)
    moving, static = motion_weights.moving_part_weights(motion, 8)
    assert moving[5, 6] == 1 and moving.sum() == 1
    assert static[0, 0] == 1 and static[5].sum() == 0 and static[:, 6].sum() == 0
    exact, _ = motion_weights.point_weights(motion, 8, tolerance=0)
    assert exact[5, 6] == 1 and exact.sum() == 1
    neighbours, _ = motion_weights.point_weights(motion, 8, tolerance=1)
    assert neighbours[5, 6] == 1 and (neighbours[5] > 0).sum() <= 9


def test_kinds_never_exceed_the_whole():
    draw = np.random.default_rng(0)
    mask = draw.random((32, 32)) > 0.5
    for weights in (motion_weights.moving_part_weights, motion_weights.point_weights):
        moving, static = weights(make_motion(32, 3, mask), 8)
        assert (moving >= 0).all() and (static >= 0).all() and (moving + static <= 1 + 1e-9).all()


def test_two_things_are_two_parts():
    mask = np.zeros((48, 48), bool)
    mask[0:8, 0:8] = mask[32:40, 0:8] = True
    motion = make_motion(48, 8, mask)
    motion.forward[1][32:40] *= 3  # the lower one goes three times as far
    lower = np.zeros((48, 48), bool)
    lower[32:40, 24:32] = True
    came = np.roll(mask, 8, axis=1) & (np.arange(48) < 20)[:, None] | lower
    back = np.where(came, -8.0, 0.0) * np.where(np.arange(48) >= 20, 3, 1)[:, None]
    motion = optical_flow.Motion(
        motion.forward, np.stack([np.zeros_like(back), back]), (mask, came), (~mask, ~came), False
    )
    moving, _ = motion_weights.moving_part_weights(motion, 8)
    assert moving[0, 1] == 1 and moving[24, 27] == 1  # each to where it went
    assert moving[0, 27] == 0 and moving[24, 1] == 0  # never to where the other went


# --- composed clips: the answer is known ----------------------------------------------------------------------------


def truth(steps: vgg_layers.LayeredVGG, frames: np.ndarray, masks: list[np.ndarray]) -> dict[int, np.ndarray]:
    """Exact relevance between what moves and what does not, from the true masks as two regions: [2, 2] by layer."""
    sides = [
        bilrp.decompose(
            steps.encoder,
            steps.to_input(frames[t]),
            regions=bilrp.regions.labels(torch.tensor(masks[t].astype(int))),
            layers=list(steps.layers),
        )
        for t in (0, -1)
    ]
    pairs = {n: bilrp.pair(sides[0][n], sides[1][n], similarity="dot") for n in steps.layers}
    return {n: pair.relevance.double().numpy() / pair.score for n, pair in pairs.items()}


def photographs(size: int) -> dict[str, np.ndarray]:
    from skimage import data, transform

    def fit(image: np.ndarray, high: int, wide: int) -> np.ndarray:
        return (np.asarray(transform.resize(image, (high, wide), anti_aliasing=True)) * 255).astype(np.uint8)

    return {
        "coffee": fit(data.coffee(), size, 2 * size),
        "rocket": fit(data.rocket(), size, 2 * size),
        "cat": fit(data.chelsea()[:, 60:360], size * 3 // 8, size * 3 // 8),
        "astronaut": fit(data.astronaut()[:250, 100:350], size * 3 // 8, size * 3 // 8),
    }


CASES = {
    "a cat crosses a table": ("coffee", "cat", (20, 4), (1, 3), 0),
    "an astronaut before a rocket": ("rocket", "astronaut", (25, 30), (0, -3), 0),
    "a table moves behind a fixed logo": ("coffee", "cat", (35, 30), (0, 0), 2),
    "a rocket moves behind a fixed logo": ("rocket", "astronaut", (4, 4), (0, 0), 2),
}


@needs_weights
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_moving_share_of_composed_clips_is_right_within_ten_points(name):
    scene, item, start, step, pan = CASES[name]
    pictures = photographs(80)
    frames, masks = compose(pictures[scene], pictures[item], start=start, step=step, pan=pan)
    steps = vgg_layers.load_layered_vgg((5, 17, 31), weights=WEIGHTS)
    explained = vgg_layers.explain_layers(steps, frames[0], frames[-1], regions=8)
    motion = optical_flow.estimate_motion(frames)
    weights = motion_weights.moving_part_weights(motion, 8)
    point = motion_weights.point_weights(motion, 8)[0]
    for layer, exact in truth(steps, frames, masks).items():
        share = explained_frames.split_relevance(explained[layer], *weights, point)
        assert share.moving / share.score == pytest.approx(exact[1, 1], abs=0.10), layer


# --- the whole study ------------------------------------------------------------------------------------------------


def write_clip(folder: Path, frames: np.ndarray) -> None:
    folder.mkdir(parents=True)
    for t, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"f{t}.png")


def test_whole_study_with_bad_data(tmp_path, weights_file):
    data = tmp_path / "in"
    frames, _ = compose(texture(40, 0), texture(16, 1), start=(10, 2), step=(0, 2), pan=0, n=11)
    write_clip(data / "go" / "one", frames)
    write_clip(data / "go" / "two", np.stack([texture(48, 5)] * 4))
    write_clip(data / "go" / "short", frames[:1])
    (data / "go" / "one" / "f3b.jpg").write_bytes(b"nothing")
    (data / "go" / "one" / "notes.txt").write_text("x")
    (data / "empty").mkdir()
    report = run(replace(SMALL, data=data, out=tmp_path / "out", weights=weights_file))
    report.write(tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(results["inv"]) == {"5", "10"} and results["clips"] == 2 and results["frames"] == 15
    skipped = {item["file"] for item in results["skipped"]}
    assert skipped == {"go/one/f3b.jpg", "go/one/notes.txt", "go/short"}
    for layer in ("5", "10"):
        kinds = sum(results[f"{kind}_share"][layer] for kind in explained_frames.LINK_KINDS)
        assert kinds == pytest.approx(1)
        assert results["moving_share"][layer] * results["inv"][layer] == pytest.approx(
            results["inv_moving"][layer]
        )
    # nothing moves in the second clip: all its invariance is background
    assert results["by_clip"]["go/two"]["static"]["10"] == pytest.approx(1, abs=1e-3)
    assert results["clever_hans"][0]["clip"] == "go/two"
    page = (tmp_path / "out" / "report.html").read_text()
    for words in (
        "The question",
        "Settings",
        "Clever Hans",
        "What was left out",
        "f3b.jpg",
        "similarity.png",
    ):
        assert words in page
    assert report.summary in page.replace("&#x27;", "'")


def test_a_slim_explanation_lets_go_of_the_parts():
    x = torch.rand(1, 4)
    explanation = vgg_layers.drop_parts(bilrp.explain(torch.nn.Linear(4, 3), x, x, similarity="dot"))
    assert (
        explanation.a.parts.untyped_storage().nbytes()
        == explanation.b.embedding.untyped_storage().nbytes()
        == 0
    )


def test_frames_are_in_natural_order(tmp_path):
    frames, _ = compose(texture(32, 0), texture(14, 1), start=(8, 2), step=(0, 1), pan=0, n=12)
    write_clip(tmp_path / "a" / "b", frames)
    result = image_folders.read_clips(tmp_path, size=32).items[0]
    assert result.names == tuple(f"f{t}.png" for t in range(12))
    np.testing.assert_array_equal(result.frames, frames)


def test_still_pictures_and_a_turn(tmp_path, weights_file):
    """A picture that looks the same after the turn: all matches stay in place, none follows the turn."""
    rows, columns = np.indices((32, 32)) - 15.5
    rings = np.where(np.hypot(rows, columns) % 8 < 4, 255, 0).astype(np.uint8)
    (tmp_path / "in").mkdir()
    Image.fromarray(rings).convert("RGB").save(tmp_path / "in" / "rings.png")
    Image.fromarray(texture(32, 4)).save(tmp_path / "in" / "noise.png")
    places = {"data": tmp_path / "in", "out": tmp_path / "out", "weights": weights_file}
    report = run(replace(SMALL, **places, transform="rotate:90"))
    report.write(tmp_path / "out")
    results = report.results
    clips = results["by_clip"]
    assert results["frames"] == 4 and results["clips"] == 2
    assert clips["rings.png"]["static"]["5"] > clips["rings.png"]["moving"]["5"]
    assert clips["rings.png"]["static"]["5"] > 0.8
    assert "rotate:90" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize("make", ["missing", "empty", "one frame"])
def test_folders_that_cannot_be_used_say_why(tmp_path, make):
    folder = tmp_path / "in"
    if make != "missing":
        folder.mkdir()
    if make == "one frame":
        write_clip(folder / "a" / "b", np.stack([texture(32, 0)]))
    words = {"missing": "no such folder", "empty": "empty", "one frame": "one readable frame"}
    with pytest.raises(InputError, match=words[make]) as raised:
        image_folders.read_clips(folder, size=32)
    assert "\n" not in str(raised.value)


def test_video_files(tmp_path):
    av = pytest.importorskip("av", reason="needs PyAV (the video extra)")
    frames, _ = compose(texture(64, 0), texture(24, 1), start=(16, 2), step=(0, 2), pan=0)
    with av.open(str(tmp_path / "film.avi"), "w") as movie:
        stream = movie.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            movie.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        movie.mux(stream.encode())
    (tmp_path / "broken.avi").write_bytes(b"RIFF" + b"\0" * 40)
    result = image_folders.read_clips(tmp_path, size=64)
    assert [clip.name for clip in result.items] == ["film.avi"] and result.items[0].frames.shape == (
        6,
        64,
        64,
        3,
    )
    assert result.skipped[0].file == "broken.avi"
    assert np.abs(result.items[0].frames.astype(int) - frames).mean() < 40


@needs_weights
@needs_clips
@pytest.mark.data
@pytest.mark.slow
def test_invariance_rises_with_the_layers(tmp_path):
    """Table 2's finding, on every other frame's neighbourhood of each clip: INV at 31 well above INV at 5."""
    settings = InvarianceSettings(
        data=CLIPS, out=tmp_path / "out", layers=(5, 17, 31), max_frames=6, pairs=0, weights=WEIGHTS
    )
    result = run(settings).results["inv"]
    assert result["5"] < result["17"] < result["31"] and result["31"] > 1.5 * result["5"]
