"""The transfer study: splits, SVM, effective regions, bad data, resuming, and the paper's finding on real faces."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bilrp.errors import InputError
from bilrp.progress import Progress
from bilrp_studies.common import image_folders, vgg_layers
from bilrp_studies.transfer.settings import TransferSettings
from bilrp_studies.transfer.study import run
from bilrp_studies.transfer.svm import assign_folds, evaluate_svm, split_halves
from bilrp_studies.transfer.train_test_pairs import choose_pairs, count_effective_regions

DATA = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[3] / "shared" / "data"))
FACES, WEIGHTS = DATA / "lfw", DATA / "vgg16" / "vgg16_features.safetensors"
needs_data = pytest.mark.skipif(
    not (FACES.is_dir() and WEIGHTS.is_file()), reason="needs BILRP_DATA with lfw and vgg16"
)
SMALL = TransferSettings(data=Path("in"), layers=(5, 10), size=32, splits=2, pairs=1, regions=8)


def paint(path: Path, hue: int, seed: int, size: tuple[int, int] = (40, 40)) -> None:
    """A noisy picture whose class shows in one colour."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 80, (size[1], size[0], 3))
    pixels[..., hue] += 150
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


@pytest.fixture
def colours(tmp_path) -> Path:
    for hue, name in enumerate(("red", "green", "blue")):
        for i in range(6):
            paint(tmp_path / "in" / name / f"{i}.png", hue, 10 * hue + i)
    return tmp_path / "in"


# --- the pieces -----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 9), min_size=2, max_size=8), st.integers(0, 99))
def test_halves_are_halves_of_every_class(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    train, test = split_halves(labels, seed=seed)
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label, count in enumerate(counts):
        assert (labels[train] == label).sum() in {count // 2, (count + 1) // 2}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=8), st.integers(0, 99))
def test_folds_are_even_and_spread_every_class(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    fold = assign_folds(labels, 4, seed=seed)
    sizes = np.bincount(fold, minlength=4)
    assert sizes.max() - sizes.min() <= 1
    for label in range(len(counts)):
        inside = np.bincount(fold[labels == label], minlength=4)
        assert inside.max() - inside.min() <= 1


def test_kernel_form_equals_the_explicit_linear_machine():
    from sklearn.svm import SVC

    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 12)
    x = draw.normal(size=(48, 30)) + np.eye(4)[labels] @ draw.normal(size=(4, 30))
    train, test = split_halves(labels, seed=1)
    accuracy, cost = evaluate_svm(x @ x.T, labels, train, test, seed=1)
    scaled = x / np.sqrt(np.mean((x[train] ** 2).sum(1)))
    plain = SVC(C=cost, kernel="linear").fit(scaled[train], labels[train]).score(scaled[test], labels[test])
    assert accuracy == pytest.approx(plain) and accuracy > 0.3
    # the scale of the features must not matter
    assert evaluate_svm(1e6 * x @ x.T, labels, train, test, seed=1) == (accuracy, cost)


def test_accuracy_is_chance_without_information():
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 40)
    x = draw.normal(size=(200, 50))
    train, test = split_halves(labels, seed=0)
    assert evaluate_svm(x @ x.T, labels, train, test)[0] < 0.4


@pytest.mark.parametrize("count", [1, 3, 16])
def test_equal_shares_count_themselves(count):
    relevance = np.zeros((16, 16))
    relevance[range(count), range(count)] = 7.0
    assert count_effective_regions(relevance) == pytest.approx(count)


def test_effective_regions_of_constructed_cases():
    assert count_effective_regions(np.zeros((4, 4))) == 0
    # one region on the left matched with all four on the right: 1 and 4, mean 2.5
    assert count_effective_regions(np.eye(4)[:1].T @ np.ones((1, 4))) == pytest.approx(2.5)
    # regions that speak against the similarity carry none of it
    assert count_effective_regions(np.diag([1.0, 1.0, -5.0, 0.0])) == pytest.approx(2)
    draw = np.random.default_rng(0).random((8, 8))
    assert count_effective_regions(draw) == pytest.approx(count_effective_regions(3 * draw.T))
    assert count_effective_regions(draw**4) < count_effective_regions(draw) < 8


def test_gram_in_blocks_is_the_whole_product(random_weights, monkeypatch):
    draw = np.random.default_rng(0)
    pictures = [draw.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(7)]
    steps = vgg_layers.load_layered_vgg((5, 10), weights=random_weights)
    result = vgg_layers.compute_features(steps, pictures, Progress())
    monkeypatch.setattr(vgg_layers, "GRAM_BLOCK_BYTES", 3 * 4 * result.vector(0, 10).numel())
    built = vgg_layers.compute_gram(steps, result, 10)
    direct = steps.encoder.module(torch.cat([steps.to_input(p) for p in pictures])).flatten(1).double()
    np.testing.assert_allclose(built, (direct @ direct.T).numpy(), rtol=1e-3)
    assert (built == built.T).all()


def test_pairs_come_from_both_halves_and_many_classes():
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 6)
    x = draw.random((30, 20))
    chosen = choose_pairs(x @ x.T, labels, count=5, seed=3)
    train, test = (set(half.tolist()) for half in split_halves(labels, seed=3))
    assert all(pair.test in test and pair.train in train for pair in chosen)
    assert len({labels[pair.test] for pair in chosen}) == 5


# --- the whole study ------------------------------------------------------------------------------------------------


