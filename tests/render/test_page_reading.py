"""What a person sees first, and can trust: findings, one scale of colour, words that stay readable, any screen."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from browser_helpers import count_arcs, drawn_strengths, expected_strengths, region_selector, wait_for_paint
from test_page import grid, make_explanation, noise, words

from bilrp import regions
from bilrp.render import page

pytestmark = pytest.mark.browser

LONG = (
    "Fishermen have asked the council to extend the harbour wall before next winter and its storms come again"
)


def smooth(step):
    """A picture without sharp edges: half a pixel does not matter on it."""
    y, x = np.mgrid[:128, :128]
    return np.stack([x + y, 255 - x - step * y, 128 + 0 * x], axis=-1).clip(0, 255).astype(np.uint8)


def plant_match(strength=40.0):
    """Noise, and two blocks of regions that match: one raises the score, a weaker one lowers it."""
    base = make_explanation(grid(), grid(), pictures=(smooth(0.2), smooth(0.9)), seed=3)
    relevance = 0.2 * base.relevance
    for rows, columns, value in (
        ((2, 3), (8, 9), strength),
        ((11, 12), (4, 5), -strength / 4),
    ):
        a = [16 * r + c for r in rows for c in (3, 4, 5)]
        b = [16 * r + c for r in columns for c in (9, 10, 11)]
        relevance[np.ix_(a, b)] += value
    return replace(base, relevance=relevance, score=float(relevance.sum()) + 0.5)


def points(tab, selector, count=41):
    """Where on the screen each line runs: [lines, points, 2]."""
    wait_for_paint(tab)
    return np.array(
        tab.evaluate(
            """([selector, count]) => [...root().querySelectorAll(selector)].map(el => {
                const way = el.getTotalLength(), place = el.getScreenCTM();
                return Array.from({length: count}, (_, k) => {
                    const at = el.getPointAtLength(way * k / (count - 1)).matrixTransform(place);
                    return [at.x, at.y];
                });
            })""",
            [selector, count],
        )
    )


def inside(box, point, margin=1.0):
    return (
        box["x"] - margin <= point[0] <= box["x"] + box["width"] + margin
        and box["y"] - margin <= point[1] <= box["y"] + box["height"] + margin
    )


def test_findings_are_outlined_joined_once_each_and_numbered(visit):
    explanation = plant_match()
    tab = visit(explanation)
    findings = explanation.findings()
    ribbons = tab.locator(".ribbons path").count()
    assert 1 <= ribbons <= 12 and count_arcs(tab) == 0
    numbers = tab.locator(".badges text").all_text_contents()
    assert sorted(set(numbers), key=int) == [str(k + 1) for k in range(ribbons)]
    assert all(numbers.count(n) == 2 for n in set(numbers))
    strongest = points(tab, '.ribbons [data-finding="0"]', 3)[0]
    for side, end in (("a", strongest[0]), ("b", strongest[-1])):
        boxes = [tab.locator(region_selector(side, i)).bounding_box() for i in getattr(findings[0], side)]
        assert any(inside(box, end) for box in boxes)
    assert f"{ribbons} match" in tab.inner_text(".readout")
    assert tab.locator(".findings li").count() == len(findings)
    total = sum(one.relevance for one in findings[:ribbons]) / abs(explanation.score)
    assert f"together {100 * total:.0f} % of the score" in tab.inner_text(".readout")


def test_a_finding_alone_shows_what_its_regions_bring_to_it_and_its_single_pairs(visit):
    explanation = plant_match()
    first = explanation.findings()[0]
    tab = visit(explanation)
    tab.locator(".findings button").first.click()
    tab.mouse.move(2, 2)
    wait_for_paint(tab)
    inner = explanation.relevance.double()[np.ix_(first.a, first.b)]
    expected = torch.zeros(256, dtype=torch.float64)
    expected[first.a] = inner.sum(1)
    np.testing.assert_allclose(drawn_strengths(tab, "a"), expected_strengths(tab, expected), atol=1e-4)
    assert 0 < count_arcs(tab) <= 48
    assert f"{count_arcs(tab)} pair" in tab.inner_text(".readout")
    assert tab.locator(".findings [aria-pressed=true]").count() == 1
    tab.keyboard.press("Escape")
    wait_for_paint(tab)
    assert count_arcs(tab) == 0 and tab.locator(".ribbons path").count() > 0


def test_a_ribbon_is_pointed_at_between_the_pictures_and_leaves_regions_alone(visit):
    tab = visit(plant_match())
    way = points(tab, '.ribbons [data-finding="0"]')[0]
    tab.mouse.move(*way[len(way) // 2])
    wait_for_paint(tab)
    assert tab.inner_text(".readout").startswith("Match 1:")
    right = tab.locator(".panel[data-side=a]").bounding_box()
    over = [p for p in way if inside(right, p, margin=-4)][-1]
    tab.mouse.move(*over)
    wait_for_paint(tab)
    assert " % of A" in tab.inner_text(".readout").split(":")[0]


def test_pointing_into_a_match_selects_it_and_then_its_regions(visit):
    explanation = plant_match()
    first = explanation.findings()[0]
    tab = visit(explanation)
    before = [tab.locator(part).bounding_box() for part in (".stage", ".findings", ".controls")]
    tab.hover(region_selector("a", first.a[2]))
    wait_for_paint(tab)
    assert tab.inner_text(".readout").startswith("Match 1:")
    assert [tab.locator(part).bounding_box() for part in (".stage", ".findings", ".controls")] == before
    tab.locator(region_selector("a", first.a[2])).click()
    tab.hover(region_selector("a", first.a[1]))
    wait_for_paint(tab)
    assert " % of A" in tab.inner_text(".readout").split(":")[0], "a single region of the pinned match"
    assert tab.locator(".findings [aria-pressed=true]").count() == 1
    outside = next(i for i in range(256) if not any(i in f.a for f in explanation.findings()))
    tab.keyboard.press("Escape")
    tab.hover(region_selector("a", outside))
    wait_for_paint(tab)
    assert " % of A" in tab.inner_text(".readout").split(":")[0]


def test_a_button_hides_all_colours(visit):
    tab = visit(plant_match())
    tab.click("[data-plain]")
    tab.hover(region_selector("a", 40))
    wait_for_paint(tab)
    assert tab.locator(".ribbons path, .arcs path, .badges g").count() == 0
    assert not drawn_strengths(tab, "a").any() and not drawn_strengths(tab, "b").any()
    assert "hidden" in tab.inner_text(".readout")
    tab.click("[data-plain]")
    wait_for_paint(tab)
    assert tab.locator(".ribbons path").count() > 0


def test_the_sentence_has_crops_and_neither_directions_nor_sizes(visit):
    tab = visit(plant_match())
    assert tab.locator(".carried .thumb").count() == 2 and "150 %" in tab.inner_text(".carried")
    first = tab.inner_text(".top") + " ".join(tab.locator(".findings button").all_inner_texts())
    for word in ("left", "right", "middle", "top", "bottom", "px"):
        assert not re.search(rf"\b{word}\b", first), word
    assert tab.locator(".tally rect.positive").count() == 1


def test_the_breakdown_bar_ends_at_the_score(visit):
    tab = visit(plant_match())
    ends = tab.evaluate(
        """[...root().querySelectorAll(".tally rect")].map(el =>
            [el.getAttribute("class"), Number(el.getAttribute("x")), Number(el.getAttribute("width"))])"""
    )
    (lowest,) = {min(x for kind, x, _ in ends if kind == "negative")}
    score = next(x + width / 2 for kind, x, width in ends if kind == "score")
    assert score == pytest.approx(lowest, abs=1.6)


def test_names_of_pictures_above_each_other_are_clear_of_ribbons(visit):
    tab = visit(plant_match(), width=390)
    wait_for_paint(tab)
    a, b = (tab.locator(f".panel[data-side={side}]").bounding_box() for side in "ab")
    names = [tab.locator(".caption").nth(n).bounding_box() for n in (0, 1)]
    assert names[0]["y"] + names[0]["height"] <= a["y"] + 2 and names[1]["y"] >= b["y"] + b["height"] - 2


def test_one_scale_for_everything_also_while_pointing(visit):
    """A partner ten times weaker looks weaker, whichever region it is a partner of."""
    explanation = make_explanation(grid(), grid(), pictures=(noise(), noise(seed=1)), seed=3)
    relevance = explanation.relevance.clone()
    relevance[40] *= 0.1 * float(relevance[37].abs().max() / relevance[40].abs().max())
    explanation = replace(explanation, relevance=relevance, score=float(relevance.sum()))
    tab = visit(explanation)
    tab.check("[value=shares]")
    before = [tab.get_attribute(".legend", f"data-{end}") for end in ("low", "high")]
    strengths = {}
    for i in (37, 40):
        tab.hover(region_selector("a", i))
        wait_for_paint(tab)
        np.testing.assert_allclose(
            drawn_strengths(tab, "b"), expected_strengths(tab, relevance[i]), atol=1e-5
        )
        strengths[i] = np.abs(drawn_strengths(tab, "b")).max()
        assert [tab.get_attribute(".legend", f"data-{end}") for end in ("low", "high")] == before
    assert strengths[40] < 0.7 * strengths[37]
    low, high = map(float, before)
    strongest = float(relevance.abs().max())
    assert strongest / 50 <= low <= strongest / 20
    assert high >= max(float(relevance.sum(d).abs().max()) for d in (0, 1)) * 0.999
    labels = tab.locator(".legend text").all_text_contents()
    shares = [float(re.sub("[^0-9.]", "", s)) / 100 * abs(explanation.score) for s in labels if "%" in s]
    assert min(shares) == pytest.approx(low, rel=0.02) and max(shares) == pytest.approx(high, rel=0.02)


@pytest.mark.parametrize("width", [1400, 390, 320])
def test_small_words_are_whole_and_side_by_side(visit, width):
    """Of the legend and of the cards: none lies on another, none is cut off."""
    tab = visit(plant_match(), width=width)
    wait_for_paint(tab)
    boxes = tab.evaluate(
        """[...root().querySelectorAll(".legend text")].map(el => {
            const { left, right, top, bottom } = el.getBoundingClientRect();
            return [left, right, top, bottom]; })"""
    )
    assert len(boxes) >= 4
    for k, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[:k]:
            side_by_side = right <= other[0] or other[1] <= left
            assert side_by_side or bottom <= other[2] + 3 or other[3] <= top + 3
    cut = tab.evaluate(
        "[...root().querySelectorAll('.findings .share')].map(el => el.scrollWidth - el.clientWidth)"
    )
    assert cut and max(cut) <= 0


def test_captions_count_what_is_drawn(visit):
    tab = visit(plant_match())
    tab.check("[value=pairs]")
    wait_for_paint(tab)
    number = re.search(r"strongest ([\d,]+) of 65,536 pairs", tab.inner_text(".readout"))
    assert number and int(number[1].replace(",", "")) == count_arcs(tab) > 0


def test_the_papers_parameters_are_hidden_until_they_are_opened(visit):
    explanation = plant_match()
    tab = visit(explanation)
    assert not tab.locator("[name=l]").is_visible()
    tab.click(".paper summary")
    tab.select_option("[name=style]", "pascal_voc")
    wait_for_paint(tab)
    assert count_arcs(tab) > 0 and tab.locator(".ribbons path").count() == 0
    unit = float((explanation.relevance.double() ** 4).mean() ** 0.25)
    assert float(tab.get_attribute(".legend", "data-low")) == pytest.approx(0.25 * unit, rel=1e-4)
    assert float(tab.get_attribute(".legend", "data-high")) == pytest.approx(13 * unit, rel=1e-4)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("text", ["two goats climb", LONG, LONG * 3])
def test_arcs_end_at_a_words_edge_and_strike_through_none(visit, text, width):
    explanation = make_explanation(words(*text.split()), words(*reversed(text.split())))
    tab = visit(explanation, width=width)
    tab.check("[value=pairs]")
    ways = points(tab, ".arcs path", 61)
    boxes = np.array(
        tab.evaluate(
            """[...root().querySelectorAll(".region")].map(el => {
                const { x, y, width, height } = el.getBoundingClientRect();
                return [x, y, x + width, y + height]; })"""
        )
    )
    assert len(ways) > 3
    x, y = ways.reshape(-1, 2).T[:, :, None]
    margin = 1.5
    struck = (
        (x > boxes[:, 0] + margin)
        & (x < boxes[:, 2] - margin)
        & (y > boxes[:, 1] + margin)
        & (y < boxes[:, 3] - margin)
    )
    assert not struck.any()
    ends = ways[:, [0, -1]].reshape(-1, 1, 2)
    outside = np.maximum(np.maximum(boxes[:, :2] - ends, ends - boxes[:, 2:]), 0)
    assert np.hypot(*np.moveaxis(outside, -1, 0)).min(1).max() < 1.5


def test_long_texts_are_side_by_side_and_short_ones_above(visit):
    def boxes(tab):
        return [tab.locator(f".panel[data-side={side}]").bounding_box() for side in "ab"]

    a, b = boxes(visit(make_explanation(words(*["two", "goats"]), words(*["a", "pair", "of", "kids"]))))
    assert b["y"] > a["y"] + a["height"]
    tab = visit(make_explanation(words(*(LONG * 3).split()), words(*LONG.split())))
    a, b = boxes(tab)
    assert b["x"] > a["x"] + a["width"]
    lines = tab.evaluate(
        "new Set([...root().querySelectorAll('.region[data-side=a]')].map(e => e.getBBox().y)).size"
    )
    assert lines > 3


def test_a_picture_and_words_are_side_by_side(visit):
    tab = visit(make_explanation(grid(64), words(*LONG.split()), pictures=(noise(64, 64), None)))
    a, b = (tab.locator(f".panel[data-side={side}]").bounding_box() for side in "ab")
    assert b["x"] > a["x"] + a["width"]
    assert abs(a["y"] + a["height"] / 2 - b["y"] - b["height"] / 2) < 6
    tab.check("[value=shares]")
    tab.hover(region_selector("b", 3))
    wait_for_paint(tab)
    assert drawn_strengths(tab, "a").any() and "“the” of B" in tab.inner_text(".readout")


@pytest.mark.parametrize(("width", "height"), [(384, 48), (48, 384)])
def test_arcs_are_on_wide_and_on_tall_pictures(visit, width, height):
    shape = regions.grid(16)(torch.zeros(1, 3, height, width))
    tab = visit(make_explanation(shape, shape, pictures=(noise(height, width), noise(height, width, seed=1))))
    tab.check("[value=pairs]")
    tab.hover(region_selector("a", 30))
    first, *_, last = points(tab, ".arcs path:last-child", 9)[0]
    assert inside(tab.locator(region_selector("a", 30)).bounding_box(), first)
    best = int(np.argmax(np.abs(drawn_strengths(tab, "b"))))
    assert inside(tab.locator(region_selector("b", best)).bounding_box(), last)


def test_nothing_is_left_after_a_drag_and_escape(visit, pair):
    tab = visit(pair)
    start, stop = (tab.locator(region_selector("a", i)).bounding_box() for i in (35, 86))
    before = tab.locator(".stage").screenshot()
    tab.mouse.move(start["x"] + 2, start["y"] + 2)
    tab.mouse.down()
    tab.mouse.move(stop["x"] + 9, stop["y"] + 9, steps=3)
    tab.mouse.up()
    tab.mouse.move(2, 2)
    tab.keyboard.press("Escape")
    wait_for_paint(tab)
    assert tab.locator(".stage").screenshot() == before
    tab.mouse.move(start["x"] + 2, start["y"] + 2)
    tab.mouse.down()
    tab.mouse.move(stop["x"] + 9, stop["y"] + 9, steps=3)
    tab.keyboard.press("Escape")  # while the button is still down
    wait_for_paint(tab)
    assert not tab.locator(".panel[data-side=a] .band").is_visible()
    tab.mouse.up()


@pytest.mark.parametrize("palette", ["paper", "safe"])
@pytest.mark.parametrize("at", [None, 37])
def test_a_saved_picture_is_what_is_on_the_screen(visit, palette, at):
    from PIL import Image

    tab = visit(plant_match(), width=1400, height=2400, device_scale_factor=2)  # nothing scrolls
    if palette == "safe":
        tab.check("[name=safe]")
    if at is not None:
        tab.click(region_selector("a", at))
    tab.mouse.move(2, 2)
    wait_for_paint(tab)
    panels = [tab.locator(f".panel[data-side={side}]").bounding_box() for side in "ab"]
    a, b = panels
    left, top, right, bottom = a["x"], a["y"], b["x"] + b["width"], b["y"] + b["height"]
    clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    tab.evaluate("root().querySelectorAll('.caption').forEach(el => el.remove())")
    seen = np.asarray(Image.open(io.BytesIO(tab.screenshot(clip=clip))).convert("RGB"), dtype=float)
    with tab.expect_download() as download:
        tab.click("[data-save=png]")
    saved = Image.open(download.value.path()).convert("RGB")
    stage = tab.locator(".scene").bounding_box()
    heading = saved.height / 2 - _below(tab) - stage["height"]
    x, y = round(2 * (24 + left - stage["x"])), round(2 * (heading + top - stage["y"]))
    high, wide = seen.shape[:2]
    around = [
        (x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-2, -1, 0, 1, 2)
    ]  # a page starts anywhere in a pixel
    pieces = (np.asarray(saved.crop((u, v, u + wide, v + high)), dtype=float) for u, v in around)
    apart = min((np.abs(piece - seen) for piece in pieces), key=np.mean)
    assert apart.mean() < 0.7 and (apart.max(-1) > 60).mean() < 0.004


def _below(tab):
    """How much of the saved figure lies under the stage, from the figure itself."""
    with tab.expect_download() as download:
        tab.click("[data-save=svg]")
    from xml.etree import ElementTree

    figure = ElementTree.parse(download.value.path()).getroot()
    stage = next(el for el in figure if el.tag.endswith("}svg"))
    top = 24 + float(stage.get("y", "nan"))
    return float(figure.get("height", "nan")) - top - float(stage.get("height", "nan"))


@pytest.mark.parametrize("width", [700, 1000, 1300])
def test_the_notebooks_frame_holds_the_whole_page(browser, width):
    tab = browser.new_page(viewport={"width": width, "height": 1000})
    tab.set_content(page.embed(plant_match()))
    frame = tab.frame_locator("iframe")
    frame.locator(".ribbons path").first.wait_for(state="attached")
    wait_for_paint(tab)
    high, there = frame.locator("html").evaluate("el => [el.scrollHeight, el.clientHeight]")
    wide = frame.locator("html").evaluate("el => el.scrollWidth - el.clientWidth")
    tab.close()
    assert high <= there and wide <= 0


def test_after_a_tap_the_partners_and_the_words_are_in_view(visit):
    tab = visit(plant_match(), width=390, height=844, has_touch=True, is_mobile=True)
    tab.locator(region_selector("a", 40)).scroll_into_view_if_needed()
    tab.locator(region_selector("a", 40)).tap()
    wait_for_paint(tab)
    assert tab.locator("[aria-selected=true]").count() == 1
    height = tab.evaluate("innerHeight")
    for part in (".panel[data-side=b]", ".readout"):
        box = tab.locator(part).bounding_box()
        assert box["y"] >= -1 and box["y"] + box["height"] <= height + 1


def test_tab_reaches_a_region_first(visit, pair):
    tab = visit(pair)
    tab.keyboard.press("Tab")
    assert tab.evaluate("focused()") == "a-0"


LOOKS = [(theme, palette) for theme in ("light", "dark") for palette in ("paper", "safe")]


@pytest.mark.parametrize(("theme", "palette"), LOOKS)
def test_words_stand_out_from_what_is_behind_them(visit, pair, theme, palette):
    tab = visit(pair)
    tab.select_option("[name=theme]", theme)
    tab.set_checked("[name=safe]", palette == "safe")
    names = ["paper", "ink", "soft", "positive", "negative", "onsign", "faint"]
    style = "getComputedStyle(root().querySelector('.page'))"
    values = tab.evaluate(f"{names!r}.map(n => {style}.getPropertyValue('--' + n).trim())")
    colour = dict(zip(names, map(_rgb, values), strict=True))
    mixed = {s: 0.75 * colour[s] + 0.25 * colour["paper"] for s in ("positive", "negative")}
    pairs = [(colour[n], colour["paper"]) for n in ("ink", "soft", "positive", "negative")]
    pairs += [(colour["onsign"], colour[s]) for s in ("positive", "negative")]
    pairs += [(colour["ink"], mixed[s]) for s in mixed] + [(colour["ink"], colour["faint"])]
    assert min(_contrast(*two) for two in pairs) >= 4.5


def _rgb(text):
    text = text.lstrip("#")
    text = "".join(2 * c for c in text) if len(text) == 3 else text
    return np.array([int(text[k : k + 2], 16) for k in (0, 2, 4)], dtype=float)


def _contrast(one, other):
    def light(rgb):
        s = rgb / 255
        return float(
            np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
        )

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("kind", ["pictures", "words"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit, kind, theme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: pip install axe-playwright-python"
    )
    explanation = (
        plant_match() if kind == "pictures" else make_explanation(words(*LONG.split()), words("two", "goats"))
    )
    tab = visit(explanation, color_scheme=theme)
    tab.click(".paper summary")
    violations = axe.Axe().run(tab).response["violations"]
    assert [
        (v["id"], v["nodes"][0]["html"]) for v in violations if v["impact"] in ("serious", "critical")
    ] == []
