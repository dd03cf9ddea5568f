"""The template that all studies fill."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest

from bilrp.render.report import Paragraph, Table
from bilrp_studies.catalog import STUDIES
from bilrp_studies.common.image_folders import SkippedFile
from bilrp_studies.common.study import Settings, option
from bilrp_studies.common.study_report import build_study_report, tabulate_intervals


@dataclass(frozen=True, kw_only=True)
class MySettings(Settings):
    pairs: int = option(4, "Pairs to explain.", minimum=1)
    layers: tuple[int, ...] = option((17, 31), "Layers.")


def test_the_template_has_every_part_once_and_leaves_out_empty_sections():
    report = build_study_report(
        "Is it so?",
        "It is.",
        {"First": ["words", Table(("n",), [(1,)])], "Nothing to say": []},
        settings=MySettings(),
        results={"score": 0.5},
        protocol=["by counting"],
        skipped=[SkippedFile("broken.jpg", "not an image file")],
    )
    titles = [section.title for section in report.sections]
    assert titles == ["First", "How it was measured", "Settings", "What was left out"]
    assert report.sections[0].blocks[0] == Paragraph("words")
    (settings,) = report.sections[2].blocks
    assert isinstance(settings, Table) and list(settings.rows) == [("--pairs", "4"), ("--layers", "17 31")]
    assert report.results["score"] == 0.5 and report.results["settings"] == {"pairs": 4, "layers": (17, 31)}
    assert report.results["skipped"] == [{"file": "broken.jpg", "reason": "not an image file"}]


def test_tables_of_intervals_have_a_dash_where_nothing_was_measured():
    rows = {
        ("ours", 17): {"hit": (0.5, 0.25, 0.75)},
        ("other", 17): {"AUC": {"mean": 1.0, "low": 0.0, "high": 2.0}},
    }
    table = tabulate_intervals(("method", "layer", "hit", "AUC"), rows, ["hit", "AUC"], digits=1)
    assert list(table.rows) == [
        ("ours", 17, "0.5 (0.2\u00a0to\u00a00.8)", None),
        ("other", 17, None, "1.0 (0.0\u00a0to\u00a02.0)"),
    ]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_every_study_fills_the_template(study):
    spec = importlib.util.find_spec(study.target.partition(":")[0].rpartition(".")[0])
    assert spec is not None and spec.origin is not None
    sources = Path(spec.origin).parent.glob("*.py")
    assert any("build_study_report(" in path.read_text("utf-8") for path in sources)
