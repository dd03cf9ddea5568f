"""Encoders by name: one table, one parser, options that are used or refused, and families from a user's own file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import bilrp
from bilrp.encoder import read_item
from bilrp.encoders.registry import ENCODER_HELP, FAMILIES, EncoderFamily, EncoderOptions, complete_name, load
from bilrp.errors import InputError
from bilrp.inputs import Image as View
from type_asserts import assert_instance

OWN = """
import torch
from bilrp import Encoder
from bilrp.encoders.registry import EncoderFamily

def head(width="3"):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(int(width)))

def vectors():
    return Encoder(torch.nn.Flatten(), read=lambda text: torch.ones(1, len(text)), name="letters")

def make(argument, options):
    return Encoder(torch.nn.Flatten(), name=f"mine:{argument} {options.size} {options.resize}")

mine = EncoderFamily("mine", make, "mine:ANYTHING for tests", completions=("mine:one",), options=("size",))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ownfamily", raising=False)
    (tmp_path / "ownfamily.py").write_text(OWN)
    Image.new("RGB", (40, 20), "red").save(tmp_path / "a.png")
    return tmp_path


def test_help_and_completion_need_only_the_families_rows() -> None:
    assert all(family.help in ENCODER_HELP for family in FAMILIES)
    assert complete_name("vgg16:3") == ["vgg16:31"] and {"bigram", "minilm"} <= set(complete_name(""))
    code = (
        "import sys; from bilrp.encoders.registry import ENCODER_HELP, complete_name; complete_name('v')\n"
        "assert not {'torch', 'numpy', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_family_of_ones_own_from_a_users_file(own: Path) -> None:
    assert load("ownfamily:mine:one", size=64).name == "mine:one 64 None"
    with pytest.raises(InputError, match=r"--resize is for .*vgg16.*; ownfamily:mine:one"):
        load("ownfamily:mine:one", resize="pad")
    row = EncoderFamily("toy", lambda argument, options: nn.Flatten(), "toy for tests", completions=("toy",))
    assert load("toy", families=(*FAMILIES, row)).name == "toy"
    assert complete_name("to", (*FAMILIES, row)) == ["toy"]


def test_a_family_with_its_own_reader_receives_its_options() -> None:
    def make(argument: str, options: EncoderOptions) -> bilrp.Encoder:
        side = assert_instance(options.input_size, int)
        return bilrp.Encoder(nn.Flatten(), read=lambda item: torch.zeros(1, 1, side, side))

    toy = EncoderFamily("toy", make, "toy for tests", options=("size", "resize"))
    encoder = load("toy", size=64, resize="pad", families=(*FAMILIES, toy))
    assert read_item(encoder, "anything").x.shape == (1, 1, 64, 64)


def test_a_family_that_raises_is_named() -> None:
    toy = EncoderFamily("toy", lambda argument, options: int(argument), "toy for tests")
    with pytest.raises(InputError, match="toy:x raised ValueError: invalid literal"):
        load("toy:x", families=(*FAMILIES, toy))


def test_functions_of_ones_own_take_what_follows_the_second_colon(own: Path) -> None:
    encoder = load("ownfamily:head:5", size=8)
    item = read_item(encoder, own / "a.png")
    assert encoder.module(item.x).shape == (1, 5) and item.x.shape == (1, 3, 8, 8)
    assert isinstance(item.view, View) and item.view.size == (40, 20) and item.name == "a.png"
    assert load("ownfamily:head", size="original").module(torch.ones(1, 3, 2, 2)).shape == (1, 3)


@pytest.mark.parametrize("name", ["bigram", "ownfamily:vectors"])
@pytest.mark.parametrize(
    "asked", [{"size": 64}, {"resize": "pad"}, {"weights": "w.pth"}], ids=lambda a: next(iter(a))
)
def test_an_option_that_an_encoder_would_not_use_is_refused(own: Path, name: str, asked: dict) -> None:
    option = next(iter(asked))
    with pytest.raises(InputError, match=f"--{option} is for .*vgg16.*; {name}"):
        load(name, **asked)


@pytest.mark.parametrize("name", ["bigram", "vgg16:5", "torch.nn:Flatten", "ownfamily:vectors"])
def test_nonsense_is_refused_by_every_family(own: Path, name: str) -> None:
    with pytest.raises(InputError, match="resize must be one of crop, pad, stretch, got 'nonsense'"):
        load(name, resize="nonsense")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vgg16:x", "a number from 1 to 31"),
        ("vgg16:٣", "a number from 1 to 31"),
        ("resnet50", "unknown encoder 'resnet50': give"),
        ("vgg", r"unknown encoder 'vgg': did you mean vgg16:31\? Else give"),
        ("", "unknown encoder"),
        ("minilm:here", "sentence:here"),
        ("sentence", "sentence:FOLDER"),
        ("absent_package:f", "cannot import"),
        ("ownfamily:absent", "has no 'absent'"),
        ("ownfamily:head:x", "called with 'x'|ValueError"),
        ("math:pi", "float, not a function"),
    ],
)
def test_bad_arguments_raise_one_line_errors(own: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        load(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("files", "family"),
    [
        (["tokenizer.json", "modules.json"], "sentence"),
        (["preprocessor_config.json"], "vision"),
        (["preprocessor_config.json", "tokenizer.json"], "clip"),
    ],
)
def test_a_folder_without_a_family_is_told_its_name(tmp_path: Path, files: list[str], family: str) -> None:
    for file in files:
        (tmp_path / file).touch()
    with pytest.raises(InputError, match=f"is a folder: .* {family}:{tmp_path}$"):
        load(str(tmp_path))


def test_vgg_without_a_download_receives_all_its_options() -> None:
    encoder = load("vgg16:5", size=(32, 48), resize="stretch", pretrained=False)
    assert encoder.name == "vgg16:5"
    item = read_item(encoder, Image.new("RGB", (100, 30)))
    assert item.x.shape == (1, 3, 32, 48)
    assert isinstance(item.view, View) and item.view.box == (0, 0, 100, 30)
    assert bilrp.encoders.vgg16 is not None
