"""mount: the same page from plain modules or from one bundle, as often on one document as one likes."""

import json

import numpy as np
import pytest
from browser_helpers import wait_for_paint
from test_page import grid, make_explanation, noise, words

from bilrp.errors import InputError
from bilrp.render import bundle, page

ADDRESS = "http://page.test"


@pytest.fixture
def blank(browser):
    """A document without anything of ours, on which the package's files can be imported by name."""
    tab, errors = browser.new_page(viewport={"width": 1280, "height": 1000}, reduced_motion="reduce"), []
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))

    def answer(route):
        name = route.request.url.removeprefix(f"{ADDRESS}/")
        kind = "text/javascript" if name.endswith(".js") else "text/html"
        body = (
            bundle.bundle_module()
            if name == "bundle.js"
            else bundle.read_source(name)
            if name
            else "<div></div>" * 2
        )
        route.fulfill(body=body, content_type=f"{kind}; charset=utf-8")

    tab.route(f"{ADDRESS}/**", answer)
    tab.goto(f"{ADDRESS}/")
    yield tab
    tab.close()
    assert errors == []


def mount(tab, file, *payloads):
    """Mount each payload on the next <div>; the handles are kept in `mounted`."""
    tab.evaluate(
        """async ([file, payloads]) => {
            const { mount } = await import(file);
            const roots = [...document.querySelectorAll("div")];
            window.mounted = payloads.map((payload, k) => mount(roots[k], JSON.parse(payload)));
            await Promise.all(mounted.map(({ ready }) => ready));
        }""",
        [f"{ADDRESS}/{file}", [json.dumps(payload) for payload in payloads]],
    )


def lit(tab, k, side):
    return np.array(
        tab.evaluate(
            """([k, side]) => [...document.querySelectorAll("div")[k].shadowRoot
                .querySelectorAll(`.region[data-side=${side}]`)].map(el =>
                Number(el.getAttribute("fill-opacity")) * Number(el.dataset.sign))""",
            [k, side],
        )
    )


@pytest.mark.browser
@pytest.mark.parametrize("file", ["mount.js", "bundle.js"])
def test_two_explanations_live_on_one_document_and_leave_each_other_alone(blank, file):
    first, second = make_explanation(grid(64), grid(64), seed=1), make_explanation(grid(64), grid(64), seed=2)
    mount(blank, file, page.build_payload(first), page.build_payload(second))
    at = blank.locator("div").nth(1).locator(".region[data-side=a]").nth(5)
    at.click()
    wait_for_paint(blank)
    seen = lit(blank, 1, "b")
    assert np.argmax(np.abs(seen)) == int(second.row(5).abs().argmax())
    assert (seen * second.row(5).numpy() >= 0).all() and not lit(blank, 0, "b").any()
    blank.locator("div").nth(1).locator("[name=theme]").select_option("dark")
    themes = blank.evaluate(
        "[...document.querySelectorAll('div')].map(el => el.shadowRoot.querySelector('.page').dataset.theme)"
    )
    assert themes == ["auto", "dark"]
    assert blank.evaluate("document.querySelectorAll('[id]').length") == 0


@pytest.mark.browser
def test_update_shows_another_explanation_with_the_same_look_and_destroy_leaves_nothing(blank):
    first, second = (
        make_explanation(grid(64), grid(64), seed=1),
        make_explanation(words("a", "b", "c"), words("d", "e")),
    )
    mount(blank, "mount.js", page.build_payload(first))
    blank.locator("[name=theme]").select_option("dark")
    blank.evaluate(
        "payload => mounted[0].update(JSON.parse(payload)).ready", json.dumps(page.build_payload(second))
    )
    assert blank.locator(".panel.words .word").all_text_contents() == ["a", "b", "c", "d", "e"]
    assert blank.locator("[name=theme]").input_value() == "dark"
    blank.evaluate("mounted[0].destroy()")
    blank.keyboard.press("Escape")
    blank.set_viewport_size({"width": 700, "height": 700})
    wait_for_paint(blank)
    assert blank.locator("article").count() == 0


@pytest.mark.browser
def test_a_payload_of_another_version_is_refused_with_a_message(blank):
    payload = page.build_payload(make_explanation(words("a"), words("b"))) | {"version": 999}
    blank.evaluate(
        """async ([file, payload]) => {
            const { mount } = await import(file);
            await mount(document.querySelector("div"), payload).ready.catch(() => {});
        }""",
        [f"{ADDRESS}/mount.js", payload],
    )
    assert "version" in blank.locator("[role=alert]").inner_text()


def test_the_bundle_refuses_what_one_scope_cannot_hold(monkeypatch):
    def bundle_modules(**modules):
        monkeypatch.setattr(bundle, "read_source", lambda name: modules[name.removesuffix(".js")])
        bundle.bundle_script.cache_clear()
        try:
            return bundle.bundle_script("one")
        finally:
            bundle.bundle_script.cache_clear()

    use = 'import { two } from "./two.js";\n'
    assert (
        bundle_modules(one=use + "two();", two="export const two = () => 2;")
        == "const two = () => 2;\ntwo();\n"
    )
    with pytest.raises(InputError, match="cycle: one → two → one"):
        bundle_modules(one=use, two='import { one } from "./one.js";\nexport const two = 1;')
    with pytest.raises(InputError, match="declare two twice"):
        bundle_modules(one=f"{use}function two() {{}}", two="export const two = 1;")
    with pytest.raises(InputError, match="imports two, which two"):
        bundle_modules(one=use, two="const two = 1;")


@pytest.mark.browser
def test_the_photograph_is_shown_whole_and_what_the_model_did_not_see_is_dimmed(blank):
    """A middle square of a 400 × 200 photograph, itself a half-size copy: places are said in per cent of it."""
    payload = page.build_payload(
        make_explanation(grid(64), grid(64), pictures=(noise(64, 64), noise(64, 64, seed=1)))
    )
    seen = payload["a"]["view"]
    cells = [[100 + 25 * (i % 8), 25 * (i // 8)] for i in range(64)]
    seen |= {
        "width": 400,
        "height": 200,
        "full": [800, 400],
        "box": [100, 0, 300, 200],
        "frame": [0, 0, 400, 200],
    }
    seen["regions"] = [[x, y, x + 25, y + 25] for x, y in cells]
    mount(blank, "mount.js", payload)
    panel, cell = (blank.locator(s).first.bounding_box() for s in (".veil", ".region"))
    assert panel["width"] / panel["height"] == pytest.approx(2, rel=1e-3)
    assert cell["x"] - panel["x"] == pytest.approx(panel["width"] / 4, abs=1)
    assert cell["width"] == pytest.approx(panel["width"] / 16, abs=1)
    assert blank.locator(".region").first.get_attribute("aria-label").startswith("x 25–31 %, y 0–12 % of A")
    dim = blank.locator(".unseen").first
    assert dim.get_attribute("d").startswith(
        "M0 0H400V200H0Z"
    ) and "M100 0H300V200H100Z" in dim.get_attribute("d")
    assert blank.locator(".unseen").nth(1).get_attribute("d") == ""
    outline = blank.locator(".edge").first
    assert outline.get_attribute("d") and outline.get_attribute("stroke-dasharray")
