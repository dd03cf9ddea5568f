// Placing everything on the stage, and painting it: the one function that draws what the state says.

import { sum } from "./data.js";
import { set } from "./dom.js";
import { layout } from "./geometry.js";
import { paintLegend } from "./legend.js";
import { paintLinks } from "./links.js";
import { paintPanel, placePanel } from "./panels.js";
import { describe, partnersOf, sceneOf } from "./scene.js";
import { same } from "./words.js";

const HEAD = 34; // the line above a side
const LEAST = 150; // pixels a picture is high at least, however small the window

/** How high a picture may be, so that both and the line that speaks of them fit the window. */
function room(app, stacked) {
  const window = Math.min(innerHeight, 1000);
  if (stacked) return (window - 2 * HEAD - 44 - 150) / 2;
  return app.compact ? window * 0.5 : Math.min(640, window * 0.66);
}

/** Put everything where it belongs at the present width; called at the start and when the width changes. */
export function place(app) {
  const width = Math.max(240, app.dom.stage.clientWidth); // a hidden frame has no width yet
  const probe = document.createElement("canvas").getContext("2d");
  probe.font = `17px ${getComputedStyle(app.dom.page).fontFamily}`;
  const measure = (word) => probe.measureText(word).width;
  const fit = (tall) => layout(app.model.data, width, Math.max(LEAST, tall), HEAD, measure);
  let tall = room(app, width < 600);
  put(app, fit(tall));
  const { stacked, a, b } = app.layout;
  tall = Math.min(tall, Math.max(a.h, b.h)); // a wide picture is not as high as it may be
  const over = () => (app.compact && !stacked ? app.dom.page.scrollHeight - innerHeight : 0);
  for (let round = 0; round < 3 && over() > 0 && tall > LEAST; round++) {
    tall -= over();
    put(app, fit(tall));
  }
}

function put(app, found) {
  app.layout = found;
  const [width, height] = [found.width, Math.ceil(found.height) + 2];
  app.dom.stage.style.height = `${height}px`;
  set(app.dom.svg, { viewBox: `0 0 ${width} ${height}`, width, height });
  for (const side of ["a", "b"]) placePanel(app, side);
  paint(app);
}

/** Change what the reader chose, and paint it. */
export function change(app, values) {
  Object.assign(app.state, values);
  repaint(app);
}

export function repaint(app) {
  if (app.waiting) return;
  app.waiting = true;
  requestAnimationFrame(() => {
    app.waiting = false;
    if (!app.signal.aborted) paint(app);
  });
}

export function paint(app) {
  const scene = sceneOf(app);
  const ink = colours(app);
  for (const side of ["a", "b"]) paintPanel(app, side, scene, ink);
  paintLinks(app, scene, ink);
  const key = JSON.stringify([scene.scale, ink, app.layout.width]);
  if (app.legendKey !== key) paintLegend(app, app.dom.legend, scene.scale, ink);
  app.legendKey = key;
  const words = describe(app, scene);
  if (app.dom.readout.textContent !== words) app.dom.readout.textContent = words;
  app.showChosen(chosenValue(app, scene));
  for (const { el, choice } of app.dom.entries) set(el, { "aria-pressed": same(choice, app.state.pinned) });
  tellPinned(app);
}

/**
 * Whoever holds the page hears what is pinned: regions of a side (and a partner), or a finding; null for nothing.
 * Regions are called by the decomposition's numbers, whatever the page leaves out.
 */
function tellPinned(app) {
  const { pinned } = app.state;
  if (same(app.told ?? null, pinned)) return;
  app.told = pinned;
  const detail = pinned && told(app.model, pinned);
  app.dom.page.dispatchEvent(new CustomEvent("bilrp-chosen", { bubbles: true, composed: true, detail }));
}

function told({ data, findings }, { side, set: regions, partner, finding }) {
  const outside = (of, some) => some.map((i) => data[of].numbers?.[i] ?? i);
  if (finding != null) return { finding, a: outside("a", findings[finding].a), b: outside("b", findings[finding].b) };
  const [across] = partner == null ? [null] : outside(side === "a" ? "b" : "a", [partner]);
  return { side, regions: outside(side, regions), partner: across };
}

/** What the chosen regions, pair or finding contribute to the score; null where nothing is chosen. */
function chosenValue(app, { active }) {
  if (!active) return null;
  if (active.finding != null) return app.model.findings[active.finding].relevance;
  const values = partnersOf(app, active);
  return active.partner == null ? sum(values) : values[active.partner];
}

const INK = ["paper", "ink", "soft", "rule", "faint", "positive", "negative", "onsign"];

/** The present colours; kept until theme or palette change, for reading a style makes the browser lay out the page. */
export function colours(app) {
  const { theme, palette } = app.dom.page.dataset;
  const key = `${theme} ${palette} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (app.ink?.key !== key) {
    const style = getComputedStyle(app.dom.page);
    const found = INK.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
    app.ink = { key, safe: palette === "safe", ...Object.fromEntries(found) };
  }
  return app.ink;
}
