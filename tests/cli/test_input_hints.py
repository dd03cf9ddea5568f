"""Inputs that cannot be read get a hint, before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bilrp.cli.input_hints import check_inputs, choose_encoders
from bilrp.errors import InputError


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.JPG", "page.pdf", "text.txt"):
        (tmp_path / name).write_bytes(b"content")
    return tmp_path


@pytest.mark.parametrize(
    ("inputs", "encoder", "message"),
    [
        (["a.png", "b.JPG"], "minilm", r"a\.png: an image, and minilm reads texts: use .* -e vgg16:31"),
        (["A text.", "gone.png"], "sentence:folder", r"gone\.png: an image, and sentence:folder reads texts"),
        (["page.pdf", "a.png"], "vgg16:31", r"page\.pdf: a PDF; export a page .* pdftoppm .* page\.pdf page"),
        (["page.pdf", "A text."], "minilm", r"page\.pdf: a PDF, and minilm reads texts"),
        (
            ["https://x.org/a.jpg", "a.png"],
            "vgg16:31",
            r"https://x\.org/a\.jpg: a web address; download it first",
        ),
        (["https://x.org/a", "A text."], "minilm", "download it first"),
        (["gone.png", "a.png"], "mobilenet", r"^gone\.png: no such file$"),
        (
            ["A cat.", "a.png"],
            "vgg16:31",
            r"A cat\.: no such file; vgg16:31 reads images, for texts use -e minilm",
        ),
        (["@gone.txt", "A text."], "minilm", r"^gone\.txt: no such file"),
    ],
)
def test_inputs_that_cannot_be_read_say_what_to_do(files, inputs, encoder, message):
    with pytest.raises(InputError, match=message):
        check_inputs(inputs, [encoder])


@pytest.mark.parametrize(
    ("inputs", "encoder"),
    [
        (["a.png", "b.JPG"], "vgg16:31"),
        (["See https://x.org/a.jpg for a cat.", "A picture, cat.jpg"], "minilm"),
        (["@text.txt", "-"], "minilm"),
        (["https://x.org/a.jpg", "gone.pdf"], "mine:encoder"),
        (["a.png", "A caption"], "clip:folder"),
        (["x" * 5000, "A text\x00 with a null"], "minilm"),
    ],
)
def test_inputs_that_can_be_read_pass(files, inputs, encoder):
    check_inputs(inputs, [encoder])


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["a cat", "a dog"], "minilm"),
        (["cat", "dog", "cow"], "minilm"),
        (["@text.txt", "-"], "minilm"),
        (["a.png", "b.JPG"], "vgg16:31"),
        (["a.png", "a dog"], "vgg16:31"),
        (["gone.jpg", "gone.png"], "vgg16:31"),
        (["folder/gone", "folder/other"], "vgg16:31"),
    ],
)
def test_the_default_encoder_follows_the_inputs(files, inputs, expected):
    assert choose_encoders(inputs, None) == [expected]
    assert choose_encoders(inputs, ["mine"]) == ["mine"]


def test_a_missing_file_is_told_without_torch(files):
    code = "import sys; sys.modules['torch'] = None; from bilrp.cli import main; main()"
    completed = subprocess.run(
        [sys.executable, "-c", code, "explain", "gone.jpg", "a.png"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (
        2,
        "",
        "bilrp: gone.jpg: no such file\n",
    )
