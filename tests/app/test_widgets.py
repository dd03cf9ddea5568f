"""The notebook's widgets: what anywidget gets, drawn in a real browser; what is chosen there is read in Python."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("anywidget", reason="widgets need bilrp[notebook]")

HOST = """
<!doctype html><meta charset="utf-8"><body><div id="one"></div><div id="two"></div><script type="module">
const waiting = [];
window.model = (which, state) => ({
  get: (name) => state[name], set: (name, value) => (state[name] = value), save_changes: () => window.saved(which, JSON.stringify(state.selected)),
  on: (name, hear) => waiting.push(hear), off: () => {},
  send: async (message) => { const said = JSON.parse(await window.asked(JSON.stringify(message))); waiting.forEach((hear) => hear(said)); },
});
window.ready = true;
</script>
"""  # noqa: E501


@pytest.fixture
def tab(chromium):
    """A page that stands for a notebook: it holds models and runs the widgets' modules."""
    page = chromium.new_page(viewport={"width": 1100, "height": 900}, reduced_motion="reduce")
    page.set_default_timeout(60_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield page
    page.close()
    assert errors == []


def script(text):
    return lambda route: route.fulfill(body=text, content_type="text/javascript")


def show_widgets(tab, widgets, saved, asked=None):
    """Put widgets on the page by their own modules, two on one page where there are two."""
    tab.expose_function("saved", lambda which, text: saved.append((which, json.loads(text))))
    tab.expose_function("asked", asked or (lambda text: "{}"))
    tab.route("http://notebook.test/", lambda route: route.fulfill(body=HOST, content_type="text/html"))
    for number, widget in enumerate(widgets):
        tab.route(f"http://notebook.test/{number}.js", script(str(widget.trait_values()["_esm"])))
    tab.goto("http://notebook.test/")
    for number, (path, widget) in enumerate(zip(("one", "two"), widgets, strict=False)):
        state = {
            name: widget.trait_values()[name]
            for name in ("payload", "styles")
            if name in widget.trait_names()
        }
        # The window holds the promise: one that only this call waits for may be garbage collected while the module loads.
        tab.evaluate(
            """([number, place, state]) => {
                window.shown = undefined;
                window.loading = import(`http://notebook.test/${number}.js`).then((module) => {
                    module.default.render({ model: window.model(place, state), el: document.getElementById(place) });
                    window.shown = "";
                }).catch((error) => { window.shown = String(error); });
            }""",
            [number, path, state],
        )
        tab.wait_for_function("window.shown !== undefined")
        assert tab.evaluate("window.shown") == ""


@pytest.mark.browser
def test_two_explanations_on_one_page_and_what_is_pinned(tab, photographs):
    widgets = [photographs.explain(0, j, similarity="cosine").widget() for j in (7, 14)]
    assert widgets[0].selected == {} and widgets[0].payload["breakdown"]["score"] > 0
    saved = []
    show_widgets(tab, widgets, saved)
    tab.locator("#two .findings button").first.wait_for()
    tab.locator("#one .findings button").first.click()
    tab.locator("#one .findings button[aria-pressed=true]").wait_for()
    tab.locator("#two .region[data-side=a][data-i='9']").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    tab.locator("#two .region[data-side=a][data-i='10'][aria-selected=true]").wait_for()
    first = photographs.explain(0, 7, similarity="cosine").findings()[0]
    assert saved[0] == ("one", {"finding": 0, "a": list(first.a), "b": list(first.b)})
    assert saved[-1] == ("two", {"side": "a", "regions": [10], "partner": None})


@pytest.mark.browser
def test_a_collection_is_browsed_and_python_reads_what_is_chosen(tab, photographs):
    widget = photographs.widget()
    replies = []
    # On the widget itself, not by monkeypatch: the page may still ask while the test is being cleared away.
    widget.send = lambda content, buffers=None: replies.append(content)

    def asked(text):
        widget._handle_custom_msg(json.loads(text), [])  # what a kernel calls
        return json.dumps(replies.pop())

    saved = []
    show_widgets(tab, [widget], saved, asked)
    tab.locator(f"#one li[data-id='{photographs.ids[8]}'] button").click()
    tab.locator("#one .near[data-done=yes]").wait_for()
    order = "all => all.map(el => el.dataset.id)"
    expected = [n.id for n in photographs.nearest(8, 13, similarity="cosine") if n.position != 8]
    assert tab.locator("#one ol.near li").evaluate_all(order) == expected
    tab.locator("#one .board .region[tabindex='0']").focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    tab.locator("#one p.note", has_text="Ranked by 1 of").wait_for()
    neighbours = [n.id for n in photographs.nearest(8, 13, part=[8], similarity="cosine") if n.position != 8]
    assert tab.locator("#one ol.near li").evaluate_all(order) == neighbours
    widget.selected = saved[-1][1]
    assert widget.selected == {"id": photographs.ids[8], "part": [8], "without": []}


def test_errors_are_shown_where_the_request_was_made(photographs, monkeypatch):
    widget, replies = photographs.widget(), []
    monkeypatch.setattr(type(widget), "send", lambda self, content, buffers=None: replies.append(content))
    widget._handle_custom_msg({"number": 1, "what": "neighbours", "question": {"id": "nothing"}}, [])
    widget._handle_custom_msg({"number": 2, "what": "exec", "question": {}}, [])
    assert "no such item" in replies[0]["error"] and "KeyError" in replies[1]["error"]
