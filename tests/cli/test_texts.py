"""Texts on the command line: arguments, files, standard input; coloured words; what does not fit."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from bilrp.cli import texts
from bilrp.encoders import sentence
from bilrp.explanation import explain
from bilrp.inputs import Text
from bilrp.render.visibility import select_visible
from text_folders import ARCHITECTURES


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return ARCHITECTURES[0].save(tmp_path_factory.mktemp("bert"), dtype=torch.float32)


@pytest.fixture
def command(bilrp_command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return bilrp_command(*arguments)

    return run


def test_two_texts(command, folder: Path) -> None:
    code, out, err = command("explain", "The cat sat.", "Two kittens rested.", "-e", f"sentence:{folder}")
    assert code == 0 and err == ""
    assert "  The cat sat.\n  Two kittens rested.\n" in out
    assert "5 × 6 regions" not in out and "6 × 6 regions" in out
    assert "cat" in out and "kittens" in out and "matches, by their" in out


def test_files_and_standard_input(command, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The cat sat.\n", encoding="utf-8")
    shared = ("-e", f"sentence:{folder}", "--json")
    direct = json.loads(command("explain", "The cat sat.", "Two kittens rested.", *shared)[1])
    read = json.loads(command("explain", "@a.txt", "-", *shared, stdin=b"Two kittens rested.")[1])
    assert read["top"] == direct["top"] and read["score"] == direct["score"]
    assert read["a"] == "The cat sat."


def test_regions_of_a_text(command, folder: Path) -> None:
    shared = ("It rains. Stay in!", "Two kittens.", "-e", f"sentence:{folder}", "--json")
    counts = {
        kind: json.loads(command("explain", *shared, "--regions", kind)[1])["regions"]
        for kind in ("words", "tokens", "sentences")
    }
    assert counts["sentences"] == [4, 3] and counts["words"] == [8, 5]
    assert counts["tokens"][0] >= counts["words"][0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("@none.txt", "a"), "none.txt: no such file"),
        (("", "a"), "the text is empty"),
        (("a", "b", "--regions", "8"), "--regions 8: for texts give words, tokens or sentences"),
        (("a", "b", "--size", "64"), "--size is for vgg16"),
        (("a", "b", "-s", "x"), None),
    ],
)
def test_bad_arguments_raise_one_line_errors(command, folder: Path, arguments, expected) -> None:
    code, out, err = command("explain", *arguments, "-e", f"sentence:{folder}")
    assert code == 2 and out == "" and "Traceback" not in err
    if expected:
        assert err.count("\n") == 1 and expected in err


def test_sets_of_texts_are_refused(command, folder: Path) -> None:
    """Not compared by the names of their files."""
    code, out, err = command("sets", str(folder), "a text", "-e", f"sentence:{folder}")
    assert code == 2 and out == "" and err.count("\n") == 1 and "sets compares images" in err


def test_a_folder_that_is_none(command) -> None:
    code, _, err = command("explain", "a", "b", "-e", "sentence:nowhere")
    assert (
        code == 2
        and err == "bilrp: nowhere: no such folder; use 'minilm', or a folder with a saved text model\n"
    )


def test_no_text_in_utf8(command, folder: Path) -> None:
    code, _, err = command("explain", "-", "b", "-e", f"sentence:{folder}", stdin=b"\xff\xfe")
    assert code == 2 and "not UTF-8 text" in err


def test_steps_of_a_text_encoder(command, folder: Path) -> None:
    code, out, _ = command("ops", f"sentence:{folder}")
    assert code == 0 and "all with a rule" in out and "frozen" in out


def test_words_are_coloured_by_their_share(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    explanation = explain(sentence(folder), "The cat \x1b[2J sat.", "Two kittens rested.", similarity="dot")
    lines = texts.highlight_words(explanation)
    assert lines is not None and "\x1b[" in lines and "\x1b[2J" not in lines
    explanation = select_visible(explanation, special_tokens=False)  # of a word, what it shares with words
    shares = explanation.marginals()
    largest = max(float(share.abs().max()) for share in shares)
    seen = 0
    for side, share in zip((explanation.a, explanation.b), shares, strict=True):
        assert isinstance(side.view, Text)
        for span, value in zip(side.view.spans, share.tolist(), strict=True):
            weak = round(255 * (1 - abs(value) / largest))
            assert span is not None
            if weak <= 240:  # what is almost white stays without colour
                colour = f"48;2;255;{weak};{weak}m" if value > 0 else f"48;2;{weak};{weak};255m"
                word = side.view.text[slice(*span)]
                assert f"{colour}{word}" in lines or "\x1b" in word
                seen += 1
    assert seen > 2


def test_special_tokens_are_counted_and_listed_on_demand(command, folder: Path) -> None:
    given = ("explain", "The cat sat.", "Two kittens rested.", "-e", f"sentence:{folder}", "--top", "40")
    _, plain, _ = command(*given, "-o", "why.npz")
    code, requested, _ = command("show", "why.npz", "--top", "40", "--special-tokens")
    assert code == 0 and "[CLS]" not in plain and "“”" not in plain
    assert "  [CLS] The cat sat. [SEP]" in requested and "“[CLS]” ↔ “[SEP]”" in requested
    assert "special tokens" in plain and "special tokens" in requested
    full, few = (json.loads(command(*given, "--json", *more)[1]) for more in ((), ("--special-tokens",)))
    assert 0 < len(full["top"]) < len(few["top"]) and full["special_tokens"] == few["special_tokens"] != 0
    parts = full["positive"] + full["negative"] + full["special_tokens"] + full["unattributed"]
    assert parts == pytest.approx(full["score"], rel=1e-9)
    numbers = {pair["a"]["region"]: pair["a"]["name"] for pair in few["top"]}
    assert all(numbers[pair["a"]["region"]] == pair["a"]["name"] for pair in full["top"]), "as in the file"


def test_special_tokens_in_the_page_of_several_texts(command, folder: Path, tmp_path: Path) -> None:
    given = ("explain", "The cat sat.", "Two kittens rested.", "A dog ran.", "-e", f"sentence:{folder}")
    for options in ((), ("--special-tokens",)):
        code, _, err = command(*given, "-o", "all.html", *options)
        assert code == 0, err
        assert ('"[CLS]"' in (tmp_path / "all.html").read_text(encoding="utf-8")) == bool(options)


def test_pictures_and_pages_of_texts(command, folder: Path, tmp_path: Path) -> None:
    outputs = [value for name in ("why.png", "why.html", "why.npz") for value in ("-o", name)]
    code, _, err = command(
        "explain", "The cat sat.", "Two kittens rested.", "-e", f"sentence:{folder}", *outputs
    )
    assert code == 0, err
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("why.png", "why.html", "why.npz"))
    assert "kittens" in (tmp_path / "why.html").read_text(encoding="utf-8")


def test_highlight_prints_words_or_json(command, folder: Path, tmp_path: Path) -> None:
    text = "\n  The kittens (two) rested — on a rug!\n"
    (tmp_path / "note.txt").write_text(text, encoding="utf-8")
    shared = ("highlight", "A cat sat.", "note.txt", "Two dogs run.", "-e", f"sentence:{folder}")
    code, out, err = command(*shared)
    assert code == 0 and err == "" and "\x1b" not in out
    assert "note.txt" in out and "(two)" in out and "unattributed" in out
    code, out, err = command(*shared, "--json", "--matrix")
    hits = json.loads(out)["highlights"]
    assert code == 0 and [hit["source"] for hit in hits] == ["note.txt", "Two dogs run."]
    assert all(text[s["start"] : s["end"]] == s["text"] for s in hits[0]["passage"])
    assert sum(s["weight"] for s in hits[0]["passage"]) + hits[0]["unattributed"] == pytest.approx(
        hits[0]["score"]
    )
    assert len(hits[0]["matrix"]) == len(hits[0]["query"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("@none.txt", "a"), "none.txt"),
        (("a", ""), "the text is empty"),
        (("a", "b", "--regions", "8"), "--regions 8: for texts"),
        (("a", "b", "--similarity", "squared_distance"), "squared_distance is not linear"),
        (("a", "b", "--similarity", "x"), "unknown similarity"),
    ],
)
def test_bad_arguments_of_highlight_raise_one_line_errors(
    command, folder: Path, arguments, expected: str
) -> None:
    code, out, err = command("highlight", *arguments, "-e", f"sentence:{folder}")
    assert code == 2 and out == "" and err.count("\n") == 1 and expected in err
