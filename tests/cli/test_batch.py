"""More than two inputs, several encoders, contrast and sets from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bilrp.groups import Contrast

BY = ("-e", "tinymodel:tiny", "--size", "32")


def test_all_pairs_in_one_page(more: Path, bilrp_command) -> None:
    code, out, err = bilrp_command("explain", "a.png", "b.png", "c.png", *BY, "-o", "why.html")
    assert code == 0 and err == ""
    assert [p in out for p in ("a.png and b.png", "a.png and c.png", "b.png and c.png")] == [True] * 3
    text = (more / "why.html").read_text()
    assert text.count('"version":1') == 3 and "wrote why.html" in out
    pair = json.loads(bilrp_command("explain", "b.png", "c.png", *BY, "--json")[1])
    rows = json.loads(bilrp_command("explain", "a.png", "b.png", "c.png", *BY, "--json")[1])["explanations"]
    assert rows[2]["score"] == pytest.approx(pair["score"])
    one = json.loads(
        bilrp_command("explain", "a.png", "b.png", "c.png", "d.png", *BY, "--first", "--json")[1]
    )
    assert [row["heading"] for row in one["explanations"]] == [f"a.png and {n}.png" for n in "bcd"]


def test_several_encoders_side_by_side(more: Path, bilrp_command) -> None:
    code, out, _ = bilrp_command("explain", "a.png", "b.png", *BY, "-e", "torch.nn:Flatten", "-o", "why.html")
    assert code == 0 and "tinymodel:tiny\n" in out and "torch.nn:Flatten\n" in out
    assert '"columns":2' in (more / "why.html").read_text()


def test_why_this_and_not_that(more: Path, bilrp_command) -> None:
    code, out, _ = bilrp_command("contrast", "a.png", "b.png", "c.png", *BY, "-o", "why.html")
    assert code == 0 and "a.png is closer to " in out and "What makes it similar to c.png" in out
    scores = [
        json.loads(bilrp_command("explain", "a.png", other, *BY, "--similarity", "cosine", "--json")[1])[
            "score"
        ]
        for other in ("b.png", "c.png")
    ]
    message = json.loads(bilrp_command("contrast", "a.png", "b.png", "c.png", *BY, "--json")[1])["summary"]
    nearer = "b.png" if scores[0] > scores[1] else "c.png"
    assert f"closer to {nearer} than" in message and f"{abs(scores[0] - scores[1]):.4g}" in message


def test_a_contrast_is_written_in_every_format_in_units_of_the_score(more: Path, bilrp_command) -> None:
    names = [f"why.{suffix}" for suffix in ("html", "png", "svg", "pdf", "npz", "safetensors")]
    outputs = [option for name in names for option in ("-o", name)]
    answer = json.loads(bilrp_command("contrast", "a.png", "b.png", "c.png", *BY, *outputs, "--json")[1])
    assert all((more / name).stat().st_size > 1000 for name in names)
    ours, *theirs = (sum(answer["contributions"][side]) for side in "abc")
    assert ours == pytest.approx(answer["score"] - answer["unattributed"], abs=1e-5)
    assert sum(theirs) == pytest.approx(ours, abs=1e-5)
    loaded = Contrast.load(more / "why.npz")
    assert loaded.score == pytest.approx(answer["score"])


def test_three_inputs_start_with_the_scores_of_all_pairs(more: Path, bilrp_command) -> None:
    _, out, _ = bilrp_command("explain", "a.png", "b.png", "c.png", *BY, "-o", "why.html")
    table = out.split("\n\n")[0].splitlines()
    assert table[0] == "cosine of every pair" and len(table) == 5
    score = json.loads(bilrp_command("explain", "a.png", "c.png", *BY, "--json")[1])["score"]
    assert table[2].split()[2] == table[4].split()[1] == f"{score:.4g}"
    assert '"caption":"cosine of every pair"' in (more / "why.html").read_text()


def test_matches_that_a_summary_names_are_listed(more: Path, bilrp_command) -> None:
    for inputs in (
        ("explain", "a.png", "b.png", "c.png"),
        ("explain", "a.png", "b.png"),
        ("sets", "left", "right"),
    ):
        _, out, _ = bilrp_command(*inputs, *BY)
        named = re.findall(r"\bmatch (\d+) \(", out)
        listed = re.findall(r"^ +(\d+) +\S.* ↔ ", out, re.MULTILINE)
        assert named and set(named) <= set(listed)


def test_two_folders(more: Path, bilrp_command) -> None:
    code, out, _ = bilrp_command(
        "sets", "left", "right", *BY, "--similarity", "dot", "-o", "why.png", "-o", "why.npz"
    )
    assert code == 0 and "left (2)" in out and (more / "why.png").stat().st_size > 1000
    total = sum(
        json.loads(bilrp_command("explain", a, "c.png", *BY, "--similarity", "dot", "--json")[1])["score"]
        for a in ("a.png", "b.png")
    )
    answer = json.loads(
        bilrp_command("sets", "left", "right", *BY, "--similarity", "dot", "--json", "-o", "why.html")[1]
    )
    assert answer["score"] == pytest.approx(total, rel=1e-4)
    assert answer["mean"] == pytest.approx(total / 2, rel=1e-4) and np.shape(answer["scores"]) == (2, 1)
    assert answer["summary"].startswith("Dot ") and "2 × 1 pairs" in answer["summary"]
    page = (more / "why.html").read_text()
    assert page.count("data:image/jpeg;base64") >= 3 and '"title":"left"' in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "a.png", "b.png", "c.png", "--plan"), "--plan is for two inputs"),
        (("explain", "a.png", "b.png", "c.png", "--max-regions", "32"), "--max-regions is for two inputs"),
        (("explain", "a.png"), "explain needs two or more inputs"),
        (("explain", "a.png", "b.png", "c.png", "-o", "why.png"), "written as one page"),
        (("explain", "a.png", "b.png", "-e", "absent:f", "-o", "why.png"), "written as one page"),
        (("explain", "a.png", "b.png", "gone.png"), "no such file"),
        (("explain", *["a.png"] * 9, "-o", "why.html"), "36 explanations are too many"),
        (("contrast", "a.png", "b.png", "c.png", "-o", "why.txt"), "the suffix must be one of"),
        (("contrast", "a.png", "b.png", "gone.png"), "gone.png: no such file"),
        (("explain", "a.png", "b.png", "--show", "nothing"), "cannot show 'nothing'"),
        (("sets", "left", "gone"), "gone"),
    ],
)
def test_bad_arguments_raise_one_line_errors(more: Path, bilrp_command, arguments, message) -> None:
    code, out, err = bilrp_command(*arguments, *BY)
    assert code == 2 and message in err and err.count("\n") == 1 and "Traceback" not in err and out == ""
