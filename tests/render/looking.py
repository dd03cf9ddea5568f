"""Looking at the page in a real browser, as a reader does: what is drawn, said and focused."""

import numpy as np

# What tests ask of the document: the page lives in a shadow root.
HELPERS = """
window.root = () => document.querySelector("main").shadowRoot;
window.focused = () => { const { side, i } = root().activeElement?.dataset ?? {}; return side && `${side}-${i}`; };
"""


def region(side, i):
    """The selector of one region."""
    return f'.region[data-side={side}][data-i="{i}"]'


def settle(tab):
    """Wait until the next frame is painted."""
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def lit(tab, side):
    """Signed intensities of one side's regions, as drawn."""
    values = tab.evaluate(
        """side => [...root().querySelectorAll(`.region[data-side=${side}]`)].map(el =>
            Number(el.getAttribute("fill-opacity")) * (el.classList.contains("negative") ? -1 : 1))""",
        side,
    )
    return np.array(values)


def arcs(tab):
    settle(tab)
    return int(tab.get_attribute(".stage > canvas", "data-arcs") or 0)


def drawn(tab):
    """A digest of the canvas: what the arcs look like."""
    settle(tab)
    return tab.evaluate("root().querySelector('.stage > canvas').toDataURL()")


def account(tab):
    return tab.evaluate(
        """() => Object.fromEntries([...root().querySelectorAll(".account tr")].map(row => {
            const number = row.querySelector(".number");
            const bar = row.querySelector("rect");
            const [x, w] = ["x", "width"].map(k => Number(bar.getAttribute(k)));
            return [row.className.split(" ")[0], {value: Number(number.dataset.value), text: number.textContent, x, w}];
        }))"""
    )


def as_drawn(values):
    values = np.asarray(values, dtype=np.float64)
    return values / np.abs(values).max()
