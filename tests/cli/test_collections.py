"""Collections from the command line: index a folder, search by a picture, a text, a box, a word."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from bilrp.errors import InputError
from text_folders import ARCHITECTURES

pytest.importorskip("lance", reason="collections need bilrp[collection]")
BY = ("-e", "tinymodel:tiny", "--size", "32")
AGAIN = ("-e", "tinymodel:tiny")  # a collection names no code that runs unless it is asked for


def test_three_commands_from_a_folder_to_a_page(more: Path, bilrp_command) -> None:
    code, out, err = bilrp_command("index", "left", "right", *BY, "-o", "x.lance")
    assert code == 0 and err == "" and "x.lance: 3 items (3 new, 0 unchanged)" in out
    code, out, _ = bilrp_command("index", "left", "right", *BY, "-o", "x.lance")
    assert "(0 new, 3 unchanged)" in out
    code, out, _ = bilrp_command(
        "search", "x.lance", *AGAIN, "a.png", "-k", "2", "--explain", "-o", "why.html"
    )
    assert code == 0 and "Nearest to a.png, of 3:" in out and "b.png" in out and "Cosine" in out
    assert (more / "why.html").read_text().count('"version":1') == 2
    by_part = json.loads(
        bilrp_command("search", "x.lance", *AGAIN, "a.png", "--part", "0,0,30,20", "--json")[1]
    )
    assert by_part["regions"] and len(by_part["neighbours"]) == 2
    without = json.loads(
        bilrp_command("search", "x.lance", *AGAIN, "a.png", "--part", "0,0,30,20", "--without", "--json")[1]
    )
    assert [n["score"] for n in without["neighbours"]] != [n["score"] for n in by_part["neighbours"]]
    d = json.loads(
        bilrp_command("search", "x.lance", *AGAIN, "d.png", "--json")[1]
    )  # a file that is not in it
    assert len(d["neighbours"]) == 3


def test_a_copy_is_said_to_be_the_same_and_sentences_are_wrapped(more: Path, bilrp_command) -> None:
    bilrp_command("index", "left", "right", *BY, "-o", "x.lance")
    shutil.copy(next((more / "left").iterdir()), more / "copy.png")
    out = bilrp_command("search", "x.lance", *AGAIN, "copy.png", "--explain")[1]
    same = [line for line in out.splitlines() if line.endswith("(the same image)")]
    assert len(same) == 1 and same[0].startswith("  1  ")
    assert "\n      Cosine" in out and max(map(len, out.splitlines())) <= 100


def test_the_part_is_said_and_the_neighbours_before_they_are_explained(
    more: Path,
    bilrp_command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bilrp_command("index", "left", "right", *BY, "-o", "x.lance")
    requested = ("search", "x.lance", *AGAIN, "a.png", "--part", "0,0,30,20", "-k", "2", "-o", "why.html")
    code, out, _ = bilrp_command(*requested)
    assert code == 0 and "Nearest to a.png by its box 0,0,30,20 (" in out
    assert "by its box 0,0,30,20 (" in (more / "why.html").read_text()
    code, _, err = bilrp_command("search", "x.lance", *AGAIN, "a.png", "-k", "40", "-o", "why.html")
    assert code != 0 and "-k 40: a page has at most 28 explanations" in err

    def interrupted(*_: object, **__: object) -> None:
        raise InputError("interrupted")

    monkeypatch.setattr("bilrp.collection.core.Collection.explain", interrupted)
    code, out, err = bilrp_command(*requested)
    assert code != 0 and "interrupted" in err and "b.png" in out


def test_a_name_that_several_items_have_is_not_guessed(more: Path, bilrp_command) -> None:
    for folder, other in (("one", "a.png"), ("two", "b.png")):
        (more / folder).mkdir()
        shutil.copy(next(more.rglob(other)), more / folder / "scan.png")
    bilrp_command("index", "one", "two", *BY, "-o", "x.lance")
    code, _, err = bilrp_command("search", "x.lance", *AGAIN, "scan.png")
    assert code != 0 and "2 items are called scan.png: give the file or id" in err and "one" in err
    code, out, _ = bilrp_command("search", "x.lance", *AGAIN, "two/scan.png")
    assert code == 0 and "of 2:" in out


def test_a_plain_search_decomposes_nothing(
    more: Path,
    bilrp_command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bilrp_command("index", "left", "right", *BY, "-o", "x.lance")
    expected = json.loads(bilrp_command("search", "x.lance", *AGAIN, "d.png", "--json", "-o", "why.html")[1])
    monkeypatch.setattr("bilrp.collection.core.decompose_item", lambda *_: pytest.fail("it was decomposed"))
    output = json.loads(bilrp_command("search", "x.lance", *AGAIN, "d.png", "--json")[1])
    for neighbours, before in zip(output["neighbours"], expected["neighbours"], strict=True):
        assert neighbours["name"] == before["name"] and neighbours["score"] == pytest.approx(
            before["score"], rel=1e-5
        )


def test_an_audit_and_its_report(more: Path, bilrp_command) -> None:
    bilrp_command("index", "left", "right", "d.png", *BY, "-o", "x.lance")
    code, out, err = bilrp_command("audit", "x.lance", *AGAIN, "-o", "audit")
    assert code == 0 and err == "" and "pairs of near neighbours, of 4 items" in out
    assert "Where neighbours are similar" in (more / "audit" / "report.html").read_text()
    assert json.loads((more / "audit" / "results.json").read_text())["pairs"] >= 2


def test_texts(more: Path, bilrp_command) -> None:
    folder = ARCHITECTURES[0].save(more / "bert", dtype=torch.float32)
    (more / "texts.csv").write_text(
        "caption,group\nThe cat sat.,x\nTwo kittens rested.,y\nIt rains.,y\nIt rains.,y\n"
    )
    code, out, err = bilrp_command("index", "texts.csv", "-e", f"sentence:{folder}", "-o", "t.lance")
    assert code == 0, err
    assert "t.lance: 3 items (3 new, 0 unchanged, 1 duplicates)" in out
    output = json.loads(bilrp_command("search", "t.lance", "A cat rests.", "--words", "2", "--json")[1])
    assert len(output["neighbours"]) == 3 and len(output["regions"]) == 1
    code, _, err = bilrp_command(
        "index", "texts.csv", "-e", f"sentence:{folder}", "-o", "u.lance", "--column", "gone"
    )
    assert code == 2 and "--column; there are caption, group" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("index", "left", "-o", "x", *BY), "ends with .lance"),
        (("index", "gone", "-o", "x.lance", *BY), "no such file"),
        (("search", "gone.lance", "a.png"), "no collection there"),
        (("search", "x.lance", *AGAIN, "gone.png"), "no such file"),
        (("search", "x.lance", *AGAIN, "dog"), "dog: no such file; x.lance contains images"),
        (("search", "x.lance", *AGAIN, "a.png", "--part", "1,2"), "--part 1,2: give X,Y,W,H"),
        (("search", "x.lance", *AGAIN, "a.png", "--part", "900,900,3,3"), "the image is 60×40"),
        (("search", "x.lance", *AGAIN, "a.png", "--words", "1-2"), "--words 1-2: give I-J, words of a text"),
        (("search", "x.lance", *AGAIN, "a.png", "-o", "why.png"), "the suffix must be one of .html"),
    ],
)
def test_bad_arguments_raise_one_line_errors(more: Path, bilrp_command, arguments, message) -> None:
    bilrp_command("index", "left", *BY, "-o", "x.lance")
    code, out, err = bilrp_command(*arguments)
    assert code == 2 and message in err and err.count("\n") == 1 and "Traceback" not in err and out == ""


def test_a_damaged_collection_is_one_line(more: Path, bilrp_command) -> None:
    bilrp_command("index", "left", *BY, "-o", "x.lance")
    for file in (more / "x.lance" / "items.lance" / "data").iterdir():
        file.write_bytes(b"x" * 100)
    code, _, err = bilrp_command("search", "x.lance", *AGAIN, "a.png")
    assert code == 2 and err.count("\n") == 1 and "Traceback" not in err
    shutil.rmtree(more / "x.lance" / "items.lance" / "_versions")
    code, _, err = bilrp_command("search", "x.lance", *AGAIN, "a.png")
    assert code == 2 and err.count("\n") == 1


def test_a_graph_from_a_list_of_files(more: Path, bilrp_command) -> None:
    files = sorted(path.relative_to(more) for side in ("left", "right") for path in (more / side).iterdir())
    rows = [f"{path},{1500 + n},town {n}" for n, path in enumerate(files)]
    (more / "list.csv").write_text("\n".join(["file,year,place", *rows]))
    assert bilrp_command("index", "list.csv", *BY, "-o", "y.lance")[0] == 0
    asked = ("graph", "y.lance", *AGAIN, "-k", "2", "--time", "year", "--place", "place")
    code, out, err = bilrp_command(*asked, "-o", "net.html", "-o", "net.json")
    assert code == 0 and err == "" and "3 items, 3 edges by embedding" in out and "first: " in out
    data = json.loads((more / "net.json").read_text())
    assert len(data["edges"]) == 3 and all(edge["reason"]["parts"] for edge in data["edges"])
    assert [one["certain"] for one in data["sources"]] == [True, True]
    assert "town 2" in (more / "net.html").read_text()
    for wrong, message in (
        (("--time", "yeer"), "there is no column 'yeer' in the metadata; its columns are year, place"),
        (("--place", "town"), "there is no column 'town'"),
        (("--by", "size"), "give one of embedding, numbers"),
        (("--by", "numbers"), "no pages with numbers"),
        (("-o", "net.txt"), "a graph is written as .html"),
        (("-o", "none/net.html"), "there is no folder none"),
    ):
        code, out, err = bilrp_command("graph", "y.lance", *AGAIN, *wrong)
        assert code != 0 and out == "" and message in err and err.count("\n") == 1, wrong
