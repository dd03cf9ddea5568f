"""The app in a real browser: browsing, selecting, searching; by mouse and by keyboard alone."""

from __future__ import annotations

import pytest

from bilrp.app import static_files

pytestmark = pytest.mark.browser


def names(tab):
    return tab.eval_on_selector_all(".near li", "all => all.map(el => el.dataset.id)")


def read_ranking(tab, words):
    """Wait for the ranking that these words announce, with its heat maps."""
    tab.wait_for_selector(f"h2:text-is('{words}')")
    tab.wait_for_selector(".near[data-done=yes]")
    return names(tab)


def compute_ranking(photographs, at, **how):
    neighbours = photographs.nearest(at, 13, similarity="cosine", **how)
    return [n.id for n in neighbours if n.position != at][:12]


def test_browsing_from_the_grid_to_an_item_to_a_pair_and_back_by_keyboard_alone(visit, photographs):
    tab = visit("/")
    tab.wait_for_selector(".grid li img")
    tab.focus(".grid [tabindex='0']")
    wide = "el => el.clientWidth"
    across = round(tab.eval_on_selector(".grid", wide) / tab.eval_on_selector(".grid li", wide))
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowDown")
    tab.wait_for_selector(f".grid li[aria-posinset='{2 + across}'] a:focus")
    tab.keyboard.press("Enter")
    at = 1 + across
    tab.wait_for_url(f"**/item/{photographs.ids[at]}")
    assert read_ranking(tab, "Ranked by the whole") == compute_ranking(photographs, at)
    tab.focus(".board .region[tabindex='0']")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")  # region 9 of 8 × 8
    assert read_ranking(tab, "Ranked by 1 region") == compute_ranking(photographs, at, part=[9])
    tab.keyboard.press("Shift+ArrowRight")
    tab.keyboard.press("Shift+ArrowDown")
    assert read_ranking(tab, "Ranked by 4 regions") == compute_ranking(photographs, at, part=[9, 10, 17, 18])
    tab.keyboard.press("Shift+Enter")
    assert read_ranking(tab, "Ranked without 1 region") == compute_ranking(photographs, at, without=[18])
    tab.keyboard.press("Escape")
    first = read_ranking(tab, "Ranked by the whole")[0]
    tab.focus(".near li:first-child .why")
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**/pair/{photographs.ids[at]}/{first}")
    tab.wait_for_selector(".mounted .findings button")
    tab.go_back()
    assert read_ranking(tab, "Ranked by the whole")[0] == first
    tab.focus(".bar nav a >> nth=0")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".grid li img")


def test_brushing_ranks_by_the_part_and_with_shift_without_it(visit, photographs):
    at = 8
    tab = visit(f"/item/{photographs.ids[at]}", height=560)  # so low that the picture does not fill its place
    full = read_ranking(tab, "Ranked by the whole")
    box = tab.locator(".board image").bounding_box()

    def spot(row, column):
        return box["x"] + (column + 0.5) * box["width"] / 8, box["y"] + (row + 0.5) * box["height"] / 8

    tab.mouse.move(*spot(2, 2))
    tab.mouse.down()
    tab.mouse.move(*spot(3, 4), steps=4)
    tab.mouse.up()
    part = [18, 19, 20, 26, 27, 28]
    assert read_ranking(tab, "Ranked by 6 regions") == compute_ranking(photographs, at, part=part) != full
    shown = tab.eval_on_selector_all(
        ".near .about b", "all => all.map(el => Number(el.textContent.replace('−', '-')))"
    )
    neighbours = [n for n in photographs.nearest(at, 13, part=part, similarity="cosine") if n.position != at][
        :12
    ]
    assert shown == pytest.approx([n.score for n in neighbours], abs=6e-4)
    assert tab.url.endswith("?part=18-20.26-28")
    tab.keyboard.down("Shift")
    tab.mouse.move(*spot(0, 0))
    tab.mouse.down()
    tab.mouse.move(*spot(0, 7), steps=4)
    tab.mouse.up()
    tab.keyboard.up("Shift")
    assert read_ranking(tab, "Ranked without 8 regions") == compute_ranking(
        photographs, at, without=list(range(8))
    )
    tab.go_back()
    assert read_ranking(tab, "Ranked by 6 regions") == compute_ranking(photographs, at, part=part)
    tab.click("text=Swap")
    assert read_ranking(tab, "Ranked without 6 regions") == compute_ranking(photographs, at, without=part)


def test_an_address_restores_its_view(visit, photographs):
    tab = visit(f"/item/{photographs.ids[3]}?without=5-7&by=dot")
    tab.wait_for_selector(".near[data-done=yes]")
    neighbours = [
        n.id for n in photographs.nearest(3, 13, without=[5, 6, 7], similarity="dot") if n.position != 3
    ][:12]
    assert names(tab) == neighbours and tab.locator(".board [aria-selected=true]").count() == 3
    tab.goto(tab.url.split("/item")[0] + "/?group=cat&words=3")
    tab.wait_for_selector(".grid li img")
    assert tab.locator(".grid li").count() == 1 and tab.input_value("[name=words]") == "3"
    tab.fill("[name=words]", "")
    tab.wait_for_selector(".grid li:nth-child(6)")
    assert tab.url.endswith("/?group=cat")


