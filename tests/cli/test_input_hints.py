"""Inputs that cannot be read get a hint, before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bilrp.cli.audit import check_report_path
from bilrp.cli.input_hints import check_collection, check_inputs, check_query, choose_encoders
from bilrp.errors import InputError


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.JPG", "page.pdf", "text.txt"):
        (tmp_path / name).write_bytes(b"content")
    return tmp_path


def read_refusal(check: Callable[..., object], *arguments: object) -> str:
    """Return why a check refuses its arguments; "" if it accepts them."""
    try:
        check(*arguments)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("inputs", "encoder", "message"),
    [
        (["a.png", "b.JPG"], "minilm", r"a\.png: an image, and minilm reads texts: use .* -e efficientnet"),
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
        (["gone.txt", "A text."], "minilm", r"^gone\.txt: no such file"),
    ],
)
def test_inputs_that_cannot_be_read_say_what_to_do(files, inputs, encoder, message):
    with pytest.raises(InputError, match=message):
        check_inputs(inputs, [encoder])


@pytest.mark.parametrize(
    ("inputs", "encoder"),
    [
        (["a.png", "b.JPG"], "efficientnet"),
        (["See https://x.org/a.jpg for a cat.", "A picture, cat.jpg"], "minilm"),
        (["@text.txt", "-"], "minilm"),
        (["https://x.org/a.jpg", "gone.pdf"], "mine:encoder"),
        (["a.png", "A caption"], "clip:folder"),
        (["x" * 5000, "A text\x00 with a null"], "minilm"),
    ],
)
def test_inputs_that_can_be_read_pass(files, inputs, encoder):
    assert read_refusal(check_inputs, inputs, [encoder]) == ""


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["a cat", "a dog"], "minilm"),
        (["cat", "dog", "cow"], "minilm"),
        (["@text.txt", "-"], "minilm"),
        (["a.png", "b.JPG"], "efficientnet"),
        (["a.png", "a dog"], "efficientnet"),
        (["gone.jpg", "gone.png"], "efficientnet"),
        (["folder/gone", "folder/other"], "efficientnet"),
    ],
)
def test_the_default_encoder_follows_the_inputs(files, inputs, expected):
    assert choose_encoders(inputs, None) == [expected]
    assert choose_encoders(inputs, ["mine"]) == ["mine"]


def test_a_missing_file_is_reported_without_torch(files):
    code = "import sys; sys.modules['torch'] = None; from bilrp.cli import main; main()"
    completed = subprocess.run(
        [sys.executable, "-c", code, "explain", "gone.jpg", "a.png"],
        capture_output=True,
        text=True,
        check=False,
    )
    expected = (2, "", "bilrp: gone.jpg: no such file\n")
    assert (completed.returncode, completed.stdout, completed.stderr) == expected


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("gone.lance", r"gone\.lance: no collection there; make one with bilrp index FOLDER -o gone\.lance"),
        (
            "photos",
            r"photos: a folder, not a collection; index it first: bilrp index photos -o photos\.lance",
        ),
        ("a.png", r"a\.png: a file, not a collection"),
        ("https://x.org/c.lance", "download it first"),
    ],
)
def test_what_is_not_a_collection_says_how_to_make_one(files, argument, message):
    (files / "photos").mkdir()
    with pytest.raises(InputError, match=message):
        check_collection(argument)


def test_collections_of_any_name_and_place_are_accepted(files):
    (files / "mine" / "items.lance").mkdir(parents=True)
    (files / "c.lance").mkdir()
    for argument in ("mine", "c.lance", "s3://bucket/c.lance"):
        assert read_refusal(check_collection, argument) == ""


def test_a_query_may_be_anything_but_a_web_address_or_a_pdf(files):
    for query in ("a.png", "17", "A man with a guitar", "see page.pdf for more"):
        assert read_refusal(check_query, query) == ""
    with pytest.raises(InputError, match="download it first"):
        check_query("https://x.org/a.jpg")
    with pytest.raises(InputError, match="pdftoppm"):
        check_query("page.pdf")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("no/audit.html", "there is no folder no"),
        ("text.txt", "a file has this name"),
        ("audit.png", "give a name like audit or audit.html"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_work(files, output, message):
    with pytest.raises(InputError, match=message):
        check_report_path(output)


def test_a_report_is_a_folder_or_a_page(files):
    assert check_report_path("audit.html") == Path("audit.html")
    assert check_report_path("out/audit") == Path("out/audit")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("contrast", "a.png", "b.JPG", "gone.png"), "gone.png: no such file"),
        (("contrast", "a.png", "b.JPG", "https://x.org/a.jpg"), "download it first"),
        (("contrast", "a.png", "b.JPG", "a.png", "-e", "minilm"), "use an encoder for pictures"),
        (("sets", "a.png", "gone"), "gone: no such file"),
        (("sets", "page.pdf", "a.png"), "pdftoppm"),
        (("search", "gone.lance", "a.png"), "no collection there"),
        (("audit", "a.png"), "a file, not a collection"),
    ],
)
def test_other_commands_give_the_hints_of_explain_without_torch(files, arguments, message):
    code = (
        "import sys; from bilrp.cli import main\n"
        f"sys.argv = ['bilrp', *{list(arguments)!r}]\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    print(stop.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=files, check=False
    )
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout.strip() == "2 False"
