"""Pictures and texts on the command line: vision:FOLDER, clip:FOLDER, mobilenet; what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dual_encoder_folders import PAIRS
from vision_folders import ARCHITECTURES


@pytest.fixture(scope="module")
def towers(tmp_path_factory) -> Path:
    return PAIRS[0].save(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Path:
    return ARCHITECTURES[0].save(tmp_path_factory.mktemp("vit"))


@pytest.fixture
def command(bilrp_command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    coarse = np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((70, 50)).save("cat.png")
    Image.fromarray(coarse[::-1]).resize((70, 50)).save("dog.png")

    return bilrp_command


def test_a_picture_and_a_text(command, towers: Path, tmp_path: Path) -> None:
    outputs = [part for name in ("why.png", "why.html", "why.npz") for part in ("-o", name)]
    code, out, _ = command("explain", "cat.png", "A cat sat on the mat", "-e", f"clip:{towers}", *outputs)
    assert code == 0 and "  A cat sat on the mat\n" in out and "16 × " in out
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("why.png", "why.html", "why.npz"))
    about = json.loads(
        command("explain", "cat.png", "A cat", "-e", f"clip:{towers}", "--json", "--regions", "16")[1]
    )
    assert about["regions"][0] == 4 and about["a"] == "cat.png" and about["b"] == "A cat"
    about = json.loads(
        command("explain", "A cat", "cat.png", "-e", f"clip:{towers}", "--json", "--regions", "tokens")[1]
    )
    assert about["regions"][1] == 16


def test_one_kind_in_two_towers(command, towers: Path) -> None:
    for a, b in (("cat.png", "dog.png"), ("A cat", "Two dogs")):
        assert command("explain", a, b, "-e", f"clip:{towers}")[0] == 0
    code, _, err = command("explain", "cat.png", "dog.png", "-e", f"clip:{towers}", "--regions", "words")
    assert code == 2 and "side in pixels" in err
    code, _, err = command("explain", "nowhere.png", "A cat", "-e", f"clip:{towers}")
    assert code == 2 and "nowhere.png: no such image file" in err and err.count("\n") == 1


def test_two_pictures_by_a_folder(command, vit: Path) -> None:
    code, out, _ = command("explain", "cat.png", "dog.png", "-e", f"vision:{vit}")
    assert code == 0 and "16 × 16 regions" in out


@pytest.mark.parametrize("name", ["vision:", "clip:", "vision:nowhere", "clip:nowhere", "mobilenet:3"])
def test_bad_encoder_names_raise_one_line_errors(command, name: str) -> None:
    code, _, err = command("explain", "cat.png", "dog.png", "-e", name)
    assert code == 2 and err.startswith("bilrp: ") and err.count("\n") == 1


def test_every_step_is_listed(command, towers: Path, vit: Path) -> None:
    for name, words in ((f"clip:{towers}", ["(image)", "(text)"]), (f"vision:{vit}", ["vision:"])):
        code, out, _ = command("ops", name)
        assert code == 0 and all(word in out for word in words)


def test_mobilenet_is_listed_without_its_weights(command, monkeypatch) -> None:
    monkeypatch.setenv("BILRP_CACHE", "/nonexistent")
    for name in ("mobilenet", "efficientnet"):
        code, out, _ = command("ops", name, "--size", "64")
        assert code == 0 and "conv2d" in out