def test_covering_shows_the_predicted_score_and_the_models(visit, photographs):
    tab = visit(f"/pair/{photographs.ids[6]}/{photographs.ids[7]}")
    tab.wait_for_selector(".mounted .findings button")
    assert tab.locator(".saves a").count() == 4
    tab.click(".cover summary")
    tab.focus(".cover .region[tabindex='0']")
    for key in ("ArrowRight", "ArrowDown", *["Shift+ArrowRight"] * 3, *["Shift+ArrowDown"] * 3):
        tab.keyboard.press(key)
    regions = [8 * row + column for row in range(1, 5) for column in range(1, 5)]
    tab.wait_for_selector(".scores .true .number")
    numbers = [
        float(tab.inner_text(f".scores .{row} .number").replace("−", "-"))
        for row in ("before", "predicted", "true")
    ]
    a, b = (photographs.embeddings[i] for i in (6, 7))
    scale = (a @ a * (b @ b)) ** 0.5
    share = float(photographs.share(6, [7], similarity="dot")[regions, 0].sum())
    assert numbers[0] == pytest.approx(float(a @ b) / scale, abs=6e-4)
    assert numbers[1] == pytest.approx((float(a @ b) - share) / scale, abs=6e-4)
    assert numbers[2] != numbers[0]  # what it is, test_questions works out
    with tab.expect_download() as saved:
        tab.click(".saves a >> nth=2")
    assert saved.value.path().read_text().startswith("region of a,region of b,relevance")


def test_two_neighbours_are_contrasted(visit, photographs):
    tab = visit(f"/item/{photographs.ids[0]}")
    neighbours = read_ranking(tab, "Ranked by the whole")
    tab.click(".near li:nth-child(1) .versus")
    tab.click(".near li:nth-child(4) .versus")
    tab.wait_for_selector(".shows[data-done=yes]")
    cosine = photographs.nearest(0, 13, similarity="cosine")
    by_id = {n.id: n.score for n in cosine}
    score = float(tab.get_attribute(".shows li", "data-score"))
    assert score == pytest.approx(by_id[neighbours[0]] - by_id[neighbours[3]], abs=1e-5)
    tab.select_option("[name=first]", "group:cat")
    tab.select_option("[name=second]", "group:temple")
    tab.wait_for_url("**first=group*")
    tab.wait_for_selector(".shows[data-done=yes]")


@pytest.mark.parametrize("width", [390, 1400])
def test_names_of_neighbours_are_whole(visit, photographs, width):
    tab = visit(f"/item/{photographs.ids[0]}", width=width)
    tab.wait_for_selector(".near[data-done=yes]")
    cut = "all => all.filter(el => el.scrollWidth > el.clientWidth).map(el => el.textContent)"
    assert tab.locator(".near .name").count() == 12 and tab.locator(".near .name").evaluate_all(cut) == []


def test_groups_differ_in_colour_and_symbol(visit):
    tab = visit("/map")
    tab.wait_for_selector(".atlas canvas")
    values = tab.evaluate(
        """async () => {
            const { look } = await import("/web/atlas.js");
            return Array.from({ length: 30 }, (_, k) => JSON.stringify(look(k)));
        }"""
    )
    assert len(set(values[:24])) == 24 and set(values[24:]) == {"{}"}


def test_the_map_opens_what_is_pointed_at(visit, photographs):
    tab = visit("/map")
    tab.wait_for_selector(".atlas canvas")
    assert "principal components" in tab.inner_text(".lead")
    assert tab.locator(".clusters li").count() == tab.locator(".atlas .cluster").count() == 4
    tab.focus(".atlas canvas")
    tab.keyboard.press("ArrowRight")
    tab.wait_for_selector(".tip img")
    there = tab.get_attribute(".tip", "href")
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**{there}")


def test_a_group_and_the_audit_open_their_examples(visit, photographs):
    tab = visit("/group?name=cat")
    tab.wait_for_selector("main[data-done=yes]")
    assert tab.locator("h1").inner_text() == "cat" and tab.locator(".near .heat.lit").count() == 12
    tab.goto(tab.url.split("/group")[0] + "/audit")
    tab.wait_for_selector(".findings .pairs a")
    tab.click(".findings .pairs a >> nth=0")
    tab.wait_for_selector(".mounted .findings button")


def test_a_file_becomes_a_query(visit, photographs, folder):
    tab = visit("/")
    tab.wait_for_selector(".grid li img")
    tab.set_input_files("#query-file", folder / "coffee" / "coffee-1.jpg")
    assert (
        read_ranking(tab, "Ranked by the whole")[0]
        == photographs.ids[photographs.names.index("coffee-1.jpg")]
    )
    assert "not in the collection" in tab.inner_text("main header .lead")


def test_an_unknown_item_shows_an_error(chromium, address):
    tab = chromium.new_page()
    tab.set_default_timeout(90_000)
    tab.goto(f"{address}/item/{'0' * 32}")
    tab.wait_for_selector("[role=alert]")
    assert "no such item" in tab.inner_text("[role=alert]")
    tab.close()


def test_nothing_is_written_inline(address):
    """The policy allows no inline script or style; the app's own files hold none."""
    assert not any(
        b"<script>" in text or b" style=" in text for text, _ in static_files.load_static_files().values()
    )
