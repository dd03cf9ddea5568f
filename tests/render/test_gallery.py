"""Several explanations on one page: summaries first, each explanation drawn when it scrolls into view."""

from pathlib import Path

import pytest
from test_page import grid, make_explanation, noise, words

from bilrp.errors import InputError
from bilrp.render import gallery
from bilrp.render.gallery import GalleryEntry


@pytest.fixture
def open_gallery(browser, tmp_path: Path):
    tabs, errors = [], []

    def open_page(chapters, *, width=1400, **options):
        tab = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce")
        tab.on("console", lambda message: errors.append(message.text))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(
            gallery.write(chapters, tmp_path / "gallery.html", title="Why <b>these</b>?", **options).as_uri()
        )
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        tab.close()
    assert errors == []


def chapters(count: int) -> list[GalleryEntry]:
    explanation = make_explanation(grid(step=16), grid(step=16), pictures=(noise(), noise(seed=1)))
    return [GalleryEntry(explanation, f"pair {n} <i>", ("a.png", "b.png")) for n in range(count)]


def count_drawn(tab) -> int:
    return tab.evaluate("[...document.querySelectorAll('section')].filter((s) => s.shadowRoot).length")


@pytest.mark.browser
def test_sentences_first_and_pictures_when_they_come_into_view(open_gallery) -> None:
    tab = open_gallery(chapters(6))
    tab.wait_for_selector("section.drawn", state="attached")
    assert tab.inner_text("h1") == "Why <b>these</b>?" and tab.locator("nav li").count() == 6
    assert tab.inner_text("nav li a >> nth=2") == "pair 2 <i>"
    assert 1 <= count_drawn(tab) < 6
    tab.click("nav li a >> nth=5")
    tab.wait_for_selector("#pair-6.drawn", state="attached")
    assert "pair 5" in tab.evaluate(
        "document.querySelector('#pair-6').shadowRoot.querySelector('h1').textContent"
    )


@pytest.mark.browser
@pytest.mark.parametrize(("width", "side"), [(1400, True), (768, False), (390, False)])
def test_two_encoders_are_side_by_side_on_wide_screens(open_gallery, width: int, side: bool) -> None:
    tab = open_gallery(chapters(2), width=width, columns=2)
    tab.wait_for_selector("section.drawn", state="attached")
    tops = tab.evaluate("[...document.querySelectorAll('section')].map((s) => s.getBoundingClientRect().top)")
    assert (tops[0] == tops[1]) == side and tab.locator("nav").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth") == width


def test_nothing_and_too_much_are_refused() -> None:
    for some in ([], chapters(1) * (gallery.MAX_EXPLANATIONS + 1)):
        with pytest.raises(InputError, match="a page holds 1 to"):
            gallery.render_html(some, title="x")
    assert "Content-Security-Policy" in gallery.render_html(
        [GalleryEntry(make_explanation(words("a", "b"), words("c")), "w")], title="x"
    )
