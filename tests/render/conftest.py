"""Fixtures: a browser, a page opened from disk, and an explanation."""

import pytest
from browser_helpers import PAGE_SCRIPT

# tests/ is on the path, as pytest puts it there.
from test_page import grid, make_explanation, noise

from bilrp.render import page


class PatientBrowser:
    """A browser with long timeouts, for busy machines."""

    def __init__(self, chromium):
        self.chromium = chromium

    def new_page(self, **options):
        tab = self.chromium.new_page(**options)
        tab.set_default_timeout(300_000)
        return tab


@pytest.fixture(scope="session")
def browser(chromium):
    return PatientBrowser(chromium)


@pytest.fixture
def visit(browser, tmp_path):
    """Open an explanation from disk; fail if there was an error or a request."""
    problems, tabs = [], []

    def open_page(explanation, *, width=1280, height=1000, special_tokens=False, **options):
        tab = browser.new_page(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        tab.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: _outside(request.url, problems))
        tab.add_init_script(PAGE_SCRIPT)
        tab.goto(
            page.write(
                explanation, tmp_path / f"page{len(tabs)}.html", special_tokens=special_tokens
            ).as_uri()
        )
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        tab.close()
    assert problems == []


def _outside(url, problems):
    if not url.startswith(("file:", "data:", "blob:")):
        problems.append(f"request: {url}")


@pytest.fixture(scope="session")
def pair():
    return make_explanation(grid(), grid(), pictures=(noise(), noise(seed=1)), seed=3)