def test_whole_study_with_bad_data(colours, tmp_path, weights_file):
    paint(colours / "lonely" / "only.png", 0, 1)
    paint(colours / "red" / "wide.png", 0, 99, size=(90, 50))
    (colours / "red" / "broken.jpg").write_bytes(b"\xff\xd8 not a picture")
    (colours / "green" / "notes.txt").write_text("hello")
    paint(colours / "loose.png", 0, 1)
    report = run(replace(SMALL, data=colours, out=tmp_path / "out", weights=weights_file))
    report.write(tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (
        set(results["accuracy"])
        == set(results["accuracy_std"])
        == set(results["effective_regions"])
        == {"5", "10"}
    )
    assert results["classes"] == 3 and results["images"] == 19
    assert results["accuracy"]["5"] > 0.9  # a colour is not hard to see
    assert 1 <= results["effective_regions"]["5"] <= 16
    skipped = {item["file"]: item["reason"] for item in results["skipped"]}
    assert set(skipped) == {"lonely/only.png", "red/broken.jpg", "green/notes.txt", "loose.png"}
    assert "only readable picture" in skipped["lonely/only.png"]
    assert "2 sizes" in results["notes"][0]
    page = (tmp_path / "out" / "report.html").read_text()
    for words in (
        "The question",
        "Settings",
        "LFW (paper)",
        "What was left out",
        "broken.jpg",
        "pair-1.png",
    ):
        assert words in page
    assert (tmp_path / "out" / "report.md").read_text().startswith(f"# {report.title}")


def test_an_interrupted_study_resumes_and_gives_the_same(colours, tmp_path, weights_file, monkeypatch):
    settings = replace(SMALL, data=colours, out=tmp_path / "out", weights=weights_file)
    full = run(replace(settings, out=tmp_path / "whole"))
    seen, real = [], vgg_layers.compute_activations

    def stops_after_eight(ladder, batch):
        if len(seen) == 8:
            raise KeyboardInterrupt
        seen.append(len(batch))
        return real(ladder, batch)

    monkeypatch.setattr(vgg_layers, "compute_activations", stops_after_eight)
    with pytest.raises(KeyboardInterrupt):
        run(settings)
    assert not (tmp_path / "out" / "results.json").exists()
    later = []
    monkeypatch.setattr(vgg_layers, "compute_activations", lambda s, b: (later.append(len(b)), real(s, b))[1])
    second = run(settings)
    assert sum(later) == 18 - 8
    assert second.results == full.results

    def fails(*_, **__):
        raise AssertionError("computed twice")

    monkeypatch.setattr(vgg_layers, "compute_activations", fails)
    monkeypatch.setattr(vgg_layers, "decompose_in_one_pass", fails)
    assert run(settings).results == full.results


@pytest.mark.parametrize("make", ["missing", "empty", "one class", "all broken"])
def test_folders_that_cannot_be_used_say_why(tmp_path, make):
    folder = tmp_path / "in"
    if make != "missing":
        folder.mkdir()
    if make == "one class":
        paint(folder / "a" / "1.png", 0, 1)
        paint(folder / "a" / "2.png", 0, 2)
    if make == "all broken":
        (folder / "a").mkdir()
        (folder / "a" / "1.jpg").write_bytes(b"no")
    words = {"missing": "no such folder", "empty": "empty", "one class": "two classes", "all broken": "1.jpg"}
    with pytest.raises(InputError, match=words[make]) as raised:
        image_folders.read_classes(folder, size=32)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("study", ["transfer", "invariance"])
def test_the_command_line_says_in_one_line_what_is_wrong(study, tmp_path, monkeypatch, capsys):
    from bilrp import cli

    monkeypatch.setattr("sys.argv", ["bilrp", "study", study, "--data", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    message = capsys.readouterr().err
    assert stopped.value.code == 2 and "no such folder" in message and message.count("\n") == 1


def test_links_to_folders_are_followed_once(colours, tmp_path):
    (tmp_path / "linked").mkdir()
    for name in ("red", "green"):
        (tmp_path / "linked" / name).symlink_to(colours / name)
    (colours / "red" / "round").symlink_to(tmp_path / "linked")
    result = image_folders.read_classes(tmp_path / "linked", size=32)
    assert sorted(item.name for item in result.items) == sorted(
        f"{c}/{i}.png" for c in ("red", "green") for i in range(6)
    )


def test_crop_is_a_share_or_pixels():
    image = Image.new("RGB", (128, 96))
    assert image_folders.crop_center(image, 0.5).size == (48, 48) and image_folders.crop_center(
        image, 80
    ).size == (80, 80)
    assert image_folders.crop_center(image, 500).size == (96, 96)
    with pytest.raises(InputError, match="crop"):
        image_folders.crop_center(image, 0)


@needs_data
@pytest.mark.data
@pytest.mark.slow
def test_middle_layers_serve_faces_best(tmp_path):
    """Table 1's finding, on 24 people: layer 17 above layer 5, and far above layer 31."""
    people = sorted(p for p in FACES.iterdir() if p.is_dir())[:24]
    (tmp_path / "in").mkdir()
    for person in people:
        (tmp_path / "in" / person.name).symlink_to(person)
    settings = TransferSettings(
        data=tmp_path / "in",
        out=tmp_path / "out",
        layers=(5, 17, 31),
        splits=3,
        crop=0.6,
        pairs=0,
        weights=WEIGHTS,
    )
    accuracy = run(settings).results["accuracy"]
    assert accuracy["17"] > accuracy["5"] and accuracy["17"] > accuracy["31"] + 0.15
