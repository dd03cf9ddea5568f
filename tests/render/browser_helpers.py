"""Read the page in a real browser: what is drawn, written and focused."""

import numpy as np

FULL_OPACITY = 0.75  # of the full colour, for a region at the upper end of the scale

# What tests ask of the document: the page lives in a shadow root.
PAGE_SCRIPT = """
window.root = () => document.querySelector("main").shadowRoot;
window.focused = () => { const { side, i } = root().activeElement?.dataset ?? {}; return side && `${side}-${i}`; };
"""


def region_selector(side, i):
    """The selector of one region."""
    return f'.region[data-side={side}][data-i="{i}"]'


def wait_for_paint(tab):
    """Wait until the next frame is painted."""
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def drawn_strengths(tab, side):
    """Signed strengths of one side's regions, as drawn."""
    values = tab.evaluate(
        """side => [...root().querySelectorAll(`.region[data-side=${side}]`)].map(el =>
            Number(el.getAttribute("fill-opacity")) * Number(el.dataset.sign))""",
        side,
    )
    return np.array(values) / FULL_OPACITY


def expected_strengths(tab, values):
    """Signed strengths that the legend promises for these values: logarithmic from its low to its high end."""
    low, high = (float(tab.get_attribute(".legend", f"data-{end}")) for end in ("low", "high"))
    values = np.asarray(values, dtype=np.float64)
    size = np.maximum(np.abs(values), low)
    return np.sign(values) * np.clip(np.log(size / low) / np.log(high / low), 0, 1)


def count_arcs(tab):
    wait_for_paint(tab)
    return tab.locator(".arcs path").count()


def arcs_html(tab):
    """What the arcs look like."""
    wait_for_paint(tab)
    return tab.evaluate("root().querySelector('.arcs').outerHTML")


def read_breakdown(tab):
    return tab.evaluate(
        """() => Object.fromEntries([...root().querySelectorAll(".breakdown tr")].map(row => {
            const number = row.querySelector(".number");
            const bar = row.querySelector("rect");
            const [x, w] = ["x", "width"].map(k => Number(bar.getAttribute(k)));
            return [row.className.split(" ")[0], {value: Number(number.dataset.value), text: number.textContent, x, w}];
        }))"""
    )
