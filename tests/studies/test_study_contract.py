"""One contract for every study: a row in the table, settings with bounds, options from their fields, one of one's own."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from bilrp.errors import InputError
from bilrp_studies import Report, Settings, Study
from bilrp_studies.catalog import STUDIES, find_study
from bilrp_studies.cli.study import make_command, parse_integers

OWN = """
from dataclasses import dataclass
from pathlib import Path

from bilrp_studies import Report, Section, Settings, Study, Table, option, path_option

@dataclass(frozen=True, kw_only=True)
class Mine(Settings):
    data: Path = path_option(help="A folder of files.")
    out: Path = path_option(Path("out/mine"), "Folder for the report.")
    longest: int = option(80, "Longest name to allow.", minimum=1, maximum=255)
    lengths: tuple[int, ...] = option((1, 2), "Lengths to count.", minimum=1)
    suffix: str | None = option(None, "Only files with this suffix.")
    strict: bool = option(False, "Refuse longer names.")

def run(settings: Mine) -> Report:
    names = sorted(p.name for p in settings.data.iterdir() if settings.suffix in (None, p.suffix))
    rows = [(n, sum(len(name) == n for name in names)) for n in settings.lengths]
    answer = f"{len(names)} files, the longest name has {max(map(len, names))} letters."
    return Report("How long are names?", answer, [Section("Names", [Table(("length", "files"), rows)])], {"rows": rows})

STUDY = Study("mine", "How long are the names of files?", Mine, run)
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A folder with a user's file that holds a study, and the command line standing in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "namestudy", raising=False)
    (tmp_path / "namestudy.py").write_text(OWN)
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "cc.txt"):
        (tmp_path / "in" / name).touch()
    return tmp_path


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_every_row_keeps_the_contract(study):
    assert issubclass(study.settings, Settings) and is_dataclass(study.settings)
    assert study.settings.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert study.question.rstrip(".)").strip() and "?" in study.question
    assert all(each.metadata.get("help") for each in fields(study.settings) if each.name != "progress")
    assert isinstance(study.target, str) and study.target == f"bilrp_studies.{study.name}.study:run"


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_options_are_the_fields(study, bilrp_command):
    code, out, _ = bilrp_command("study", study.name, "--help")
    shown = "".join(out.split())
    assert code == 0
    for each in fields(study.settings):
        assert (f"--{each.name.replace('_', '-')}" in shown) == (each.name != "progress")
    assert make_command(study).__doc__ == study.question


def test_bounds_hold_however_settings_are_made():
    for study in STUDIES:
        places: dict[str, Any] = (
            {"data": Path("in")} if "data" in {f.name for f in fields(study.settings)} else {}
        )
        built = study.settings(**places)
        assert "out" not in built.result_options() and "progress" not in built.result_options()
        for each in fields(study.settings):
            least = each.metadata.get("minimum")
            if least is not None:
                wrong: Any = (least - 1,) if isinstance(each.default, tuple) else least - 1
                with pytest.raises(InputError, match=rf"--{each.name.replace('_', '-')} {least - 1}: give"):
                    study.settings(**places, **{each.name: wrong})


def test_numbers_on_the_command_line():
    assert parse_integers("layers", "31, 17") == (31, 17) and parse_integers("curve", "none") == ()
    for bad in ("", "x", "1.5", "1,,2", "٣", "-1"):
        with pytest.raises(InputError, match=r"--layers .*: give whole numbers with commas between"):
            parse_integers("layers", bad)
    photos = find_study("photos").settings
    assert photos(data=Path("in"), layers=(31, 17, 17)).layers == (17, 31)  # type: ignore[call-arg]
    for bad in ((), (0,), (32,)):
        with pytest.raises(InputError, match="--layers"):
            photos(data=Path("in"), layers=bad)  # type: ignore[call-arg]


def test_a_study_of_ones_own(own, bilrp_command):
    code, out, err = bilrp_command(
        "study", "namestudy:STUDY", "--data", "in", "--lengths", "6,1", "--longest", "9"
    )
    assert (code, err) == (0, "")
    assert out.splitlines() == ["3 files, the longest name has 6 letters.", "out/mine/report.html"]
    assert json.loads((own / "out" / "mine" / "results.json").read_text()) == {"rows": [[1, 2], [6, 1]]}
    assert "How long are names?" in (own / "out" / "mine" / "report.html").read_text()
    code, out, _ = bilrp_command("study", "namestudy:STUDY", "--help")
    assert code == 0 and "How long are the names of files?" in out
    assert "--longest" in out and "1<=x<=255" in out and "--strict" in out


def test_a_study_of_ones_own_from_python(own, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    study = find_study("namestudy:STUDY")
    report = study.run(study.settings(data=own / "in"))  # type: ignore[call-arg]
    assert (
        isinstance(study, Study) and isinstance(report, Report) and report.results["rows"] == [(1, 2), (2, 0)]
    )
    assert not (own / "out").exists(), "a run writes nothing: the report is written where one wants it"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("absent.module:STUDY", "cannot import 'absent.module'"),
        ("namestudy:run", "has no study 'run'"),
        ("namestudy:absent", "has no study 'absent'"),
    ],
)
def test_what_is_not_a_study_is_one_line(own, bilrp_command, name, expected):
    code, out, err = bilrp_command("study", name, "--data", "in")
    assert code == 2 and out == "" and expected in err and err.count("\n") == 1
    with pytest.raises(InputError, match="there are toy, photos"):
        find_study("nothing")


def test_a_bad_value_is_refused_before_anything_is_read(own, bilrp_command):
    for arguments in (("--longest", "0"), ("--lengths", "x"), ("--lengths", "0")):
        code, out, err = bilrp_command("study", "namestudy:STUDY", "--data", "nowhere", *arguments)
        assert code == 2 and out == "" and arguments[0] in err and "Traceback" not in err
