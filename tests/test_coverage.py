"""docs/coverage.md: run a few of its models, and compare the numbers in its text with its rows."""

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
MODEL_TYPES = ["bert", "clip", "resnet", "wav2vec2", "bitnet", "t5", "falcon", "ctrl"]


@pytest.fixture(scope="module")
def maker() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module("make_coverage")
    sys.path.remove(str(DOCS))


@pytest.mark.filterwarnings("ignore")  # from transformers
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_it_runs_untouched(maker: ModuleType, model_type: str) -> None:
    cases = list(maker.build_cases(model_type))
    assert cases and not any(isinstance(case, str) for case in cases)
    for case in cases:
        row = maker.check(case)
        assert maker.works(row), maker.summary(row)


@pytest.mark.filterwarnings("ignore")
def test_a_refused_model_has_a_tested_fix(maker: ModuleType) -> None:
    (case,) = maker.build_cases("fnet")
    row = maker.check(case)
    assert "complex numbers" in row["refused"] and row["fix"] is not None


def test_a_wrong_number_is_detected(maker: ModuleType) -> None:
    row = {"error": 1e-3, "oracle": "autograd", "directions": 0.0, "conservation": 0.0, "empty": False}
    assert not maker.works(row)
    assert maker.works(row | {"error": 1e-7})
    assert not maker.works(row | {"error": 0.0, "empty": True})


def count_rows(page: str, title: str) -> int:
    """Count the rows of the table under a title; 0 if there is none."""
    section = re.search(rf"^## {title}\n\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return 0 if section is None else max(0, len(re.findall(r"^\|", section[1], re.M)) - 2)


def test_the_numbers_in_the_text_are_counted_from_the_rows() -> None:
    page = (DOCS / "coverage.md").read_text()
    match = re.search(
        r"\*\*(\d+) of (\d+) encoders run untouched\*\*, (\d+) are refused \((\d+) .*?, (\d+) are", page
    )
    assert match is not None
    good, explained, refused, fixes, wrong = map(int, match.groups())
    assert good == count_rows(page, "Run untouched")
    assert refused == count_rows(page, "Refused")
    assert wrong == count_rows(page, "Wrong, or failed")
    assert explained == good + refused + wrong
    section = re.search(r"^## Refused\n(.*?)(?=^## )", page, re.M | re.S)
    assert fixes == refused - (0 if section is None else section[1].count("| none |"))
    absent = re.search(r"(\d+) types\s+could\s+not\s+be\s+built", page)
    assert absent is not None and int(absent[1]) == count_rows(page, "Not built")
