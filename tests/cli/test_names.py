"""Names of files of any bytes: shown escaped in pictures, pages, reports and the terminal, never executed, never fatal."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bilrp import cli
from bilrp.errors import InputError, to_printable
from bilrp.render.report import Paragraph, Report, Section, Table

NAMES = [
    b"\xff\xfe.png", b"<script>document.title=1<script>.png", b"\x1b[2J\x1b]0;x\x07.png", b"$\\frac{$.png",
    b"a\nb\r.png", "\u202egnp.exe\u2066.png".encode(), b"]]>--><img src=x onerror=alert(1)>.png", b"[red]x[bold.png",
    b"|a|`b`[c](d).png", "漢字😀.png".encode(), b"\xc2\x9b2J.png", b"{{data}}.png", b"</title>.png",
]  # fmt: skip
ENCODER = """
import torch
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(8))
"""


def run_command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bilrp", *words])
    monkeypatch.setattr("warnings.showwarning", None)  # put back afterwards
    try:
        cli.main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "named_net.py").write_text(ENCODER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_explain_shows_a_name_and_does_not_interpret_it(workdir, monkeypatch, capfdbinary, name):
    path = os.fsdecode(name)
    if os.sep in path:  # what follows it would be a folder
        path = path.replace(os.sep, "_")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    outputs = [f"out{suffix}" for suffix in (".png", ".svg", ".pdf", ".html", ".npz")]
    options = [word for output in outputs for word in ("-o", output)]
    assert run_command(monkeypatch, "explain", path, path, "-e", "named_net:net", *options) == 0
    output, errors = capfdbinary.readouterr()
    assert all(Path(output).stat().st_size for output in outputs)
    shown = output + errors
    assert b"\x1b" not in shown and b"\x07" not in shown and b"\x9b2J" not in shown and b"\r" not in shown
    assert to_printable(path).encode() in output
    page = Path("out.html").read_text("utf-8")
    assert "<img src=x" not in page and "document.title=1<script>" not in page and "</title>.png" not in page


def test_json_and_errors_hold_such_names_too(workdir, monkeypatch, capfdbinary):
    path = os.fsdecode(b"\xff\x1b[2J.png")
    Image.new("RGB", (32, 32), "red").save(path)
    assert run_command(monkeypatch, "explain", path, path, "-e", "named_net:net", "--json") == 0
    output = capfdbinary.readouterr()[0]
    assert json.loads(output)["a"] == path and b"\x1b" not in output
    assert run_command(monkeypatch, "explain", path + "\n", path, "-e", "named_net:net") == 2
    output, errors = capfdbinary.readouterr()
    assert errors.count(b"\n") == 1 and b"\x1b" not in errors and b"\\xff\\x1b[2J.png\\x0a" in errors


def test_errors_are_one_line():
    assert str(InputError(os.fsdecode(b"\xff\x1b\n\xe2\x80\xae"))) == "\\xff\\x1b\\x0a\\u202e"


def test_reports_show_names_and_do_not_interpret_them(tmp_path):
    names = [os.fsdecode(name) for name in NAMES]
    table = Table(("file", "reason"), [(name, 1.0) for name in names], caption=names[0])
    report = Report(
        names[1],
        names[2],
        [Section(name, [Paragraph(name), table]) for name in names],
        results={"skipped": names},
    )
    page = report.write(tmp_path)
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))["skipped"][2:] == names[2:]
    for page_path in (page, tmp_path / "report.md"):
        text = page_path.read_text("utf-8")
        assert (
            "<script" not in text and "<img src=x" not in text and "\x1b" not in text and "\u202e" not in text
        )
        assert "\\\\xff" in text or "\\xff" in text
    markdown = (tmp_path / "report.md").read_text("utf-8")
    assert "[c](d)" not in markdown and "$\\frac" not in markdown.replace("\\$", "")
    assert all(
        line.count("|") - line.count("\\|") == 3 for line in markdown.splitlines() if line.startswith("| ")
    )
