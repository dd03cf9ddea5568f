"""Special tokens ([CLS] and the like): always in the breakdown, drawn on request, shares stay the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from browser_helpers import read_breakdown
from test_page import make_explanation, words

from bilrp.explanation import Explanation
from bilrp.inputs import Text
from bilrp.render import figure, page, score_line
from bilrp.render.visibility import select_visible
from type_asserts import assert_instance


@pytest.fixture
def explanation() -> Explanation:
    """Two texts whose words are between special tokens."""
    base = make_explanation(
        words("[CLS]", "two", "goats", "[SEP]"), words("[CLS]", "a", "goat", "climbs", "[SEP]")
    )
    relevance = base.relevance.double()
    views = (
        Text("Two goats", (None, (0, 3), (4, 9), None)),
        Text("A goat climbs", (None, (0, 1), (2, 6), (7, 13), None)),
    )
    a, b = (replace(side, view=view) for side, view in zip((base.a, base.b), views, strict=True))
    return replace(base, a=a, b=b, relevance=relevance, score=float(relevance.sum()) + 0.5)


def test_the_breakdown_names_special_tokens_and_adds_up(explanation: Explanation) -> None:
    breakdown, inner = explanation.breakdown, explanation.relevance[1:-1, 1:-1]
    assert breakdown.special_tokens == pytest.approx(
        float(explanation.relevance.sum() - inner.sum()), rel=1e-12
    )
    assert breakdown.positive + breakdown.negative == pytest.approx(float(inner.sum()), rel=1e-12)
    assert breakdown.explained == pytest.approx(float(explanation.relevance.sum()), rel=1e-12)
    assert breakdown.unattributed == pytest.approx(0.5)
    line = score_line.format_score_line(explanation)
    assert "with special tokens" in line and "0.5 unattributed" in line
    assert "special" not in score_line.format_score_line(
        make_explanation(words("two"), words("a", "goat"))
    ), "where there are none"


def test_the_line_names_special_tokens_also_without_unattributed(explanation: Explanation) -> None:
    closed = replace(explanation, score=float(explanation.relevance.sum()))
    assert "special tokens" in score_line.format_score_line(
        closed
    ) and "unattributed" not in score_line.format_score_line(closed)


def test_the_words_and_their_relevance_remain(explanation: Explanation) -> None:
    few = select_visible(explanation, special_tokens=False)
    assert assert_instance(few.a.view, Text).region_texts == ("Two", "goats") and few.a.regions.names == (
        "two",
        "goats",
    )
    assert torch.equal(few.relevance, explanation.relevance[1:-1, 1:-1]) and few.score == explanation.score
    assert few.a.regions.labels.tolist() == [-1, 0, 1, -1]
    assert torch.equal(few.b.parts, explanation.b.parts[1:-1])
    assert select_visible(explanation, special_tokens=True) is explanation
    pictures = make_explanation(words("two"), words("goats"))
    assert select_visible(pictures, special_tokens=False) is pictures


def test_findings_keep_their_share(explanation: Explanation) -> None:
    full, few = explanation.findings(), select_visible(explanation, special_tokens=False).findings()
    assert [(f.relevance, f.share) for f in full] == [(f.relevance, f.share) for f in few]
    assert [[n - 1 for n in f.a] for f in full] == [f.a for f in few]


def test_self_terms_lose_their_special_tokens_too(explanation: Explanation) -> None:
    within = explanation.a.parts @ explanation.a.parts.T, explanation.b.parts @ explanation.b.parts.T
    few = select_visible(replace(explanation, self_terms=within), special_tokens=False)
    assert few.self_terms is not None and torch.equal(few.self_terms[1], within[1][1:-1, 1:-1])


def test_a_text_of_special_tokens_alone_is_drawn(explanation: Explanation) -> None:
    only = replace(explanation, a=replace(explanation.a, view=Text("", (None,) * 4)))
    assert select_visible(only, special_tokens=False).relevance.shape == (4, 3)


@pytest.mark.parametrize("links", [None, True], ids=["findings", "matrix"])
def test_the_picture(explanation: Explanation, links: bool | None) -> None:
    def read_texts(**options: Any) -> str:
        plot = figure.plot(explanation, links=links, **options)
        texts = [*plot.texts, *(t for axes in plot.axes for t in axes.texts)]
        ticks = [t for axes in plot.axes for t in (*axes.get_xticklabels(), *axes.get_yticklabels())]
        return " ".join(t.get_text() for t in (*texts, *(ticks if links else ())))

    plain, requested = read_texts(), read_texts(special_tokens=True)
    assert "[CLS]" not in plain and "[SEP]" not in plain and "goats" in plain
    assert "[CLS]" in requested and "[SEP]" in requested
    assert "special tokens" in plain and "special tokens" in requested


def test_the_payload(explanation: Explanation) -> None:
    plain, requested = page.build_payload(explanation), page.build_payload(explanation, special_tokens=True)
    assert plain["breakdown"] == requested["breakdown"] and plain["summary"] == requested["summary"]
    assert plain["a"]["names"] == ["two", "goats"] and requested["a"]["names"][0] == "[CLS]"
    assert (plain["pairs"]["rows"], plain["pairs"]["columns"]) == (2, 3)


def read(tab) -> str:
    """Return the text of the page."""
    tab.wait_for_selector(".region")
    return tab.evaluate(
        """() => [...root().children].filter(el => el.localName !== "style").map(el => el.textContent).join(" ")"""
    )


@pytest.mark.browser
def test_a_full_stop_follows_its_word(explanation: Explanation, visit) -> None:
    text = Text("Mountaineers climb rocks.", (None, (0, 12), (13, 18), (19, 24), (24, 25)))
    close = replace(explanation, b=replace(explanation.b, view=text))
    for width in (320, 340, 360, 390, 1280):
        tab = visit(close, width=width)
        tab.wait_for_selector(".region")
        word, stop = (tab.locator(f".region[data-side=b][data-i='{i}']").bounding_box() for i in (2, 3))
        assert stop["y"] == word["y"] and abs(stop["x"] - word["x"] - word["width"]) < 1.5, width


@pytest.mark.browser
def test_the_page(explanation: Explanation, visit) -> None:
    tab = visit(explanation)
    text = read(tab)
    assert "[CLS]" not in text and "goats" in text and "climbs" in text
    assert tab.locator(".region[data-side=a]").count() == 2
    breakdown = read_breakdown(tab)
    steps = sum(
        breakdown[name]["value"] for name in ("positive", "negative", "special_tokens", "unattributed")
    )
    assert (
        steps == pytest.approx(breakdown["score"]["value"], rel=1e-9) and breakdown["special_tokens"]["w"] > 0
    )
    assert "by pairs with a special token" in text
    colours = tab.evaluate(
        """() => ["special_tokens", "score"].map(
            name => getComputedStyle(root().querySelector(`.breakdown .${name} rect`)).fill)"""
    )
    assert colours[0] != colours[1] and colours[0] != "rgb(0, 0, 0)"
    requested = visit(explanation, special_tokens=True)
    assert "[CLS]" in read(requested)
    assert requested.locator(".region[data-side=a]").count() == 4
