"""docs/coverage.md: a few of its models by the code that makes the page, and figures that are its own rows'."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("transformers", reason="needs transformers")
DOCS = Path(__file__).parents[1] / "docs"
FEW = ["bert", "clip", "resnet", "wav2vec2", "bitnet", "t5", "falcon", "ctrl"]


@pytest.fixture(scope="module")
def maker() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module("make_coverage")
    sys.path.remove(str(DOCS))


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("model_type", FEW)
def test_it_runs_untouched(maker: ModuleType, model_type: str) -> None:
    cases = list(maker.cases_of(model_type))
    assert cases and not any(isinstance(case, str) for case in cases)
    for case in cases:
        row = maker.check(case)
        assert maker.works(row), maker.summary(row)


@pytest.mark.filterwarnings("ignore")
def test_a_refusal_has_a_way_out_that_was_tried(maker: ModuleType) -> None:
    (case,) = maker.cases_of("fnet")
    row = maker.check(case)
    assert "complex numbers" in row["refused"] and row["way"] is not None


def test_a_wrong_number_is_seen(maker: ModuleType) -> None:
    row = {"error": 1e-3, "oracle": "autograd", "directions": 0.0, "conservation": 0.0, "empty": False}
    assert not maker.works(row)
    assert maker.works(row | {"error": 1e-7})
    assert not maker.works(row | {"error": 0.0, "empty": True})


def rows_under(page: str, title: str) -> int:
    """The rows of the table under a title; none where it is not there."""
    section = re.search(rf"^## {title}\n\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return 0 if section is None else max(0, len(re.findall(r"^\|", section[1], re.M)) - 2)


def test_the_figures_of_the_page_are_its_rows() -> None:
    page = (DOCS / "coverage.md").read_text()
    said = re.search(
        r"\*\*(\d+) of (\d+) encoders run untouched\*\*, (\d+) are refused \((\d+) .*?, (\d+) are", page
    )
    assert said is not None
    good, explained, refused, ways, wrong = map(int, said.groups())
    assert good == rows_under(page, "Run untouched")
    assert refused == rows_under(page, "Refused")
    assert wrong == rows_under(page, "Wrong, or failed")
    assert explained == good + refused + wrong
    without = re.search(r"^## Refused\n(.*?)(?=^## )", page, re.M | re.S)
    assert ways == refused - (0 if without is None else without[1].count("| none |"))
    absent = re.search(r"(\d+) types could not be built", page)
    assert absent is not None and int(absent[1]) == rows_under(page, "Not built")
