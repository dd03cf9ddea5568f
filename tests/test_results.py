"""No two pages disagree: measured figures in README.md and docs/ are those of benchmarks/results.json."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
results = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "results.py")))
# Numbers with a unit that are not measurements: sizes of downloads, and limits that the code sets.
NOT_MEASURED = {
    "README.md": {"17 MB"},
    "docs/app.md": {"1 GB", "32 MB", "384 MB", "96 MB", "256 MB"},
    "docs/choosing.md": {"17 MB", "64 MB", "84 MB"},
    "docs/collections.md": {"512 MB", "256 MB"},
    "docs/gallery/sentences.md": {"84 MB"},
    "docs/start/index.md": {"17 MB"},
}


def test_no_page_disagrees_with_the_results() -> None:
    assert results.find_disagreements(results.read_results()) == []


@pytest.mark.parametrize("page", results.PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_measured_number_is_marked(page: Path) -> None:
    unmarked = set(results.list_unmarked(page)) - NOT_MEASURED.get(page.relative_to(ROOT).as_posix(), set())
    assert not unmarked, (
        f"{sorted(unmarked)}: write <!-- results: NAME --> above the table or paragraph that has them, then "
        "python benchmarks/results.py adopt NAME 'COMMAND THAT MEASURED THEM'; or quote a figure that is there, "
        "<!-- = NAME: words of its row | words of its column -->; or add them to NOT_MEASURED in tests/test_results.py"
    )


def test_each_result_says_how_when_and_where_it_was_measured() -> None:
    for name, result in results.read_results().items():
        assert len(result["command"]) > 8 and len(result["commit"]) == 7 and result["date"] > "2026", name


@pytest.mark.parametrize(
    ("quoted", "unit", "result", "agrees"),
    [
        ("50", " times", "53", True), ("53", "×", "53", True), ("60", " times", "53", False), ("74", " %", ".74", True),
        ("75", " %", ".74", False), ("0", " %", ".00", True), ("0.6", " s", "0.63", True), ("0.7", " s", "0.63", False),
        ("1,000", "", "1,024", True), ("−.3", "", "−.28", True), (".3", "", "−.28", False),
    ],
)  # fmt: skip
def test_a_quote_may_be_rounded_and_nothing_else(quoted: str, unit: str, result: str, agrees: bool) -> None:
    assert results.rounds_to(quoted, unit, result) == agrees


def test_a_changed_figure_is_noticed_and_can_be_adopted_or_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, file = tmp_path / "page.md", tmp_path / "results.json"
    text = (
        "<!-- results: speed -->\n| model | CPU<br>time |\n|---|---|\n| **a** | **.63** |\n| b | 2 / .7 |\n\n"
        "a takes .6<!-- = speed: a | CPUtime --> and b .7<!-- = speed: b | time | 2 -->\n\n5 s\n"
    )
    page.write_text(text)
    functions = results.find_disagreements.__globals__
    for name, value in {"PAGES": (page,), "FILE": file, "ROOT": tmp_path}.items():
        monkeypatch.setitem(functions, name, value)
    content = [["model", "CPU<br>time"], ["a", ".63"], ["b", "2 / .7"]]
    stored = {"command": "c", "commit": "d", "date": "e", "content": content}
    assert results.find_disagreements({"speed": stored}) == []
    assert results.list_unmarked(page) == ["5 s"]
    faster = {"speed": {**stored, "content": [content[0], ["a", ".31"], content[2]]}}
    table, quote = results.find_disagreements(faster)
    assert "['a', '.63']" in table and "adopt speed" in table
    assert "says .6, speed has .31" in quote
    results.write_results({**faster, "other": stored})
    results.update()
    assert results.read_results() == faster
    assert results.find_disagreements(results.read_results()) == []
    assert page.read_text() == text.replace("**.63**", "**.31**").replace("takes .6", "takes .31")
    results.write_results({"speed": stored})  # the page has .31 by now
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="1234567\n"))
    results.adopt("changed", "measured again")
    adopted = results.read_results()["speed"]
    assert adopted["content"] == faster["speed"]["content"] and adopted["commit"] == "1234567"
    assert "is not in" in results.find_disagreements({})[0]
    assert "which no page shows" in results.find_disagreements({**faster, "other": stored})[-1]
