"""The report writer: the same content in three forms, whole or not at all."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from bilrp.errors import InputError
from bilrp.io import files
from bilrp.render.report import Paragraph, Picture, Report, Section, Table, format_cell, to_jsonable


def example(**changes) -> Report:
    sections = [
        Section(
            "First <b>",
            [Paragraph("a < b & c"), Table(("x", "y|z"), [("one", 0.123456), ("two", None)], "cap")],
        ),
        Section("Second", [Picture("dot file.png", b"\x89PNG", "a dot")]),
    ]
    values = {
        "title": "T & t",
        "summary": "S",
        "sections": sections,
        "results": {"v": torch.tensor([1.0, 2.0])},
    }
    return Report(**{**values, **changes})


def test_three_forms_and_the_figure(tmp_path):
    page = example().write(tmp_path / "deep" / "out")
    assert sorted(p.name for p in page.parent.iterdir()) == [
        "dot file.png", "report.html", "report.md", "results.json",
    ]  # fmt: skip
    assert json.loads((page.parent / "results.json").read_text()) == {"v": [1.0, 2.0]}
    text = page.read_text()
    assert "T &amp; t" in text and "First &lt;b&gt;" in text and "a &lt; b &amp; c" in text
    assert "0.1235" in text and "src='dot%20file.png'" in text
    markdown = (page.parent / "report.md").read_text()
    assert "| x | y\\|z |" in markdown and "![a dot](dot%20file.png)" in markdown


def test_nothing_is_written_when_a_figure_fails(tmp_path):
    class Broken:
        def savefig(self, *_, **__):
            raise InputError("no figure")

    with pytest.raises(InputError):
        example(sections=[Section("s", [Picture("a.png", Broken())])]).write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_matplotlib_figures_are_the_same_bytes_each_time(tmp_path):
    from matplotlib.figure import Figure

    for name in ("a.png", "b.svg"):
        figure = Figure(figsize=(1, 1))
        figure.add_subplot().plot([1, 2])
        report = example(sections=[Section("s", [Picture(name, figure)])])
        report.write(tmp_path / "one")
        assert (tmp_path / "one" / name).stat().st_size > 100
    assert (tmp_path / "one" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_plain_and_number():
    value = {1: np.float32(0.5), "n": float("nan"), "t": (torch.tensor(2), None, True), "p": files}
    assert (
        to_jsonable(value)["1"] == 0.5
        and to_jsonable(value)["n"] is None
        and to_jsonable(value)["t"] == [2, None, True]
    )
    assert [format_cell(v) for v in (0.000123456, 1234567.0, 3, None, float("nan"), "x")] == [
        "0.0001235", "1.235e+06", "3", "–", "–", "x",
    ]  # fmt: skip


def test_whole_leaves_the_old_file_when_writing_fails(tmp_path):
    target = tmp_path / "a.txt"
    files.write_text(target, "old")
    with pytest.raises(RuntimeError), files.atomic_write(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        files.write_text(tmp_path / "folder", "x")
    with pytest.raises(InputError, match="cannot write"):
        files.write_text(target / "below", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "folder"]
