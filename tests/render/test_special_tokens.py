"""What a tokenizer adds, [CLS] and the like: always in the account, drawn on demand, and shares stay the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from browser_helpers import read_breakdown as account_on_page
from test_page import made, words

from bilrp.explanation import Explanation
from bilrp.inputs import Text
from bilrp.render import figure, page, score_line
from bilrp.render.visibility import select_visible
from type_asserts import assert_instance


@pytest.fixture
def found() -> Explanation:
    """Two texts in words between marks."""
    base = made(words("[CLS]", "two", "goats", "[SEP]"), words("[CLS]", "a", "goat", "climbs", "[SEP]"))
    relevance = base.relevance.double()
    views = (
        Text("Two goats", (None, (0, 3), (4, 9), None)),
        Text("A goat climbs", (None, (0, 1), (2, 6), (7, 13), None)),
    )
    a, b = (replace(side, view=view) for side, view in zip((base.a, base.b), views, strict=True))
    return replace(base, a=a, b=b, relevance=relevance, score=float(relevance.sum()) + 0.5)


def test_the_account_names_marks_and_closes(found: Explanation) -> None:
    told, inner = found.breakdown, found.relevance[1:-1, 1:-1]
    assert told.special_tokens == pytest.approx(float(found.relevance.sum() - inner.sum()), rel=1e-12)
    assert told.positive + told.negative == pytest.approx(float(inner.sum()), rel=1e-12)
    assert told.explained == pytest.approx(float(found.relevance.sum()), rel=1e-12)
    assert told.unattributed == pytest.approx(0.5)
    line = score_line.format_score_line(found)
    assert "with the tokenizer's marks" in line and "0.5 unattributed" in line
    assert "marks" not in score_line.format_score_line(made(words("two"), words("a", "goat"))), (
        "where there are none"
    )


def test_the_line_of_a_closed_account_still_names_marks(found: Explanation) -> None:
    closed = replace(found, score=float(found.relevance.sum()))
    assert "tokenizer's marks" in score_line.format_score_line(
        closed
    ) and "unattributed" not in score_line.format_score_line(closed)


def test_what_is_left_are_the_words_and_their_relevance(found: Explanation) -> None:
    few = select_visible(found, special_tokens=False)
    assert assert_instance(few.a.view, Text).region_texts == ("Two", "goats") and few.a.regions.names == (
        "two",
        "goats",
    )
    assert torch.equal(few.relevance, found.relevance[1:-1, 1:-1]) and few.score == found.score
    assert few.a.regions.labels.tolist() == [-1, 0, 1, -1]
    assert torch.equal(few.b.parts, found.b.parts[1:-1])
    assert select_visible(found, special_tokens=True) is found
    pictures = made(words("two"), words("goats"))
    assert select_visible(pictures, special_tokens=False) is pictures


def test_findings_keep_their_share(found: Explanation) -> None:
    whole, few = found.findings(), select_visible(found, special_tokens=False).findings()
    assert [(f.relevance, f.share) for f in whole] == [(f.relevance, f.share) for f in few]
    assert [[n - 1 for n in f.a] for f in whole] == [f.a for f in few]


def test_a_part_within_loses_its_marks_too(found: Explanation) -> None:
    within = found.a.parts @ found.a.parts.T, found.b.parts @ found.b.parts.T
    few = select_visible(replace(found, self_terms=within), special_tokens=False)
    assert few.self_terms is not None and torch.equal(few.self_terms[1], within[1][1:-1, 1:-1])


def test_a_text_of_marks_alone_is_drawn_as_it_is(found: Explanation) -> None:
    only = replace(found, a=replace(found.a, view=Text("", (None,) * 4)))
    assert select_visible(only, special_tokens=False).relevance.shape == (4, 3)


@pytest.mark.parametrize("links", [None, True], ids=["findings", "matrix"])
def test_the_picture(found: Explanation, links: bool | None) -> None:
    def said(**options: Any) -> str:
        drawn = figure.plot(found, links=links, **options)
        texts = [*drawn.texts, *(t for axes in drawn.axes for t in axes.texts)]
        ticks = [t for axes in drawn.axes for t in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        return " ".join(t.get_text() for t in (*texts, *(ticks if links else ())))

    plain, asked = said(), said(special_tokens=True)
    assert "[CLS]" not in plain and "[SEP]" not in plain and "goats" in plain
    assert "[CLS]" in asked and "[SEP]" in asked
    assert "tokenizer's marks" in plain and "tokenizer's marks" in asked


def test_the_payload(found: Explanation) -> None:
    plain, asked = page.build_payload(found), page.build_payload(found, special_tokens=True)
    assert plain["account"] == asked["account"] and plain["summary"] == asked["summary"]
    assert plain["a"]["names"] == ["two", "goats"] and asked["a"]["names"][0] == "[CLS]"
    assert (plain["pairs"]["rows"], plain["pairs"]["columns"]) == (2, 3)


def read(tab) -> str:
    """All that the page says."""
    tab.wait_for_selector(".region")
    return tab.evaluate(
        """() => [...root().children].filter(el => el.localName !== "style").map(el => el.textContent).join(" ")"""
    )


@pytest.mark.browser
def test_a_full_stop_stands_with_its_word(found: Explanation, visit) -> None:
    text = Text("Mountaineers climb rocks.", (None, (0, 12), (13, 18), (19, 24), (24, 25)))
    close = replace(found, b=replace(found.b, view=text))
    for width in (320, 340, 360, 390, 1280):
        tab = visit(close, width=width)
        tab.wait_for_selector(".region")
        word, stop = (tab.locator(f".region[data-side=b][data-i='{i}']").bounding_box() for i in (2, 3))
        assert stop["y"] == word["y"] and abs(stop["x"] - word["x"] - word["width"]) < 1.5, width


@pytest.mark.browser
def test_the_page(found: Explanation, visit) -> None:
    tab = visit(found)
    said = read(tab)
    assert "[CLS]" not in said and "goats" in said and "climbs" in said
    assert tab.locator(".region[data-side=a]").count() == 2
    told = account_on_page(tab)
    steps = sum(told[name]["value"] for name in ("positive", "negative", "marks", "unattributed"))
    assert steps == pytest.approx(told["score"]["value"], rel=1e-9) and told["marks"]["w"] > 0
    assert "by pairs with a mark of the tokenizer's own" in said
    colours = tab.evaluate(
        """() => ["marks", "score"].map(name => getComputedStyle(root().querySelector(`.account .${name} rect`)).fill)"""
    )
    assert colours[0] != colours[1] and colours[0] != "rgb(0, 0, 0)"
    asked = visit(found, marks=True)
    assert "[CLS]" in read(asked)
    assert asked.locator(".region[data-side=a]").count() == 4
