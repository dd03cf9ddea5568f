"""The page in a real browser, opened from disk: what it shows is what the explanation holds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from browser_helpers import (
    PAGE_SCRIPT,
    arcs_html,
    count_arcs,
    drawn_strengths,
    expected_strengths,
    read_breakdown,
    region_selector,
    wait_for_paint,
)

# tests/ is on the path, as pytest puts it there.
from test_page import HOSTILE, grid, make_explanation, mask_regions, noise, words

import bilrp
from bilrp.findings.formatting import format_share
from bilrp.render import bundle, links, page
from type_asserts import assert_not_none

pytestmark = pytest.mark.browser


def test_hover_lights_the_partners_with_their_relevance(visit, pair):
    tab = visit(pair)
    tab.check("[value=pairs]")
    tab.hover(region_selector("a", 37))
    wait_for_paint(tab)
    np.testing.assert_allclose(drawn_strengths(tab, "b"), expected_strengths(tab, pair.row(37)), atol=1e-6)
    assert not drawn_strengths(tab, "a").any()
    tab.hover(region_selector("b", 200))
    wait_for_paint(tab)
    np.testing.assert_allclose(
        drawn_strengths(tab, "a"), expected_strengths(tab, pair.column(200)), atol=1e-6
    )
    tab.mouse.move(2, 2)
    wait_for_paint(tab)
    assert not drawn_strengths(tab, "a").any() and not drawn_strengths(tab, "b").any()


def test_a_sign_can_be_hidden(visit, pair):
    tab = visit(pair)
    tab.check("[value=pairs]")
    tab.uncheck("[name=negative]")
    tab.hover(region_selector("a", 37))
    wait_for_paint(tab)
    np.testing.assert_allclose(
        drawn_strengths(tab, "b"), expected_strengths(tab, pair.row(37).clamp(min=0)), atol=1e-6
    )
    tab.uncheck("[name=positive]")
    tab.mouse.move(2, 2)
    assert count_arcs(tab) == tab.locator(".ribbons path").count() == 0
    assert tab.locator(".matches button").count() == tab.locator(".findings button").count() == 0


def test_shares_show_the_marginals(visit, pair):
    tab = visit(pair)
    tab.check("[value=shares]")
    wait_for_paint(tab)
    np.testing.assert_allclose(
        drawn_strengths(tab, "a"), expected_strengths(tab, pair.relevance.double().sum(1)), atol=1e-5
    )
    np.testing.assert_allclose(
        drawn_strengths(tab, "b"), expected_strengths(tab, pair.relevance.double().sum(0)), atol=1e-5
    )


def test_click_pins_and_the_other_side_then_tells_the_pair(visit, pair):
    tab = visit(pair)
    tab.check("[value=pairs]")
    tab.click(region_selector("a", 37))
    tab.hover(region_selector("b", 5))
    wait_for_paint(tab)
    np.testing.assert_allclose(drawn_strengths(tab, "b"), expected_strengths(tab, pair.row(37)), atol=1e-6)
    share = 100 * float(pair.relevance[37, 5]) / abs(pair.score)
    readout = tab.inner_text(".readout").replace("−", "-")
    assert "x 31–38 %, y 12–19 % of A with x 31–38 %, y 0–6 % of B" in readout
    assert f"{share:.1f} %" in readout or f"{share:.2f} %" in readout or f"{share:.3f} %" in readout
    assert tab.get_attribute(region_selector("a", 37), "aria-selected") == "true"
    tab.click(region_selector("a", 37))
    tab.mouse.move(2, 2)
    wait_for_paint(tab)
    assert not drawn_strengths(tab, "b").any()


def test_drag_selects_a_larger_region_as_the_sum_of_its_rows(visit, pair):
    tab = visit(pair)
    first, last = (tab.locator(region_selector("a", i)).bounding_box() for i in (16 * 2 + 3, 16 * 5 + 6))
    tab.mouse.move(first["x"] + 2, first["y"] + 2)
    tab.mouse.down()
    tab.mouse.move(last["x"] + last["width"] - 2, last["y"] + last["height"] - 2, steps=3)
    tab.mouse.up()
    wait_for_paint(tab)
    chosen = [16 * r + c for r in range(2, 6) for c in range(3, 7)]
    selected = tab.evaluate(
        "[...root().querySelectorAll('.region[aria-selected=true]')].map(el => Number(el.dataset.i))"
    )
    assert selected == chosen
    expected = pair.relevance.double()[chosen].sum(0)
    np.testing.assert_allclose(drawn_strengths(tab, "b"), expected_strengths(tab, expected), atol=1e-6)
    assert read_breakdown(tab)["chosen"]["value"] == pytest.approx(float(expected.sum()), rel=1e-5)


@pytest.mark.parametrize("signs", [1, -1])
def test_the_bar_adds_up(visit, signs):
    explanation = make_explanation(grid(), grid(), seed=4)
    explanation = replace(explanation, score=signs * explanation.score)
    rows = read_breakdown(visit(explanation))
    relevance = explanation.relevance.double()
    assert rows["positive"]["value"] == pytest.approx(float(relevance.clamp(min=0).sum()))
    assert rows["negative"]["value"] == pytest.approx(float(relevance.clamp(max=0).sum()))
    parts = [rows[name]["value"] for name in ("positive", "negative", "unattributed")]
    assert sum(parts) == pytest.approx(rows["score"]["value"], rel=1e-6)
    shown = {k: float(v["text"].replace("−", "-").replace(",", "")) for k, v in rows.items() if k != "chosen"}
    digits = len(rows["score"]["text"].partition(".")[2])
    total = shown["positive"] + shown["negative"] + shown["unattributed"]
    assert total == pytest.approx(shown["score"], abs=2 * 10**-digits)
    # and as drawn: each bar starts where the last ended, and their end is the end of the score
    unit = rows["positive"]["w"] / parts[0]
    zero = rows["positive"]["x"]
    assert rows["negative"]["x"] + rows["negative"]["w"] == pytest.approx(zero + rows["positive"]["w"])
    assert rows["unattributed"]["w"] == pytest.approx(abs(parts[2]) * unit)
    score = rows["score"]
    end = score["x"] + score["w"] if score["value"] > 0 else score["x"]
    assert end == pytest.approx(zero + score["value"] * unit, abs=1e-6)


def slide(tab, name, step):
    tab.locator(f"input[name={name}]").evaluate(
        "(el, step) => { el.value = step; el.dispatchEvent(new Event('input', {bubbles: true})); }", step
    )


@pytest.mark.parametrize(("name", "step"), [("l", 400), ("h", 500), ("p", 480)])
def test_each_slider_changes_the_arcs_at_once(visit, pair, name, step):
    tab = visit(pair)
    tab.click(".paper summary")
    tab.check("[name=paper]")
    before, number = arcs_html(tab), tab.inner_text(f"label:has([name={name}]) output")
    slide(tab, name, step)
    assert arcs_html(tab) != before
    assert tab.inner_text(f"label:has([name={name}]) output") != number


def test_l_sparsifies_and_stays_below_h(visit, pair):
    tab = visit(pair)
    tab.click(".paper summary")
    tab.check("[name=paper]")
    many = count_arcs(tab)
    slide(tab, "l", 460)
    assert 0 < count_arcs(tab) < many
    slide(tab, "l", 500)
    assert count_arcs(tab) == 0
    low, high = (float(tab.inner_text(f"label:has([name={name}]) output")) for name in "lh")
    assert low < high


@pytest.mark.parametrize(
    "style", ["pascal_voc", "faces", "tables", links.resolve_style("ucf", low=0, high=1, power=0.5)]
)
def test_links_are_those_of_algorithm_one(browser, style):
    relevance = torch.randn(20, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) ** 3
    expected, options = links.compute_links(relevance, style), links.resolve_style(style)
    tab = browser.new_page()
    drawn = tab.evaluate(
        """async ([source, values, style]) => {
            const module = await import("data:text/javascript;charset=utf-8," + encodeURIComponent(source));
            return module.links(values, style).map(({pair, value, alpha}) => [pair, value, alpha]);
        }""",
        [
            bundle.read_source("data.js"),
            relevance.flatten().tolist(),
            {"l": options.low, "h": options.high, "p": options.power},
        ],
    )
    tab.close()
    required = {30 * i + j: (value, alpha) for i, j, value, alpha in expected}
    assert {int(pair) for pair, _, _ in drawn} == set(required)
    np.testing.assert_allclose(
        [[v, a] for _, v, a in drawn], [required[pair] for pair, _, _ in drawn], rtol=1e-9
    )
    assert expected.value.min() < 0 < expected.value.max()


def test_every_region_is_reached_by_keyboard(visit, pair):
    tab = visit(pair)
    tab.focus(region_selector("a", 0))
    for key in ["ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"]:
        tab.keyboard.press(key)
    wait_for_paint(tab)
    assert tab.evaluate("focused()") == "a-34"
    np.testing.assert_allclose(drawn_strengths(tab, "b"), expected_strengths(tab, pair.row(34)), atol=1e-6)
    assert tab.evaluate("root().querySelectorAll('.region[data-side=a][tabindex=\"0\"]').length") == 1
    assert "x 12–19 %, y 12–19 % of A" in tab.inner_text(".readout")
    assert tab.get_attribute(".readout", "aria-live") == "polite"
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    wait_for_paint(tab)
    partner = int(pair.row(34).abs().argmax())  # Tab goes on to the strongest partner of what is pinned
    assert tab.evaluate("focused()") == f"b-{partner}"
    np.testing.assert_allclose(drawn_strengths(tab, "b"), expected_strengths(tab, pair.row(34)), atol=1e-6)
    tab.keyboard.press("Escape")
    wait_for_paint(tab)
    assert tab.locator("[aria-selected=true]").count() == 0
    tab.keyboard.press("End")
    assert tab.evaluate("focused()") == "b-255"


def test_shift_and_arrows_select_more(visit, pair):
    tab = visit(pair)
    tab.focus(region_selector("b", 17))
    for key in ["Shift+ArrowRight", "Shift+ArrowDown"]:
        tab.keyboard.press(key)
    wait_for_paint(tab)
    chosen = tab.evaluate(
        "[...root().querySelectorAll('[aria-selected=true]')].map(el => `${el.dataset.side}-${el.dataset.i}`)"
    )
    assert chosen == ["b-17", "b-18", "b-33", "b-34"]
    expected = pair.relevance.double()[:, [17, 18, 33, 34]].sum(1)
    np.testing.assert_allclose(drawn_strengths(tab, "a"), expected_strengths(tab, expected), atol=1e-6)


def distance(one: int, other: int) -> float:
    """Between two patches of 16 in a row, in patches."""
    return float(np.hypot(one // 16 - other // 16, one % 16 - other % 16))


def test_the_list_names_the_strongest_pairs_and_acts(visit, pair):
    tab = visit(pair)
    order = [divmod(int(k), 256) for k in np.argsort(-np.abs(pair.relevance.numpy()).ravel())]
    apart: list[tuple[int, int]] = []  # no pair near a stronger one on both sides: 2.5 patches of 8 pixels
    for i, j in order:
        if not any(max(distance(i, k), distance(j, m)) < 2.5 for k, m in apart):
            apart.append((i, j))
        if len(apart) == 12:
            break
    first = apart[0]
    labels = [el.get_attribute("aria-label") for el in tab.locator(".matches button").all()]

    def place(i):
        edges = [round(6.25 * n) for n in (i % 16, i % 16 + 1, i // 16, i // 16 + 1)]
        return f"x {edges[0]}–{edges[1]} %, y {edges[2]}–{edges[3]} %"

    for label, (i, j) in zip(labels, apart, strict=True):
        assert f"{place(i)} of A with {place(j)} of B: " in label
    tab.locator(".matches button").first.click()
    tab.mouse.move(2, 2)
    wait_for_paint(tab)
    assert np.flatnonzero(drawn_strengths(tab, "b")).tolist() == [first[1]]
    assert tab.locator(".matches [aria-pressed=true]").count() == 1


def test_zoom_shows_less_and_keeps_hover_right(visit, pair):
    tab = visit(pair)
    before = tab.locator(region_selector("a", 120)).bounding_box()["width"]
    tab.click("[aria-label='Zoom in A']")
    tab.hover(region_selector("a", 120))
    wait_for_paint(tab)
    assert tab.locator(region_selector("a", 120)).bounding_box()["width"] == pytest.approx(
        1.5 * before, rel=1e-3
    )
    np.testing.assert_allclose(drawn_strengths(tab, "b"), expected_strengths(tab, pair.row(120)), atol=1e-6)
    tab.focus(region_selector("a", 0))
    tab.keyboard.press("+")
    tab.keyboard.press("End")
    wait_for_paint(tab)
    panel, cell = (tab.locator(s).bounding_box() for s in (".panel[data-side=a]", region_selector("a", 255)))
    assert cell["x"] + cell["width"] <= panel["x"] + panel["width"] + 1
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Tab")  # coming back by Tab, the region is in sight again
    assert tab.locator(region_selector("a", 255)).bounding_box() == pytest.approx(cell, abs=0.01)
    tab.keyboard.press("0")
    assert tab.locator(region_selector("a", 120)).bounding_box()["width"] == pytest.approx(before, rel=1e-3)


def test_saves_what_is_seen_as_svg_and_png(visit, pair, tmp_path):
    from xml.etree import ElementTree

    from PIL import Image

    tab = visit(pair)
    tab.click(region_selector("a", 37))
    wait_for_paint(tab)
    for kind in ("svg", "png"):
        with tab.expect_download() as download:
            tab.click(f"[data-save={kind}]")
        download.value.save_as(tmp_path / f"figure.{kind}")
        assert download.value.suggested_filename == f"bilrp.{kind}"
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    images = [el for el in root.iter() if el.tag.endswith("}image")]
    assert [el.get("href", "")[:10] for el in images] == ["data:image"] * 2
    group = next(el for el in root.iter() if el.get("class") == "arcs")
    assert len(group) == count_arcs(tab) > 0
    picture = Image.open(tmp_path / "figure.png").convert("RGB")
    assert picture.width == 2 * float(root.get("width", "nan"))
    assert len(assert_not_none(picture.getcolors(maxcolors=2**24))) > 1000


def test_regions_of_any_shape_light_up_where_they_are(visit):
    labels = torch.full((40, 40), -1)
    rows, columns = torch.meshgrid(torch.arange(40), torch.arange(40), indexing="ij")
    ring = ((rows - 20) ** 2 + (columns - 20) ** 2).sqrt()
    labels[ring < 18], labels[ring < 10], labels[ring < 4] = 0, 1, -1
    explanation = make_explanation(
        mask_regions(labels), grid(64, 16), pictures=(noise(40, 40), noise(64, 64))
    )
    tab = visit(explanation)
    tab.check("[value=pairs]")
    tab.evaluate("scrollTo(0, 0)")
    panel = tab.locator(".panel[data-side=a]").bounding_box()

    def region_at(x, y):
        tab.mouse.move(panel["x"] + x / 40 * panel["width"], panel["y"] + y / 40 * panel["height"])
        wait_for_paint(tab)
        return drawn_strengths(tab, "b")

    np.testing.assert_allclose(region_at(20, 5), expected_strengths(tab, explanation.row(0)), atol=1e-6)
    np.testing.assert_allclose(region_at(20, 13), expected_strengths(tab, explanation.row(1)), atol=1e-6)
    assert not region_at(20, 20).any()  # the hole in the middle belongs to no region
    assert not region_at(1, 1).any()


def test_words_without_a_picture(visit):
    explanation = make_explanation(
        words("two", "goats", "climb"), words("a", "pair", "of", "kids", "scrambles", "up")
    )
    tab = visit(explanation)
    tab.check("[value=pairs]")
    assert tab.locator(".panel.words .word").all_text_contents() == [
        *assert_not_none(explanation.a.regions.names),
        *assert_not_none(explanation.b.regions.names),
    ]
    tab.hover(region_selector("a", 1))
    wait_for_paint(tab)
    np.testing.assert_allclose(
        drawn_strengths(tab, "b"), expected_strengths(tab, explanation.row(1)), atol=1e-6
    )
    assert "“goats” of A" in tab.inner_text(".readout")


@pytest.mark.parametrize(("width", "kind"), [(20, "factors"), (3000, "deflated")])
def test_fine_regions_are_decoded_in_the_browser(visit, width, kind):
    explanation = make_explanation(grid(128, 4), grid(128, 4), width=width)
    assert page.build_payload(explanation)["pairs"]["kind"] == kind
    tab = visit(explanation)
    tab.check("[value=pairs]")
    tab.hover(region_selector("a", 500))
    wait_for_paint(tab)
    np.testing.assert_allclose(
        drawn_strengths(tab, "b"), expected_strengths(tab, explanation.row(500)), atol=1e-3
    )


def test_hostile_names_are_only_text(visit):
    tab = visit(make_explanation(words(HOSTILE, "<b>y</b>"), words("z"), origin={"encoder": HOSTILE}))
    assert tab.locator("img").count() == 0
    tab.hover(region_selector("a", 0))
    wait_for_paint(tab)
    assert "onerror" in tab.inner_text(".readout")
    with tab.expect_download() as download:
        tab.click("[data-save=svg]")
    assert "<img" not in download.value.path().read_text("utf-8")


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_theme_follows_the_system_and_can_be_chosen(visit, pair, scheme, dark):
    tab = visit(pair, color_scheme=scheme)

    def is_dark():
        wait_for_paint(tab)
        ground = tab.evaluate("getComputedStyle(root().querySelector('.page')).backgroundColor")
        return sum(int(c) for c in ground[4:-1].split(",")) < 200

    assert is_dark() == dark
    tab.select_option("[name=theme]", "light" if dark else "dark")
    assert is_dark() != dark


def test_colour_blind_palette_marks_the_sign_without_colour(visit, pair):
    tab = visit(pair)
    tab.check("[name=safe]")
    tab.hover(region_selector("a", 37))
    wait_for_paint(tab)
    fill = "el => getComputedStyle(el).fill"
    assert "hatch" in tab.locator(".region[data-sign='-1']").first.evaluate(fill)
    assert "hatch" not in tab.locator(".region[data-sign='1']").first.evaluate(fill)


def test_a_narrow_screen_stacks_the_two_and_nothing_overflows(visit, pair):
    tab = visit(pair, width=360, height=700)
    a, b = (tab.locator(f".panel[data-side={side}]").bounding_box() for side in "ab")
    assert b["y"] > a["y"] + a["height"]
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    tab.set_viewport_size({"width": 1200, "height": 800})
    wait_for_paint(tab)
    a, b = (tab.locator(f".panel[data-side={side}]").bounding_box() for side in "ab")
    assert b["x"] > a["x"] + a["width"]


LONG = ("a very long sentence of many words that goes on and on " * 4, "short", "internationalisation " * 9)
PLACES = """() => Object.fromEntries(
    [".stage", ".readout", ".legend", ".findings", ".controls", "[data-save=png]", ".breakdown"].map((name) => {
        const { x, y } = root().querySelector(name).getBoundingClientRect();
        return [name, [x, y + scrollY]];
    }))"""


@pytest.mark.parametrize("width", [360, 700, 1060, 1280])
@pytest.mark.parametrize("kind", ["pictures", "sentences"])
def test_nothing_moves_at_a_hover(visit, pair, kind: str, width: int):
    """Pointing at a region on the way to a button does not move the button."""
    tab = visit(
        pair if kind == "pictures" else make_explanation(words(*LONG), words(*LONG), seed=1), width=width
    )
    before, readouts = tab.evaluate(PLACES), {tab.inner_text(".readout")}
    for here in (
        region_selector("a", 1),
        region_selector("b", 2),
        region_selector("a", 0),
        ".findings button >> nth=0",
    ):
        tab.hover(here)
        wait_for_paint(tab)
        readouts.add(tab.inner_text(".readout"))
        assert tab.evaluate(PLACES) == before, here
    assert len(readouts) >= 3  # two regions of one match read the same


def test_works_inside_a_notebook_frame(browser, pair):
    tab, errors = browser.new_page(viewport={"width": 1100, "height": 1000}), []
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.set_content(f"<h1>notebook</h1>{page.embed(pair)}")
    frame = tab.frame_locator("iframe")
    frame.locator(region_selector("a", 37)).hover()
    frame.locator(".arcs path").first.wait_for(state="attached")
    with tab.expect_download() as download:
        frame.locator("[data-save=png]").click()
    assert download.value.suggested_filename == "bilrp.png"
    tab.close()
    assert errors == []


def test_everything_that_acts_has_a_name_for_screen_readers(visit, pair):
    tab = visit(pair)
    nameless = tab.evaluate(
        """() => [...root().querySelectorAll("button, input, select, [role=option], [role=listbox]")]
            .filter(el => !(el.getAttribute("aria-label") || el.textContent.trim() || el.closest("label")))
            .map(el => el.outerHTML)"""
    )
    assert nameless == []
    assert tab.locator("[role=listbox]").count() == 2
    assert tab.locator("h1").count() == 1


def test_an_explanation_of_two_real_photographs_saves_itself_as_this_page(browser, tmp_path):
    data = pytest.importorskip("skimage.data", reason="no scikit-image: it ships the stereo pair")
    from PIL import Image

    folder = Path(data.__file__).parent
    left, right = (
        torch.from_numpy(np.array(Image.open(folder / f"motorcycle_{side}.png").resize((48, 32)))) / 255
        for side in ("left", "right")
    )
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 5, stride=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    encoder = bilrp.Encoder(module=net, to_image=lambda x: (255 * x[0].permute(1, 2, 0)).byte().numpy())
    inputs = [image.permute(2, 0, 1)[None].float() for image in (left, right)]
    explanation = bilrp.explain(encoder, *inputs, regions=bilrp.regions.grid(8), similarity="dot")
    assert "<iframe" in explanation._repr_html_()
    tab = browser.new_page(reduced_motion="reduce")
    tab.add_init_script(PAGE_SCRIPT)
    tab.goto(explanation.save(tmp_path / "why.html").resolve().as_uri())
    assert tab.locator("image").count() == 2
    tab.hover(region_selector("a", 9))
    wait_for_paint(tab)
    np.testing.assert_allclose(
        drawn_strengths(tab, "b"), expected_strengths(tab, explanation.row(9)), atol=1e-6
    )
    assert read_breakdown(tab)["score"]["value"] == pytest.approx(explanation.score)
    assert read_breakdown(tab)["unattributed"]["value"] == pytest.approx(explanation.unattributed, rel=1e-3)
    tab.close()


def test_a_distance_is_told_as_a_distance_and_adds_up_with_its_self_terms(visit):
    left, right = (torch.nn.Linear(6, 4, bias=False) for _ in range(2))
    within = tuple(net.weight.detach() @ net.weight.detach().T for net in (left, right))
    explanation = make_explanation(
        words("a", "b", "c", "d"),
        words("e", "f", "g", "h"),
        self_terms=within,
        similarity="squared_distance",
        is_distance=True,
    )
    tab = visit(explanation)
    assert "raises the model’s distance" in tab.inner_text(".lead")
    assert tab.inner_text(".summary").startswith("Squared distance")
    rows = read_breakdown(tab)
    assert rows["self_terms_a"]["value"] == pytest.approx(float(within[0].sum()), rel=1e-5)
    total = sum(row["value"] for name, row in rows.items() if name not in {"score", "chosen"})
    assert total == pytest.approx(explanation.score, rel=1e-6)


def test_the_switch_goes_from_matches_to_differences(visit, pair):
    tab = visit(pair)
    differences = page.build_payload(pair)["differences"]
    tab.click("button[data-draw=differences]")
    wait_for_paint(tab)
    assert tab.locator(".ribbons path").count() == 0 and "What sets the two apart" in tab.inner_text(
        ".readout"
    )
    shares = tab.locator(".findings .share").all_text_contents()
    assert shares == [format_share(one["share"]) for one in differences] and shares
    assert tab.locator(".badges text").all_text_contents() == [str(n + 1) for n in range(len(shares))]
    assert tab.locator("input[value=differences]").is_checked()
    tab.click("button[data-draw=findings]")
    wait_for_paint(tab)
    assert tab.locator(".ribbons path").count() > 0


def test_shares_are_rounded_as_in_python(visit, pair):
    tab = visit(pair)
    shown = tab.evaluate(
        """() => [...root().querySelectorAll(".breakdown tr")].map(row =>
            [Number(row.querySelector(".number").dataset.value), row.querySelector(".share").textContent])"""
    )
    assert len(shown) > 3
    for value, share in shown[:-1]:  # the last is the selection
        assert share == format_share(value / abs(pair.score))
    cards = tab.locator(".findings .share").all_text_contents()
    assert cards == [format_share(f.relevance / abs(pair.score)) for f in pair.findings()]


def test_a_score_near_zero_has_no_shares(visit, pair):
    tab = visit(replace(pair, score=0.01 * pair.breakdown.scale))
    drawn = tab.inner_text(".summary") + "".join(tab.locator(".findings .share").all_text_contents())
    assert "of the score" not in tab.inner_text(".readout") and "%" not in drawn.split("One region")[0]
    assert (
        tab.locator(".breakdown .share").all_text_contents()
        == [""] * tab.locator(".breakdown .share").count()
    )
