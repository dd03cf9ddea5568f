"""A browser, a page opened from disk in it, and a pair of inputs to look at."""

import pytest
from browser_helpers import PAGE_SCRIPT

# tests/ is on the path, as pytest puts it there.
from test_page import grid, made, noise

from bilrp.render import page


class Patient:
    """A browser whose tabs wait long: a busy machine is no failure."""

    def __init__(self, chromium):
        self.chromium = chromium

    def new_page(self, **options):
        tab = self.chromium.new_page(**options)
        tab.set_default_timeout(300_000)
        return tab


@pytest.fixture(scope="session")
def browser(chromium):
    return Patient(chromium)


@pytest.fixture
def visit(browser, tmp_path):
    """Open an explanation from disk; afterwards no error and no request may have been seen."""
    trouble, tabs = [], []

    def open_page(explanation, *, width=1280, height=1000, marks=False, **options):
        tab = browser.new_page(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        tab.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: trouble.append(str(error)))
        tab.on("request", lambda request: _outside(request.url, trouble))
        tab.add_init_script(PAGE_SCRIPT)
        tab.goto(page.write(explanation, tmp_path / f"page{len(tabs)}.html", special_tokens=marks).as_uri())
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        tab.close()
    assert trouble == []


def _outside(url, trouble):
    if not url.startswith(("file:", "data:", "blob:")):
        trouble.append(f"request: {url}")


@pytest.fixture(scope="session")
def pair():
    return made(grid(), grid(), pictures=(noise(), noise(seed=1)), seed=3)
