"""`bilrp repair` and `bilrp search --repair`: from an audit to neighbours without the stamp."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

import bilrp
from bilrp.collection.repair import Repair

pytest.importorskip("lance", reason="collections need bilrp[collection]")
BY = ("-e", "tinymodel:tiny", "--size", "32")
AGAIN = ("-e", "tinymodel:tiny")


@pytest.fixture
def scans(workdir: Path, bilrp_command) -> Path:
    """Thirty scenes in two views each, every third with a bar, as a collection."""
    rng = np.random.default_rng(3)
    (workdir / "scans").mkdir()
    scenes = rng.integers(60, 200, (30, 5, 5, 3), dtype=np.uint8)
    for number in range(60):
        full = Image.fromarray(scenes[number // 2]).resize((72, 72), Image.Resampling.BICUBIC)
        shift = 4 * (number % 2)
        picture = full.crop((shift, shift, 64 + shift, 64 + shift))
        if number % 3 == 0:
            ImageDraw.Draw(picture).rectangle((0, 52, 64, 64), "black", "white", 2)
        picture.save(workdir / "scans" / f"{number:02}.png")
    assert bilrp_command("index", "scans", *BY, "-o", "x.lance")[0] == 0
    return workdir


def test_from_a_box_to_a_search(scans: Path, bilrp_command) -> None:
    code, out, err = bilrp_command(
        "repair", "x.lance", *AGAIN, "--part", "0,50,64,14", "--of", "00.png", "-o", "bar.safetensors"
    )
    assert code == 0, err
    assert "in 20 of 60 items" in out and "right neighbours" in out and "--repair bar.safetensors" in out
    answer = json.loads(
        bilrp_command("search", "x.lance", *AGAIN, "00.png", "--repair", "bar.safetensors", "--json")[1]
    )
    plain = json.loads(bilrp_command("search", "x.lance", *AGAIN, "00.png", "--json")[1])
    stamped = [sum(int(n["name"][:2]) % 3 == 0 for n in each["neighbours"]) for each in (plain, answer)]
    assert stamped[1] < stamped[0]
    # what a vector database does: correct all rows, then rank by cosine
    repair = Repair.load(scans / "bar.safetensors")
    reopened = bilrp.collection.open(scans / "x.lance")
    rows = repair.apply(reopened.embeddings)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    query = reopened.names.index("00.png")
    order = np.argsort(-(rows @ rows[query]))
    expected = [reopened.names[i] for i in order if i != query][:10]
    assert [n["name"] for n in answer["neighbours"]] == expected


def test_explanations_say_that_they_are_repaired(scans: Path, bilrp_command) -> None:
    requested = (
        "repair",
        "x.lance",
        *AGAIN,
        "--part",
        "0,50,64,14",
        "--of",
        "0",
        "-o",
        "b.safetensors",
        "--json",
    )
    answer = json.loads(bilrp_command(*requested)[1])
    assert answer["report"]["after"]["restored"] > answer["report"]["before"]["restored"]
    (scans / "new.png").write_bytes((scans / "scans" / "03.png").read_bytes())
    code, out, err = bilrp_command(
        "search",
        "x.lance",
        *AGAIN,
        "new.png",
        "--repair",
        "b.safetensors",
        "-k",
        "2",
        "-o",
        "why.html",
        "--explain",
    )
    assert code == 0, err
    assert "Nearest to new.png, repaired" in out and "osine, repaired" in out
    assert "cosine, repaired" in (scans / "why.html").read_text()


def test_items_that_have_it_are_named(scans: Path, bilrp_command) -> None:
    """Five of the twenty: the others that have it are neither corrected nor counted as without it."""
    names = [f"{number:02}.png" for number in range(0, 15, 3)]
    (scans / "have.txt").write_text("\n".join([*names, ""]))
    box = ("--part", "0,50,64,14", "--of", "00.png", "--carriers", "have.txt", "-o", "some.safetensors")
    code, out, err = bilrp_command("repair", "x.lance", *AGAIN, *box)
    assert code == 0, err
    assert "in 5 of 60 items" in out
    (scans / "have.txt").write_text("00.png\ngone.png\n")
    assert "gone.png" in bilrp_command("repair", "x.lance", *AGAIN, *box)[2]


def test_an_audit_ends_with_the_repair_it_proposes(scans: Path, bilrp_command) -> None:
    code, out, err = bilrp_command("audit", "x.lance", *AGAIN, "--sample", "12", "-o", "audit")
    assert code == 0, err
    assert "repair of 1: " in out and "right neighbours" in out
    assert "bilrp search x.lance QUERY --repair audit/repair-1.safetensors" in out
    repairs = json.loads((scans / "audit" / "results.json").read_text())["repairs"]
    assert repairs[0]["proposed"] and repairs[0]["report"]["carriers"] == 20
    refused = [each["refusal"] for each in repairs if not each["proposed"]]
    assert all(refused) and any("every item has it" in each for each in refused)
    assert "Measured before they are applied" in (scans / "audit" / "report.html").read_text()
    written = Repair.load(scans / "audit" / "repair-1.safetensors").report
    assert json.loads(json.dumps(written.to_dict())) | {"missed": written.missed} == repairs[0]["report"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("repair", "x.lance"), "say which part should not count"),
        (("repair", "x.lance", "--part", "0,0,9,9"), "say which part should not count"),
        (("repair", "x.lance", *AGAIN, "--part", "0,0,9,9", "--of", "gone.png"), "gone.png"),
        (("repair", "x.lance", *AGAIN, "--words", "All rights"), "these items are images"),
        (
            ("repair", "x.lance", *AGAIN, "--part", "0,50,64,14", "--of", "0", "--method", "x"),
            "unknown method",
        ),
        (
            ("repair", "x.lance", *AGAIN, "--part", "0,0,16,16", "--of", "1"),
            "name them, carriers= (--carriers FILE)",
        ),
        (("search", "x.lance", *AGAIN, "0", "--repair", "gone.safetensors"), "no file gone.safetensors"),
        (("search", "x.lance", *AGAIN, "0", "--repair", "b.safetensors", "--part", "1,1,9,9"), "leave out"),
    ],
)
def test_bad_arguments_raise_one_line_errors(scans: Path, bilrp_command, arguments, said) -> None:
    code, out, err = bilrp_command(*arguments)
    assert code == 2 and said in err and err.count("\n") == 1 and "Traceback" not in err and out == ""
